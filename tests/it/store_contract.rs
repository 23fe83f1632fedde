//! One contract for every store: what the service relies on, on a local directory and on a real S3 server.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dray::config::StoreSettings;
use dray::config::store::Checksum;
use dray::store::{Error, Key, Kind, Length, Prefix, PutMode, Store};
use futures::{StreamExt, TryStreamExt};
use uuid::Uuid;

use crate::support::stores::{fresh, local_settings, open, s3_settings};
use crate::support::{self};

const MIB: usize = 1 << 20;

/// Bytes that differ everywhere, the same for the same seed.
pub fn bytes(seed: u64, len: usize) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out.into()
}

/// Writes an object the way a pack comes in: in pieces of odd sizes.
pub async fn write(store: &Store, key: &Key, content: &Bytes, length: Length) -> Result<dray::store::Stored, Error> {
    let mut writer = store.writer(key, length).await?;
    let mut at = 0;
    while at < content.len() {
        let end = content.len().min(at + 77_777 + at % 50_000);
        writer.write(content.slice(at..end)).await?;
        at = end;
    }
    writer.finish().await
}

pub async fn read(store: &Store, key: &Key, range: Option<Range<u64>>) -> Result<Bytes, Error> {
    let (_, stream) = store.get(key, range).await?;
    let pieces: Vec<Bytes> = stream.try_collect().await?;
    Ok(pieces.concat().into())
}

fn exact(content: &Bytes) -> Length {
    Length::Exact(content.len() as u64)
}

/// All of it, on one store that is empty.
async fn contract(store: &Store) {
    small_objects(store).await;
    large_objects(store).await;
    wrong_lengths(store).await;
    ranges(store).await;
    written_once(store).await;
    listing(store).await;
    let left = store.orphan_uploads(Duration::ZERO).await.unwrap();
    assert_eq!(left, vec![], "no upload stays open");
}

async fn small_objects(store: &Store) {
    let key = Key::reference(fresh(), fresh(), 0);
    assert!(matches!(store.head(&key).await, Err(Error::NotFound { .. })));
    assert!(matches!(store.get(&key, None).await, Err(Error::NotFound { .. })));
    store.delete(&key).await.expect("deleting what is not there is fine");
    let (one, two) = (bytes(1, 1_000), bytes(2, 900));
    assert_eq!(store.put_small(&key, one.clone(), PutMode::Create).await.unwrap().bytes, 1_000);
    let refused = store.put_small(&key, two.clone(), PutMode::Create).await;
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    let refused = store.put_small(&key, one.clone(), PutMode::Create).await;
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "the same bytes too: {refused:?}");
    assert_eq!(store.get_small(&key, 1_000).await.unwrap(), one);
    assert!(matches!(store.get_small(&key, 999).await, Err(Error::Corrupt { .. })));
    let before = store.head(&key).await.unwrap();
    store.put_small(&key, two.clone(), PutMode::Overwrite).await.unwrap();
    assert_eq!(read(store, &key, None).await.unwrap(), two);
    let after = store.head(&key).await.unwrap();
    assert_eq!((before.size, after.size), (1_000, 900));
    assert_ne!(before.e_tag, after.e_tag);
    store.delete(&key).await.unwrap();
    store.delete(&key).await.unwrap();
    assert!(matches!(store.head(&key).await, Err(Error::NotFound { .. })));
}

/// Around every boundary of batches and parts.
async fn large_objects(store: &Store) {
    for (n, len) in
        [1, MIB - 1, MIB, MIB + 1, 8 * MIB, 16 * MIB, 16 * MIB + 1, 24 * MIB, 33 * MIB + 12_345].into_iter().enumerate()
    {
        let content = bytes(n as u64, len);
        for length in [exact(&content), Length::Unknown] {
            let key = Key::pack(fresh(), fresh());
            let stored = write(store, &key, &content, length).await.unwrap();
            assert_eq!(stored.bytes, len as u64);
            assert_eq!(store.head(&key).await.unwrap().size, len as u64);
            assert!(read(store, &key, None).await.unwrap() == content, "{len} {length:?}");
            store.delete(&key).await.unwrap();
        }
    }
}

async fn wrong_lengths(store: &Store) {
    for len in [100_usize, 20 * MIB] {
        let (key, content) = (Key::pack(fresh(), fresh()), bytes(3, len));
        let short = write(store, &key, &content, Length::Exact(len as u64 + 1)).await;
        assert!(matches!(short, Err(Error::Length { .. })), "{short:?}");
        let long = write(store, &key, &content, Length::Exact(len as u64 - 1)).await;
        assert!(matches!(long, Err(Error::Length { .. })), "{long:?}");
        let mut given_up = store.writer(&key, Length::Unknown).await.unwrap();
        given_up.write(content.clone()).await.unwrap();
        given_up.abort().await.unwrap();
        let mut dropped = store.writer(&key, Length::Unknown).await.unwrap();
        dropped.write(content).await.unwrap();
        drop(dropped);
        assert!(matches!(store.head(&key).await, Err(Error::NotFound { .. })));
    }
    // the aborts of what was dropped run by themselves; `close` waits for them
    store.close().await;
}

async fn ranges(store: &Store) {
    let (key, content) = (Key::pack(fresh(), fresh()), bytes(4, 3 * MIB + 1));
    let size = content.len() as u64;
    write(store, &key, &content, exact(&content)).await.unwrap();
    for range in [0..1, 0..64, 4_095..4_097, 0..size, size - 1..size, 700_000..2_900_001, 1..(MIB as u64)] {
        let (meta, stream) = store.get(&key, Some(range.clone())).await.unwrap();
        assert_eq!(meta.size, size);
        let got: Vec<Bytes> = stream.try_collect().await.unwrap();
        assert!(got.concat() == content[range.start as usize..range.end as usize], "{range:?}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "it must be refused")]
    for range in [0..0, 5..5, 9..3, size..size + 1, size - 1..size + 1, size + 5..size + 9] {
        let refused = store.get(&key, Some(range.clone())).await.map(|(meta, _)| meta);
        assert!(matches!(refused, Err(Error::Range { size: told, .. }) if told == size), "{range:?}: {refused:?}");
    }
    // a reader that goes away in the middle hurts nobody
    let (_, mut stream) = store.get(&key, None).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    drop(stream);
    let readers = (0..8).map(|_| read(store, &key, None));
    assert!(futures::future::join_all(readers).await.into_iter().all(|got| got.unwrap() == content));
}

async fn written_once(store: &Store) {
    for len in [50_000, 20 * MIB] {
        let key = Key::pack(fresh(), fresh());
        let contents: Vec<Bytes> = (0..if len > MIB { 1 } else { 16 }).map(|seed| bytes(100 + seed, len)).collect();
        let writes = contents.iter().map(|content| write(store, &key, content, exact(content)));
        let results = futures::future::join_all(writes).await;
        let winners: Vec<usize> = (0..results.len()).filter(|n| results[*n].is_ok()).collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        assert!(results.iter().all(|result| matches!(result, Ok(_) | Err(Error::AlreadyExists { .. }))), "{results:?}");
        assert!(read(store, &key, None).await.unwrap() == contents[winners[0]]);
        let other = bytes(200, len);
        let again = write(store, &key, &other, exact(&other)).await;
        assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{len}: {again:?}");
        assert!(read(store, &key, None).await.unwrap() == contents[winners[0]], "what was first stays");
    }
    // what was refused is aborted by a task of its own
    store.close().await;
}

async fn listing(store: &Store) {
    let (team, other) = (fresh(), fresh());
    let key = |n: u128| Key::tree(team, Uuid::from_u128(n));
    let puts = futures::stream::iter(0..1_100).map(|n| async move {
        let content = Bytes::from(vec![1; 1 + n as usize % 7]);
        store.put_small(&key(n), content, PutMode::Create).await.unwrap();
    });
    puts.buffer_unordered(16).collect::<Vec<()>>().await;
    store.put_small(&Key::tree(other, fresh()), Bytes::from_static(b"x"), PutMode::Create).await.unwrap();
    let mut listed: Vec<_> = store.list(Prefix::team(Kind::Tree, team)).try_collect().await.unwrap();
    listed.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert_eq!(listed.len(), 1_100, "more than one page");
    for (n, (found, meta)) in (0..).zip(&listed) {
        assert_eq!((found, meta.size), (&key(n), 1 + n as u64 % 7));
    }
    assert_eq!(store.list(Prefix::all(Kind::Tree)).try_collect::<Vec<_>>().await.unwrap().len(), 1_101);
    assert_eq!(store.list(Prefix::all(Kind::Record)).try_collect::<Vec<_>>().await.unwrap(), vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_directory_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&local_settings(&dir)).await;
    contract(&store).await;
    assert!(store.is_local());
    assert_eq!(store.sign_get(&Key::pack(fresh(), fresh()), Duration::from_secs(9), None).await.unwrap(), None);
    // what was acknowledged is there for the next process, which reaches it by any spelling of the path
    let key = Key::pack(fresh(), fresh());
    write(&store, &key, &bytes(1, 100), Length::Unknown).await.unwrap();
    let again = StoreSettings { url: format!("file://{}", store.name()), ..StoreSettings::default() };
    assert_eq!(read(&open(&again).await, &key, None).await.unwrap(), bytes(1, 100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_said_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        let path = dir.path().to_str().unwrap();
        let done = std::process::Command::new(arguments[0]).args(&arguments[1..]).arg(path).output();
        done.is_ok_and(|done| done.status.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=8m", "dray-test"]) {
        eprintln!("SKIPPED: a small file system cannot be mounted here (root is needed)");
        return;
    }
    let store = open(&local_settings(&dir)).await;
    let (fits, large) = (bytes(1, 5 * MIB), bytes(2, 9 * MIB));
    let key = Key::pack(fresh(), fresh());
    write(&store, &key, &fits, exact(&fits)).await.unwrap();
    let full = write(&store, &Key::pack(fresh(), fresh()), &large, exact(&large)).await;
    let small = store.put_small(&Key::tree(fresh(), fresh()), large, PutMode::Create).await;
    let listed: Vec<_> = store.list(Prefix::all(Kind::Pack)).try_collect().await.unwrap();
    let room: Vec<_> = std::fs::read_dir(dir.path().join("store/tmp")).unwrap().collect();
    let whole = read(&store, &key, None).await.unwrap() == fits;
    assert!(mount(&["umount", "-l"]));
    assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
    assert!(matches!(small, Err(Error::NoSpace)), "{small:?}");
    assert_eq!((listed.len(), room.len(), whole), (1, 0, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_s3_server_keeps_the_contract() {
    let Some(s3) = support::s3() else { return };
    contract(&open(&s3_settings(&s3, &s3.endpoint)).await).await;
}

/// Without conditions a key is looked at before: written once as long as nobody races for it.
#[tokio::test]
async fn a_real_s3_server_without_conditions_replaces_nothing() {
    let Some(s3) = support::s3() else { return };
    let settings = StoreSettings { conditional_put: false, ..s3_settings(&s3, &s3.endpoint) };
    let store = open(&settings).await;
    for len in [50_000, 20 * MIB] {
        let (key, first, second) = (Key::pack(fresh(), fresh()), bytes(1, len), bytes(2, len));
        write(&store, &key, &first, exact(&first)).await.unwrap();
        let refused = write(&store, &key, &second, exact(&second)).await;
        assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{len}: {refused:?}");
        assert!(read(&store, &key, None).await.unwrap() == first);
    }
    store.close().await;
    assert_eq!(store.orphan_uploads(Duration::ZERO).await.unwrap(), vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_s3_server_keeps_the_contract_with_other_checksums() {
    let Some(s3) = support::s3() else { return };
    for checksum in [Checksum::None, Checksum::Sha256] {
        let settings = StoreSettings { checksum, ..s3_settings(&s3, &s3.endpoint) };
        let store = open(&settings).await;
        small_objects(&store).await;
        let content = bytes(5, 17 * MIB);
        for content in [content.slice(..MIB), content] {
            let key = Key::pack(fresh(), fresh());
            write(&store, &key, &content, exact(&content)).await.unwrap();
            assert!(read(&store, &key, None).await.unwrap() == content);
        }
    }
}

#[tokio::test]
async fn what_a_signed_url_promises_is_true() {
    let Some(s3) = support::s3() else { return };
    let public = s3.endpoint.replace("127.0.0.1", "localhost");
    let settings = StoreSettings { public_endpoint: Some(public.clone()), ..s3_settings(&s3, &s3.endpoint) };
    let store = open(&settings).await;
    let (key, content) = (Key::export(fresh(), fresh()), bytes(6, 100_000));
    write(&store, &key, &content, exact(&content)).await.unwrap();
    let wish = Duration::from_secs(3600);
    let disposition = "attachment; filename=\"a b.bin\"; filename*=UTF-8''a%20b%C3%BC.bin";
    let signed = store.sign_get(&key, wish, Some(disposition)).await.unwrap().unwrap();
    assert!(signed.url.as_str().starts_with(&public), "signed for the name users know: {}", signed.url);
    assert!(!format!("{signed:?}").contains("Signature"));
    let client = reqwest::Client::builder().timeout(Duration::from_secs(20)).no_proxy().build().unwrap();
    let whole = client.get(signed.url.clone()).send().await.unwrap();
    assert_eq!(whole.headers()["content-disposition"], disposition);
    assert!(whole.bytes().await.unwrap() == content);
    let part = client.get(signed.url.clone()).header("range", "bytes=500-999").send().await.unwrap();
    assert_eq!(part.status(), 206);
    assert!(part.bytes().await.unwrap() == content[500..1000]);
    let tampered = signed.url.as_str().replace(&key.id().unwrap().to_string(), &fresh().to_string());
    assert_eq!(client.get(tampered).send().await.unwrap().status(), 403);
    let now = jiff::Timestamp::from_second(signed.expires_at.as_second()).unwrap();
    let week = store.sign_get(&key, Duration::from_secs(30 * 24 * 3600), None).await.unwrap().unwrap();
    let days = week.expires_at.duration_since(now).as_hours() / 24;
    assert!((6..=7).contains(&days), "cut to 7 days, and said so: {days}");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_in_words() {
    let base = StoreSettings {
        url: "s3://bucket".into(),
        region: Some("r".into()),
        endpoint: Some("https://e".into()),
        ..StoreSettings::default()
    };
    let keys =
        StoreSettings { access_key_id: Some("a".into()), secret_access_key: Some("b".to_owned().into()), ..base };
    for (settings, field) in [
        (StoreSettings { url: String::new(), ..keys.clone() }, "url"),
        (StoreSettings { url: "gs://bucket".into(), ..keys.clone() }, "url"),
        (StoreSettings { url: "s3://bucket/a//b".into(), ..keys.clone() }, "url"),
        (StoreSettings { secret_access_key: None, ..keys.clone() }, "access_key_id"),
        (StoreSettings { endpoint: Some("http://s3.example.net".into()), ..keys.clone() }, "endpoint"),
        (StoreSettings { public_endpoint: Some("nonsense".into()), ..keys.clone() }, "public_endpoint"),
        (StoreSettings { retry_timeout_ms: 300_000, ..keys.clone() }, "retry_timeout_ms"),
        (StoreSettings { max_parts: 0, ..keys.clone() }, "max_parts"),
    ] {
        let refused = Store::open(&settings, Arc::new(dray::clock::SystemClock)).await.map(drop);
        assert!(matches!(&refused, Err(Error::Settings { field: told, .. }) if *told == field), "{field}: {refused:?}");
    }
}
