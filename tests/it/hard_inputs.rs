//! What goes wrong at a user's desk, met by the real program: files nobody may read, a push killed, packs lost in the store, settings
//! that change, two things for one place.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dray::store::{Kind, Prefix};
use futures::TryStreamExt;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::binary::{Ran, Served, signal, wait};
use crate::support::client::{assert_same, noise};
use crate::support::dice::Dice;
use crate::support::fault_proxy::{Fault, FaultProxy, Rule, Seen};
use crate::support::s3;
use crate::support::stores::{open, s3_settings};

const LIMIT: Duration = Duration::from_secs(180);
const NOBODY: u32 = 65_534;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_pack(seen: &Seen) -> bool {
    seen.method == "PUT" && seen.target.contains("/packs/")
}

fn sent(log: &[Seen]) -> u64 {
    log.iter().filter(|seen| is_pack(seen)).map(|seen| seen.body_bytes).sum()
}

fn mode(path: &Path, bits: u32) {
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(bits)).unwrap();
}

/// The names in a list of items.
fn paths(items: &Value) -> Vec<&str> {
    items.as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap()).collect()
}

/// The program as a user who is not root: as nobody where this test is root, from a place that nobody may reach.
fn as_nobody(served: &Served, place: &Path, arguments: &[&str]) -> Command {
    if !rustix::process::geteuid().is_root() {
        let mut command = served.command();
        command.args(arguments);
        return command;
    }
    let (program, home) = (place.join("dray"), place.join("nobodys-home"));
    if !program.exists() {
        fs_err::copy(env!("CARGO_BIN_EXE_dray"), &program).unwrap();
        fs_err::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home).stdin(Stdio::null());
    command.env("DRAY_URL", &served.url).env("DRAY_TOKEN", &served.token);
    command.args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/");
    command
}

/// C13: what cannot be read is listed, the rest is pushed, the version says that it is incomplete, and the exit code is that of a part.
#[test]
fn unreadable_files_are_listed_and_the_rest_is_pushed() {
    let served = Served::start();
    let place = tempfile::tempdir().unwrap();
    mode(place.path(), 0o755);
    let tree = place.path().join("tree");
    fs_err::create_dir_all(tree.join("closed")).unwrap();
    fs_err::create_dir_all(tree.join("open")).unwrap();
    fs_err::write(tree.join("closed/inside"), "hidden").unwrap();
    fs_err::write(tree.join("open/good"), "good").unwrap();
    fs_err::write(tree.join("secret"), "secret").unwrap();
    fs_err::write(tree.join("z-last"), "last").unwrap();
    mode(&tree.join("secret"), 0o000);
    mode(&tree.join("closed"), 0o111);
    let push = |more: &[&str]| {
        let arguments = [&["push", text(&tree), "--to", "c/13"][..], more].concat();
        Ran::of(&mut as_nobody(&served, place.path(), &arguments))
    };

    let refused = push(&["--all-or-nothing", "--json"]);
    assert_eq!((refused.code, &refused.document()["error"]["code"]), (3, &json!("some_failed")), "{refused:?}");
    assert_eq!(served.run(["show", "c/13"]).code, 1, "nothing was committed");

    let ran = push(&["--json"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    let report = ran.document();
    assert_eq!(paths(&report["failed"]), ["closed", "secret"], "{report}");
    for item in report["failed"].as_array().unwrap() {
        assert_eq!(item["reason"], "permission_denied", "{report}");
    }
    assert_eq!((&report["incomplete"], &report["files"], &report["ref"]), (&json!(true), &json!(2), &json!("c/13@v1")));
    let ran = push(&[]);
    assert_eq!(ran.code, 3, "{ran:?}");
    let last: Vec<&str> = ran.stdout.lines().rev().take(3).collect();
    assert!(last[0].contains("incomplete"), "{ran:?}");
    assert_eq!(last[1..], ["failed: secret: permission_denied", "failed: closed: permission_denied"], "named last");

    // The rest is there, and who asks for the newest complete version does not get this one unasked.
    assert_eq!(served.json(["show", "c/13@v1"])["incomplete"], true);
    let ran = served.run(["pull", "c/13", text(&place.path().join("unasked")), "--json"]);
    assert_eq!((ran.code, &ran.document()["error"]["code"]), (1, &json!("only_incomplete")), "{ran:?}");
    let dest = place.path().join("dest");
    served.json(["pull", "c/13@v1", text(&dest)]);
    assert_eq!(fs_err::read_to_string(dest.join("open/good")).unwrap(), "good");
    assert_eq!(fs_err::read_to_string(dest.join("z-last")).unwrap(), "last");
    assert!(!dest.join("secret").exists() && !dest.join("closed/inside").exists());

    // Readable again: the same command makes it whole.
    mode(&tree.join("secret"), 0o644);
    mode(&tree.join("closed"), 0o755);
    let ran = push(&["--json"]);
    assert_eq!((ran.code, &ran.document()["incomplete"]), (0, &json!(false)), "{ran:?}");
    let whole = place.path().join("whole");
    served.json(["pull", "c/13", text(&whole)]);
    assert_same(&tree, &whole);
}

/// A1: killed (`SIGKILL`) in the middle, the same command sends what is missing and hardly more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_push_is_not_begun_again_from_the_start() {
    let mut dice = Dice::new("a killed push");
    let served = Served::start();
    let proxy = FaultProxy::start(&served.url).await;
    let tree = served.dir.path().join("tree");
    fs_err::create_dir(&tree).unwrap();
    let size = 200_u64 << 20;
    for number in 0..10 {
        fs_err::write(tree.join(format!("{number}.mp4")), noise(number, 20 << 20)).unwrap();
    }
    let push = || {
        let mut command = served.command();
        command.args(["push", text(&tree), "--to", "a/1", "--json"]).env("DRAY_URL", proxy.url());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut first = push();
    let acknowledged = |seen: &Seen| is_pack(seen) && seen.done && seen.status == Some(201);
    // The same bytes in every run, and less than 64 MiB acknowledged: one of 64 chunks is asked for, the answer covers as much around it, and chance
    // decides about what lies beyond.
    let kill_after = usize::try_from(11 + dice.below(3)).unwrap();
    tokio::time::timeout(LIMIT, proxy.wait(acknowledged, kill_after)).await.expect("packs");
    first.kill().unwrap();
    first.wait().unwrap();
    let before = proxy.log();
    let safe: u64 = before.iter().filter(|seen| acknowledged(seen)).map(|seen| seen.body_bytes).sum();
    proxy.forget();

    let ran = wait(push(), LIMIT);
    assert_eq!(ran.code, 0, "{ran:?}");
    let again = sent(&proxy.log());
    let all = sent(&before) + again;
    assert!(safe > size / 5, "{safe} bytes were acknowledged");
    assert!(all * 100 <= size * 105, "{} + {again} bytes sent for {size}, {safe} acknowledged", sent(&before));
    assert!(ran.document()["reused_bytes"].as_u64().unwrap() * 100 >= safe * 95, "{ran:?}");
    let dest = served.dir.path().join("dest");
    served.json(["pull", "a/1", text(&dest)]);
    assert_same(&tree, &dest);
}

/// The objects of packs in a service's own store, the largest first.
fn packs(served: &Served) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![served.dir.path().join("data/store/packs")];
    while let Some(dir) = waiting.pop() {
        for entry in fs_err::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { waiting.push(path) } else { found.push(path) }
        }
    }
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().len()));
    found
}

/// Packs lost behind the service's back are named by `verify`, and the next push of the same files sends just them again.
async fn lost_packs_are_healed(served: &Served, lose: impl AsyncFnOnce() -> u64) {
    let mut dice = Dice::new("lost packs");
    let tree = served.dir.path().join("tree");
    fs_err::create_dir(&tree).unwrap();
    for number in 0..6 {
        fs_err::write(tree.join(format!("{number}.mp4")), dice.bytes(5 << 20)).unwrap();
    }
    let pushed = served.json(["push", text(&tree), "--to", "g/2"]);
    // So old that the stat cache vouches for the files: even then what is lost must be read and sent.
    let written = fs_err::metadata(tree.join("5.mp4")).unwrap().modified().unwrap();
    while written.elapsed().unwrap() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(served.json(["push", text(&tree), "--to", "g/2"])["unchanged"], true);
    let lost_bytes = lose().await;

    let ran = served.run(["verify", "g/2", "--json"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let report = ran.document();
    let unreadable = paths(&report["unreadable"]);
    assert!((1..6).contains(&unreadable.len()), "{report}");
    let dest = served.dir.path().join("dest");
    let ran = served.run(["pull", "g/2", text(&dest), "--json"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.document()["error"]["hint"].as_str().unwrap().contains("push the files again"), "{ran:?}");
    for path in &unreadable {
        assert!(!dest.join(path).exists(), "half of `{path}`");
    }

    let proxy = FaultProxy::start(&served.url).await;
    let mut command = served.command();
    let ran = Ran::of(command.args(["push", text(&tree), "--to", "g/2", "--json"]).env("DRAY_URL", proxy.url()));
    assert_eq!(ran.code, 0, "{ran:?}");
    let again = sent(&proxy.log());
    assert!(again >= lost_bytes && again <= lost_bytes + (256 << 10), "{again} bytes sent for {lost_bytes} lost");
    assert_eq!((&ran.document()["digest"], &ran.document()["ref"]), (&pushed["digest"], &json!("g/2@v1")));
    assert_eq!(served.run(["verify", "g/2"]).code, 0, "healed");
    served.json(["pull", "g/2", text(&dest)]);
    assert_same(&tree, &dest);
}

/// G2 on the embedded store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_directory_has_lost_is_named_and_healed_by_a_push() {
    let served = Served::start();
    let lose = async || {
        let lost: Vec<PathBuf> = packs(&served).into_iter().take(2).collect();
        let bytes = lost.iter().map(|pack| pack.metadata().unwrap().len()).sum();
        lost.iter().for_each(|pack| fs_err::remove_file(pack).unwrap());
        bytes
    };
    lost_packs_are_healed(&served, lose).await;
}

/// All packs of one file are lost: one reading tells the service of all of them, and one push sends them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_lost_all_its_packs_is_healed_by_one_push() {
    let mut dice = Dice::new("all packs lost");
    let served = Served::start();
    let tree = served.dir.path().join("tree");
    fs_err::create_dir(&tree).unwrap();
    fs_err::write(tree.join("film.mp4"), dice.bytes(18 << 20)).unwrap();
    served.json(["push", text(&tree), "--to", "g/3"]);
    let lost = packs(&served);
    assert!(lost.len() > 2, "{lost:?}");
    let bytes: u64 = lost.iter().map(|pack| pack.metadata().unwrap().len()).sum();
    lost.iter().for_each(|pack| fs_err::remove_file(pack).unwrap());
    let ran = served.run(["verify", "g/3", "--json"]);
    assert_eq!((ran.code, paths(&ran.document()["unreadable"])), (1, vec!["film.mp4"]), "{ran:?}");
    let again = served.json(["push", text(&tree), "--to", "g/3"]);
    assert!(again["stored_bytes"].as_u64().unwrap() >= bytes, "{again} for {bytes} lost");
    assert_eq!(served.run(["verify", "g/3"]).code, 0, "healed");
}

/// G2 on a bucket, which readers ask themselves: the service hears of the loss from them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_bucket_has_lost_is_named_and_healed_by_a_push() {
    let Some(s3) = s3() else { return };
    let settings = s3_settings(&s3, &s3.endpoint);
    let served = Served::start_with(|command| {
        command.args(["--store", &settings.url]).envs([
            ("DRAY_STORE_ENDPOINT", s3.endpoint.as_str()),
            ("DRAY_STORE_REGION", "us-east-1"),
            ("DRAY_STORE_ACCESS_KEY_ID", s3.access_key.as_str()),
            ("DRAY_STORE_SECRET_ACCESS_KEY", s3.secret_key.as_str()),
        ]);
    });
    let lose = async || {
        let store = open(&settings).await;
        let mut listed: Vec<_> = store.list(Prefix::all(Kind::Pack)).try_collect().await.unwrap();
        listed.sort_by_key(|pack| std::cmp::Reverse(pack.1.size));
        listed.truncate(2);
        for (key, _) in &listed {
            store.delete(key).await.unwrap();
        }
        listed.iter().map(|(_, meta)| meta.size).sum()
    };
    lost_packs_are_healed(&served, lose).await;
}

/// B21 as the program meets it: a pack it has sent is lost before the commit, the service says so, and the program sends what was in it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pack_lost_before_the_commit_is_sent_again() {
    let mut dice = Dice::new("chunks gone");
    let mut served = Served::start();
    let proxy = FaultProxy::start(&served.url).await;
    let tree = served.dir.path().join("tree");
    fs_err::create_dir(&tree).unwrap();
    for number in 0..8 {
        fs_err::write(tree.join(format!("{number}.mp4")), dice.bytes(3 << 20)).unwrap();
    }
    // The commit is swallowed by the line; meanwhile a pack goes, and a new process of the service has nothing in its caches.
    proxy.on(Rule::new("POST", "/commit").times(1).does(Fault::Hang));
    let mut command = served.command();
    command.args(["push", text(&tree), "--to", "b/21", "--json"]).env("DRAY_URL", proxy.url());
    command.env("DRAY_STALL_TIMEOUT", "5s");
    let push = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_commit = |seen: &Seen| seen.target.ends_with("/commit");
    tokio::time::timeout(LIMIT, proxy.wait(is_commit, 1)).await.expect("a commit");
    let lost = packs(&served).swap_remove(0);
    let lost_bytes = lost.metadata().unwrap().len();
    fs_err::remove_file(lost).unwrap();
    served.restart_with(|_| {});
    let ran = wait(push, LIMIT);
    assert_eq!(ran.code, 0, "{ran:?}\n{}", served.log());

    let log = proxy.log();
    let first = log.iter().position(is_commit).unwrap();
    let again = sent(&log[first..]);
    assert!(again > 0 && again <= lost_bytes + (1 << 20), "{again} bytes sent again for {lost_bytes} lost");
    assert!(log.iter().filter(|seen| is_commit(seen)).count() >= 3, "refused once, then committed");
    assert_eq!(served.run(["verify", "b/21"]).code, 0);
    let dest = served.dir.path().join("dest");
    served.json(["pull", "b/21", text(&dest)]);
    assert_same(&tree, &dest);
}

/// G4: where files are cut is no setting; another largest pack changes nothing about what is found again.
#[test]
fn chunks_are_cut_alike_whatever_the_settings() {
    let mut dice = Dice::new("settings");
    let mut served = Served::start();
    let ran = Ran::of(served.command().args(["serve", "--check"]).env("DRAY_LIMITS_AVG_CHUNK", "1MiB"));
    assert_eq!(ran.code, 1, "a setting that does not exist is refused: {ran:?}");
    assert!(ran.stderr.contains("AVG_CHUNK"), "{ran:?}");
    let tree = served.dir.path().join("tree");
    fs_err::create_dir(&tree).unwrap();
    let mut film = dice.bytes(24 << 20);
    fs_err::write(tree.join("film.mp4"), &film).unwrap();
    served.json(["push", text(&tree), "--to", "g/4"]);
    served.restart_with(|command| {
        command.env("DRAY_LIMITS_MAX_PACK_BYTES", "1MiB");
    });
    film.insert(5 << 20, 7);
    fs_err::write(tree.join("film.mp4"), &film).unwrap();
    let other = Ran::of(served.command().args(["push", text(&tree), "--to", "g/4", "--memory", "128M", "--json"]));
    assert_eq!(other.code, 0, "{other:?}");
    let stored = other.document()["stored_bytes"].as_u64().unwrap();
    assert!(stored < 1 << 20, "one byte more, and {stored} bytes stored");
}

/// C15: two things for one place are refused by name, whoever brings them.
#[test]
fn two_things_for_one_place_are_refused_by_name() {
    let served = Served::start();
    let place = served.dir.path();
    for (name, content) in [("one", "hello"), ("two", "world")] {
        fs_err::create_dir_all(place.join(name)).unwrap();
        fs_err::write(place.join(name).join("file"), content).unwrap();
        served.json(["push", text(&place.join(name)), "--to", &format!("c/{name}")]);
    }
    let (one, two) = (place.join("one/file"), place.join("two/file"));
    let ran = served.run(["push", text(&one), text(&two), "--to", "c/15", "--json"]);
    assert_eq!((ran.code, &ran.document()["error"]["code"]), (1, &json!("equal_names")), "{ran:?}");
    assert!(ran.document()["error"]["detail"].as_str().unwrap().contains("`file`"), "{ran:?}");
    for (at, other, said) in [("in", "in", "same place"), ("in", "in/deeper", "one inside the other")] {
        let spec = format!(
            "name = \"c15\"\n[[data]]\nfrom = \"c/one\"\nat = \"{at}\"\n[[data]]\nfrom = \"c/two\"\nat = \"{other}\"\n"
        );
        fs_err::write(place.join("job.toml"), spec).unwrap();
        let ran = served.run(["job", "submit", text(&place.join("job.toml"))]);
        assert_eq!(ran.code, 1, "{ran:?}");
        for word in ["data[0].at", "data[1].at", said] {
            assert!(ran.stderr.contains(word), "`{word}`: {ran:?}");
        }
    }
    assert_eq!(served.json(["job", "list"]), json!([]));
    // Under places of their own both are staged with their paths.
    let spec = "name = \"c15\"\n[[data]]\nfrom = \"c/one\"\nat = \"a\"\n[[data]]\nfrom = \"c/two\"\nat = \"b\"\n";
    fs_err::write(place.join("job.toml"), spec).unwrap();
    served.json(["job", "submit", text(&place.join("job.toml"))]);
}

/// Interrupted politely instead: the exit code says so, and what was acknowledged stays sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_push_keeps_what_was_acknowledged() {
    let served = Served::start();
    let proxy = FaultProxy::start(&served.url).await;
    let tree = served.dir.path().join("tree");
    fs_err::create_dir(&tree).unwrap();
    let size = 200_u64 << 20;
    // The same bytes in every run: which chunks are asked for is no chance then.
    fs_err::write(tree.join("film.mp4"), noise(1, 200 << 20)).unwrap();
    let push = || {
        let mut command = served.command();
        command.args(["push", text(&tree), "--to", "a/15", "--json"]).env("DRAY_URL", proxy.url());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // From the eleventh on no pack is answered, so the push is in the middle when it is interrupted, and what is under way, two packs of
    // 4 MiB, never arrives: the most that an interrupt can cost.
    proxy.on(Rule::new("PUT", "/packs/").skip(10).does(Fault::Hang));
    let first = push();
    let acknowledged = |seen: &Seen| is_pack(seen) && seen.done && seen.status == Some(201);
    tokio::time::timeout(LIMIT, proxy.wait(acknowledged, 10)).await.expect("packs");
    signal(&first, Signal::INT);
    assert_eq!(wait(first, LIMIT).code, 130);
    let before = sent(&proxy.log());
    proxy.clear();
    proxy.forget();
    let second = wait(push(), LIMIT);
    assert_eq!(second.code, 0, "{second:?}");
    let reused = second.document()["reused_bytes"].as_u64().unwrap();
    assert!(reused >= 10 * (4 << 20) * 95 / 100, "{second:?}");
    let all = before + sent(&proxy.log());
    assert!(all * 100 <= size * 105, "{all} bytes sent, {before} before the interrupt");
}
