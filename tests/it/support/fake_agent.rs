//! An agent by hand: says what a test wants said, with a real key, over the real API.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use data_encoding::BASE64;
use dray::content::tree::TreeReader;
use dray::domain::receipt::{Envelope, Method as Proof, Readiness, key_id};
use dray::domain::selection::{Input, OutsideLinks, Selection, staged_tree};
use reqwest::Method;
use serde_json::{Value, json};

use super::data::{Push, Upload};
use super::service::{Answer, TestService};

pub struct FakeAgent {
    pub node: String,
    pub token: String,
    pub instance: String,
    key: Ed25519KeyPair,
}

impl FakeAgent {
    /// Adds a node and says hello for it.
    pub async fn start(service: &TestService, node: &str) -> Self {
        let token = service.node(node).await;
        let seed = blake3::hash(node.as_bytes());
        let key = Ed25519KeyPair::from_seed_unchecked(seed.as_bytes()).unwrap();
        let agent = Self { node: node.to_owned(), token, instance: "first".to_owned(), key };
        agent.hello(service).await.expect(200);
        agent
    }

    pub fn public(&self) -> [u8; 32] {
        self.key.public_key().as_ref().try_into().unwrap()
    }

    pub async fn hello(&self, service: &TestService) -> Answer {
        self.hello_as(service, &self.instance, &self.public()).await
    }

    pub async fn hello_as(&self, service: &TestService, instance: &str, public: &[u8]) -> Answer {
        let inventory = json!({ "free_bytes": 1, "gpus": [], "version": "0" });
        let said = json!({ "instance": instance, "public_key": BASE64.encode(public), "inventory": inventory });
        service.call(Method::POST, "/v1/agent/hello", &self.token, &said).await
    }

    pub async fn work(&self, service: &TestService) -> Value {
        service.call(Method::GET, "/v1/agent/work", &self.token, &Value::Null).await.expect(200).json()
    }

    /// A report of a state, with more fields or other ones.
    pub async fn report(&self, service: &TestService, staging: &Value, state: &str, more: Value) -> Answer {
        let mut said = json!({
            "instance": self.instance, "epoch": staging["epoch"], "state": state,
            "bytes_total": staging["bytes_total"], "bytes_done": 0, "bytes_reused": 0,
        });
        for (key, value) in more.as_object().unwrap() {
            said[key] = value.clone();
        }
        let path = format!("/v1/agent/stagings/{}/report", staging["id"].as_str().unwrap());
        service.call(Method::POST, &path, &self.token, &said).await
    }

    /// What an honest node would sign for this staging of a job with one input.
    pub fn statement(&self, service: &TestService, staging: &Value, push: &Push, at: &str) -> Readiness {
        let plain = zstd::bulk::decompress(&push.tree.stored, 64 << 20).unwrap();
        let input = Input { at, subtree: b"", include: &[], exclude: &[], shard: None, links: OutsideLinks::Refuse };
        let inputs = vec![(Selection::new(&input).unwrap(), TreeReader::open(&plain[..]).unwrap())];
        let (tree, counts) = staged_tree(inputs).unwrap();
        let text = |field: &str| staging[field].as_str().unwrap().to_owned();
        Readiness {
            team: "default".to_owned(),
            job: text("job"),
            staging: text("id"),
            ready_seq: staging["ready_seq"].as_u64().unwrap() + 1,
            lease_epoch: staging["epoch"].as_u64().unwrap(),
            node: self.node.clone(),
            tree,
            files: counts.files,
            bytes: counts.bytes,
            verified_at: dray::clock::Clock::now(&*service.clock).to_string(),
            method: Proof { reread_files: counts.files, unchanged_files: 0, unchanged_since: None },
        }
    }

    pub fn sign(&self, statement: &Readiness) -> Value {
        let mut envelope = Envelope::new(statement);
        let signature = self.key.sign(&envelope.signed_bytes().unwrap());
        envelope.add(key_id(&self.public()), signature.as_ref());
        serde_json::to_value(envelope).unwrap()
    }

    /// Reports `ready` with an honest receipt.
    pub async fn ready(&self, service: &TestService, staging: &Value, push: &Push) -> Answer {
        let receipt = self.sign(&self.statement(service, staging, push, "in"));
        let more = json!({ "receipt": receipt, "bytes_done": staging["bytes_total"], "path": "/cache/jobs/1" });
        self.report(service, staging, "ready", more).await
    }

    /// A report about an output.
    pub async fn output(&self, service: &TestService, job: &str, epoch: u64, name: &str, more: Value) -> Answer {
        let mut said = json!({ "job": job, "lease_epoch": epoch, "name": name, "files": 1, "bytes": 3 });
        for (key, value) in more.as_object().unwrap() {
            said[key] = value.clone();
        }
        service.call(Method::POST, "/v1/agent/outputs/report", &self.token, &said).await
    }
}

/// What schedulers say, and steps that a quiet service takes by hand.
impl TestService {
    /// Pushes and commits without background work; answers the version.
    pub async fn push_by_hand(&self, dataset: &str, push: &Push) -> Value {
        let upload = self.open(&self.admin, dataset).await;
        self.commit_by_hand(&upload, push).await
    }

    pub async fn commit_by_hand(&self, upload: &Upload<'_>, push: &Push) -> Value {
        upload.send(push).await;
        let operation = upload.post("commit", &upload.commit_body(push)).await.expect(202).text("id");
        self.app().run_commits().await.unwrap();
        let operation = upload.operation(&operation).await;
        assert_eq!(operation["state"], "done", "{operation}");
        operation["version"].clone()
    }

    /// Submits a job over one dataset at `in`; `more` overrides fields of the spec.
    pub async fn submit(&self, from: &str, more: Value) -> Answer {
        let mut spec = json!({ "name": "job", "data": [{ "from": from, "at": "in" }] });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        self.post("/v1/jobs", &spec).await
    }

    pub async fn job(&self, from: &str, more: Value) -> String {
        self.submit(from, more).await.expect(201).text("id")
    }

    pub async fn grant_lease(&self, job: &str, node: &str) -> Answer {
        self.grant_for(job, node, 3_600).await
    }

    pub async fn grant_for(&self, job: &str, node: &str, seconds: i64) -> Answer {
        let until = dray::clock::Clock::now(&*self.clock) + jiff::SignedDuration::from_secs(seconds);
        self.post("/v1/leases", &json!({ "job": job, "node": node, "until": until.to_string() })).await
    }

    pub async fn release(&self, lease: &Value, reason: &str) -> Answer {
        let path = format!("/v1/leases/{}/release", lease["id"].as_str().unwrap());
        self.post(&path, &json!({ "reason": reason })).await
    }

    pub async fn stage(&self, job: &str, node: &str) -> Answer {
        let node = if node.is_empty() { Value::Null } else { json!(node) };
        self.post("/v1/stagings", &json!({ "job": job, "node": node })).await
    }

    pub async fn staging(&self, id: &Value) -> Value {
        self.get(&format!("/v1/stagings/{}", id.as_str().unwrap())).await.expect(200).json()
    }

    pub async fn job_state(&self, job: &str) -> String {
        self.get(&format!("/v1/jobs/{job}")).await.expect(200).text("state")
    }

    /// All events so far, oldest first.
    pub async fn events(&self) -> Vec<Value> {
        self.get("/v1/events?limit=1000").await.expect(200).json()["items"].as_array().unwrap().clone()
    }

    /// The types of one job's events.
    pub async fn told(&self, job: &str) -> Vec<String> {
        let of_job = |event: &&Value| event["subject"] == job;
        let kind = |event: &Value| {
            event["type"].as_str().unwrap().trim_start_matches("dray.").trim_end_matches(".v1").to_owned()
        };
        self.events().await.iter().filter(of_job).map(kind).collect()
    }
}
