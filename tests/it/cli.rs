//! The command line as scripts and people meet it: exit codes, documents, logs, signals. The real binary throughout.

use crate::support::binary::{Ran, Served, dray, sample, signal, wait};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
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
    let ran = Ran::of(dray().args(["--log", "a=b=c", "receipt", "verify", "/nonexistent"]));
    assert!(ran.code == 1 && ran.stderr.contains("--log `a=b=c` is no filter"), "{ran:?}");
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
fn what_is_pushed_is_listed_compared_and_pulled() {
    let served = Served::start();
    let tree = served.dir.path().join("tree");
    sample(&tree);
    let tree_text = tree.to_str().unwrap();

    let pushed = served.json(["push", tree_text, "--to", "w/t"]);
    for (field, value) in
        [("ref", json!("w/t@v1")), ("version", json!("v1")), ("files", json!(4)), ("symlinks", json!(1))]
    {
        assert_eq!(pushed[field], value, "{pushed}");
    }
    for field in [
        "digest",
        "dirs",
        "bytes",
        "chunks",
        "sent_bytes",
        "stored_bytes",
        "reused_bytes",
        "skipped",
        "failed",
        "incomplete",
        "seconds",
    ] {
        assert!(!pushed[field].is_null(), "{field}: {pushed}");
    }
    assert_eq!(served.json(["push", tree_text, "--to", "w/t"])["ref"], "w/t@v1", "unchanged makes no version");

    let listed = served.json(["ls", "w/t"]);
    let listed = listed.as_array().unwrap();
    let find =
        |path: &str| listed.iter().find(|entry| entry["path"] == path).unwrap_or_else(|| panic!("{path}: {listed:?}"));
    let x = find("a/x.txt");
    assert_eq!(
        (&x["kind"], &x["size"], &x["digest"]),
        (&json!("file"), &json!(6), &json!(blake3::hash(b"hello\n").to_hex().as_str()))
    );
    assert_eq!(x["mode"].as_str().map(str::len), Some(4));
    assert_eq!(find("empty")["kind"], "dir");
    assert_eq!(find("link")["target"], "a/x.txt");
    find("\u{1b}[31mred\u{7}");

    let human = served.run(["ls", "w/t"]);
    assert_plain(&human.stdout);
    assert!(human.stdout.contains("\\x1b[31mred\\x07"), "{}", human.stdout);
    assert_eq!(served.run(["cat", "w/t:a/x.txt"]).stdout, "hello\n");
    assert_eq!(served.run(["cat", "w/t:a/none"]).code, 1);
    let big = served.command().args(["cat", "w/t@v1:a/deep/er/y.bin"]).output().unwrap().stdout;
    assert!(big == fs_err::read(tree.join("a/deep/er/y.bin")).unwrap());

    fs_err::write(tree.join("a/x.txt"), "changed").unwrap();
    fs_err::remove_file(tree.join("link")).unwrap();
    assert_eq!(served.json(["push", tree_text, "--to", "w/t"])["ref"], "w/t@v2");
    let diff = served.json(["diff", "w/t@v1", "w/t@v2"]);
    let changes: Vec<(&str, &str)> = diff
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["change"].as_str().unwrap(), row["path"].as_str().unwrap()))
        .collect();
    assert_eq!(changes, [("modified", "a/x.txt"), ("removed", "link")]);
    assert_eq!(served.json(["diff", "w/t"]), diff, "alone it is compared with the one before");
    let log = served.json(["log", "w/t"]);
    assert_eq!(
        log.as_array().unwrap().iter().map(|version| version["ref"].as_str().unwrap()).collect::<Vec<_>>(),
        ["w/t@v2", "w/t@v1"]
    );
    assert_eq!(served.json(["show", "w/t"])["version"], "v2");

    let dest = served.dir.path().join("dest");
    let dest_text = dest.to_str().unwrap();
    let pulled = served.json(["pull", "w/t@v1", dest_text]);
    for field in ["ref", "digest", "files", "bytes", "fetched_bytes", "reused_bytes", "failed", "seconds"] {
        assert!(!pulled[field].is_null(), "{field}: {pulled}");
    }
    assert_eq!(pulled["digest"], pushed["digest"]);
    assert_eq!(fs_err::read_to_string(dest.join("a/x.txt")).unwrap(), "hello\n");
    assert_eq!(served.run(["verify", "w/t@v1", dest_text]).code, 0);
    assert_eq!(served.run(["verify", "w/t@v2", dest_text]).code, 1);
    assert_eq!(served.run(["verify", "w/t"]).code, 0, "the stored version");

    assert_eq!(served.run(["rm", "w/t@v1"]).code, 0);
    assert_eq!(served.run(["show", "w/t@v1"]).code, 1);
    assert_eq!(served.run(["rm", "w/t"]).code, 0);
    assert_eq!(served.json(["ls"]), json!([]));
}

#[test]
fn failed_items_are_partial_and_named_last() {
    if rustix::process::geteuid().is_root() {
        // root reads everything: a file that changes while it is read cannot be made to order, so a directory in its place is none.
        eprintln!(
            "root can read every file: the unreadable one is made by a mode only root ignores; checked with skipped items instead"
        );
    }
    let served = Served::start();
    let tree = served.dir.path().join("tree");
    sample(&tree);
    let fifo = tree.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    let secret = tree.join("secret");
    fs_err::write(&secret, "x").unwrap();
    fs_err::set_permissions(&secret, std::fs::Permissions::from_mode(0o000)).unwrap();
    let ran = served.run(["push", tree.to_str().unwrap(), "--to", "w/t"]);
    assert!(ran.stdout.contains("skipped: pipe: "), "{ran:?}");
    if rustix::process::geteuid().is_root() {
        assert_eq!(ran.code, 0, "skipped special files are no failure: {ran:?}");
    } else {
        assert_eq!(ran.code, 3, "{ran:?}");
        let last: Vec<&str> = ran.stdout.lines().rev().take(10).collect();
        assert!(last.iter().any(|line| line.contains("failed: secret: ")), "{ran:?}");
    }
}

#[test]
fn progress_is_plain_in_a_log_and_json_for_programs() {
    let served = Served::start();
    let tree = served.dir.path().join("tree");
    sample(&tree);
    let ran = served.run(["push", tree.to_str().unwrap(), "--to", "w/plain"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.starts_with("push "), "a first line at once: {ran:?}");
    assert_plain(&ran.stderr);
    assert_plain(&ran.stdout);
    let ran = served.run(["push", tree.to_str().unwrap(), "--to", "w/json", "--json"]);
    let events: Vec<Value> = ran.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = events.first().unwrap_or_else(|| panic!("no progress: {ran:?}"));
    for field in ["event", "verb", "phase", "files", "bytes", "bytes_total", "network_bytes", "stalled_for", "seconds"]
    {
        assert!(!first[field].is_null(), "{field}: {first}");
    }
    ran.document();
}

#[test]
fn the_first_interrupt_stops_a_push_and_the_next_run_goes_on() {
    let served = Served::start();
    let file = served.dir.path().join("film.bin");
    let mut noise = vec![0; 24 << 20];
    blake3::Hasher::new().update(b"film").finalize_xof().fill(&mut noise);
    fs_err::write(&file, &noise).unwrap();
    let mut command = served.command();
    command.args(["push", file.to_str().unwrap(), "--to", "w/film", "--limit-rate", "2M"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let sending = lines.by_ref().map(Result::unwrap).find(|line| line.contains("sending"));
    assert!(sending.is_some(), "it never sent");
    let begun = Instant::now();
    signal(&child, Signal::INT);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let ran = wait(child, Duration::from_secs(10));
    assert_eq!(ran.code, 130, "{ran:?} {rest:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(rest.iter().any(|line| line.contains("stopping")), "{rest:?}");
    let pushed = served.json(["push", file.to_str().unwrap(), "--to", "w/film"]);
    assert_eq!(pushed["bytes"], 24 << 20);
    assert_eq!(served.run(["verify", "w/film"]).code, 0);
}

#[test]
fn login_is_kept_for_its_user_and_its_service_only() {
    let served = Served::start();
    let home = served.home();
    let login = |url: &str| {
        let mut command = dray();
        command.env("HOME", &home).env("DRAY_TOKEN", &served.token);
        Ran::of(command.args(["login", url, "--json"]))
    };
    let ran = login(&served.url);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.stdout.contains(&served.token) && !ran.stderr.contains(&served.token), "a token is never shown");
    let file = home.join(".config/dray/login.toml");
    assert_eq!(fs_err::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let plain = |arguments: &[&str]| Ran::of(dray().env("HOME", &home).args(arguments));
    assert_eq!(plain(&["ls"]).code, 0);
    let ran = plain(&["ls", "--url", "http://127.0.0.1:9"]);
    assert_eq!(ran.code, 2, "the token goes nowhere else: {ran:?}");
    fs_err::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let ran = plain(&["ls"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("chmod 600") && !ran.stderr.contains(&served.token), "{ran:?}");
}

#[test]
fn teams_tokens_and_nodes() {
    let served = Served::start();
    let node = served.json(["node", "add", "gpu-7"]);
    assert!(node["token"].as_str().is_some() && node["name"] == "gpu-7", "{node}");
    assert_eq!(served.json(["node", "list"])[0]["name"], "gpu-7");
    assert_eq!(served.json(["team", "create", "other"])["name"], "other");
    let made = served.json(["token", "create", "--role", "team-read", "--label", "ci"]);
    assert_eq!(made["role"], "team-read");
    let reader = |arguments: &[&str]| {
        Ran::of(served.command().env("DRAY_TOKEN", made["token"].as_str().unwrap()).args(arguments))
    };
    assert_eq!(reader(&["ls"]).code, 0);
    assert_eq!(reader(&["node", "add", "x"]).code, 1, "a reader adds no node");
    assert_eq!(served.run(["token", "revoke", made["id"].as_str().unwrap()]).code, 0);
    assert_eq!(reader(&["ls"]).code, 1);
    assert_eq!(served.run(["node", "rm", "gpu-7"]).code, 0);
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

/// Runs `dray login` on a terminal of its own, types once it is asked, and tells what was shown, how it ended and whether typing is shown again.
const AT_A_TERMINAL: &str = r#"
import fcntl, os, select, sys, termios
typed = os.environ.pop("TYPED").encode().decode("unicode_escape").encode()
terminal, side = os.openpty()
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(side, termios.TIOCSCTTY, 0)
    for number in (0, 1, 2):
        os.dup2(side, number)
    os.execv(sys.argv[1], sys.argv[1:])
echo = lambda: bool(termios.tcgetattr(side)[3] & termios.ECHO)
shown, ended = b"", 0
while b"not shown" not in shown:
    shown += os.read(terminal, 4096)
while_asked = echo()
os.write(terminal, typed)
while not ended:
    if select.select([terminal], [], [], 0.02)[0]:
        shown += os.read(terminal, 4096)
    ended, status = os.waitpid(pid, os.WNOHANG)
while select.select([terminal], [], [], 0)[0]:
    shown += os.read(terminal, 4096)
print(os.waitstatus_to_exitcode(status), while_asked, echo())
print(shown.decode())
"#;

#[test]
fn a_token_that_is_typed_is_not_shown_and_the_terminal_is_as_before() {
    let served = Served::start();
    let login = |typed: &str| {
        let mut python = std::process::Command::new("python3");
        python.args(["-c", AT_A_TERMINAL, env!("CARGO_BIN_EXE_dray"), "login", &served.url]);
        python.env("XDG_CONFIG_HOME", served.home()).env("TYPED", typed).env_remove("DRAY_TOKEN");
        let ran = Ran::of(&mut python);
        assert_eq!(ran.code, 0, "{ran:?}");
        let (first, rest) = ran.stdout.split_once('\n').unwrap();
        (first.to_owned(), rest.to_owned())
    };
    let (ended, shown) = login(&format!("{}\\n", served.token));
    assert_eq!(ended, "0 False True", "{shown}");
    assert!(!shown.contains(&served.token) && shown.contains("stored in"), "{shown}");
    let (ended, shown) = login("half a tok\\x03");
    assert_eq!(ended, "130 False True", "{shown}");
    assert!(!shown.contains("half"), "{shown}");
}
