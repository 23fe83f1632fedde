//! The real agent on its node: what is staged and how, what comes home, who may speak for a node, and what it has.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use dray::client::pull::PullOptions;
use dray::domain::receipt::Envelope;
use dray::domain::shard::Shard;
use serde_json::{Value, json};

use crate::support::agent::{Agent, output, push_tree};
use crate::support::binary::Ran;
use crate::support::client::{context, facts, noise, pull_with};
use crate::support::service::TestService;

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// E1, E2: ready is said once, by a receipt over every byte, and what lies there is what was pushed; no bit of it is more powerful than it must be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_is_said_once_of_exactly_what_was_pushed() {
    let service = TestService::sqlite().await;
    let agent = Agent::started(&service, "n1").await;
    let tree = service.scratch().join("tree");
    write(&tree, "clips/a.mp4", &noise(1, 3 << 20));
    write(&tree, "run.sh", b"#!/bin/sh\n");
    write(&tree, "empty", b"");
    fs::hard_link(tree.join("run.sh"), tree.join("clips/run-too.sh")).unwrap();
    symlink("../run.sh", tree.join("clips/near")).unwrap();
    set_mode(&tree.join("run.sh"), 0o6777);
    set_mode(&tree.join("clips/a.mp4"), 0o664);
    set_mode(&tree.join("clips"), 0o2775);
    push_tree(&service, "stage/all", &tree).await;
    let (job, _, staging) = agent.stage(&service, "stage/all", json!({})).await;
    let ready = agent.staged(&service, &staging, &["ready"]).await;
    let there = Path::new(ready["path"].as_str().unwrap());
    assert_eq!(there, agent.job_dir(&job, 1));
    let content = |root: &Path| {
        let named =
            facts(root).into_iter().map(|(name, fact)| (name, fact.split_whitespace().last().unwrap().to_owned()));
        named.collect::<Vec<_>>()
    };
    assert_eq!(content(&there.join("in")), content(&tree), "names, link texts and hard links");
    for name in ["clips/a.mp4", "run.sh", "empty"] {
        assert!(fs::read(there.join("in").join(name)).unwrap() == fs::read(tree.join(name)).unwrap(), "{name}");
    }
    let modes = ["in/run.sh", "in/clips/a.mp4", "in/clips", "in", "out"].map(|name| mode(&there.join(name)));
    assert_eq!(modes.map(|mode| format!("{mode:o}")), ["755", "644", "755", "755", "755"]);
    let envelope = Envelope::from_json(ready["receipt"].to_string().as_bytes()).unwrap();
    let statement = envelope.statement().unwrap();
    assert_eq!((statement.files, statement.bytes), (4, (3 << 20) + 10));
    assert_eq!((statement.method.reread_files, statement.method.unchanged_files), (4, 0));
    assert_eq!((envelope.signatures.len(), statement.node.as_str(), statement.ready_seq), (2, "n1", 1));
    // a state that has passed before it could be told is not told
    let told: Vec<String> = service.told(&job).await.into_iter().filter(|kind| kind != "staging.pulling").collect();
    assert_eq!(told[2..], ["staging.accepted", "staging.verifying", "staging.ready"]);
    assert_eq!(ready["bytes_done"], ready["bytes_total"]);
}

/// A choice of globs and a shard means the same to the service that expects a tree, to the agent that stages it and to a pull.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_is_the_same_part_to_everybody() {
    let service = TestService::sqlite().await;
    let agent = Agent::started(&service, "n1").await;
    let tree = service.scratch().join("tree");
    for n in 0..24 {
        write(&tree, &format!("a/d{}/clip-{n}.mp4", n % 4), &noise(n, 9_000 + 7_000 * usize::try_from(n).unwrap()));
    }
    fs::create_dir_all(tree.join("a/nothing")).unwrap();
    write(&tree, "b/notes.txt", b"not wanted");
    for n in [1, 5, 9] {
        fs::hard_link(tree.join("a/d1/clip-1.mp4"), tree.join(format!("a/d2/again-{n}.mp4"))).unwrap();
    }
    push_tree(&service, "stage/parts", &tree).await;
    let choose = |more: Value| {
        let mut input = json!({ "from": "stage/parts", "at": "in", "include": ["a"] });
        more.as_object().unwrap().iter().for_each(|(key, value)| input[key] = value.clone());
        json!({ "data": [input] })
    };
    // the first name of the hard links is left out: they still are one file
    let (_, _, links) = agent.ready(&service, "stage/parts", choose(json!({ "exclude": ["a/d1"] }))).await;
    let inode = |name: &str| fs::metadata(links.join("in/a/d2").join(name)).unwrap().ino();
    assert_eq!(inode("again-1.mp4"), inode("again-9.mp4"));
    assert!(!links.join("in/a/d1").exists() && !links.join("in/a/nothing").exists() && !links.join("in/b").exists());
    let (mut all, mut sizes) = (Vec::new(), Vec::new());
    for index in 1..=3 {
        let shard = json!({ "shard": format!("{index}/3") });
        let (_, _, staged) = agent.ready(&service, "stage/parts", choose(shard)).await;
        let pulled = service.scratch().join(format!("pulled-{index}"));
        let chosen = |options: &mut PullOptions| {
            options.select.include = vec!["a".to_owned()];
            options.select.shard = Some(Shard { index, of: 3 });
        };
        pull_with(&context(&service), "stage/parts", &pulled, chosen).await.unwrap();
        assert_eq!(facts(&staged.join("in")), facts(&pulled), "shard {index}");
        let files = facts(&pulled).into_iter().filter(|(_, fact)| fact.starts_with("file"));
        let names: Vec<Vec<u8>> = files.map(|(name, _)| name).collect();
        let size = |name: &Vec<u8>| fs::metadata(pulled.join(std::str::from_utf8(name).unwrap())).unwrap().len();
        sizes.push(names.iter().map(size).sum::<u64>());
        all.extend(names);
    }
    all.sort();
    all.dedup();
    assert_eq!((all.len(), sizes.iter().all(|size| *size > 0)), (27, true), "each file in one shard: {sizes:?}");
    let part = sizes.iter().sum::<u64>() / 3;
    assert!(sizes.iter().all(|size| size.abs_diff(part) < 250_000), "within a file of the third: {sizes:?}");
}

/// B4, T2: a symlink that leaves what is staged is refused before a byte is written, unless the job wants it as text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outside_links_are_staged_as_text_or_not_at_all() {
    let service = TestService::sqlite().await;
    let agent = Agent::started(&service, "n1").await;
    let tree = service.scratch().join("tree");
    write(&tree, "deep/file", b"x");
    symlink("../../../key", tree.join("deep/out")).unwrap();
    push_tree(&service, "stage/links", &tree).await;
    let (job, _, staging) = agent.stage(&service, "stage/links", json!({})).await;
    let failed = agent.staged(&service, &staging, &["failed"]).await;
    assert_eq!(failed["error"]["code"], "outside_links");
    let detail = failed["error"]["detail"].as_str().unwrap();
    assert!(detail.contains("deep/out") && detail.contains("allow_outside_links"), "{detail}");
    agent.is_free(&service).await;
    assert!(agent.names("jobs").is_empty());
    assert!(!service.told(&job).await.contains(&"staging.ready".to_owned()));
    let kept = json!({ "data": [{ "from": "stage/links", "at": "in", "allow_outside_links": true }] });
    let (_, _, there) = agent.ready(&service, "stage/links", kept).await;
    assert_eq!(fs::read_link(there.join("in/deep/out")).unwrap(), Path::new("../../../key"));
}

/// B71, T31: what the job was not to read does not come home by its name, and nothing waits for a pipe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_jobs_own_regular_files_come_home() {
    let service = TestService::sqlite().await;
    let agent = Agent::started(&service, "n1").await;
    let tree = service.scratch().join("tree");
    write(&tree, "a", b"in");
    push_tree(&service, "stage/in", &tree).await;
    let (job, lease, there) = agent.ready(&service, "stage/in", output("results")).await;
    let (out, foreign) = (there.join("out"), service.scratch().join("foreign"));
    fs::write(&foreign, "another user's secret").unwrap();
    std::os::unix::fs::chown(&foreign, Some(65_534), Some(65_534)).expect("these tests run as root, as the agent does");
    write(&out, "good/found.json", b"{\"found\": 3}");
    fs::hard_link(&foreign, out.join("stolen.mov")).unwrap();
    symlink(agent.cache.join("key"), out.join("out.mov")).unwrap();
    symlink(&agent.cache, out.join("state")).unwrap();
    symlink("good/found.json", out.join("latest")).unwrap();
    fs::hard_link(out.join("good/found.json"), out.join("good/same.json")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, out.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    service.release(&lease, "finished").await.expect(200);
    let stored = agent.outputs(&service, &job, &["stored"]).await.remove(0);
    let skipped = stored["skipped"].as_array().unwrap().iter();
    let mut skipped: Vec<_> =
        skipped.map(|entry| (entry["path"].as_str().unwrap(), entry["reason"].as_str().unwrap())).collect();
    skipped.sort_unstable();
    let left = "link_leaves_output";
    assert_eq!(skipped, [("out.mov", left), ("pipe", "fifo"), ("state", left), ("stolen.mov", "foreign_hard_link")]);
    let home = service.scratch().join("home");
    pull_with(&context(&service), "out/results", &home, |_| {}).await.unwrap();
    let names: Vec<String> = facts(&home).into_keys().map(|name| String::from_utf8(name).unwrap()).collect();
    assert_eq!(names, ["good", "good/found.json", "good/same.json", "latest"]);
    assert_eq!(fs::read(home.join("good/same.json")).unwrap(), b"{\"found\": 3}");
    agent.is_free(&service).await;
    assert!(agent.names("jobs").is_empty() && agent.names("sealed").is_empty() && agent.names("kept").is_empty());
    assert_eq!(fs::read(&foreign).unwrap(), b"another user's secret");
    assert_eq!(service.job_state(&job).await, "finished");
}

/// B68: one process speaks for a node, with the node's own key; everybody else is told why not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_its_own_agent_speaks_for_a_node() {
    let service = TestService::sqlite().await;
    let mut one = Agent::new(&service, "n1").await;
    let two = Agent::new(&service, "n2").await;
    let run = |command: &mut Command| Ran::of(command.arg("--json"));
    // with the other's token, before the other ever ran: refused, and the other's key is not taken
    let ran = run(two.command().env("DRAY_TOKEN", &one.token));
    assert_eq!((ran.code, &ran.document()["error"]["code"]), (1, &json!("wrong_node")), "{ran:?}");
    let words = ran.document()["error"].to_string();
    assert!(words.contains("`n1`") && words.contains("`n2`") && words.contains("dray node add n2"), "{words}");
    one.start();
    one.says("agent is at work").await;
    let ran = run(&mut one.command());
    assert_eq!((ran.code, &ran.document()["error"]["code"]), (1, &json!("cache_in_use")), "{ran:?}");
    assert_eq!(one.end(), Some(0));
    // its place is free after a minute, its key stays its own
    service.clock.advance(std::time::Duration::from_secs(61));
    let ran = run(&mut one.twin(&one.token).command());
    assert_eq!((ran.code, &ran.document()["error"]["code"]), (1, &json!("key_mismatch")), "{ran:?}");
    let ran = run(&mut one.twin(&service.admin).command());
    assert_eq!((ran.code, &ran.document()["error"]["code"]), (1, &json!("denied")), "a person's token: {ran:?}");
}

/// A service that is away is waited for and told once; so is its return.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_service_is_waited_for_and_told_once() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let builder = crate::support::Builder::new(crate::support::Engine::Sqlite);
    let service = builder.settings(|settings| settings.listen = address).start().await;
    let mut agent = Agent::new(&service, "n1").await;
    let (answered, refused) = tokio::sync::mpsc::channel(100);
    let service = service
        .restart_after(async {
            let nobody = tokio::net::TcpListener::bind(address).await.unwrap();
            agent.start_with(["--patience", "1s"], &[]);
            let mut refused = refused;
            let hang_up = async {
                loop {
                    drop(nobody.accept().await.unwrap());
                    answered.send(()).await.unwrap();
                }
            };
            // more than one call makes before it gives up, so several calls have failed
            let often = async {
                for _ in 0..10 {
                    refused.recv().await.unwrap();
                }
            };
            tokio::select! {
                () = hang_up => {}
                () = often => {}
                () = tokio::time::sleep(std::time::Duration::from_secs(90)) => panic!("it does not try: {}", agent.log()),
            }
        })
        .await;
    agent.says("agent is at work").await;
    let log = agent.log();
    let count = |text: &str| log.matches(text).count();
    assert_eq!((count("the service is not there"), count("the service answers again")), (1, 1), "{log}");
    assert_eq!(service.get("/v1/nodes").await.expect(200).json()["items"][0]["name"], "n1");
}

/// The GPUs of a node stand in its inventory; none of them, or no driver, is normal and said once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpus_are_found_by_nvml_and_an_absent_driver_is_normal() {
    let service = TestService::sqlite().await;
    let library = service.scratch().join("libnvml_stub.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/services/nvml_stub.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status().unwrap();
    assert!(built.success(), "tests need a C compiler");
    let inventory = async |node: &str| {
        let nodes = service.get("/v1/nodes").await.expect(200).json();
        let found = nodes["items"].as_array().unwrap().iter().find(|found| found["name"] == node).unwrap();
        found["inventory"].clone()
    };
    let mut with = Agent::new(&service, "with").await;
    with.start_with(["--nvml".as_ref(), library.as_os_str()], &[]);
    with.says("agent is at work").await;
    let found = inventory("with").await;
    let gpu = |index: u64, pci: &str| {
        json!({ "index": index, "uuid": format!("GPU-00000000-0000-0000-0000-{index:012}"), "name": "NVIDIA H200 (stub)",
                "memory_bytes": 141_u64 << 30, "pci": pci, "numa_node": index })
    };
    assert_eq!(found["gpus"], json!([gpu(0, "00000000:17:00.0"), gpu(1, "00000000:27:00.0")]));
    assert_eq!((&found["driver"], &found["gpu_note"]), (&json!("570.86.15"), &Value::Null));
    assert!(found["free_bytes"].as_u64().unwrap() > 0);
    let mut broken = Agent::new(&service, "broken").await;
    broken.start_with(["--nvml".as_ref(), library.as_os_str()], &[("FAKE_NVML_FAIL", "nvmlDeviceGetName:15")]);
    broken.says("agent is at work").await;
    let found = inventory("broken").await;
    let note = found["gpu_note"].as_str().unwrap();
    assert!(found["gpus"] == json!([]) && note.contains("GPU 0") && note.contains("GPU 1"), "{found}");
    let mut without = Agent::new(&service, "without").await;
    without.start_with(["--nvml", "/nonexistent/libnvidia-ml.so.1"], &[]);
    without.says("agent is at work").await;
    let found = inventory("without").await;
    assert!(found["gpus"] == json!([]) && found["gpu_note"].as_str().unwrap().starts_with("no driver"), "{found}");
    let log = without.log();
    assert_eq!(log.matches("no driver").count(), 1, "{log}");
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}
