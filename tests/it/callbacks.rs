//! Events on their way out: signed, in order, at least once under one id, retried for days, never held up by another's receiver.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use reqwest::Method;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::both_engines;
use crate::support::client::set_clock;
use crate::support::data::{Files, noise};
use crate::support::service::TestService;

/// A scheduler's ear: answers as told, 200 when nothing is, and remembers what it heard.
struct Receiver {
    url: String,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    answers: Mutex<VecDeque<u16>>,
    heard: Mutex<Vec<(HeaderMap, Bytes)>>,
    /// One permit an answer.
    gate: Semaphore,
    arrived: Semaphore,
}

impl Receiver {
    async fn start(answers: &[u16], permits: usize) -> Self {
        let shared = Arc::new(Shared {
            answers: Mutex::new(answers.iter().copied().collect()),
            heard: Mutex::default(),
            gate: Semaphore::new(permits),
            arrived: Semaphore::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/dray", listener.local_addr().unwrap());
        let router = Router::new().fallback(hear).with_state(shared.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, shared, _tasks: tasks }
    }

    fn heard(&self) -> Vec<(HeaderMap, Bytes)> {
        self.shared.heard.lock().unwrap().clone()
    }

    fn kinds(&self) -> Vec<String> {
        let kind = |body: &Bytes| serde_json::from_slice::<Value>(body).unwrap()["type"].as_str().unwrap().to_owned();
        self.heard().iter().map(|(_, body)| kind(body)).collect()
    }
}

async fn hear(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    shared.heard.lock().unwrap().push((headers, body));
    shared.arrived.add_permits(1);
    shared.gate.acquire().await.unwrap().forget();
    let answer = shared.answers.lock().unwrap().pop_front().unwrap_or(200);
    StatusCode::from_u16(answer).unwrap()
}

const MANY: usize = 1_000;

/// A job that calls back; answers its id and secret.
async fn calling(service: &TestService, url: &str) -> (String, String) {
    let job = service.submit("d", json!({ "callback": { "url": url } })).await.expect(201);
    (job.text("id"), job.text("callback_secret"))
}

async fn quiet(builder: crate::support::service::Builder) -> TestService {
    let service = builder.quiet().start().await;
    set_clock(&service); // the independent verifier looks at the machine's clock
    service.push_by_hand("d", &Files::default().with("a", noise(1, 1_000)).push(1)).await;
    service
}

/// Puts another sealed secret in place of every job's; answers what it was.
async fn set_secret(service: &TestService, sealed: Vec<u8>) -> Vec<u8> {
    let mut tx = service.app().db.begin().await.unwrap();
    let before = tx.one("SELECT callback_secret FROM jobs", Vec::new()).await.unwrap().get(0).unwrap();
    tx.execute("UPDATE jobs SET callback_secret = $1", dray::params![sealed.as_slice()]).await.unwrap();
    tx.commit().await.unwrap();
    before
}

async fn deliveries(service: &TestService, job: &str) -> Vec<Value> {
    let page = service.get(&format!("/v1/webhooks/deliveries?job={job}")).await.expect(200).json();
    page["items"].as_array().unwrap().clone()
}

both_engines! {
    async fn events_arrive_signed_and_in_order(builder: Builder) {
        let service = quiet(builder).await;
        let receiver = Receiver::start(&[], MANY).await;
        let (job, secret) = calling(&service, &receiver.url).await;
        let staging = service.stage(&job, "").await.expect(201).json();
        service.run("look-into-stagings").await;
        service.run("deliver-callbacks").await;
        assert_eq!(receiver.kinds(), ["dray.job.submitted.v1", "dray.staging.accepted.v1", "dray.staging.near.v1"]);
        let verifier = Webhook::new(&secret).unwrap();
        let polled = service.events().await;
        for ((headers, body), polled) in receiver.heard().iter().zip(&polled) {
            verifier.verify(body, headers).unwrap();
            assert_eq!(headers["content-type"], "application/cloudevents+json; charset=UTF-8");
            let event: Value = serde_json::from_slice(body).unwrap();
            assert_eq!((&event, &event["id"]), (polled, &json!(headers["webhook-id"].to_str().unwrap())));
            assert_eq!((&event["specversion"], &event["subject"]), (&json!("1.0"), &json!(job)));
        }
        assert_eq!(polled[2]["data"]["id"], staging["id"]);
        assert!(!polled.iter().any(|event| event.to_string().contains(&secret)), "the secret is never told");
        service.run("deliver-callbacks").await;
        assert_eq!(receiver.heard().len(), 3, "delivered once when the receiver said so");
        assert!(deliveries(&service, &job).await.iter().all(|delivery| delivery["state"] == "delivered"));
    }

    async fn a_receiver_that_fails_is_tried_again_by_the_schedule(builder: Builder) {
        let service = quiet(builder).await;
        let receiver = Receiver::start(&[502, 302, 500], MANY).await;
        let (job, secret) = calling(&service, &receiver.url).await;
        service.stage(&job, "").await.expect(201);
        service.run("deliver-callbacks").await;
        let (headers, first) = receiver.heard().remove(0);
        Webhook::new(&secret).unwrap().verify(&first, &headers).unwrap();
        assert_eq!(receiver.heard().len(), 1, "the second event waits behind the first");
        for (wait, attempts) in [(6, 2), (331, 3), (1_981, 4)] {
            service.clock.advance(Duration::from_secs(wait / 2));
            service.run("deliver-callbacks").await;
            assert_eq!(receiver.heard().len(), attempts - 1, "not before its time");
            service.clock.advance(Duration::from_secs(wait - wait / 2));
            service.run("deliver-callbacks").await;
            assert!(receiver.heard().len() >= attempts);
        }
        let heard = receiver.heard();
        assert_eq!(heard.len(), 5, "four attempts of the first, one of the second");
        assert!(heard[..4].iter().all(|(headers, body)| headers["webhook-id"] == heard[0].0["webhook-id"] && *body == first));
        let all = deliveries(&service, &job).await;
        assert_eq!((&all[1]["attempts"], &all[1]["state"]), (&json!(4), &json!("delivered")));
    }

    async fn what_is_given_up_is_seen_and_can_be_sent_again(builder: Builder) {
        let service = quiet(builder).await;
        let receiver = Receiver::start(&[503; 10], MANY).await;
        let (job, _) = calling(&service, &receiver.url).await;
        for _ in 0..10 {
            service.run("deliver-callbacks").await;
            service.clock.advance(Duration::from_secs(27 * 3_600));
        }
        let dead = deliveries(&service, &job).await.remove(0);
        assert_eq!((&dead["state"], &dead["attempts"], receiver.heard().len()), (&json!("dead"), &json!(10), 10));
        assert!(dead["last_error"].as_str().unwrap().contains("503"), "{dead}");
        service.run("deliver-callbacks").await;
        assert_eq!(receiver.heard().len(), 10);
        let replay = format!("/v1/webhooks/deliveries/{}/replay", dead["event"].as_str().unwrap());
        service.post(&replay, &Value::Null).await.expect(202);
        service.run("deliver-callbacks").await;
        let heard = receiver.heard();
        assert_eq!((heard.len(), &heard[10].0["webhook-id"]), (11, &heard[0].0["webhook-id"]));
        assert_eq!(deliveries(&service, &job).await[0]["state"], "delivered");
        let unknown = format!("/v1/webhooks/deliveries/{job}/replay");
        service.post(&unknown, &Value::Null).await.expect(404);
    }

    async fn what_cannot_be_put_together_comes_to_an_end(builder: Builder) {
        let service = quiet(builder).await;
        let receiver = Receiver::start(&[], MANY).await;
        let (job, _) = calling(&service, &receiver.url).await;
        service.stage(&job, "").await.expect(201);
        let secret = set_secret(&service, b"opens with no key".to_vec()).await;
        for _ in 0..10 {
            service.run("deliver-callbacks").await;
            service.clock.advance(Duration::from_secs(27 * 3_600));
        }
        let all = deliveries(&service, &job).await;
        assert_eq!((&all[1]["state"], &all[1]["attempts"], receiver.heard().len()), (&json!("dead"), &json!(10), 0));
        assert!(all[1]["last_error"].as_str().unwrap().contains("put the event together"), "{}", all[1]);
        set_secret(&service, secret).await;
        service.run("deliver-callbacks").await;
        assert_eq!(receiver.kinds(), ["dray.staging.accepted.v1"], "the job's next event goes on");
    }

    async fn an_attempt_that_outlives_its_claim_settles_nothing(builder: Builder) {
        let service = quiet(builder).await;
        let receiver = Receiver::start(&[], MANY).await;
        let (job, _) = calling(&service, &receiver.url).await;
        service.stage(&job, "").await.expect(201);
        let app = service.app();
        let late = app.claim_deliveries(10).await.unwrap().remove(0);
        service.clock.advance(Duration::from_secs(61));
        let present = app.claim_deliveries(10).await.unwrap().remove(0);
        assert_eq!(present.event.id, late.event.id, "taken over");
        app.attempt_delivery(&late).await.unwrap();
        assert!(app.claim_deliveries(10).await.unwrap().is_empty(), "one of a job at a time");
        app.attempt_delivery(&present).await.unwrap();
        let next = app.claim_deliveries(10).await.unwrap().remove(0);
        // nobody has claimed it since: late is as good as in time
        service.clock.advance(Duration::from_secs(61));
        app.attempt_delivery(&next).await.unwrap();
        assert!(deliveries(&service, &job).await.iter().all(|delivery| delivery["state"] == "delivered"));
    }

    async fn a_receiver_that_is_gone_is_left_alone(builder: Builder) {
        let service = quiet(builder).await;
        let receiver = Receiver::start(&[410], MANY).await;
        let (job, _) = calling(&service, &receiver.url).await;
        service.stage(&job, "").await.expect(201);
        service.run("deliver-callbacks").await;
        service.delete(&format!("/v1/jobs/{job}")).await.expect(200);
        service.clock.advance(Duration::from_secs(100_000));
        service.run("deliver-callbacks").await;
        assert_eq!(receiver.heard().len(), 1);
        assert!(deliveries(&service, &job).await.iter().all(|delivery| delivery["state"] == "dead"));
        assert_eq!(service.told(&job).await.len(), 4, "still there to poll");
    }

    async fn a_slow_receiver_holds_up_nobody_else(builder: Builder) {
        let service = quiet(builder).await;
        let (slow, quick) = (Receiver::start(&[], 0).await, Receiver::start(&[], MANY).await);
        for _ in 0..8 {
            calling(&service, &slow.url).await;
        }
        let delivering = {
            let app = service.app().clone();
            let mut tasks = JoinSet::new();
            tasks.spawn(async move { app.deliver_callbacks().await.unwrap() });
            tasks
        };
        slow.shared.arrived.acquire_many(4).await.unwrap().forget();
        assert_eq!(slow.heard().len(), 4, "a receiver's share of attempts at once");
        // an event that comes while the slow one is waited for
        calling(&service, &quick.url).await;
        quick.shared.arrived.acquire().await.unwrap().forget();
        assert_eq!((slow.heard().len(), quick.heard().len()), (4, 1));
        slow.shared.gate.add_permits(MANY);
        let mut delivering = delivering;
        delivering.join_next().await.unwrap().unwrap();
        assert_eq!(slow.heard().len(), 8);
    }

    async fn events_are_polled_by_their_last_id(builder: Builder) {
        let service = quiet(builder).await;
        let job = service.job("d", json!({})).await;
        let page = service.get("/v1/events?limit=1").await.expect(200).json();
        let last = page["next"].as_str().unwrap().to_owned();
        assert_eq!(page["items"][0]["id"], last);
        let path = format!("/v1/events?wait=60&after={last}");
        let (next, _) = tokio::join!(service.get(&path), service.stage(&job, ""));
        let next = next.expect(200).json();
        assert_eq!((&next["items"][0]["type"], next["items"].as_array().unwrap().len()), (&json!("dray.staging.accepted.v1"), 1));
        service.get(&format!("/v1/events?after={job}")).await.expect(404);
        let other = service.team("other").await;
        let none = service.call(Method::GET, "/v1/events", &other, &Value::Null).await.expect(200).json();
        assert_eq!((&none["items"], &none["next"]), (&json!([]), &Value::Null));
        let path = format!("/v1/events?after={last}");
        service.call(Method::GET, &path, &other, &Value::Null).await.expect(404);
    }

    async fn an_address_that_turned_inside_is_not_connected_to(builder: Builder) {
        let service = quiet(builder.settings(|settings| settings.callbacks.allow = Some(Vec::new()))).await;
        service.submit("d", json!({ "callback": { "url": "http://127.0.0.1:9/" } })).await.problem(422, "callback_refused");
        // a name cannot be judged at submit; `localhost` is inside when it is resolved
        let (job, _) = calling(&service, "https://localhost/").await;
        service.run("deliver-callbacks").await;
        let delivery = deliveries(&service, &job).await.remove(0);
        assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("pending"), &json!(1)));
        assert!(delivery["last_error"].as_str().unwrap().contains("not a public address"), "{delivery}");
    }
}
