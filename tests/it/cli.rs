//! The command line as scripts and people meet it: exit codes, documents, logs, signals. The real binary throughout.

use crate::support::binary::{Ran, Served, dray};
use serde_json::json;
use std::time::{Duration, Instant};

/// Text that is fit for a log: no carriage return, no escape sequence.
fn assert_plain(text: &str) {
    assert!(!text.contains('\r') && !text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn wrong_lines_and_missing_settings_are_usage() {
    let ran = Ran::of(dray().args(["push", "x"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("--to"), "{ran:?}");
    let ran = Ran::of(dray().args(["push", "x", "--json"]));
    assert_eq!((ran.code, &ran.document()["error"]["code"]), (2, &json!("usage")));
    let ran = Ran::of(dray().args(["ls", "w/t"]));
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("error: no service is named\nhint: "), "{ran:?}");
    assert_plain(&ran.stderr);
    let ran = Ran::of(dray().arg("--version"));
    assert_eq!((ran.code, ran.stdout), (0, format!("dray {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn nobody_there_is_a_network_error() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let begun = Instant::now();
    let mut command = dray();
    command.env("DRAY_URL", format!("http://{nobody}")).env("DRAY_TOKEN", "t");
    let ran = Ran::of(command.args(["ls", "--json", "--patience", "1s"]));
    assert_eq!((ran.code, &ran.document()["error"]["code"]), (4, &json!("unreachable")));
    assert!(ran.document()["error"]["hint"].as_str().unwrap().contains("DRAY_URL"));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_refusal_names_its_request() {
    let served = Served::start();
    let ran = Ran::of(served.command().env("DRAY_TOKEN", "dray_wrong").args(["ls", "--json"]));
    assert_eq!(ran.code, 1);
    let error = &ran.document()["error"];
    for field in ["code", "title", "detail", "request_id"] {
        assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {ran:?}");
    }
    let ran = served.run(["push", "/nonexistent", "--to", "w/t"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("error: ") && ran.stderr.contains("hint: "), "{ran:?}");
    let ran = served.run(["show", "w/none"]);
    assert_eq!(ran.code, 1, "{ran:?}");
}

#[test]
fn settings_are_printed_and_faults_told() {
    let ran = Ran::of(dray().args(["serve", "--check"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("listen = \"127.0.0.1:"), "{ran:?}");
    let ran = Ran::of(dray().args(["serve", "--check", "--listen", "nowhere"]));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("\n--listen: "), "{ran:?}");
    assert!(Ran::of(dray().args(["completions", "bash"])).stdout.contains("_dray"));
}
