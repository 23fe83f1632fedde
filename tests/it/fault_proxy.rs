//! The proxy that breaks things must itself be right: each fault, before and after the effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::routing::any;
use futures::StreamExt;
use tokio::task::JoinSet;

use crate::support::fault_proxy::{Answer, Fault, FaultProxy, Rule};

/// Answers with the request's body, and counts body bytes it got in whole requests.
struct Echo {
    proxy: FaultProxy,
    effects: Arc<AtomicU64>,
    client: reqwest::Client,
    _server: JoinSet<()>,
}

async fn echo() -> Echo {
    let effects = Arc::new(AtomicU64::new(0));
    let app = Router::new()
        .route(
            "/{*path}",
            any(|State(effects): State<Arc<AtomicU64>>, body: Bytes| async move {
                effects.fetch_add(1, Ordering::SeqCst);
                body
            }),
        )
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(Arc::clone(&effects));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    server.spawn(async move { axum_server::from_tcp(listener).unwrap().serve(app.into_make_service()).await.unwrap() });
    let client = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
    Echo { proxy: FaultProxy::start(&address.to_string()).await, effects, client, _server: server }
}

impl Echo {
    async fn put(&self, path: &str, len: usize) -> reqwest::Result<(u16, Bytes)> {
        let answer = self.client.put(format!("{}{path}", self.proxy.url())).body(vec![7; len]).send().await?;
        Ok((answer.status().as_u16(), answer.bytes().await?))
    }

    fn effects(&self) -> u64 {
        self.effects.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn what_no_rule_matches_passes_and_is_logged() {
    let echo = echo().await;
    echo.proxy.on(Rule::new("GET", "").does(Fault::Drop));
    echo.proxy.on(Rule::new("PUT", "/elsewhere").does(Fault::Drop));
    assert_eq!(echo.put("/a?x=1", 1 << 20).await.unwrap(), (200, Bytes::from(vec![7; 1 << 20])));
    let chunks =
        futures::stream::iter([3_usize, 70_000, 1]).map(|len| Ok::<_, std::io::Error>(Bytes::from(vec![b'\r'; len])));
    let answer = echo.client.post(format!("{}/chunked", echo.proxy.url())).body(reqwest::Body::wrap_stream(chunks));
    assert_eq!(answer.send().await.unwrap().bytes().await.unwrap().len(), 70_004);
    let log = echo.proxy.log();
    assert_eq!(
        (log[0].method.as_str(), log[0].target.as_str(), log[0].body_bytes, log[0].status),
        ("PUT", "/a?x=1", 1 << 20, Some(200))
    );
    assert_eq!(log[1].headers["transfer-encoding"], "chunked");
    assert_eq!(log[1].status, Some(200));
}

#[tokio::test]
async fn faults_before_the_effect_leave_the_server_untouched() {
    let echo = echo().await;
    let busy = Answer::new(503, "slow down").header("retry-after", "1");
    echo.proxy.on(Rule::new("PUT", "/a").skip(1).times(2).does(Fault::Answer(busy)));
    echo.proxy.on(Rule::new("PUT", "/b").does(Fault::Drop));
    echo.proxy.on(Rule::new("PUT", "/c").does(Fault::CutRequest(100_000)));
    let mut statuses = vec![];
    for _ in 0..4 {
        statuses.push(echo.put("/a", 300_000).await.unwrap().0);
    }
    assert_eq!(statuses, [200, 503, 503, 200]);
    assert!(echo.put("/b", 10).await.is_err());
    assert!(echo.put("/c", 300_000).await.is_err());
    assert_eq!(echo.effects(), 2);
}

#[tokio::test]
async fn faults_after_the_effect_happen_after_it() {
    let echo = echo().await;
    echo.proxy.on(Rule::new("PUT", "/a").does(Fault::DropReply));
    echo.proxy.on(Rule::new("PUT", "/b").does(Fault::AnswerAfter(Answer::new(200, "<Error/>"))));
    echo.proxy.on(Rule::new("PUT", "/c").does(Fault::CutReply(1000)));
    assert!(echo.put("/a", 10).await.is_err());
    assert_eq!(echo.put("/b", 10).await.unwrap(), (200, Bytes::from_static(b"<Error/>")));
    let cut = echo.client.put(format!("{}/c", echo.proxy.url())).body(vec![1; 300_000]).send().await.unwrap();
    let mut body = Body::new(reqwest::Body::from(cut)).into_data_stream();
    let mut got = 0;
    let error = loop {
        match body.next().await.unwrap() {
            Ok(piece) => got += piece.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(got, 1000, "{error}");
    assert_eq!(echo.effects(), 3);
    assert!(echo.proxy.log().iter().all(|seen| seen.status == Some(200)));
}

#[tokio::test]
async fn what_hangs_says_nothing_until_the_caller_gives_up() {
    let echo = echo().await;
    echo.proxy.on(Rule::new("PUT", "/a").does(Fault::Hang));
    echo.proxy.on(Rule::new("PUT", "/b").does(Fault::HangReply(5)));
    let short = Duration::from_millis(200);
    assert!(tokio::time::timeout(short, echo.put("/a", 10)).await.is_err());
    echo.proxy.wait(|seen| seen.target == "/a", 1).await;
    let answer = echo.client.put(format!("{}/b", echo.proxy.url())).body(vec![1; 10]).send().await.unwrap();
    assert!(tokio::time::timeout(short, answer.bytes()).await.is_err());
    assert_eq!(echo.effects(), 1);
    echo.proxy.clear();
    assert_eq!(echo.put("/a", 10).await.unwrap().0, 200);
}
