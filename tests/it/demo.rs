//! `dray demo` as a stranger runs it: one command, exit 0, everything equal, nothing left running.

use crate::support::binary::{Ran, dray};
use serde_json::json;
use std::path::Path;

/// Processes of this test's demonstration, found by its directory in their command lines.
fn left_running(dir: &Path) -> Vec<String> {
    let needle = dir.to_str().unwrap();
    let processes =
        fs_err::read_dir("/proc").unwrap().filter_map(|entry| fs_err::read(entry.ok()?.path().join("cmdline")).ok());
    processes
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(needle))
        .collect()
}

fn demo(dir: &Path, arguments: &[&str]) -> Ran {
    Ran::of(dray().env("HOME", dir.parent().unwrap()).arg("demo").args(arguments).arg("--dir").arg(dir))
}

#[test]
fn the_whole_journey_on_generated_data() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().canonicalize().unwrap().join("journey");
    let ran = demo(&dir, &["--size", "12M", "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let report = ran.document();
    assert_eq!(report["compared"]["equal"], json!(true));
    assert_eq!(report["compared"]["output_files"], json!(2));
    let pushed = &report["push"];
    assert!(pushed["reused_bytes"].as_u64().unwrap() > 2 << 20, "the copy and the re-cut are found: {pushed}");
    assert_eq!(report["compared"]["input_bytes"], pushed["bytes"]);
    assert_eq!(report["staging"]["state"], "ready");
    for step in [
        "service",
        "agent",
        "push",
        "job",
        "stage",
        "receipt",
        "compare inputs",
        "run",
        "return",
        "link",
        "compare output",
    ] {
        assert!(report["steps"][step].is_number(), "{step}: {report}");
    }
    for line in ran.stderr.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
    for place in
        ["service/admin.token", "node", "logs/serve.log", "logs/agent.log", "receipt.json", "came-home/b3sums.txt"]
    {
        assert!(dir.join(place).exists(), "{place}");
    }
    assert_eq!(left_running(&dir), Vec::<String>::new());
}

#[test]
fn the_whole_journey_on_a_users_directory() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path().canonicalize().unwrap();
    let tree = place.join("tree");
    crate::support::binary::sample(&tree);
    let ran = demo(&place.join("journey"), &[tree.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("Every byte compared is equal"), "{ran:?}");
    assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{ran:?}");
    assert!(ran.stderr.lines().any(|line| line.contains("compare inputs")), "{ran:?}");
    let ran = demo(&place.join("again"), &["/nonexistent"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(!place.join("again").exists(), "nothing is made for nothing");
}
