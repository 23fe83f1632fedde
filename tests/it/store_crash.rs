//! A process killed at any moment: what it acknowledged is there and whole, and nothing else is visible.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use dray::store::{Key, Kind, Length, Prefix};
use futures::TryStreamExt;

use crate::store_contract::{bytes, read, write};
use crate::support::stores::{fresh, local_settings, open};
use crate::support::{self, child, role};

const KILLS: u64 = 25;
const SELF: &str = "store_crash::what_was_acknowledged_survives_a_kill_and_nothing_partial_is_seen";

/// The child: writes packs for ever, and says each key when it is acknowledged.
async fn write_for_ever(url: String) {
    let settings = dray::config::StoreSettings { url, ..dray::config::StoreSettings::default() };
    let store = open(&settings).await;
    for seed in 0_u64.. {
        let content = bytes(seed, 1_000 + usize::try_from(seed).unwrap() * 333_333 % 4_000_000);
        let key = Key::pack(fresh(), fresh());
        write(&store, &key, &content, Length::Exact(content.len() as u64)).await.unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "\nACK {seed} {key}").unwrap();
        out.flush().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_a_kill_and_nothing_partial_is_seen() {
    if role().is_some() {
        return write_for_ever(support::env("DRAY_TEST_STORE").unwrap()).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let settings = local_settings(&dir);
    let mut acknowledged: BTreeMap<Key, u64> = BTreeMap::new();
    for kill in 0..KILLS {
        let mut command = child(SELF, "writer", &[("DRAY_TEST_STORE", &settings.url)]);
        let mut writer = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        // so many acknowledgements, and then a moment that differs each time
        let mut left = kill % 4;
        let killer = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while let Some(Ok(line)) = lines.next() {
                let Some((seed, key)) = line.strip_prefix("ACK ").and_then(|ack| ack.split_once(' ')) else { continue };
                seen.push((key.parse::<Key>().unwrap(), seed.parse::<u64>().unwrap()));
                if left == 0 {
                    std::thread::sleep(Duration::from_micros(kill * 1_700));
                    writer.kill().unwrap();
                }
                left = left.wrapping_sub(1);
            }
            writer.wait().unwrap();
            seen
        });
        acknowledged.extend(killer.join().unwrap());
    }
    assert!(acknowledged.len() as u64 >= KILLS, "{} acknowledged", acknowledged.len());
    let store = open(&settings).await;
    for (key, seed) in &acknowledged {
        let content = bytes(*seed, 1_000 + usize::try_from(*seed).unwrap() * 333_333 % 4_000_000);
        assert!(read(&store, key, None).await.unwrap() == content, "{key}");
    }
    // what was finished but not yet said is whole too: each length is one that some seed makes, and the bytes are its own
    let listed: Vec<_> = store.list(Prefix::all(Kind::Pack)).try_collect().await.unwrap();
    assert!(listed.len() >= acknowledged.len());
    for (key, meta) in listed {
        let whole = read(&store, &key, None).await.unwrap();
        let seed = (0..1_000_u64).find(|seed| {
            1_000 + usize::try_from(*seed).unwrap() * 333_333 % 4_000_000 == whole.len()
                && bytes(*seed, whole.len()) == whole
        });
        assert!(seed.is_some(), "{key} of {} bytes is not whole", meta.size);
    }
}
