//! What every call of the service keeps: problems with their next step, limits, idempotency, paging, time, an end in order.

use std::time::{Duration, Instant};

use dray::config::{Period, Size};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::both_engines;
use crate::support::{Answer, Builder, Engine, TestService};

async fn quick(change: impl FnOnce(&mut dray::config::Limits)) -> TestService {
    Builder::new(Engine::Sqlite).settings(|settings| change(&mut settings.limits)).start().await
}

/// A raw connection: for requests that no HTTP client would send.
async fn connect(service: &TestService) -> TcpStream {
    TcpStream::connect(service.service().address()).await.unwrap()
}

/// Everything the service says until it closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // a reset after the answer is as good as an end
    let _ = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut text)).await.expect("never closed");
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_in_words() {
    let service = TestService::sqlite().await;
    let problem = service.get("/v1/nothing").await.problem(404, "no_route");
    assert!(problem["detail"].as_str().unwrap().contains("/v1/nothing"));
    let answer = service.call(Method::PUT, "/v1/teams", &service.admin, &Value::Null).await;
    let allow = answer.headers["allow"].to_str().unwrap().to_owned();
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    answer.problem(405, "wrong_method");

    let said = |body: &'static str| {
        let request = service.request(Method::POST, "/v1/teams", &service.admin);
        async move { Answer::of(request.body(body).send().await.unwrap()).await }
    };
    for (body, expected) in [
        ("{", "EOF"),
        ("{\"name\": 5}", "name: invalid type"),
        ("{\"name\": \"blue\", \"qouta\": 1}", "unknown field `qouta`"),
        ("[]", "invalid"),
        ("", "EOF"),
    ] {
        let problem = said(body).await.problem(422, "malformed");
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{body}: {problem}");
    }
    let problem = service.post("/v1/teams", &json!({"name": "Blue Team"})).await.problem(422, "invalid");
    assert_eq!(problem["data"]["field"], "name");
    service.get("/v1/teams?limit=x").await.problem(422, "malformed");
    service.get("/v1/teams?limit=1001").await.problem(422, "invalid");
    service.delete("/v1/tokens/not-a-uuid").await.problem(404, "not_found");
}

#[tokio::test]
async fn a_request_is_named_in_its_answer_and_its_problem() {
    let service = TestService::sqlite().await;
    let request = |id: &'static str| {
        let request = service.request(Method::GET, "/v1/nothing", "").header("x-request-id", id);
        async move { Answer::of(request.send().await.unwrap()).await }
    };
    let answer = request("my-id-7").await;
    assert_eq!(answer.headers["x-request-id"], "my-id-7");
    assert_eq!(answer.problem(404, "no_route")["request_id"], "my-id-7");
    let answer = request("what's \"this\"").await;
    assert_ne!(answer.headers["x-request-id"], "what's \"this\"");
    let id = answer.headers["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(answer.problem(404, "no_route")["request_id"], id.as_str());
}

#[tokio::test]
async fn the_open_calls_answer_anybody() {
    let service = TestService::sqlite().await;
    let open = |path: &'static str| service.call(Method::GET, path, "", &Value::Null);
    assert_eq!(open("/healthz").await.expect(200).text("status"), "ok");
    let document = open("/openapi.json").await.expect(200).json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert_eq!(document["paths"]["/v1/teams"]["post"]["x-roles"], json!(["operator"]));
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for parameter in operation["parameters"].as_array().unwrap_or(&Vec::new()) {
                let (name, stands) = (parameter["name"].as_str().unwrap(), parameter["in"].as_str().unwrap());
                assert_eq!(
                    stands == "path",
                    path.contains(&format!("{{{name}}}")),
                    "{method} {path}: `{name}` in {stands}"
                );
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                let described = response["description"].as_str().is_some_and(|text| !text.is_empty());
                assert!(described, "{method} {path} {status} has no description");
            }
        }
    }
    let keys = open("/v1/keys").await.expect(200).json();
    assert_eq!(keys["keys"][0]["owner"], "service");
    assert_eq!(keys["keys"][0]["algorithm"], "ed25519");
}

both_engines! {
    async fn a_call_said_twice_happens_once(service) {
        let say = |key: &'static str, body: Value| {
            let request = service.request(Method::POST, "/v1/tokens", &service.admin).header("Idempotency-Key", key);
            async move { Answer::of(request.json(&body).send().await.unwrap()).await }
        };
        let first = say("k1", json!({"role": "team"})).await.expect(201).json();
        assert_eq!(say("k1", json!({"role": "team"})).await.expect(201).json(), first);
        assert_ne!(say("k2", json!({"role": "team"})).await.expect(201).json(), first);
        say("k1", json!({"role": "admin"})).await.problem(422, "idempotency_mismatch");
        say("", json!({"role": "team"})).await.problem(422, "invalid");
        assert_eq!(service.get("/v1/tokens").await.json()["items"].as_array().unwrap().len(), 3);
        // another team's key of the same name is another key
        let blue = service.team("blue").await;
        let request = service.request(Method::POST, "/v1/tokens", &blue).header("Idempotency-Key", "k1");
        let theirs = Answer::of(request.json(&json!({"role": "team"})).send().await.unwrap()).await.expect(201).json();
        assert_ne!(theirs, first);
        // an answer is remembered for a day, and survives a restart
        let admin = service.admin.clone();
        let service = service.restart().await;
        let say = |key: &'static str| {
            let request = service.request(Method::POST, "/v1/tokens", &admin).header("Idempotency-Key", key);
            async move { Answer::of(request.json(&json!({"role": "team"})).send().await.unwrap()).await.expect(201).json() }
        };
        assert_eq!(say("k1").await, first);
        service.clock.advance(Duration::from_secs(86_401));
        service.run("forget-answers").await;
        assert_ne!(say("k1").await, first);
    }

    async fn a_call_said_by_many_at_once_happens_once(service) {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..12 {
            let request = service.request(Method::POST, "/v1/nodes", &service.admin).header("Idempotency-Key", "same");
            let request = request.json(&json!({"name": "gpu-1"}));
            calls.spawn(async move { Answer::of(request.send().await.unwrap()).await });
        }
        let mut answers = Vec::new();
        while let Some(answer) = calls.join_next().await {
            answers.push(answer.unwrap().expect(201).json());
        }
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
        assert_eq!(service.get("/v1/nodes").await.json()["items"].as_array().unwrap().len(), 1);
    }

    async fn pages_hold_every_item_once_and_in_order(service) {
        for n in 0..7 {
            service.node(&format!("gpu-{n}")).await;
        }
        let mut names = Vec::new();
        let mut path = "/v1/nodes?limit=3".to_owned();
        loop {
            let page = service.get(&path).await.expect(200).json();
            let items = page["items"].as_array().unwrap();
            assert!((1..=3).contains(&items.len()));
            names.extend(items.iter().map(|node| node["name"].as_str().unwrap().to_owned()));
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/v1/nodes?limit=3&cursor={next}");
        }
        assert_eq!(names, (0..7).map(|n| format!("gpu-{n}")).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn secrets_of_remembered_answers_are_not_in_the_database() {
    let service = TestService::sqlite().await;
    let request = service.request(Method::POST, "/v1/tokens", &service.admin).header("Idempotency-Key", "k");
    let token =
        Answer::of(request.json(&json!({"role": "team"})).send().await.unwrap()).await.expect(201).text("token");
    let data = service.data().to_owned();
    for name in ["dray.sqlite", "dray.sqlite-wal"] {
        let bytes = std::fs::read(data.join(name)).unwrap_or_default();
        assert!(!bytes.windows(token.len()).any(|window| window == token.as_bytes()), "{name} holds a token");
    }
}

#[tokio::test]
async fn a_body_over_its_budget_is_refused_before_it_is_read() {
    let service = quick(|limits| limits.json_body = Size(512 << 10)).await;
    // announced: answered though not a byte of the body ever comes
    let mut stream = connect(&service).await;
    let head = format!(
        "POST /v1/teams HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 4294967297\r\n\r\n",
        service.admin
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    // not announced: cut when it exceeds the budget
    let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(bytes::Bytes::from(vec![b' '; 64 << 10])));
    let request = service.request(Method::POST, "/v1/teams", &service.admin).body(reqwest::Body::wrap_stream(endless));
    if let Ok(response) = request.send().await {
        Answer::of(response).await.problem(413, "body_too_large");
    } // else: the service answered and closed while the client still wrote
    service.get("/v1/whoami").await.expect(200);
}

#[tokio::test]
async fn silent_and_dripping_connections_are_cut_and_others_are_served() {
    let second = Period::seconds(1);
    let service = quick(|limits| {
        limits.header_timeout = second;
        limits.body_idle = second;
    })
    .await;
    let began = Instant::now();
    let mut silent = connect(&service).await;
    let mut half = connect(&service).await;
    half.write_all(b"GET /healthz HTTP/1.1\r\nHo").await.unwrap();
    let mut body = connect(&service).await;
    let head = format!(
        "POST /v1/teams HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 20\r\n\r\n{{",
        service.admin
    );
    body.write_all(head.as_bytes()).await.unwrap();
    service.get("/v1/whoami").await.expect(200);
    let (silent, half, body) = tokio::join!(rest(&mut silent), rest(&mut half), rest(&mut body));
    assert!(!silent.contains("200 OK") && !half.contains("200 OK"));
    assert!(body.starts_with("HTTP/1.1 408") && body.contains("body_stalled"), "{body}");
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn more_requests_than_hands_are_told_to_come_again() {
    let service = quick(|limits| limits.requests_in_flight = 1).await;
    // one request holds the only place: its body does not come
    let mut held = connect(&service).await;
    let head = format!(
        "POST /v1/teams HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 15\r\n\r\n",
        service.admin
    );
    held.write_all(head.as_bytes()).await.unwrap();
    let refused = loop {
        let answer = service.get("/v1/whoami").await; // the first request may not have arrived yet
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!(refused.headers["retry-after"], "1");
    refused.problem(503, "overloaded");
    held.write_all(b"{\"name\":\"blue\"}").await.unwrap();
    let mut answer = [0; 12];
    held.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 201");
    service.get("/v1/whoami").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_finishes_what_is_in_flight_and_takes_no_more() {
    let service = TestService::sqlite().await;
    let (address, admin) = (service.service().address(), service.admin.clone());
    let mut held = connect(&service).await;
    let head = format!(
        "POST /v1/teams HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {admin}\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n"
    );
    held.write_all(head.as_bytes()).await.unwrap();
    // `100 Continue` says that the handler reads: the request is in flight
    let mut go_on = [0; 25];
    held.read_exact(&mut go_on).await.unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&go_on));
    let app = service.app().clone();
    let mut ear = app.db.wakeups().listen("a long poll");
    let mut stopping = tokio::task::JoinSet::new();
    stopping.spawn(service.stop());
    // long polls end at once
    let far = tokio::time::Instant::now() + Duration::from_secs(3_600);
    assert_eq!(ear.wait(far).await, dray::app::Woken::TimeIsUp);
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    held.write_all(b"{\"name\":\"blue\"}").await.unwrap();
    let answer = rest(&mut held).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    stopping.join_next().await.unwrap().unwrap();
}
