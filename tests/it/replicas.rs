//! Two replicas on one Postgres and one bucket; and a bucket that loses answers, refuses in storms, and comes back.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::data::{Files, Upload, noise};
use crate::support::fault_proxy::{Answer as Made, Fault, FaultProxy, Rule};
use crate::support::service::{Builder, Engine, TestService};
use crate::support::stores::s3_settings;
use crate::support::{postgres, s3};

const DATASET: &str = "warehouse/aisle-cams";

fn files(seed: u64) -> Files {
    Files::default().with("a.bin", noise(seed, 400_000)).with("b.bin", noise(seed + 1, 100_000))
}

/// A replica that does no background work, on a bucket of its own; none where there are no servers.
async fn quiet() -> Option<TestService> {
    let (_, s3) = (postgres()?, s3()?);
    let store = s3_settings(&s3, &s3.endpoint);
    Some(Builder::new(Engine::Postgres).settings(|settings| settings.store = store).quiet().start().await)
}

/// A service whose bucket is reached through a proxy.
async fn proxied(engine: Engine) -> Option<(TestService, FaultProxy)> {
    let s3 = s3()?;
    if engine == Engine::Postgres {
        postgres()?;
    }
    let proxy = FaultProxy::start(s3.endpoint.trim_start_matches("http://")).await;
    let store = s3_settings(&s3, &proxy.url());
    Some((Builder::new(engine).settings(|settings| settings.store = store).start().await, proxy))
}

async fn sealed(service: &TestService) -> u64 {
    let mut session = service.app().db.read().await.unwrap();
    session.one("SELECT count(*) FROM packs WHERE state = 'sealed'", Vec::new()).await.unwrap().get(0).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_goes_on_at_another_replica() {
    let Some(first) = quiet().await else { return };
    let second = first.replica().await;
    let push = files(1).push(2);
    let upload = first.open(&first.admin, DATASET).await;
    let there = Upload { service: &second, ..upload.clone() };
    for (i, pack) in push.packs.iter().enumerate() {
        let at = if i % 2 == 0 { &upload } else { &there };
        at.put_pack(pack).await.expect(201);
    }
    // what one has sealed the other knows
    for pack in &push.packs {
        there.put_pack(pack).await.expect(200);
    }
    there.put("tree", &push.tree.digest, push.tree.stored.clone()).await.expect(204);
    upload.put("layout", &push.layout.digest, push.layout.stored.clone()).await.expect(204);
    // committed at the one that does no background work: the other does it, and the first hears of it
    let version = upload.commit(&push).await;
    let found = second.get(&format!("/v1/resolve?ref={DATASET}")).await.expect(200).json();
    assert_eq!((&found["id"], &found["version"]), (&version["id"], &json!("v1")));
    // the first is gone: everything is there
    let admin = first.admin.clone();
    let grant =
        json!({ "version": version["id"], "layout": version["layout"]["id"], "packs": [push.packs[0].id.to_string()] });
    let grants = second.call(Method::POST, "/v1/grants", &admin, &grant).await.expect(200).json();
    let url = grants["grants"][0]["url"].as_str().unwrap();
    assert!(url.starts_with("http"), "signed by the store: {url}");
    let bytes = reqwest::get(url).await.unwrap().bytes().await.unwrap();
    assert!(bytes == push.packs[0].bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_pack_sent_to_both_replicas_at_once_is_sealed_once() {
    let Some(first) = quiet().await else { return };
    let second = first.replica().await;
    let upload = first.open(&first.admin, DATASET).await;
    let there = Upload { service: &second, ..upload.clone() };
    for seed in 10..16 {
        let pack = &files(seed).push(100).packs[0];
        let (one, two) = tokio::join!(upload.put_pack(pack), there.put_pack(pack));
        let mut statuses = [one.status.as_u16(), two.status.as_u16()];
        statuses.sort_unstable();
        assert!(statuses == [200, 201], "{one} {two}");
        assert_eq!(one.json(), two.json());
    }
    assert_eq!(sealed(&first).await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_commit_to_one_dataset_at_once() {
    let Some(first) = quiet().await else { return };
    let (second, third) = (first.replica().await, first.replica().await);
    let mut pushes = Vec::new();
    for seed in 20..26 {
        let push = files(seed * 10).push(3);
        let upload = first.open(&first.admin, DATASET).await;
        upload.send(&push).await;
        pushes.push((upload, push));
    }
    // two of the same tree as well: they are one version
    let same = first.open(&first.admin, DATASET).await;
    same.send(&pushes[0].1).await;
    let commits = pushes.iter().map(|(upload, push)| upload.commit(push));
    let (versions, again) = tokio::join!(futures::future::join_all(commits), same.commit(&pushes[0].1));
    let mut numbers: Vec<_> =
        versions.iter().chain([&again]).map(|version| version["version"].as_str().unwrap().to_owned()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert!((6..=7).contains(&numbers.len()), "{numbers:?}");
    let page = third.get(&format!("/v1/versions?dataset={DATASET}")).await.expect(200).json();
    assert_eq!(page["items"].as_array().unwrap().len(), numbers.len());
    drop(second);
}

/// The version is made, and the mark that says so cannot be written: the operation goes on until it is.
async fn committed_mark_comes_later(engine: Engine) {
    let Some((service, proxy)) = proxied(engine).await else { return };
    let push = files(50).push(4);
    let upload = service.open(&service.admin, DATASET).await;
    upload.send(&push).await;
    proxy.on(Rule::new("PUT", "0.committed").does(Fault::Answer(Made::new(503, "SlowDown"))));
    let operation = upload.post("commit", &upload.commit_body(&push)).await.expect(202).text("id");
    let path = format!("/v1/resolve?ref={DATASET}");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while service.get(&path).await.status != 200 {
        assert!(tokio::time::Instant::now() < deadline, "the version is not made");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let running = service.get(&format!("/v1/operations/{operation}")).await.expect(200).json();
    assert_eq!(running["state"], "running", "not done before the store says so too");
    proxy.clear();
    while service.get(&format!("/v1/operations/{operation}?wait=1")).await.expect(200).text("state") == "running" {
        service.clock.advance(Duration::from_secs(70)); // claims and pauses are over
        assert!(tokio::time::Instant::now() < deadline, "the commit does not end");
    }
    let done = service.get(&format!("/v1/operations/{operation}")).await.expect(200).json();
    assert_eq!(done["version"]["version"], "v1");
    assert_eq!(
        proxy.count(|seen| seen.method == "PUT" && seen.target.contains("0.json")),
        1,
        "the version was made once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_done_when_the_bucket_says_so_too() {
    committed_mark_comes_later(Engine::Sqlite).await;
    committed_mark_comes_later(Engine::Postgres).await;
}

async fn store_loses_answers(engine: Engine) {
    let Some((service, proxy)) = proxied(engine).await else { return };
    let push = files(30).push(4);
    let upload = service.open(&service.admin, DATASET).await;
    for pack in &push.packs {
        proxy.clear();
        proxy.on(Rule::new("PUT", "/packs/").times(1).does(Fault::DropReply));
        upload.put_pack(pack).await.expect(201);
    }
    proxy.clear();
    proxy.on(Rule::new("PUT", "/refs/").times(2).does(Fault::DropReply));
    upload.describe(&push).await;
    let version = upload.commit(&push).await;
    assert_eq!((&version["version"], sealed(&service).await), (&json!("v1"), push.packs.len() as u64));
}

async fn store_refuses_in_storms(engine: Engine) {
    let Some((service, proxy)) = proxied(engine).await else { return };
    let push = files(40).push(4);
    let upload = service.open(&service.admin, DATASET).await;
    proxy.on(Rule::new("PUT", "/packs/").does(Fault::Answer(Made::new(503, "SlowDown"))));
    proxy.on(Rule::new("POST", "/packs/").does(Fault::Answer(Made::new(503, "SlowDown"))));
    let answer = upload.put_pack(&push.packs[0]).await;
    assert!(answer.headers.contains_key("retry-after"), "{answer}");
    answer.problem(503, "unavailable");
    assert_eq!(sealed(&service).await, 0, "nothing that is not stored is acknowledged");
    proxy.clear();
    upload.send(&push).await;
    // a commit that meets the storm is tried again by itself
    proxy.on(Rule::new("GET", "").times(12).does(Fault::Answer(Made::new(503, "SlowDown"))));
    let operation = upload.post("commit", &upload.commit_body(&push)).await.expect(202).text("id");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while service.get(&format!("/v1/operations/{operation}?wait=1")).await.expect(200).text("state") == "running" {
        service.clock.advance(Duration::from_secs(70)); // claims and pauses are over
        assert!(tokio::time::Instant::now() < deadline, "the commit does not end");
    }
    let done = service.get(&format!("/v1/operations/{operation}")).await.expect(200).json();
    assert_eq!((&done["state"], &done["version"]["version"]), (&json!("done"), &json!("v1")));
    assert_eq!(done["error"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_loses_answers_leaves_one_live_pack_each() {
    store_loses_answers(Engine::Sqlite).await;
    store_loses_answers(Engine::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_refuses_in_storms_delays_and_loses_nothing() {
    store_refuses_in_storms(Engine::Sqlite).await;
    store_refuses_in_storms(Engine::Postgres).await;
}
