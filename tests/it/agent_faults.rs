//! The real agent when things go wrong: damaged data, a full disk, leftovers, kills. `ready` is never wrong, and no byte of a job's is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dray::content::digest::digest;
use dray::content::layout::Line;
use dray::content::tree::Kind;
use serde_json::{Value, json};

use crate::support::agent::{Agent, output, push_tree, until};
use crate::support::client::{context, noise, pull_to};
use crate::support::data::{Files, Push, layout, place, tree};
use crate::support::fault_proxy::{Answer, Fault, FaultProxy, Rule};
use crate::support::service::TestService;

fn footage() -> Files {
    Files::default().with("a/whole.mp4", noise(1, 90_000)).with("b/broken.mp4", noise(2, 90_000))
}

/// The names, bytes and modes of what was pushed by hand lie there, and nothing else.
fn assert_staged(there: &Path, files: &Files) {
    let mut found = Vec::new();
    let mut waiting = vec![there.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { waiting.push(path) } else { found.push(path.strip_prefix(there).unwrap().to_owned()) }
        }
    }
    found.sort();
    let wanted: Vec<PathBuf> = files.0.keys().map(PathBuf::from).collect();
    assert_eq!(found, wanted);
    for (name, bytes) in &files.0 {
        assert!(fs::read(there.join(name)).unwrap() == *bytes, "{name}");
    }
}

fn count(told: &[String], kind: &str) -> usize {
    told.iter().filter(|told| *told == kind).count()
}

/// The staging fails, clearly and once, and nothing of it stays.
async fn fails(service: &TestService, agent: &Agent, from: &str, code: &str) -> String {
    let (job, _, staging) = agent.stage(service, from, json!({})).await;
    let failed = agent.staged(service, &staging, &["failed", "ready"]).await;
    assert_eq!((&failed["state"], &failed["error"]["code"]), (&json!("failed"), &json!(code)), "{failed}");
    assert_eq!((&failed["receipt"], &failed["ready_seq"]), (&Value::Null, &json!(0)));
    agent.is_free(service).await;
    assert!(agent.names("jobs").is_empty() && agent.names("state").is_empty(), "{:?}", agent.names("jobs"));
    let told = service.told(&job).await;
    assert_eq!((count(&told, "staging.ready"), count(&told, "staging.failed")), (0, 1), "{told:?}");
    failed["error"]["detail"].as_str().unwrap().to_owned()
}

/// E1: a chunk that the store lost or changed ends in one failure that names the file; never in `ready`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_or_lost_chunk_is_never_ready() {
    for damage in ["flipped", "lost"] {
        let service = TestService::sqlite().await;
        let agent = Agent::started(&service, "n1").await;
        let push = footage().push(2);
        service.push(&service.admin, "stage/broken", &push).await;
        // the last pack holds the end of the second file
        let pack = push.packs.last().unwrap();
        let mut session = service.app().db.read().await.unwrap();
        let values = dray::params![pack.id.as_bytes()];
        let row = session.one("SELECT key FROM packs WHERE digest = $1", values).await.unwrap();
        let object = service.data().join("store").join(row.get::<String>(0).unwrap());
        drop(session);
        match damage {
            "lost" => fs::remove_file(object).unwrap(),
            _ => {
                let mut bytes = fs::read(&object).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::remove_file(&object).unwrap();
                fs::write(object, bytes).unwrap();
            }
        }
        let detail = fails(&service, &agent, "stage/broken", "bad_pack").await;
        assert!(detail.contains("b/broken.mp4") && !detail.contains("whole"), "{damage}: {detail}");
    }
}

/// B23 at the stage: what a push claimed of a whole file is checked where it is read; a claim that does not hold is no readiness.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_not_what_was_claimed_is_never_ready() {
    let service = TestService::sqlite().await;
    let agent = Agent::started(&service, "n1").await;
    let (files, claim) = (footage(), digest(b"something else"));
    let honest = files.push(100);
    let places = honest.packs[0].index.entries().iter().zip(0_u32..).map(|(entry, number)| (entry.id, (0, number)));
    let places = places.collect();
    let mut lines: Vec<_> = files.lines(|bytes| place(bytes, &places)).collect();
    let (entry, line) = lines.iter_mut().find(|(entry, _)| entry.path.as_bytes() == b"b/broken.mp4").unwrap();
    let (Kind::File { digest, .. }, Some(Line::File(laid))) = (&mut entry.kind, line) else { panic!("a file") };
    (*digest, laid.digest) = (claim, claim);
    let push = Push { tree: tree(&lines), layout: layout(&lines, &[honest.packs[0].id]), ..honest };
    service.push(&service.admin, "stage/claimed", &push).await;
    let detail = fails(&service, &agent, "stage/claimed", "digest_mismatch").await;
    assert!(detail.contains("b/broken.mp4") && detail.contains(&claim.to_string()), "{detail}");
}

/// A small disk of memory in the place of an agent's cache; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, mebibytes: u32) -> Self {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={mebibytes}m,mode=0700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).status().unwrap();
        assert!(mounted.success(), "these tests run as root, as the agent does");
        Self(at.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// B40: too little room is said before anything is written, with needed and free bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_fails_before_ready_and_leaves_nothing() {
    let service = TestService::sqlite().await;
    let proxy = FaultProxy::start(&service.url).await;
    let mut agent = Agent::new(&service, "n1").await;
    let _disk = SmallDisk::mount(&agent.cache, 8);
    agent.url = proxy.url();
    agent.start();
    let large = service.scratch().join("large");
    fs::create_dir(&large).unwrap();
    fs::write(large.join("clip.mp4"), noise(3, 12 << 20)).unwrap();
    push_tree(&service, "stage/large", &large).await;
    let detail = fails(&service, &agent, "stage/large", "no_space").await;
    let numbers: Vec<u64> = detail.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
    assert!(numbers[0] >= 12 << 20 && numbers[0] < 13 << 20, "needed: {detail}");
    assert!(numbers[1] > 6 << 20 && numbers[1] <= 8 << 20, "free: {detail}");
    assert!(!proxy.log().iter().any(|seen| seen.target.contains("/v1/packs/")), "not a byte was fetched for it");

    // Room enough at first; somebody else takes it while the files come.
    fs::write(large.join("clip.mp4"), noise(4, 5 << 20)).unwrap();
    push_tree(&service, "stage/large", &large).await;
    proxy.on(Rule::new("GET", "/v1/packs/").does(Fault::Answer(Answer::new(503, ""))));
    let (job, _, staging) = agent.stage(&service, "stage/large", json!({})).await;
    proxy.wait(|seen| seen.target.contains("/v1/packs/"), 1).await;
    fs::write(agent.cache.join("somebody-elses"), noise(5, 5 << 20)).unwrap();
    proxy.clear();
    let failed = agent.staged(&service, &staging, &["failed", "ready"]).await;
    assert_eq!((&failed["state"], &failed["error"]["code"]), (&json!("failed"), &json!("no_space")), "{failed}");
    agent.is_free(&service).await;
    // said first, taken away afterwards
    let rest = || format!("{:?} {:?}", agent.names("jobs"), agent.names("trash"));
    until(rest, async || agent.names("jobs").is_empty() && agent.names("trash").is_empty()).await;
    assert_eq!(count(&service.told(&job).await, "staging.ready"), 0);
    fs::remove_file(agent.cache.join("somebody-elses")).unwrap();
    let (_, _, there) = agent.ready(&service, "stage/large", json!({})).await;
    assert!(fs::read(there.join("in/clip.mp4")).unwrap() == noise(4, 5 << 20), "the same node, once there is room");
}

/// A directory that is not in the agent's records is neither taken for the job's nor taken away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_left_from_before_is_an_error_and_stays() {
    let service = TestService::sqlite().await;
    let mut agent = Agent::new(&service, "n1").await;
    service.push(&service.admin, "stage/in", &footage().push(2)).await;
    let (job, _, staging) = agent.stage(&service, "stage/in", json!({})).await;
    let left = agent.job_dir(&job, 1);
    fs::create_dir_all(left.join("in/a")).unwrap();
    fs::write(left.join("in/a/whole.mp4"), "of whom?").unwrap();
    agent.start();
    let failed = agent.staged(&service, &staging, &["failed", "ready"]).await;
    assert_eq!((&failed["state"], &failed["error"]["code"]), (&json!("failed"), &json!("directory_exists")));
    assert!(failed["error"]["detail"].as_str().unwrap().contains(left.to_str().unwrap()), "{failed}");
    agent.is_free(&service).await;
    agent.end();
    assert_eq!(fs::read(left.join("in/a/whole.mp4")).unwrap(), b"of whom?");
    assert!(!left.join("in/b").exists() && !left.join("out").exists(), "nothing was merged into it");
    assert!(agent.names("trash").is_empty() && agent.names("state").is_empty());
    // nor by a failure that comes before the directory is looked at
    let tree = service.scratch().join("tree");
    fs::create_dir(&tree).unwrap();
    std::os::unix::fs::symlink("../../key", tree.join("out")).unwrap();
    push_tree(&service, "stage/links", &tree).await;
    let (job, _, staging) = agent.stage(&service, "stage/links", json!({})).await;
    let left = agent.job_dir(&job, 1);
    fs::create_dir(&left).unwrap();
    fs::write(left.join("mine"), "of whom?").unwrap();
    agent.start();
    let failed = agent.staged(&service, &staging, &["failed", "ready"]).await;
    assert_eq!((&failed["state"], &failed["error"]["code"]), (&json!("failed"), &json!("outside_links")));
    agent.is_free(&service).await;
    agent.end();
    assert_eq!(fs::read(left.join("mine")).unwrap(), b"of whom?");
    assert!(agent.names("trash").is_empty());
}

/// E2, B68: an agent killed while files come goes on where it was, and `ready` is said exactly once, of whole files only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_mid_stage_it_ends_in_one_ready() {
    let service = TestService::sqlite().await;
    let proxy = FaultProxy::start(&service.url).await;
    let mut agent = Agent::new(&service, "n1").await;
    agent.url = proxy.url();
    let files = (0..6).fold(Files::default(), |files, n| files.with(&format!("clip-{n}.mp4"), noise(n, 200_000)));
    service.push(&service.admin, "stage/kill", &files.push(3)).await;
    let is_pack = |seen: &crate::support::fault_proxy::Seen| {
        seen.target.starts_with("/v1/packs/") && !seen.target.contains("/index")
    };
    proxy.on(Rule::new("GET", "/v1/packs/").skip(9).does(Fault::Hang));
    agent.start();
    let (job, _, staging) = agent.stage(&service, "stage/kill", json!({})).await;
    proxy.wait(|seen| seen.target.starts_with("/v1/packs/") && seen.fault.is_some(), 1).await;
    agent.kill();
    let there = agent.job_dir(&job, 1);
    assert!(there.exists() && !there.join("out").exists(), "it was in the middle of it");
    fs::write(there.join("in/.dray-0-0.part"), "half a file of the killed process").unwrap();
    assert!(service.staging(&staging["id"]).await["ready_at"].is_null());
    proxy.clear();
    proxy.forget();
    agent.start();
    let ready = agent.staged(&service, &staging, &["ready"]).await;
    assert_staged(&there.join("in"), &files);
    assert!(proxy.count(is_pack) > 0);
    // killed once more, it stands as it was and is not said again
    agent.kill();
    agent.start();
    agent.says("agent is at work").await;
    let (_, _, other) = agent.ready(&service, "stage/kill", json!({})).await;
    assert_staged(&other.join("in"), &files);
    let told = service.told(&job).await;
    assert_eq!((count(&told, "staging.ready"), count(&told, "staging.unready")), (1, 0), "{told:?}");
    assert_eq!(service.staging(&staging["id"]).await["receipt"], ready["receipt"]);
}

/// B68: what changed on the disk while no agent ran is found at its start: not ready any more, and ready again once it is mended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changed_meanwhile_is_not_ready_until_it_is_mended() {
    let service = TestService::sqlite().await;
    let mut agent = Agent::started(&service, "n1").await;
    let files = footage();
    service.push(&service.admin, "stage/lost", &files.push(2)).await;
    let (job, _, staging) = agent.stage(&service, "stage/lost", json!({})).await;
    let first = agent.staged(&service, &staging, &["ready"]).await;
    agent.kill();
    let there = agent.job_dir(&job, 1).join("in");
    let mut bytes = files.0["b/broken.mp4"].clone();
    bytes[45_000] ^= 1;
    fs::write(there.join("b/broken.mp4"), bytes).unwrap();
    fs::remove_file(there.join("a/whole.mp4")).unwrap();
    agent.start();
    let why = || "it is not ready a second time".to_owned();
    until(why, async || service.staging(&staging["id"]).await["ready_seq"] == 2).await;
    let second = agent.staged(&service, &staging, &["ready"]).await;
    assert_ne!(first["receipt"], second["receipt"]);
    assert_staged(&there, &files);
    let told = service.told(&job).await;
    let told: Vec<&str> = told.iter().map(String::as_str).filter(|kind| kind.ends_with("ready")).collect();
    assert_eq!(told, ["staging.ready", "staging.unready", "staging.ready"]);
}

/// What the service believes is taken back whatever the agent's record says: it was killed between its record and its word, or record and
/// directory are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_is_taken_back_whatever_is_recorded() {
    let service = TestService::sqlite().await;
    let mut agent = Agent::started(&service, "n1").await;
    let files = footage();
    service.push(&service.admin, "stage/lost", &files.push(2)).await;
    let (job, _, staging) = agent.stage(&service, "stage/lost", json!({})).await;
    agent.staged(&service, &staging, &["ready"]).await;
    let there = agent.job_dir(&job, 1);
    let record = agent.cache.join(format!("state/{}.json", staging["id"].as_str().unwrap()));
    for round in 2..4 {
        agent.kill();
        if round == 2 {
            let mut pulling: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
            pulling["phase"] = json!("pulling");
            pulling.as_object_mut().unwrap().remove("receipt");
            fs::write(&record, pulling.to_string()).unwrap();
            fs::remove_file(there.join("in/a/whole.mp4")).unwrap();
        } else {
            fs::remove_file(&record).unwrap();
            fs::remove_dir_all(&there).unwrap();
        }
        agent.start();
        let why = || format!("it is not ready once more, round {round}: {}", agent.log());
        until(why, async || service.staging(&staging["id"]).await["ready_seq"] == round).await;
        agent.staged(&service, &staging, &["ready"]).await;
        assert_staged(&there.join("in"), &files);
    }
    let told = service.told(&job).await;
    let told: Vec<&str> = told.iter().map(String::as_str).filter(|kind| kind.ends_with("ready")).collect();
    assert_eq!(told, ["staging.ready", "staging.unready", "staging.ready", "staging.unready", "staging.ready"]);
}

/// A staging whose reports are refused rests before it is begun again, and holds up no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_staging_is_not_begun_again_at_once() {
    let service = TestService::sqlite().await;
    let proxy = FaultProxy::start(&service.url).await;
    let mut agent = Agent::new(&service, "n1").await;
    agent.url = proxy.url();
    service.push(&service.admin, "stage/in", &footage().push(2)).await;
    let (_, _, staging) = agent.stage(&service, "stage/in", json!({})).await;
    let report = format!("/stagings/{}/report", staging["id"].as_str().unwrap());
    let problem = json!({ "type": "about:blank", "code": "bad_transition", "status": 409, "title": "the report cannot follow",
        "detail": "made up", "hint": "wait", "request_id": "0" });
    let refusal = Answer::new(409, problem.to_string()).header("content-type", "application/problem+json");
    proxy.on(Rule::new("POST", &report).does(Fault::Answer(refusal)));
    agent.start();
    proxy.wait(|seen| seen.target.contains(&report), 1).await;
    agent.ready(&service, "stage/in", json!({})).await;
    let said = proxy.count(|seen| seen.target.contains(&report));
    assert!(said <= 2, "refused {said} times while another one was made ready");
    proxy.clear();
    agent.staged(&service, &staging, &["ready"]).await;
}

/// What a job wrote under a path that no version can hold is told by name, and kept where it is deleted by nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_come_home_is_told_and_kept() {
    let service = TestService::sqlite().await;
    let agent = Agent::started(&service, "n1").await;
    service.push(&service.admin, "stage/in", &footage().push(2)).await;
    let (job, lease, there) = agent.ready(&service, "stage/in", output("results")).await;
    let deep = there.join("out").join(["d"; 256].join("/"));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("lost"), "ten hours of work").unwrap();
    fs::write(there.join("out/found"), "y").unwrap();
    service.release(&lease, "finished").await.expect(200);
    let stored = agent.outputs(&service, &job, &["stored"]).await.remove(0);
    assert_eq!((&stored["files"], &stored["skipped"][0]["reason"]), (&json!(1), &json!("path_too_deep")), "{stored}");
    assert!(stored["skipped"][0]["path"].as_str().unwrap().ends_with("/d/lost"), "{stored}");
    agent.is_free(&service).await;
    let kept = agent.cache.join(format!("kept/{job}-1/out")).join(["d"; 256].join("/"));
    assert_eq!(fs::read(kept.join("lost")).unwrap(), b"ten hours of work");
    assert!(agent.names("jobs").is_empty() && agent.names("state").is_empty());
}

/// The bytes of an output that failed are set aside; where that cannot be, they stay, also over a kill after the failure was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_output_is_never_deleted() {
    let service = TestService::sqlite().await;
    let mut agent = Agent::started(&service, "n1").await;
    service.push(&service.admin, "stage/in", &footage().push(2)).await;
    let (job, lease, there) = agent.ready(&service, "stage/in", output("results")).await;
    // what the job leaves is no directory, so nothing of it can be sealed
    fs::remove_dir(there.join("out")).unwrap();
    fs::write(there.join("out"), "ten hours of work").unwrap();
    let in_the_way = agent.cache.join("kept");
    fs::write(&in_the_way, "").unwrap();
    service.release(&lease, "finished").await.expect(200);
    let failed = agent.outputs(&service, &job, &["failed"]).await.remove(0);
    assert_eq!(failed["error"]["code"], "seal_failed");
    agent.says("an ended staging cannot be taken away; it stays").await;
    agent.kill();
    assert_eq!(fs::read(there.join("out")).unwrap(), b"ten hours of work");
    agent.start();
    until(|| "it does not try again".to_owned(), async || agent.log().matches("it stays").count() >= 2).await;
    assert_eq!(fs::read(there.join("out")).unwrap(), b"ten hours of work");
    agent.kill();
    fs::remove_file(in_the_way).unwrap();
    agent.start();
    agent.is_free(&service).await;
    assert_eq!(fs::read(agent.cache.join(format!("kept/{job}-1/out"))).unwrap(), b"ten hours of work");
    assert!(agent.names("jobs").is_empty() && agent.names("state").is_empty());
    agent.says("what the job wrote is kept there").await;
}

/// An output that the service refuses is kept on the node; the others of the job come home all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_output_is_kept_and_the_others_come_home() {
    let service = TestService::sqlite().await;
    let proxy = FaultProxy::start(&service.url).await;
    let mut agent = Agent::new(&service, "n1").await;
    agent.url = proxy.url();
    agent.start();
    service.push(&service.admin, "stage/in", &footage().push(2)).await;
    let one = |name: &str| json!({ "name": name, "path": format!("{name}/**"), "to": format!("out/{name}"), "when": "always" });
    let outputs = json!({ "output": [one("first"), one("second")] });
    let (job, lease, there) = agent.ready(&service, "stage/in", outputs).await;
    for name in ["first", "second"] {
        fs::create_dir(there.join("out").join(name)).unwrap();
        fs::write(there.join("out").join(name).join("result"), name).unwrap();
    }
    let problem = json!({ "type": "about:blank", "code": "quota_exceeded", "status": 413, "title": "the team's quota is used up",
        "detail": "no room for it", "hint": "delete something", "request_id": "0" });
    let refusal = Answer::new(413, problem.to_string()).header("content-type", "application/problem+json");
    proxy.on(Rule::new("POST", "/v1/uploads").times(1).does(Fault::Answer(refusal)));
    service.release(&lease, "finished").await.expect(200);
    let outputs = agent.outputs(&service, &job, &["failed", "stored"]).await;
    assert_eq!((&outputs[0]["state"], &outputs[1]["state"]), (&json!("failed"), &json!("stored")));
    assert_eq!(outputs[0]["error"]["code"], "quota_exceeded");
    agent.is_free(&service).await;
    let kept = agent.cache.join(format!("kept/{job}-1"));
    assert_eq!(fs::read(kept.join("out/first/result")).unwrap(), b"first");
    assert!(agent.names("jobs").is_empty());
    let home = service.scratch().join("home");
    pull_to(&context(&service), "out/second", &home).await;
    assert_eq!(fs::read(home.join("second/result")).unwrap(), b"second");
}
