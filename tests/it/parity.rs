//! The same calls on SQLite and on Postgres are answered the same, to the letter.
//!
//! Ids and secrets are random; each is replaced by the order in which it first appeared. The clock stands still.

use std::collections::HashMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::data::{Files, noise};
use crate::support::{Builder, Engine, TestService};

/// Answers in order, ids replaced by their first appearance.
struct Log<'a> {
    service: &'a TestService,
    token: String,
    names: HashMap<String, String>,
    lines: Vec<String>,
}

impl Log<'_> {
    async fn call(&mut self, method: Method, path: &str, body: Value) -> Value {
        let answer = self.service.call(method.clone(), path, &self.token, &body).await;
        let shown = if answer.headers.get("content-type").is_some_and(|kind| kind.to_str().unwrap().contains("json")) {
            answer.json()
        } else {
            json!(answer.bytes.len())
        };
        self.note(&format!("{method} {path} {}", answer.status.as_u16()), &shown);
        shown
    }

    fn note(&mut self, what: &str, document: &Value) {
        let line = format!("{what} {document}");
        let line = self.normal(&line);
        self.lines.push(line);
    }

    /// UUIDs, tokens and signatures by their order.
    fn normal(&mut self, text: &str) -> String {
        let mut normal = String::new();
        let mut word = String::new();
        for c in text.chars().chain(['\n']) {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') {
                word.push(c);
                continue;
            }
            let random = uuid::Uuid::try_parse(&word).is_ok() || word.starts_with("dray_") || normal.ends_with("sig=");
            if random {
                let next = format!("<{}>", self.names.len());
                normal.push_str(self.names.entry(std::mem::take(&mut word)).or_insert(next));
            } else {
                normal.push_str(&std::mem::take(&mut word));
            }
            normal.push(c);
        }
        normal
    }
}

async fn script(service: &TestService) -> Vec<String> {
    let mut log = Log { service, token: service.admin.clone(), names: HashMap::new(), lines: Vec::new() };
    for (path, body) in [
        ("/v1/teams", json!({"name": "blue", "quota_bytes": 1_000_000})),
        ("/v1/teams", json!({"name": "blue"})),
        ("/v1/teams", json!({"name": "Zebra"})),
        ("/v1/teams", json!({"name": "b_2"})),
        ("/v1/teams", json!({"name": "b-3"})),
        (
            "/v1/tokens",
            json!({"role": "team", "team": "blue", "label": "für uns", "expires_at": "2026-06-01T00:00:00+02:00"}),
        ),
        ("/v1/tokens", json!({"role": "node"})),
        ("/v1/tokens", json!({"role": "team", "team": "nobody"})),
        ("/v1/nodes", json!({"name": "gpu-2", "zone": "eu"})),
        ("/v1/nodes", json!({"name": "GPU-1"})),
        ("/v1/nodes", json!({"name": "gpu-2"})),
    ] {
        log.call(Method::POST, path, body).await;
    }
    for path in [
        "/v1/whoami",
        "/v1/teams",
        "/v1/teams?limit=2",
        "/v1/tokens",
        "/v1/nodes",
        "/v1/keys",
        "/v1/datasets",
        "/v1/nothing",
    ] {
        let mut document = log.call(Method::GET, path, Value::Null).await;
        if path == "/v1/keys" {
            // public keys are random, too
            document["keys"].as_array_mut().unwrap().iter_mut().for_each(|key| key["public_key"] = Value::Null);
            log.lines.pop();
            log.note("keys", &json!(document["keys"].as_array().unwrap().len()));
        }
    }
    pushes(&mut log).await;
    log.call(Method::DELETE, "/v1/nodes/gpu-2", Value::Null).await;
    log.call(Method::DELETE, "/v1/nodes/gpu-2", Value::Null).await;
    log.lines
}

async fn pushes(log: &mut Log<'_>) {
    let service = log.service;
    let one =
        Files::default().with("a/one.bin", noise(1, 300_000)).with("b", noise(2, 5)).with("empty", Vec::new()).push(4);
    let two = Files::default().with("a/one.bin", noise(1, 300_000)).with("c", noise(3, 70_000)).push(4);
    for push in [&one, &one, &two] {
        let version = service.push(&service.admin, "warehouse/aisle-cams", push).await;
        log.note("push", &version);
        service.clock.advance(Duration::from_secs(60));
    }
    let upload = service.open(&service.admin, "warehouse/other").await;
    log.note("open", &upload.document);
    let early = upload.post("commit", &upload.commit_body(&one)).await;
    log.note("commit of what was not sent", &early.json());
    let stale =
        service.call(Method::POST, &format!("/v1/uploads/{}/reopen", upload.id), &service.admin, &Value::Null).await;
    log.note("reopen", &stale.json());
    let fenced = upload.put_pack(&one.packs[0]).await;
    log.note("fenced", &fenced.json());
    for path in [
        "/v1/datasets",
        "/v1/versions?dataset=warehouse/aisle-cams",
        "/v1/versions?dataset=warehouse/aisle-cams&limit=1",
        "/v1/versions?dataset=warehouse/none",
        "/v1/resolve?ref=warehouse/aisle-cams@v1",
        "/v1/resolve?ref=warehouse/aisle-cams@v9",
        "/v1/resolve?ref=a//b",
        "/v1/whoami",
    ] {
        log.call(Method::GET, path, Value::Null).await;
    }
    log.call(Method::DELETE, "/v1/datasets?name=warehouse/aisle-cams", Value::Null).await;
    log.call(Method::GET, "/v1/datasets", Value::Null).await;
    log.call(Method::GET, "/v1/whoami", Value::Null).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_engines_answer_the_same_to_the_letter() {
    if crate::support::postgres().is_none() {
        return;
    }
    let sqlite = script(&Builder::new(Engine::Sqlite).start().await).await;
    let postgres = script(&Builder::new(Engine::Postgres).start().await).await;
    assert!(sqlite.len() > 30);
    for (ours, theirs) in sqlite.iter().zip(&postgres) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(sqlite.len(), postgres.len());
}
