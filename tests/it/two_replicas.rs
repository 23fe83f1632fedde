//! Two real replicas, real Postgres, real bucket, the real program against both: either is killed (`SIGKILL`) in the middle of
//! push, pull, staging, return and download, and the command that was under way ends well by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::binary::{Ran, wait};
use crate::support::client::assert_same;
use crate::support::dice::Dice;
use crate::support::fault_proxy::{Fault, Rule, Seen};
use crate::support::replicas::{PACK, Pair, acknowledged, is_grant, pack_of};

const LIMIT: Duration = Duration::from_secs(240);
/// Packs that one push sends at the same time.
const IN_FLIGHT: usize = 2;

/// A tree of so many MiB that nothing compresses.
fn footage(dice: &mut Dice, tree: &Path, mebibytes: usize) {
    fs_err::create_dir_all(tree.join("clips")).unwrap();
    for (number, start) in (0..mebibytes).step_by(16).enumerate() {
        let clip = dice.bytes((mebibytes - start).min(16) << 20);
        fs_err::write(tree.join(format!("clips/{number:02}.mp4")), clip).unwrap();
    }
    for number in 0..40 {
        let length = usize::try_from(dice.below(9_000)).unwrap();
        fs_err::write(tree.join(format!("note-{number}.txt")), dice.bytes(length)).unwrap();
    }
}

/// Returns once a pull has named a file of 16 MiB there.
fn whole_file(dir: &Path) {
    let until = Instant::now() + LIMIT;
    let is_whole = |path: &Path| path.extension().is_some_and(|end| end == "mp4");
    let named = || fs_err::read_dir(dir).is_ok_and(|there| there.flatten().any(|entry| is_whole(&entry.path())));
    while !named() {
        assert!(Instant::now() < until, "no whole file in {}", dir.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn acknowledged_packs(requests: &[Seen]) -> BTreeSet<String> {
    requests.iter().filter(|seen| acknowledged(seen)).filter_map(pack_of).map(str::to_owned).collect()
}

/// How often each pack was sent.
fn sendings(requests: &[Seen]) -> BTreeMap<&str, usize> {
    let mut count = BTreeMap::new();
    for pack in requests.iter().filter_map(pack_of) {
        *count.entry(pack).or_default() += 1;
    }
    count
}

/// B60, the push: what the dead replica had acknowledged is not sent again, and the command goes on at the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_outlives_its_replica_and_sends_only_what_was_in_flight_again() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut dice = Dice::new("a push outlives its replica");
    let tree = pair.path("tree");
    footage(&mut dice, &tree, 256);
    let kill_after = usize::try_from(30 + dice.below(60)).unwrap();

    let push = pair.command(["push", text(&tree), "--to", "two/push", "--json"]).spawn().unwrap();
    let serving = pair.seen(|seen| pack_of(seen).is_some() && acknowledged(seen), kill_after).await;
    // Looked at before the kill: all of these answers had gone out.
    let before = acknowledged_packs(&pair.requests());
    pair.kill(serving);
    let ran = wait(push, LIMIT);
    assert_eq!(ran.code, 0, "{ran:?}\n{}", pair.logs());
    let pushed = ran.document();

    let requests = pair.requests();
    let sendings = sendings(&requests);
    assert!(before.len() >= kill_after && sendings.len() > 250, "{} of {}", before.len(), sendings.len());
    let again: Vec<&str> = sendings.iter().filter(|(_, count)| **count > 1).map(|(pack, _)| *pack).collect();
    assert!(again.iter().all(|pack| !before.contains(*pack)), "acknowledged, and sent again: {again:?}");
    assert!(again.len() <= IN_FLIGHT, "at most what was in flight: {again:?}");
    let sent: u64 = requests.iter().filter(|seen| pack_of(seen).is_some()).map(|seen| seen.body_bytes).sum();
    let stored = pushed["stored_bytes"].as_u64().unwrap();
    assert!(sent <= stored + IN_FLIGHT as u64 * (PACK + (64 << 10)), "{sent} bytes sent for {stored}");
    assert_eq!(acknowledged_packs(&requests).len(), sendings.len(), "every pack was acknowledged in the end");
    let surviving = 1 - serving;
    assert!(pair.replicas[surviving].proxy.count(|seen| pack_of(seen).is_some()) > 100);

    // Through the survivor alone: the dead one stands first in `DRAY_URL` or second, as it came.
    let dest = pair.path("dest");
    let pulled = pair.json(["pull", "two/push@v1", text(&dest)]);
    assert_eq!(pulled["digest"], pushed["digest"]);
    assert_same(&tree, &dest);
    assert_eq!(pair.json(["verify", "two/push@v1"])["digest"], pushed["digest"], "the store holds every byte");
    // The one that was killed comes back to the same truth.
    pair.restart(serving);
    pair.kill(surviving);
    assert_eq!(pair.json(["push", text(&tree), "--to", "two/push"])["unchanged"], true);
}

/// B60, the pull: a replica dies when it has given the first grants, comes back while the other one dies, and then the pull itself is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_outlives_both_replicas_in_turn_and_its_own_death() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut dice = Dice::new("a pull outlives both replicas");
    let tree = pair.path("tree");
    // Grants come 64 packs at a time: a pull of this asks three times at least.
    footage(&mut dice, &tree, 160);
    pair.json(["push", text(&tree), "--to", "two/pull"]);

    let dest = pair.path("dest");
    let pull = pair.command(["pull", "two/pull", text(&dest), "--json"]).spawn().unwrap();
    let first = pair.seen(|seen| is_grant(seen) && acknowledged(seen), 1).await;
    pair.kill(first);
    let other = 1 - first;
    let proxy = &pair.replicas[other].proxy;
    tokio::time::timeout(LIMIT, proxy.wait(|seen| is_grant(seen) && acknowledged(seen), 1)).await.expect("it goes on");
    pair.restart(first);
    pair.kill(other);
    let ran = wait(pull, LIMIT);
    assert_eq!(ran.code, 0, "{ran:?}\n{}", pair.logs());
    assert_same(&tree, &dest);

    // The pull is killed instead, held in the middle by a grant that never comes; the same command brings the rest only.
    let again = pair.path("again");
    let proxy = &pair.replicas[first].proxy;
    proxy.forget();
    proxy.on(Rule::new("POST", "/v1/grants").skip(2).does(Fault::Hang));
    let mut pull = pair.command(["pull", "two/pull", text(&again), "--json"]).spawn().unwrap();
    tokio::time::timeout(LIMIT, proxy.wait(is_grant, 3)).await.expect("a third grant is asked for");
    whole_file(&again.join("clips"));
    pull.kill().unwrap();
    pull.wait().unwrap();
    proxy.clear();
    let report = pair.json(["pull", "two/pull", text(&again)]);
    let (bytes, reused) = (report["bytes"].as_u64().unwrap(), report["reused_bytes"].as_u64().unwrap());
    assert!(reused >= 16 << 20, "whole files are kept: {reused} of {bytes}");
    assert!(report["fetched_bytes"].as_u64().unwrap() <= bytes - reused + (8 << 20), "{report}");
    assert_same(&tree, &again);
}

/// An agent on a cache of its own. Killed when dropped.
struct Agent(Child);

impl Agent {
    fn start(pair: &Pair, token: &str) -> Self {
        let log = fs_err::File::create(pair.path("agent.log")).unwrap().into_file();
        let mut command: Command = pair.command(["agent", "--node", "gpu-7", "--cache", text(&pair.path("node"))]);
        command.env("DRAY_TOKEN", token).env("DRAY_LOG", "info");
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until the job's only output is stored.
fn stored_output(pair: &Pair, job: &str) -> Value {
    let until = Instant::now() + LIMIT;
    loop {
        let output = pair.json(["outputs", job])["outputs"][0].clone();
        if output["state"] == "stored" {
            return output;
        }
        let agent = || fs_err::read_to_string(pair.path("agent.log")).unwrap();
        assert!(Instant::now() < until && output["state"] != "failed", "{output}\n{}\n{}", agent(), pair.logs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Push, stage, return and link over both, one of them killed at each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_road_outlives_a_replica_at_every_step() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut dice = Dice::new("the whole road");
    let tree = pair.path("tree");
    footage(&mut dice, &tree, 80);
    pair.json(["push", text(&tree), "--to", "two/in"]);
    let node = pair.json(["node", "add", "gpu-7"])["token"].as_str().unwrap().to_owned();
    let spec = "name = \"road\"\n[[data]]\nfrom = \"two/in\"\nat = \"in\"\n\
                [[output]]\nname = \"made\"\npath = \"**\"\nto = \"two/out\"\nrequired = true\n";
    fs_err::write(pair.path("job.toml"), spec).unwrap();
    let job = pair.json(["job", "submit", text(&pair.path("job.toml"))])["id"].as_str().unwrap().to_owned();
    pair.json(["lease", "grant", "--job", &job, "--node", "gpu-7", "--until", "4h"]);

    // Staging: the replica that gave the agent its first grants dies.
    pair.replicas.iter().for_each(|replica| replica.proxy.forget());
    let _agent = Agent::start(&pair, &node);
    let staging = pair.json(["stage", "--job", &job, "--node", "gpu-7"])["id"].as_str().unwrap().to_owned();
    let waiting = pair.command(["staging", "wait", &staging, "--timeout", "200s", "--json"]).spawn().unwrap();
    let serving = pair.seen(|seen| is_grant(seen) && acknowledged(seen), 1).await;
    pair.kill(serving);
    let ran = wait(waiting, LIMIT);
    let agent_log = fs_err::read_to_string(pair.path("agent.log")).unwrap();
    assert_eq!((ran.code, &ran.document()["state"]), (0, &Value::from("ready")), "{ran:?}\n{agent_log}");
    let place = std::path::PathBuf::from(ran.document()["path"].as_str().unwrap());
    assert_same(&tree, &place.join("in"));
    pair.restart(serving);

    // The return: the replica that takes the output's packs dies after some of them.
    let made = dice.bytes(40 << 20);
    fs_err::write(place.join("out/result.bin"), &made).unwrap();
    pair.replicas.iter().for_each(|replica| replica.proxy.forget());
    pair.json(["lease", "release", "--job", &job, "--reason", "finished"]);
    let serving = pair.seen(|seen| pack_of(seen).is_some() && acknowledged(seen), 5).await;
    let before = acknowledged_packs(&pair.requests());
    pair.kill(serving);
    let output = stored_output(&pair, &job);
    let requests = pair.requests();
    let again: Vec<_> = sendings(&requests).into_iter().filter(|(_, count)| *count > 1).collect();
    assert!(again.len() <= IN_FLIGHT && again.iter().all(|(pack, _)| !before.contains(*pack)), "{again:?}");

    // The link: the replica that serves it dies after 3 MiB; the other one goes on at that byte.
    let reference = format!("{}:result.bin", output["ref"].as_str().unwrap());
    let link = pair.json(["link", &reference])["url"].as_str().unwrap().to_owned();
    let link: url::Url = link.parse().unwrap();
    pair.restart(serving);
    let at = |number: usize| {
        let mut url: url::Url = pair.replicas[number].proxy.url().parse().unwrap();
        url.set_path(link.path());
        url.set_query(link.query());
        url
    };
    let (one, two) = (at(serving), at(1 - serving));
    let mut answer = reqwest::get(one).await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut got = Vec::new();
    while got.len() < 3 << 20 {
        got.extend_from_slice(&answer.chunk().await.unwrap().unwrap());
    }
    pair.kill(serving);
    while let Ok(Some(more)) = answer.chunk().await {
        got.extend_from_slice(&more);
    }
    let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
    let rest = client.get(two.clone()).header("range", format!("bytes={}-", got.len())).send().await.unwrap();
    if got.len() < made.len() {
        assert_eq!(rest.status(), 206);
        got.extend_from_slice(&rest.bytes().await.unwrap());
    }
    assert!(got == made, "{} of {} bytes", got.len(), made.len());
    let other = client.get(two).send().await.unwrap().bytes().await.unwrap();
    assert!(other == made);
    let ran = Ran::of(&mut pair.command(["pull", output["ref"].as_str().unwrap(), text(&pair.path("home-again"))]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(fs_err::read(pair.path("home-again/result.bin")).unwrap() == made);
}
