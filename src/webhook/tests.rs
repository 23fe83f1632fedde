//! The address checks of the callback door as a table, and its signatures against an independent verifier.

use super::*;
use standardwebhooks::Webhook;
use std::collections::HashMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[derive(Debug, Default)]
struct Fixed(HashMap<String, Vec<IpAddr>>);

#[async_trait::async_trait]
impl Lookup for Fixed {
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(self.0.get(name).cloned().unwrap_or_default())
    }
}

fn webhooks(allow: &[&str], names: &[(&str, &[&str])]) -> Webhooks {
    let names = names
        .iter()
        .map(|(name, ips)| (name.to_string(), ips.iter().map(|ip| ip.parse().unwrap()).collect()))
        .collect();
    Webhooks::new(allow.iter().map(|net| net.parse().unwrap()).collect(), Arc::new(Fixed(names))).unwrap()
}

fn attempt<'a>(url: &'a str, body: &'a [u8]) -> Attempt<'a> {
    #[expect(clippy::disallowed_methods, reason = "the independent verifier reads the machine's clock")]
    let now = Timestamp::now();
    Attempt { url, secret: &[7; 32], id: "0193", now, content_type: "application/cloudevents+json", body }
}

/// Answers each connection with the next of `answers`; gives back what was asked.
async fn receiver(answers: &'static [&'static str]) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            while !seen.ends_with(b"END") {
                let mut buffer = [0; 4096];
                let count = stream.read(&mut buffer).await.unwrap();
                assert!(count > 0, "closed early");
                seen.extend_from_slice(&buffer[..count]);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            asked.push(String::from_utf8(seen).unwrap());
        }
        asked
    });
    #[expect(clippy::disallowed_methods, reason = "a test's own task, joined by the test")]
    let handle = tokio::spawn(async move { tasks.join_next().await.unwrap().unwrap() });
    (port, handle)
}

#[tokio::test]
async fn hostile_urls_are_refused_at_connect_time() {
    let inside: &[(&str, &[&str])] = &[
        ("rebind.test", &["93.184.216.34", "127.0.0.1"]),
        ("meta.test", &["169.254.169.254"]),
        ("mapped.test", &["::ffff:a9fe:a9fe"]),
        ("nat64.test", &["64:ff9b::a9fe:a9fe"]),
        ("sixtofour.test", &["2002:a9fe:a9fe::"]),
        ("nothing.test", &[]),
    ];
    let door = webhooks(&[], inside);
    for url in [
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://[::ffff:a9fe:a9fe]/",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://[2002:a9fe:a9fe::]/",
        "https://[::1]/",
        "https://[fe80::1]/",
        "https://169.254.169.254/latest",
        "https://10.0.0.1/",
        "https://0.0.0.0/",
        "http://93.184.216.34/",
        "http://public.test/",
        "ftp://93.184.216.34/",
        "file:///etc/passwd",
        "https://user:secret@93.184.216.34/",
        "https://user@93.184.216.34/",
        "nonsense",
        "https://",
        "https://rebind.test/",
        "https://meta.test/",
        "https://mapped.test/",
        "https://nat64.test/",
        "https://sixtofour.test/",
        "https://nothing.test/",
    ] {
        match door.deliver(attempt(url, b"{}")).await {
            Outcome::Failed { reason, .. } => assert!(!reason.contains("secret"), "{reason}"),
            other => panic!("{url}: {other:?}"),
        }
    }
    let Outcome::Failed { reason, .. } = door.deliver(attempt("https://rebind.test/", b"{}")).await else { panic!() };
    assert!(reason.contains("`127.0.0.1`, which is not a public address"), "{reason}");
}

#[tokio::test]
async fn a_delivery_verifies_with_an_independent_library() {
    let (port, asked) = receiver(&["HTTP/1.1 204 No Content\r\n\r\n"]).await;
    let url = format!("http://hook.test:{port}/dray?token=x");
    let door = webhooks(&["127.0.0.0/8"], &[("hook.test", &["127.0.0.1"])]);
    assert_eq!(door.deliver(attempt(&url, b"{\"a\":1} END")).await, Outcome::Delivered);
    let asked = asked.await.unwrap().remove(0);
    let (head, body) = asked.split_once("\r\n\r\n").unwrap();
    let mut headers = http::HeaderMap::new();
    for line in head.lines().skip(1) {
        let (name, value) = line.split_once(": ").unwrap();
        headers.insert(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
    }
    assert_eq!(headers["webhook-id"], "0193");
    assert_eq!(headers["content-type"], "application/cloudevents+json");
    let verifier = Webhook::from_bytes(vec![7; 32]).unwrap();
    verifier.verify(body.as_bytes(), &headers).unwrap();
    assert!(verifier.verify(b"{\"a\":2} END", &headers).is_err());
    assert!(Webhook::from_bytes(vec![8; 32]).unwrap().verify(body.as_bytes(), &headers).is_err());
}

#[tokio::test]
async fn only_2xx_is_success_and_nothing_is_followed() {
    let (port, asked) = receiver(&[
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/latest\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 410 Gone\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 503 Busy\r\nretry-after: 120\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    ])
    .await;
    let url = format!("http://127.0.0.1:{port}/");
    let door = webhooks(&["127.0.0.1/32"], &[]);
    let Outcome::Failed { reason, retry_after: None } = door.deliver(attempt(&url, b"END")).await else { panic!() };
    assert!(reason.contains("redirects are not followed"), "{reason}");
    assert_eq!(door.deliver(attempt(&url, b"END")).await, Outcome::Gone);
    let Outcome::Failed { retry_after, .. } = door.deliver(attempt(&url, b"END")).await else { panic!() };
    assert_eq!(retry_after, Some(Duration::from_secs(120)));
    assert_eq!(asked.await.unwrap().len(), 3);
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
    assert_eq!(wait_of("30", now), Some(Duration::from_secs(30)));
    assert_eq!(wait_of("Mon, 30 Nov 2026 12:01:00 GMT", now), Some(Duration::from_secs(60)));
    assert_eq!(wait_of("Mon, 30 Nov 2026 11:01:00 GMT", now), None);
    assert_eq!(wait_of("soon", now), None);
}

#[test]
fn plain_http_needs_an_allowed_network() {
    let door = webhooks(&["127.0.0.0/8"], &[]);
    assert!(door.check_url("http://127.0.0.1:9/x").is_ok());
    assert!(door.check_url("http://[::ffff:127.0.0.1]/x").is_ok());
    assert!(matches!(door.check_url("http://8.8.8.8/"), Err(Error::PlainHttp(_))));
    assert!(matches!(door.check_url("http://10.0.0.1/"), Err(Error::Forbidden { .. })));
    assert!(door.check_url("https://8.8.8.8/").is_ok());
    assert!(matches!(door.check_url(&format!("https://h/{}", "a".repeat(MAX_URL))), Err(Error::NotAUrl)));
}
