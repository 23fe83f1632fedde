//! Jobs, leases, stagings and outputs over the real API, driven by an agent by hand, on both engines.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::both_engines;
use crate::support::data::{Files, Push, noise};
use crate::support::fake_agent::FakeAgent;
use crate::support::service::TestService;

const DATASET: &str = "warehouse/aisle-cams";

fn footage(seed: u64) -> Push {
    Files::default().with("aisle-1/a.mp4", noise(seed, 150_000)).with("aisle-2/b.mp4", noise(seed + 1, 20_000)).push(2)
}

async fn pushed(service: &TestService) -> (Push, Value) {
    let push = footage(1);
    let version = service.push_by_hand(DATASET, &push).await;
    (push, version)
}

fn outputs(required: bool) -> Value {
    let one = |name: &str, when: &str| json!({ "name": name, "path": "r/**", "to": format!("out/{name}"), "when": when, "required": required });
    json!({ "output": [one("always", "always"), one("success", "success"), one("evicted", "evicted")] })
}

/// A job with a lease and a staging on `n1`, made ready.
async fn running(service: &TestService, agent: &FakeAgent, push: &Push, more: Value) -> (String, Value, Value) {
    let job = service.job(DATASET, more).await;
    let lease = service.grant_lease(&job, &agent.node).await.expect(201).json();
    let staging = service.stage(&job, &agent.node).await.expect(201).json();
    let staging = agent.ready(service, &staging, push).await.expect(200).json();
    (job, lease, staging)
}

/// Pushes one output as the node does; answers the version.
async fn push_output(service: &TestService, agent: &FakeAgent, job: &str, epoch: u64, name: &str) -> Value {
    let push = Files::default().with("r/found.json", noise(epoch + 90, 3_000)).push(1);
    let output = json!({ "job": job, "lease_epoch": epoch, "name": name });
    let upload = service.open_output(&agent.token, &format!("out/{name}"), &output).await;
    service.commit_by_hand(&upload, &push).await
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

both_engines! {
    async fn a_job_keeps_the_version_it_meant(builder: Builder) {
        let service = builder.quiet().start().await;
        let (_, first) = pushed(&service).await;
        let job = service.job(DATASET, json!({})).await;
        service.push_by_hand(DATASET, &footage(7)).await;
        let shown = service.get(&format!("/v1/jobs/{job}")).await.expect(200).json();
        assert_eq!(shown["inputs"][0]["version"], first, "what it meant at submit, whatever is newest now");
        assert_eq!((&shown["state"], &shown["team"]), (&json!("submitted"), &json!("default")));
        let version = format!("/v1/versions/{}", first["id"].as_str().unwrap());
        service.delete(&version).await.problem(409, "in_use");
        service.delete(&format!("/v1/datasets?name={DATASET}")).await.problem(409, "in_use");
        service.delete(&format!("/v1/jobs/{job}")).await.expect(200);
        service.delete(&version).await.expect(204);
        let shown = service.get(&format!("/v1/jobs/{job}")).await.expect(200).json();
        assert_eq!((&shown["inputs"][0]["version"]["ref"], &shown["state"]), (&first["ref"], &json!("cancelled")));
        assert_eq!(service.get("/v1/jobs?limit=1").await.expect(200).json()["items"][0]["id"], job);
    }

    async fn a_job_that_means_nothing_is_refused_in_words(builder: Builder) {
        let service = builder.quiet().start().await;
        pushed(&service).await;
        let problem = service.submit("warehouse/aisle-camz", json!({})).await.problem(404, "dataset_not_found");
        assert_eq!(problem["data"]["nearest"], json!([DATASET]));
        service.submit(&format!("{DATASET}@v9"), json!({})).await.expect(404);
        service.submit(&format!("{DATASET}:aisle-1/none"), json!({})).await.problem(404, "path_not_found");
        service.job(&format!("{DATASET}:aisle-1"), json!({})).await;
        let input = |at: &str| json!({ "from": DATASET, "at": at });
        for data in [json!([input("a"), input("a")]), json!([input("a"), input("a/b")]), json!([input("out")]), json!([input("/abs")]), json!([input("../x")])] {
            service.submit(DATASET, json!({ "data": data })).await.problem(422, "bad_job");
        }
        service.submit(DATASET, json!({ "nonsense": 1 })).await.expect(422);
        service.submit("Not A Dataset", json!({})).await.problem(422, "bad_job");
        for url in ["http://10.0.0.1/", "https://169.254.169.254/", "ftp://h/", "https://user:pass@h/"] {
            service.submit(DATASET, json!({ "callback": { "url": url } })).await.problem(422, "callback_refused");
        }
        assert_eq!(service.get("/v1/jobs").await.expect(200).json()["items"].as_array().unwrap().len(), 1, "refusals leave nothing behind");
    }

    async fn one_lease_at_a_time_and_epochs_rise(builder: Builder) {
        let service = builder.quiet().start().await;
        pushed(&service).await;
        FakeAgent::start(&service, "n1").await;
        let job = service.job(DATASET, json!({})).await;
        assert_eq!(service.grant_lease(&job, "n2").await.problem(404, "node_not_found")["data"]["nodes"], json!(["n1"]));
        for until in ["2020-01-01T00:00:00Z", "2027-01-01T00:00:00", "soon"] {
            service.post("/v1/leases", &json!({ "job": job, "node": "n1", "until": until })).await.expect(422);
        }
        let first = service.grant_lease(&job, "n1").await.expect(201).json();
        assert_eq!((first["epoch"].as_u64(), service.job_state(&job).await.as_str()), (Some(1), "leased"));
        service.grant_lease(&job, "n1").await.problem(409, "lease_held");
        let renew = format!("/v1/leases/{}/renew", first["id"].as_str().unwrap());
        let later = json!({ "until": "2026-01-01T05:00:00Z" });
        assert_eq!(service.post(&renew, &later).await.expect(200).text("expires_at"), "2026-01-01T05:00:00Z");
        service.clock.advance(Duration::from_secs(5 * 3_600));
        service.post(&renew, &json!({ "until": "2026-01-01T09:00:00Z" })).await.problem(409, "lease_over");
        service.run("expire-leases").await;
        service.run("expire-leases").await;
        let leases = service.get(&format!("/v1/leases?job={job}")).await.expect(200).json();
        assert_eq!(leases["items"][0]["released"], "expired");
        assert_eq!(service.job_state(&job).await, "submitted", "it may be leased anew");
        let second = service.grant_lease(&job, "n1").await.expect(201).json();
        assert_eq!(second["epoch"], 2);
        service.release(&second, "finished").await.expect(200);
        service.release(&second, "finished").await.expect(200);
        service.release(&second, "failed").await.problem(409, "lease_over");
        assert_eq!(service.job_state(&job).await, "finished");
        service.grant_lease(&job, "n1").await.problem(409, "job_over");
        let told = service.told(&job).await;
        assert_eq!(told, ["job.submitted", "lease.granted", "lease.renewed", "lease.released", "job.submitted", "lease.granted", "lease.released", "job.finished"]);
    }

    async fn near_is_said_of_what_is_proven_in_the_store(builder: Builder) {
        let service = builder.quiet().start().await;
        pushed(&service).await;
        let job = service.job(DATASET, json!({})).await;
        let staging = service.stage(&job, "").await.expect(201).json();
        assert_eq!((&staging["state"], &staging["bytes_total"]), (&json!("accepted"), &json!(170_000)));
        assert_eq!(service.stage(&job, "").await.expect(201).json()["id"], staging["id"], "one live staging");
        service.run("look-into-stagings").await;
        let near = service.staging(&staging["id"]).await;
        assert_eq!((&near["state"], &near["receipt"], &near["bytes_done"]), (&json!("near"), &Value::Null, &json!(170_000)));
        let lost = service.job(DATASET, json!({})).await;
        let staging = service.stage(&lost, "").await.expect(201).json();
        let team = std::fs::read_dir(service.data().join("store/packs")).unwrap().next().unwrap().unwrap().path();
        let packs: Vec<_> = std::fs::read_dir(&team).unwrap().map(|entry| entry.unwrap().path()).collect();
        packs.iter().for_each(|pack| std::fs::remove_file(pack).unwrap());
        service.run("look-into-stagings").await;
        let failed = service.staging(&staging["id"]).await;
        assert_eq!((&failed["state"], &failed["error"]["code"]), (&json!("failed"), &json!("packs_missing")));
        assert!(failed["error"]["detail"].as_str().unwrap().contains("`aisle-1/a.mp4`"), "{failed}");
        assert_eq!(service.told(&lost).await, ["job.submitted", "staging.accepted", "staging.failed"]);
    }

    async fn a_node_is_staged_on_only_under_its_lease(builder: Builder) {
        let service = builder.quiet().start().await;
        pushed(&service).await;
        FakeAgent::start(&service, "n1").await;
        FakeAgent::start(&service, "n2").await;
        let job = service.job(DATASET, json!({})).await;
        service.stage(&job, "n1").await.problem(409, "no_lease");
        service.grant_for(&job, "n1", 60).await.expect(201);
        service.stage(&job, "n2").await.problem(409, "no_lease");
        let staging = service.stage(&job, "n1").await.expect(201).json();
        assert_eq!(service.stage(&job, "n1").await.expect(201).json()["id"], staging["id"]);
        service.clock.advance(Duration::from_secs(60));
        service.stage(&job, "n1").await.problem(409, "no_lease");
    }

    async fn an_agent_drives_a_staging_to_ready(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, version) = pushed(&service).await;
        let agent = FakeAgent::start(&service, "n1").await;
        let job = service.job(DATASET, json!({})).await;
        service.grant_lease(&job, "n1").await.expect(201);
        let staging = service.stage(&job, "n1").await.expect(201).json();
        let work = agent.work(&service).await;
        assert_eq!((&work["stagings"][0]["staging"]["id"], &work["stagings"][0]["job"]["inputs"][0]["version"]["id"]), (&staging["id"], &version["id"]));
        let half = json!({ "bytes_done": 20_000, "sources": { "cache": 0, "peer": 0, "store": 20_000 } });
        let pulling = agent.report(&service, &staging, "pulling", half.clone()).await.expect(200).json();
        assert_eq!((&pulling["state_seq"], &pulling["eta"]), (&json!(2), &json!({})), "nothing is measured yet");
        service.clock.advance(Duration::from_secs(10));
        let more = json!({ "bytes_done": 95_000, "sources": { "cache": 0, "peer": 0, "store": 95_000 } });
        let pulling = agent.report(&service, &staging, "pulling", more).await.expect(200).json();
        assert_eq!((&pulling["state_seq"], &pulling["eta"]["p50"]), (&json!(2), &json!("2026-01-01T00:00:20Z")));
        agent.report(&service, &staging, "verifying", half).await.expect(200);
        let ready = agent.ready(&service, &staging, &push).await.expect(200).json();
        assert_eq!((&ready["state"], &ready["ready_seq"], &ready["path"]), (&json!("ready"), &json!(1), &json!("/cache/jobs/1")));
        assert_eq!(ready["receipt"]["signatures"].as_array().unwrap().len(), 2, "the node's and ours");
        let again = agent.ready(&service, &staging, &push).await.expect(200).json();
        assert_eq!((&again["state_seq"], &again["receipt"]), (&ready["state_seq"], &ready["receipt"]), "said twice, done once");
        let lost = agent.report(&service, &staging, "unready", json!({ "error": { "code": "file_lost", "detail": "a" } })).await.expect(200).json();
        assert_eq!((&lost["state"], &lost["receipt"], &lost["error"]["code"]), (&json!("unready"), &Value::Null, &json!("file_lost")));
        let second = agent.ready(&service, &lost, &push).await.expect(200).json();
        assert_eq!((&second["ready_seq"], &second["error"]), (&json!(2), &Value::Null));
        let told = service.told(&job).await;
        assert_eq!(told[2..], ["staging.accepted", "staging.pulling", "staging.verifying", "staging.ready", "staging.unready", "staging.ready"]);
        let ids: std::collections::BTreeSet<String> = service.events().await.iter().map(|event| event["id"].to_string()).collect();
        assert_eq!(ids.len(), service.events().await.len());
    }

    async fn a_second_process_and_an_old_epoch_are_fenced(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, _) = pushed(&service).await;
        let mut agent = FakeAgent::start(&service, "n1").await;
        let (job, lease, staging) = running(&service, &agent, &push, json!({})).await;
        agent.hello_as(&service, "second", &agent.public()).await.problem(409, "node_in_use");
        agent.hello_as(&service, "first", &[9; 32]).await.problem(409, "key_mismatch");
        service.clock.advance(Duration::from_secs(61));
        agent.hello_as(&service, "second", &agent.public()).await.expect(200);
        agent.report(&service, &staging, "unready", json!({})).await.problem(409, "node_in_use");
        agent.instance = "second".to_owned();
        agent.report(&service, &staging, "unready", json!({ "epoch": 7 })).await.problem(409, "fenced");
        service.release(&lease, "preempted").await.expect(200);
        agent.report(&service, &staging, "unready", json!({})).await.problem(409, "staging_over");
        service.grant_lease(&job, "n1").await.expect(201);
        let newer = service.stage(&job, "n1").await.expect(201).json();
        agent.report(&service, &newer, "pulling", json!({ "epoch": 1 })).await.problem(409, "fenced");
        agent.report(&service, &newer, "near", json!({})).await.problem(409, "bad_transition");
        assert_eq!(service.staging(&newer["id"]).await["state"], "accepted");
    }

    async fn a_node_sees_its_own_stagings_only(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, version) = pushed(&service).await;
        let (one, two) = (FakeAgent::start(&service, "n1").await, FakeAgent::start(&service, "n2").await);
        let read = |agent: &FakeAgent| {
            let (path, token) = (format!("/v1/versions/{}", version["id"].as_str().unwrap()), agent.token.clone());
            let service = &service;
            async move { service.call(Method::GET, &path, &token, &Value::Null).await }
        };
        read(&one).await.expect(404);
        let (_, lease, staging) = running(&service, &one, &push, json!({})).await;
        read(&one).await.expect(200);
        read(&two).await.expect(404);
        assert_eq!(two.work(&service).await["stagings"], json!([]));
        two.report(&service, &staging, "unready", json!({})).await.expect(404);
        service.call(Method::GET, "/v1/jobs", &one.token, &Value::Null).await.expect(403);
        service.release(&lease, "finished").await.expect(200);
        read(&one).await.expect(404);
        let other = service.team("other").await;
        let path = format!("/v1/stagings/{}", staging["id"].as_str().unwrap());
        service.call(Method::GET, &path, &other, &Value::Null).await.expect(404);
    }

    async fn outputs_come_back_and_settle_the_job_once(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, _) = pushed(&service).await;
        let agent = FakeAgent::start(&service, "n1").await;
        let (job, lease, staging) = running(&service, &agent, &push, outputs(true)).await;
        let listed = service.get(&format!("/v1/jobs/{job}/outputs")).await.expect(200).json();
        assert_eq!(listed["outputs"].as_array().unwrap().iter().map(|o| &o["state"]).collect::<Vec<_>>(), ["declared"; 3]);
        agent.output(&service, &job, 1, "always", json!({ "state": "sealing" })).await.problem(409, "not_due");
        service.release(&lease, "finished").await.expect(200);
        assert_eq!(service.job_state(&job).await, "returning");
        let work = agent.work(&service).await;
        assert_eq!(names(&work["returns"][0]["outputs"]), ["always", "success"]);
        for name in ["always", "success"] {
            agent.output(&service, &job, 1, name, json!({ "state": "sealing" })).await.expect(204);
            agent.output(&service, &job, 1, name, json!({ "state": "sealed" })).await.expect(204);
        }
        agent.output(&service, &job, 1, "evicted", json!({ "state": "sealed" })).await.problem(409, "not_due");
        for name in ["always", "success"] {
            let version = push_output(&service, &agent, &job, 1, name).await;
            let stored = json!({ "state": "stored", "version": version["id"], "skipped": [{ "path": "x", "reason": "symlink" }] });
            agent.output(&service, &job, 1, name, json!({ "state": "stored" })).await.expect(422);
            for _ in 0..3 {
                agent.output(&service, &job, 1, name, stored.clone()).await.expect(204);
            }
        }
        assert_eq!(service.job_state(&job).await, "finished");
        let listed = service.get(&format!("/v1/jobs/{job}/outputs")).await.expect(200).json();
        assert_eq!((&listed["outputs"][0]["ref"], &listed["outputs"][0]["skipped"][0]["path"]), (&json!("out/always@v1"), &json!("x")));
        agent.report(&service, &staging, "released", json!({})).await.expect(200);
        assert_eq!(agent.work(&service).await["returns"], json!([]));
        let told = service.told(&job).await;
        for once in ["outputs.sealed", "outputs.stored", "job.finished", "staging.released"] {
            assert_eq!(told.iter().filter(|kind| *kind == once).count(), 1, "{once} in {told:?}");
        }
        let sealed = told.iter().position(|kind| kind == "outputs.sealed");
        assert!(sealed < told.iter().position(|kind| kind == "outputs.stored"));
    }

    async fn what_is_required_and_missing_fails_the_job(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, _) = pushed(&service).await;
        let agent = FakeAgent::start(&service, "n1").await;
        let (job, lease, staging) = running(&service, &agent, &push, outputs(true)).await;
        service.release(&lease, "finished").await.expect(200);
        agent.output(&service, &job, 1, "always", json!({ "state": "missing" })).await.expect(204);
        agent.report(&service, &staging, "released", json!({})).await.expect(200);
        assert_eq!(service.job_state(&job).await, "failed");
        let listed = service.get(&format!("/v1/jobs/{job}/outputs")).await.expect(200).json();
        assert_eq!(listed["outputs"].as_array().unwrap().iter().map(|o| &o["state"]).collect::<Vec<_>>(), ["missing", "missing", "declared"]);
        // nothing was staged, so nothing can come back: known at once
        let job = service.job(DATASET, outputs(false)).await;
        let lease = service.grant_lease(&job, "n1").await.expect(201).json();
        service.release(&lease, "finished").await.expect(200);
        service.release(&lease, "finished").await.expect(200);
        assert_eq!(service.job_state(&job).await, "finished");
        assert_eq!(service.told(&job).await[2..], ["lease.released", "outputs.sealed", "outputs.stored", "job.finished"]);
        let event = service.events().await.into_iter().rfind(|event| event["type"] == "dray.outputs.stored.v1").unwrap();
        let states: Vec<&str> = event["data"]["outputs"].as_array().unwrap().iter().map(|output| output["state"].as_str().unwrap()).collect();
        assert_eq!((event["subject"].as_str(), states), (Some(job.as_str()), vec!["missing", "missing", "declared"]));
    }

    async fn a_late_output_is_a_further_version_and_never_lost(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, _) = pushed(&service).await;
        let agent = FakeAgent::start(&service, "n1").await;
        let (job, lease, _) = running(&service, &agent, &push, outputs(false)).await;
        service.release(&lease, "preempted").await.expect(200);
        let work = agent.work(&service).await;
        assert_eq!(names(&work["returns"][0]["outputs"]), ["always", "evicted"]);
        service.grant_lease(&job, "n1").await.expect(201);
        let late = push_output(&service, &agent, &job, 1, "always").await;
        agent.output(&service, &job, 1, "always", json!({ "state": "stored", "version": late["id"] })).await.expect(204);
        let shown = service.get(&format!("/v1/versions/{}", late["id"].as_str().unwrap())).await.expect(200).json();
        assert_eq!(shown["late"], true);
        assert_eq!(service.job_state(&job).await, "leased", "the newer lease is not touched");
        agent.output(&service, &job, 9, "always", json!({ "state": "stored", "version": late["id"] })).await.problem(404, "output_not_found");
    }

    async fn waiting_ends_with_the_change(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, _) = pushed(&service).await;
        let agent = FakeAgent::start(&service, "n1").await;
        let job = service.job(DATASET, json!({})).await;
        service.grant_lease(&job, "n1").await.expect(201);
        let seen = agent.work(&service).await["seq"].as_str().unwrap().to_owned();
        let path = format!("/v1/agent/work?wait=60&seen={seen}");
        let work = service.call(Method::GET, &path, &agent.token, &Value::Null);
        let staging = service.stage(&job, "n1");
        let (work, staging) = tokio::join!(work, staging);
        let staging = staging.expect(201).json();
        assert_eq!(work.expect(200).json()["stagings"][0]["staging"]["id"], staging["id"]);
        let path = format!("/v1/stagings/{}?wait=60&state_seq=1", staging["id"].as_str().unwrap());
        let (changed, _) = tokio::join!(service.get(&path), agent.ready(&service, &staging, &push));
        assert_eq!(changed.expect(200).json()["state"], "ready");
        // the whole test is far shorter than one of the waits, else the client's timeout ends it
    }

    async fn cancelled_things_are_cleaned_up_and_removed_nodes_buried(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, _) = pushed(&service).await;
        let agent = FakeAgent::start(&service, "n1").await;
        let (job, _, staging) = running(&service, &agent, &push, outputs(true)).await;
        let path = format!("/v1/stagings/{}", staging["id"].as_str().unwrap());
        assert_eq!(service.delete(&path).await.expect(200).json()["state"], "cancelled");
        assert_eq!(service.delete(&path).await.expect(200).json()["state"], "cancelled");
        let work = agent.work(&service).await;
        assert_eq!((&work["returns"][0]["staging"]["id"], &work["returns"][0]["outputs"]), (&staging["id"], &json!([])));
        agent.report(&service, &staging, "released", json!({})).await.expect(200);
        let staging = service.stage(&job, "n1").await.expect(201).json();
        agent.ready(&service, &staging, &push).await.expect(200);
        service.delete(&format!("/v1/jobs/{job}")).await.expect(200);
        assert_eq!(service.staging(&staging["id"]).await["state"], "cancelled");
        let (job, lease, staging) = running(&service, &agent, &push, outputs(true)).await;
        service.release(&lease, "finished").await.expect(200);
        assert_eq!(service.job_state(&job).await, "returning");
        service.delete("/v1/nodes/n1").await.expect(204);
        service.run("bury-removed-nodes").await;
        assert_eq!((service.job_state(&job).await.as_str(), service.staging(&staging["id"]).await["state"].as_str()), ("failed", Some("released")));
    }

    async fn links_out_of_the_tree_are_refused_unless_asked_for(builder: Builder) {
        let service = builder.quiet().start().await;
        let push = Files::default().with("a.txt", noise(3, 100)).push_with_symlink("b", "../../etc/passwd");
        service.push_by_hand("links", &push).await;
        let refused = service.job("links", json!({})).await;
        let refused = service.stage(&refused, "").await.expect(201).json();
        let kept = service.job("links", json!({ "data": [{ "from": "links", "at": "in", "allow_outside_links": true }] })).await;
        let kept = service.stage(&kept, "").await.expect(201).json();
        service.run("look-into-stagings").await;
        let refused = service.staging(&refused["id"]).await;
        assert_eq!((&refused["state"], &refused["error"]["code"]), (&json!("failed"), &json!("outside_links")));
        assert_eq!(service.staging(&kept["id"]).await["state"], "near");
    }

    async fn one_bad_row_holds_up_no_other(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, _) = pushed(&service).await;
        let agent = FakeAgent::start(&service, "n1").await;
        let mut jobs = Vec::new();
        for _ in 0..2 {
            jobs.push(running(&service, &agent, &push, json!({})).await.0);
        }
        let unreadable = async |job: &String, spec: &str| {
            let mut tx = service.app().db.begin().await.unwrap();
            let before: String = tx.one("SELECT spec FROM jobs WHERE id = $1", dray::params![job]).await.unwrap().get(0).unwrap();
            tx.execute("UPDATE jobs SET spec = $2 WHERE id = $1", dray::params![job, spec]).await.unwrap();
            tx.commit().await.unwrap();
            before
        };
        let spec = unreadable(&jobs[0], "{").await;
        service.clock.advance(Duration::from_secs(3_600));
        service.run("expire-leases").await;
        assert_eq!(service.job_state(&jobs[1]).await, "submitted");
        unreadable(&jobs[0], &spec).await;
        assert_eq!(service.job_state(&jobs[0]).await, "leased", "and itself is ended when it can be read again");
        service.run("expire-leases").await;
        assert_eq!(service.job_state(&jobs[0]).await, "submitted");
    }

    async fn a_node_that_is_added_anew_needs_a_key_of_its_own(builder: Builder) {
        let service = builder.quiet().start().await;
        let mut agent = FakeAgent::start(&service, "n1").await;
        service.delete("/v1/nodes/n1").await.expect(204);
        agent.token = service.node("n1").await;
        let problem = agent.hello(&service).await.problem(409, "key_mismatch");
        assert!(problem["hint"].as_str().unwrap().contains("new cache directory"), "{problem}");
        agent.hello_as(&service, "fresh", &[9; 32]).await.expect(200);
    }

    async fn a_repeated_call_is_done_once(builder: Builder) {
        let service = builder.quiet().start().await;
        pushed(&service).await;
        let submit = || {
            let spec = json!({ "name": "j", "data": [{ "from": DATASET, "at": "in" }], "callback": { "url": "https://h.example/" } });
            service.request(Method::POST, "/v1/jobs", &service.admin).header("idempotency-key", "one").json(&spec).send()
        };
        let first: Value = submit().await.unwrap().json().await.unwrap();
        let again: Value = submit().await.unwrap().json().await.unwrap();
        assert_eq!(first, again);
        assert!(first["callback_secret"].as_str().unwrap().starts_with("whsec_"));
        let shown = service.get(&format!("/v1/jobs/{}", first["id"].as_str().unwrap())).await.expect(200).json();
        assert_eq!(shown["callback_secret"], Value::Null, "shown once");
        service.delete(&format!("/v1/jobs/{}", first["id"].as_str().unwrap())).await.expect(200);
        service.delete(&format!("/v1/datasets?name={DATASET}")).await.expect(204);
        let again: Value = submit().await.unwrap().json().await.unwrap();
        assert_eq!(first, again, "though it could not be submitted now");
    }
}
