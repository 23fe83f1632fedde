//! The receiver of callbacks, as a scheduler would have one: checks every signature before it believes a word.
//!
//! Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`. A delivery seen before is acknowledged and not told again. What
//! cannot be taken now (no secret yet, queue full) is answered 503, so that the service sends it again.

use crate::api::events::Event;
use crate::clock::{Clock, SystemClock};
use aws_lc_rs::hmac;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use data_encoding::BASE64;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How far a delivery's time may be from ours.
const TOLERANCE: i64 = 300;
/// Deliveries that wait to be looked at.
const QUEUE: usize = 64;

/// A running receiver. It stops when dropped.
///
/// Listens on loopback only.
#[derive(Debug)]
pub struct Receiver {
    pub address: SocketAddr,
    pub events: mpsc::Receiver<Event>,
    shared: Arc<Shared>,
    _server: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    key: OnceLock<hmac::Key>,
    seen: Mutex<HashSet<String>>,
    queue: mpsc::Sender<Event>,
}

impl Receiver {
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (queue, events) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared { key: OnceLock::new(), seen: Mutex::default(), queue });
        let router = axum::Router::new().route("/dray", post(deliver)).with_state(Arc::clone(&shared));
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the receiver of callbacks ended");
            }
        });
        Ok(Self { address, events, shared, _server: server })
    }

    pub fn url(&self) -> String {
        format!("http://{}/dray", self.address)
    }

    /// Takes the secret that the service gave at submit: `whsec_` and base64.
    pub fn trust(&self, secret: &str) -> Result<(), &'static str> {
        let key = key(secret).ok_or("the callback secret is not `whsec_` and base64")?;
        self.shared.key.set(key).map_err(|_| "the secret is set once")
    }
}

fn key(secret: &str) -> Option<hmac::Key> {
    let bytes = BASE64.decode(secret.strip_prefix("whsec_")?.as_bytes()).ok()?;
    Some(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

async fn deliver(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let Some(key) = shared.key.get() else { return StatusCode::SERVICE_UNAVAILABLE };
    let now = SystemClock.now().as_second();
    let Some(id) = verified(key, now, &headers, &body) else {
        tracing::warn!("a callback with a wrong signature was refused");
        return StatusCode::UNAUTHORIZED;
    };
    let Ok(event) = serde_json::from_slice::<Event>(&body) else { return StatusCode::BAD_REQUEST };
    if event.id != id {
        return StatusCode::BAD_REQUEST;
    }
    let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.contains(&id) {
        return StatusCode::NO_CONTENT;
    }
    match shared.queue.try_send(event) {
        Ok(()) => {
            seen.insert(id);
            StatusCode::NO_CONTENT
        }
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The delivery's id, when one of its signatures is right and its time is near.
///
/// The signature covers id and time, so neither can be exchanged; the tolerance bounds replays to five minutes. Several
/// signatures may stand side by side while a secret is changed. Compared in constant time.
fn verified(key: &hmac::Key, now: i64, headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let (id, time) = (header("webhook-id")?, header("webhook-timestamp")?);
    if (time.parse::<i64>().ok()? - now).abs() > TOLERANCE {
        return None;
    }
    let signed = [id.as_bytes(), b".", time.as_bytes(), b".", body].concat();
    let right = |signature: &str| {
        let bytes = signature.strip_prefix("v1,").and_then(|text| BASE64.decode(text.as_bytes()).ok());
        bytes.is_some_and(|bytes| hmac::verify(key, &signed, &bytes).is_ok())
    };
    header("webhook-signature")?.split(' ').any(right).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signed by an independent implementation.
    fn signed(secret: &str, id: &str, time: i64, body: &[u8]) -> HeaderMap {
        let webhook = standardwebhooks::Webhook::new(secret).unwrap();
        let signature = webhook.sign(id, time, body).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", id.parse().unwrap());
        headers.insert("webhook-timestamp", time.to_string().parse().unwrap());
        headers.insert("webhook-signature", format!("v1a,x {signature}").parse().unwrap());
        headers
    }

    #[test]
    fn only_what_is_signed_and_fresh_is_believed() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let key = key(secret).unwrap();
        let headers = signed(secret, "evt_1", 1_000_000, b"{}");
        assert_eq!(verified(&key, 1_000_000, &headers, b"{}").as_deref(), Some("evt_1"));
        assert_eq!(verified(&key, 1_000_000, &headers, b"{ }"), None, "another body");
        assert_eq!(verified(&key, 1_000_301, &headers, b"{}"), None, "too old");
        let mut other = headers.clone();
        other.insert("webhook-id", "evt_2".parse().unwrap());
        assert_eq!(verified(&key, 1_000_000, &other, b"{}"), None, "another id");
        let wrong = signed("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "evt_1", 1_000_000, b"{}");
        assert_eq!(verified(&key, 1_000_000, &wrong, b"{}"), None, "another secret");
    }
}
