//! The HTTP client against a server that answers by a script, byte for byte: lost, cut, hung and refused answers.

use super::api::{Api, Options};
use super::transfer::{Body, Put, Target};
use super::{Error, Exit};
use crate::clock::{Clock, ManualClock};
use bytes::Bytes;
use reqwest::header::HeaderMap;
use secrecy::SecretString;
use std::io::Read as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use url::Url;

/// What the server does with the next request.
enum Reply {
    /// Sends this and closes.
    Say(String),
    /// Reads the request and closes without a word.
    Drop,
    /// Reads the request and says nothing, for ever.
    Hang,
    /// Reads this many bytes of the request only, then closes.
    CutAfter(usize),
}

#[derive(Debug, Clone)]
struct Request {
    head: String,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

struct Server {
    url: Url,
    seen: Arc<Mutex<Vec<Request>>>,
    _task: JoinSet<()>,
}

impl Server {
    async fn start(script: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut task = JoinSet::new();
        let log = Arc::clone(&seen);
        task.spawn(async move {
            let mut hung = Vec::new();
            for reply in script {
                let (mut socket, _) = listener.accept().await.unwrap();
                if let Reply::CutAfter(bytes) = reply {
                    let mut some = vec![0; bytes];
                    socket.read_exact(&mut some).await.unwrap();
                    continue;
                }
                let request = read_request(&mut socket).await;
                log.lock().unwrap().push(request);
                match reply {
                    Reply::Say(answer) => socket.write_all(answer.as_bytes()).await.unwrap(),
                    Reply::Hang => hung.push(socket),
                    Reply::Drop | Reply::CutAfter(_) => {}
                }
            }
        });
        Self { url, seen, _task: task }
    }

    fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

async fn read_request(socket: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    let end = loop {
        assert!(socket.read_buf(&mut bytes).await.unwrap() > 0, "request cut: {}", String::from_utf8_lossy(&bytes));
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let mut request = Request { head: String::from_utf8(bytes[..end].to_vec()).unwrap(), body: bytes[end..].to_vec() };
    let length = request.header("content-length").map_or(0, |text| text.parse().unwrap());
    while request.body.len() < length {
        assert!(socket.read_buf(&mut request.body).await.unwrap() > 0, "body cut");
    }
    request
}

fn say(status: &str, headers: &str, body: &str) -> Reply {
    Reply::Say(format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
        body.len()
    ))
}

fn problem(status: u16, code: &str, headers: &str) -> Reply {
    let body = format!(r#"{{"code":"{code}","title":"t","status":{status},"detail":"why not"}}"#);
    say(&format!("{status} X"), &format!("content-type: application/problem+json\r\n{headers}"), &body)
}

const ZSTD: &str = "content-type: application/zstd\r\n";

fn options() -> Options {
    Options {
        stall_timeout: Duration::from_millis(200),
        patience: Duration::from_secs(20),
        first_contact: Duration::from_secs(20),
        ..Options::default()
    }
}

fn api(urls: &[&Url]) -> Api {
    Api::new(urls.iter().copied().cloned().collect(), SecretString::from("s3cret"), options()).unwrap()
}

/// An address where nobody listens.
async fn closed() -> Url {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap()
}

#[tokio::test]
async fn a_dead_base_url_is_left_and_the_good_one_remembered() {
    let server = Server::start(vec![say("200 OK", "", "1"), say("200 OK", "", "2")]).await;
    let api = api(&[&closed().await, &server.url]);
    assert_eq!(api.get::<u32>("/v1/x").await.unwrap(), 1);
    assert_eq!(api.base(), &server.url);
    assert_eq!(api.get::<u32>("/v1/x").await.unwrap(), 2);
    assert_eq!(server.seen()[0].header("authorization"), Some("Bearer s3cret"));
}

#[tokio::test]
async fn a_503_moves_on_and_back() {
    let first = Server::start(vec![problem(503, "draining", ""), say("200 OK", "", "7")]).await;
    let second = Server::start(vec![problem(503, "draining", "retry-after: 0\r\n")]).await;
    assert_eq!(api(&[&first.url, &second.url]).get::<u32>("/v1/x").await.unwrap(), 7);
    assert_eq!((first.seen().len(), second.seen().len()), (2, 1));
}

#[tokio::test]
async fn a_post_is_the_same_one_over_lost_answers() {
    let script = vec![Reply::Drop, problem(502, "bad_gateway", ""), say("201 Created", "", r#""made""#)];
    let server = Server::start(script).await;
    let made: String = api(&[&server.url]).post("/v1/jobs", &serde_json::json!({"name": "x"})).await.unwrap();
    assert_eq!(made, "made");
    let keys: Vec<_> = server.seen().iter().map(|seen| seen.header("idempotency-key").unwrap().to_owned()).collect();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    let ids: Vec<_> = server.seen().iter().map(|seen| seen.header("x-request-id").unwrap().to_owned()).collect();
    assert_ne!(ids[0], ids[1], "each attempt has a name of its own in the log");
}

#[tokio::test]
async fn a_refusal_is_final_and_tells_a_wrong_clock() {
    let date = "date: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
    let server = Server::start(vec![problem(403, "forbidden", date)]).await;
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(40 * 60));
    assert_eq!(clock.now().to_string(), "2026-01-01T00:40:00Z");
    let options = Options { clock: Arc::new(clock), ..options() };
    let api = Api::new(vec![server.url.clone()], SecretString::from("s3cret"), options).unwrap();
    let error = api.get::<()>("/v1/x").await.unwrap_err();
    assert_eq!((error.code(), error.to_string(), error.exit()), ("forbidden", "why not".to_owned(), Exit::Failed));
    let hint = error.hint().unwrap().into_owned();
    assert_eq!(hint, "this machine's clock is 40 min ahead of the service's: set it right");
    assert!(error.request_id().is_some());
    assert!(!format!("{api:?} {error:?}").contains("s3cret"), "the token is in no Debug text");
}

#[tokio::test]
async fn a_hung_answer_is_dropped_and_asked_again() {
    let server = Server::start(vec![Reply::Hang, say("200 OK", "", "3")]).await;
    assert_eq!(api(&[&server.url]).get::<u32>("/v1/x").await.unwrap(), 3);
}

#[tokio::test]
async fn patience_ends_with_a_network_error() {
    let short = Options { first_contact: Duration::from_millis(300), ..options() };
    let api = Api::new(vec![closed().await], SecretString::from(""), short).unwrap();
    let error = api.get::<()>("/v1/x").await.unwrap_err();
    assert_eq!((error.code(), error.exit()), ("unreachable", Exit::Network));
}

#[tokio::test]
async fn an_error_inside_a_200_is_no_success() {
    let wrong = || say("200 OK", "", r#"{"error":"SlowDown"}"#);
    let server = Server::start(vec![wrong(), say("200 OK", "", "5")]).await;
    assert_eq!(api(&[&server.url]).get::<u32>("/v1/x").await.unwrap(), 5);
}

#[tokio::test]
async fn redirects_are_refused_and_get_no_token() {
    let other = Server::start(vec![say("200 OK", "", "1")]).await;
    let server = Server::start(vec![say("302 Found", &format!("location: {}\r\n", other.url), "")]).await;
    let error = api(&[&server.url]).get::<u32>("/v1/x").await.unwrap_err();
    assert_eq!(error.code(), "protocol");
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn a_put_is_sent_again_whole_from_the_same_memory() {
    let server = Server::start(vec![Reply::CutAfter(300_000), say("204 No Content", "", "")]).await;
    let part = |byte| Bytes::from(vec![byte; 1 << 20]);
    let body = Body::segments(vec![part(1), part(2)]);
    let sent = Arc::new(AtomicU64::new(0));
    let put = Put { path: "/v1/p", headers: HeaderMap::new(), body, sent: Arc::clone(&sent), pace: None };
    api(&[&server.url]).put_stream::<()>(put).await.unwrap();
    let request = server.seen().pop().unwrap();
    assert_eq!(request.header("content-length"), Some("2097152"));
    assert_eq!(request.body, [vec![1; 1 << 20], vec![2; 1 << 20]].concat());
    assert!(sent.load(Ordering::Relaxed) > 2 << 20, "the cut attempt counts as sent");
}

#[tokio::test]
async fn a_put_from_a_file() {
    let server = Server::start(vec![say("200 OK", "", "1")]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..700_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    fs_err::write(file.path(), &bytes).unwrap();
    let body = Body::file(file.path().to_owned(), bytes.len() as u64);
    let put = Put { path: "/v1/p", headers: HeaderMap::new(), body, sent: Arc::default(), pace: None };
    assert_eq!(api(&[&server.url]).put_stream::<u32>(put).await.unwrap(), 1);
    assert!(server.seen()[0].body == bytes);
}

/// Says `all` bytes are coming, sends `body`, and closes.
fn cut(all: usize, headers: &str, body: &str) -> Reply {
    Reply::Say(format!("HTTP/1.1 200 OK\r\ncontent-length: {all}\r\netag: \"e\"\r\n{headers}\r\n{body}"))
}

#[tokio::test]
async fn a_cut_download_goes_on_at_its_byte() {
    let rest = "HTTP/1.1 206 X\r\ncontent-type: application/zstd\r\ncontent-length: 6\r\netag: \"e\"\r\ncontent-range: bytes 4-9/10\r\nconnection: close\r\n\r\n456789";
    let server = Server::start(vec![cut(10, ZSTD, "0123"), Reply::Drop, Reply::Say(rest.to_owned())]).await;
    let stream = api(&[&server.url]).get_stream(Target::Service("/v1/tree"), None).await.unwrap();
    let text = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        stream.into_read().read_to_string(&mut text).unwrap();
        text
    });
    assert_eq!(text.await.unwrap(), "0123456789");
    assert_eq!(server.seen()[2].header("range"), Some("bytes=4-"));
}

#[tokio::test]
async fn a_strangers_page_is_not_taken_for_stored_bytes() {
    let page = || say("200 OK", "content-type: text/html\r\n", "<html>login</html>");
    let server = Server::start(vec![page(), cut(4, ZSTD, "0123")]).await;
    let mut stream = api(&[&server.url]).get_stream(Target::Service("/v1/tree"), None).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "0123");
    // Where a range was asked, an object that ends before it is none of ours.
    let server = Server::start(vec![page(), say("200 OK", "", &"x".repeat(40))]).await;
    let mut stream = api(&[&server.url]).get_stream(Target::Signed("/v1/packs/p"), Some(0..40)).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "x".repeat(40));
}

#[tokio::test]
async fn damage_is_told_and_not_asked_about_again() {
    let server = Server::start(vec![problem(500, "pack_quarantined", "")]).await;
    let error = api(&[&server.url]).get::<String>("/v1/x").await.unwrap_err();
    assert_eq!((error.code(), error.exit(), server.seen().len()), ("pack_quarantined", Exit::Failed, 1));
}

/// A load balancer in front of a dead replica takes connections and closes them, or answers 502.
#[tokio::test]
async fn what_breaks_or_is_a_bad_gateway_is_tried_elsewhere() {
    let live = Server::start((0..3).map(|_| say("200 OK", "", r#""made""#)).collect()).await;
    for dead in [Reply::Drop, problem(502, "bad_gateway", ""), problem(504, "late", "")] {
        let dead = Server::start(vec![dead]).await;
        let said: String = api(&[&dead.url, &live.url]).get("/v1/x").await.unwrap();
        assert_eq!((said.as_str(), dead.seen().len()), ("made", 1));
    }
}

#[tokio::test]
async fn a_server_without_ranges_is_read_past_what_is_there() {
    let server = Server::start(vec![say("200 OK", "", "0123456789")]).await;
    let mut stream = api(&[&server.url]).get_stream(Target::Signed("/l/x"), Some(3..6)).await.unwrap();
    let mut got = Vec::new();
    while let Some(part) = stream.next().await.unwrap() {
        got.extend_from_slice(&part);
    }
    assert_eq!(got, b"345");
    assert_eq!(server.seen()[0].header("range"), Some("bytes=3-5"));
    assert_eq!(server.seen()[0].header("authorization"), None, "a signed path needs no token and gets none");
}

#[tokio::test]
async fn another_object_after_the_break_is_an_error() {
    let other = "HTTP/1.1 206 X\r\ncontent-type: application/zstd\r\ncontent-length: 6\r\netag: \"f\"\r\ncontent-range: bytes 4-9/10\r\n\r\n456789";
    let server = Server::start(vec![cut(10, ZSTD, "0123"), Reply::Say(other.to_owned())]).await;
    let mut stream = api(&[&server.url]).get_stream(Target::Service("/v1/tree"), None).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "0123");
    assert_eq!(stream.next().await.unwrap_err().code(), "protocol");
}

#[tokio::test]
async fn a_signed_url_elsewhere_gets_no_token_and_its_death_is_told() {
    let store = Server::start(vec![say("403 Forbidden", "", "<Error/>")]).await;
    let api = api(&[&closed().await]);
    let url = format!("{}p?X-Amz-Signature=abc", store.url);
    let error = api.get_stream(Target::Signed(&url), Some(0..5)).await.unwrap_err();
    assert!(matches!(error, Error::UrlRefused { status: 403, .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("abc"), "a signature is a secret");
    assert_eq!(store.seen()[0].header("authorization"), None);
}

#[tokio::test]
async fn cancelling_ends_a_call_at_once() {
    let server = Server::start(vec![Reply::Hang]).await;
    let token = CancellationToken::new();
    let long = Options { stall_timeout: Duration::from_secs(600), ..options() };
    let api = Api::new(vec![server.url.clone()], SecretString::from(""), long).unwrap().cancelled_by(token.clone());
    let mut calls = JoinSet::new();
    calls.spawn(async move { api.get::<()>("/v1/x").await });
    token.cancel();
    let error = calls.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.exit(), Exit::Interrupted);
}
