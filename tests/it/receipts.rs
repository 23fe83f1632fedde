//! Readiness receipts: only an honest one makes a staging ready, and anyone can check it for ever.

use data_encoding::BASE64;
use dray::api::events::PublicKeys;
use dray::content::digest::digest;
use dray::domain::receipt::{Envelope, Error, Key, Owner, Readiness, verify};
use serde_json::{Value, json};

use crate::both_engines;
use crate::support::data::{Files, Push, noise};
use crate::support::fake_agent::FakeAgent;
use crate::support::service::TestService;

async fn keys(service: &TestService) -> Vec<Key> {
    let listed: PublicKeys = service.call(reqwest::Method::GET, "/v1/keys", "", &Value::Null).await.expect(200).typed();
    let key = |key: dray::api::events::PublicKey| Key {
        id: key.key_id,
        owner: match key.owner.as_str() {
            "node" => Owner::Node(key.node),
            _ => Owner::Service,
        },
        public: BASE64.decode(key.public_key.as_bytes()).unwrap().try_into().unwrap(),
        valid_from: key.valid_from.parse().unwrap(),
        valid_until: key.valid_until.map(|end| end.parse().unwrap()),
    };
    listed.keys.into_iter().map(key).collect()
}

fn envelope(staging: &Value) -> Envelope {
    Envelope::from_json(staging["receipt"].to_string().as_bytes()).unwrap()
}

/// A dataset, a node and a staging of the one on the other.
async fn staged(service: &TestService) -> (Push, FakeAgent, Value) {
    let push = Files::default().with("a", noise(1, 100_000)).push(1);
    service.push_by_hand("d", &push).await;
    let agent = FakeAgent::start(service, "n1").await;
    let job = service.job("d", json!({})).await;
    service.grant_lease(&job, "n1").await.expect(201);
    let staging = service.stage(&job, "n1").await.expect(201).json();
    (push, agent, staging)
}

both_engines! {
    async fn a_receipt_outlives_keys_and_nodes(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, agent, staging) = staged(&service).await;
        let said = agent.statement(&service, &staging, &push, "in");
        let ready = agent.ready(&service, &staging, &push).await.expect(200).json();
        assert_eq!(verify(&envelope(&ready), &keys(&service).await), Ok(said.clone()));
        service.clock.advance(std::time::Duration::from_secs(60));
        service.app().keys.rotate_receipt_key(service.app()).await.unwrap();
        service.delete("/v1/nodes/n1").await.expect(204);
        service.clock.advance(std::time::Duration::from_secs(60));
        let all = keys(&service).await;
        assert_eq!(all.len(), 3, "retired, never removed");
        assert_eq!(verify(&envelope(&ready), &all), Ok(said));
        let service_only: Vec<Key> = all.into_iter().filter(|key| key.owner == Owner::Service).collect();
        assert_eq!(verify(&envelope(&ready), &service_only), Err(Error::Unsigned("the node")));
    }

    async fn the_public_keys_name_no_node(builder: Builder) {
        let service = builder.quiet().start().await;
        FakeAgent::start(&service, "secret-gpu-1").await;
        let listed = service.call(reqwest::Method::GET, "/v1/keys", "", &Value::Null).await.expect(200);
        let owners: Vec<Value> = listed.json()["keys"].as_array().unwrap().iter().map(|key| key["owner"].clone()).collect();
        assert!(owners.len() == 2 && owners.contains(&json!("node")), "{listed}");
        assert!(!listed.to_string().contains("secret-gpu-1"), "anybody may ask: {listed}");
    }

    async fn keys_overlap_while_replicas_learn_of_a_new_one(builder: Builder) {
        let service = builder.quiet().start().await;
        let (push, agent, staging) = staged(&service).await;
        // as another replica would, which goes on with the keys it has: they are read again each minute
        let app = service.app();
        let secret = std::fs::read_to_string(app.settings.secret_key_path()).unwrap();
        let secret: [u8; 32] = data_encoding::HEXLOWER.decode(secret.trim().as_bytes()).unwrap().try_into().unwrap();
        let other = dray::app::Keys::open(&app.db, secret.into(), &*app.clock, &*app.ids).await.unwrap();
        other.rotate_receipt_key(app).await.unwrap();
        service.clock.advance(std::time::Duration::from_secs(60));
        let ready = agent.ready(&service, &staging, &push).await.expect(200).json();
        assert!(verify(&envelope(&ready), &keys(&service).await).is_ok(), "signed by the key that is being retired");
    }

    async fn nothing_but_an_honest_receipt_makes_ready(builder: Builder) {
        let service = builder.quiet().start().await;
        let push = Files::default().with("a", noise(1, 100_000)).push(1);
        service.push_by_hand("d", &push).await;
        let agent = FakeAgent::start(&service, "n1").await;
        let other = FakeAgent::start(&service, "n2").await;
        let job = service.job("d", json!({})).await;
        service.grant_lease(&job, "n1").await.expect(201);
        let staging = service.stage(&job, "n1").await.expect(201).json();
        let honest = agent.statement(&service, &staging, &push, "in");
        let lie = |change: fn(&mut Readiness)| {
            let mut statement = honest.clone();
            change(&mut statement);
            agent.sign(&statement)
        };
        let mut bad = vec![
            lie(|s| s.tree = digest(b"other")),
            lie(|s| s.bytes += 1),
            lie(|s| { s.files += 1; s.method.reread_files += 1; }),
            lie(|s| s.files += 1),
            lie(|s| s.ready_seq = 2),
            lie(|s| s.lease_epoch = 2),
            lie(|s| s.node = "n2".to_owned()),
            lie(|s| s.team = "other".to_owned()),
            lie(|s| s.job = s.staging.clone()),
            lie(|s| s.verified_at = "2001-01-01T00:00:00Z".to_owned()),
            lie(|s| s.verified_at = "yesterday".to_owned()),
            other.sign(&honest),
            json!({}),
            json!("text"),
        ];
        let mut unsigned = agent.sign(&honest);
        unsigned["signatures"] = json!([]);
        let mut forged = agent.sign(&honest);
        forged["signatures"][0]["sig"] = json!(BASE64.encode(&[7; 64]));
        let mut retyped = agent.sign(&honest);
        retyped["payloadType"] = json!("application/json");
        bad.extend([unsigned, forged, retyped]);
        for receipt in bad {
            agent.report(&service, &staging, "ready", json!({ "receipt": receipt })).await.problem(422, "bad_receipt");
        }
        agent.report(&service, &staging, "ready", json!({})).await.problem(422, "bad_receipt");
        let still = service.staging(&staging["id"]).await;
        assert_eq!((&still["state"], &still["state_seq"]), (&json!("accepted"), &json!(1)));
        assert!(!service.told(&job).await.contains(&"staging.ready".to_owned()));
        service.clock.advance(std::time::Duration::from_secs(3_600));
        agent.ready(&service, &staging, &push).await.problem(409, "lease_over");
    }
}
