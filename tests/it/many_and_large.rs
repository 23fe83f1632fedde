//! Many files and large ones, by the real program: memory follows neither, and the numbers told on the way and at the end are exact.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::binary::{Ran, Served, wait};
use crate::support::dice::Dice;

const LIMIT: Duration = Duration::from_secs(180);

/// The largest resident memory of a command, as last seen before it ended.
fn peak(mut command: Command) -> (Ran, u64) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let watch = std::thread::spawn(move || {
        let mut peak = 0;
        while let Ok(text) = fs_err::read_to_string(&status) {
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            // a zombie has none any more
            let Some(line) = line else { break };
            let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
            peak = peak.max(kib << 10);
            std::thread::sleep(Duration::from_millis(2));
        }
        peak
    });
    (wait(child, LIMIT), watch.join().unwrap())
}

/// D1 to D3: memory follows neither the number nor the size of files, and what is told along the way and at the end is exact.
#[test]
fn memory_and_numbers_of_many_and_of_large_files() {
    let served = Served::start();
    let place = served.dir.path();
    let mut peaks = Vec::new();
    for count in [1_500_u64, 15_000] {
        let tree = place.join(format!("many-{count}"));
        for number in 0..count {
            let dir = tree.join(format!("d{}", number / 500));
            if number % 500 == 0 {
                fs_err::create_dir_all(&dir).unwrap();
            }
            fs_err::write(dir.join(format!("{number}")), if number % 3 == 0 { "" } else { "seven b" }).unwrap();
        }
        let dataset = format!("d/many-{count}");
        let push = || {
            let mut command = served.command();
            command.args(["push", tree.to_str().unwrap(), "--to", &dataset, "--json"]);
            command
        };
        let (ran, first) = peak(push());
        let bytes = (count - count.div_ceil(3)) * 7;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!((&ran.document()["files"], &ran.document()["bytes"]), (&json!(count), &json!(bytes)));
        assert_progress(&ran, count, bytes);
        let (again, second) = peak(push());
        assert_eq!(again.document()["unchanged"], true, "{again:?}");
        let mut pull = served.command();
        pull.args(["pull", &dataset, place.join(format!("dest-{count}")).to_str().unwrap(), "--json"]);
        let (ran, third) = peak(pull);
        assert_eq!((ran.code, &ran.document()["files"]), (0, &json!(count)), "{ran:?}");
        assert_progress(&ran, count, bytes);
        peaks.push([first, second, third]);
    }
    eprintln!("peaks of push, push again, pull: {peaks:?}");
    for (few, many) in peaks[0].iter().zip(peaks[1]) {
        assert!(many < few + (24 << 20), "memory grows with the number of files: {peaks:?}");
    }

    // 1 GiB of hole and 96 MiB of noise in 160 MiB of memory.
    let tree = place.join("large");
    fs_err::create_dir(&tree).unwrap();
    fs_err::File::create(tree.join("sparse")).unwrap().set_len(1 << 30).unwrap();
    fs_err::write(tree.join("noise"), Dice::new("large files").bytes(96 << 20)).unwrap();
    let mut push = served.command();
    push.args(["push", tree.to_str().unwrap(), "--to", "d/large", "--memory", "160M", "--json"]);
    let (ran, pushing) = peak(push);
    assert_eq!((ran.code, &ran.document()["bytes"]), (0, &json!((1_u64 << 30) + (96 << 20))), "{ran:?}");
    let mut pull = served.command();
    pull.args(["pull", "d/large", place.join("large-dest").to_str().unwrap(), "--memory", "160M", "--json"]);
    let (ran, pulling) = peak(pull);
    assert_eq!(ran.code, 0, "{ran:?}");
    eprintln!("peaks of large files: push {pushing}, pull {pulling}");
    assert!(pushing < 160 << 20 && pulling < 160 << 20, "push {pushing}, pull {pulling} of {}", 160 << 20);
    // In words, in units: what is held is what there is.
    let mut push = served.command();
    let ran = Ran::of(push.args(["push", tree.to_str().unwrap(), "--to", "d/large"]));
    assert!(ran.stdout.contains("holds   1.09 GiB, 2 files, 0 directories, 0 symlinks"), "{ran:?}");
    assert!(ran.stderr.lines().all(|line| line.starts_with("push ") && line.contains(" of ")), "{ran:?}");
}

/// Progress begins at once, never goes back within a phase, and ends with what the report says.
fn assert_progress(ran: &Ran, files: u64, bytes: u64) {
    let events: Vec<Value> = ran.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().all(|event| event["event"] == "progress"), "{ran:?}");
    assert_eq!(events[0]["phase"], "prepare");
    let get = |event: &Value, field: &str| event[field].as_u64().unwrap();
    for pair in events.windows(2) {
        for field in ["files", "bytes", "network_bytes", "files_total"] {
            assert!(get(&pair[0], field) <= get(&pair[1], field), "{field}: {pair:?}");
        }
    }
    let last = events.last().unwrap();
    assert_eq!((get(last, "files"), get(last, "bytes"), get(last, "bytes_total")), (files, bytes, bytes), "{last}");
}
