//! The door to callbacks: one signed POST to one address that was judged before it was connected to.
//!
//! Signed by Standard Webhooks (`v1`, HMAC-SHA256), no redirects, no proxies from the environment, bounded in time. The name is resolved once, every
//! address is judged as a number ([`address`]), and the connection goes to what was judged, so that a name that changes its mind gains nothing. Says how
//! a delivery went; when to try again is decided elsewhere.
//!
//! ```text
//! check_url (scheme, user, a literal address) -> the client resolves by `Guard`: every address judged -> connect to one of them
//! -> POST, signed -> 2xx | 410 | anything else
//! ```
//!
//! The judgement is made where the connection is made, not before it (DNS rebinding), and a literal address, which no
//! resolver sees, is judged by its number in the URL. The two clients differ in one thing: which addresses may be spoken to
//! in the clear.

pub mod address;

use crate::config::Cidr;
use address::is_public;
use data_encoding::BASE64;
use http::header::RETRY_AFTER;
use jiff::Timestamp;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use url::{Host, Url};

/// Longest callback URL.
pub const MAX_URL: usize = 2048;
/// The receiver has this long for a whole exchange, half of it for the connection. A claim on a delivery outlasts it.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Why a URL is refused. All but [`Error::Client`] are for whoever gave the URL or for the operator, and say what to change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the callback URL cannot be read; give `https://HOST/PATH`, {MAX_URL} bytes at most")]
    NotAUrl,
    #[error("the callback URL's scheme is `{0}`; use https")]
    Scheme(String),
    #[error("the callback URL holds a user name or password; the signature is what proves us")]
    Credentials,
    #[error("plain http to `{0}` is not allowed; use https, or let the operator list its network in `callbacks.allow`")]
    PlainHttp(String),
    #[error(
        "`{host}` is `{address}`, which is not a public address; the operator may list its network in `callbacks.allow`"
    )]
    Forbidden { host: String, address: IpAddr },
    /// May pass: the name may get one.
    #[error("the name `{0}` has no address")]
    NoAddress(String),
    /// When the service starts; nothing can be delivered.
    #[error("cannot set up an HTTP client")]
    Client(#[source] reqwest::Error),
}

/// How one attempt went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Answered 2xx. What else the answer holds is not read.
    Delivered,
    /// Answered 410: this receiver wants nothing more of the job.
    Gone,
    Failed {
        /// For people; no secrets, no URL query, no control characters.
        reason: String,
        /// What the receiver asked for, by its `Retry-After`; unbounded, as the schedule cuts it.
        retry_after: Option<Duration>,
    },
}

/// One attempt to deliver.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// Judged anew each time: settings and names may have changed since submit.
    pub url: &'a str,
    /// The raw secret, not its `whsec_` form.
    pub secret: &'a [u8],
    /// The event's id, the same in every attempt: by it the receiver knows a repeat.
    pub id: &'a str,
    /// Signed with the rest; receivers refuse what is too old (five minutes by Standard Webhooks), so it is the attempt's
    /// time and not the event's.
    pub now: Timestamp,
    pub content_type: &'a str,
    pub body: &'a [u8],
}

/// Sends callbacks. Cheap to clone. Holds at most one idle connection a host, for ten seconds.
#[derive(Debug, Clone)]
pub struct Webhooks {
    https: reqwest::Client,
    http: reqwest::Client,
    allow: Arc<[Cidr]>,
}

/// Answers which addresses a name has. All of them: whoever implements it must not leave out those that would be refused.
/// Called for each new connection; no answer is kept.
#[async_trait::async_trait]
pub trait Lookup: Send + Sync + std::fmt::Debug {
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>>;
}

/// The system's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemLookup;

#[async_trait::async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
    }
}

impl Webhooks {
    /// `allow`: networks that may be reached though they are not public, and by plain http. Redirects are not followed, as
    /// they would lead past the judgement, and no proxy is taken from the environment, as it would connect in our stead.
    pub fn new(allow: Vec<Cidr>, lookup: Arc<dyn Lookup>) -> Result<Self, Error> {
        let allow: Arc<[Cidr]> = allow.into();
        let client = |plain| {
            let guard = Guard { allow: allow.clone(), plain, lookup: lookup.clone() };
            reqwest::Client::builder()
                .dns_resolver(Arc::new(guard))
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .timeout(TIMEOUT)
                .connect_timeout(TIMEOUT / 2)
                .pool_max_idle_per_host(1)
                .pool_idle_timeout(Duration::from_secs(10))
                .user_agent(concat!("dray/", env!("CARGO_PKG_VERSION")))
                .build()
                .map_err(Error::Client)
        };
        Ok(Self { https: client(Plain::No)?, http: client(Plain::Yes)?, allow: allow.clone() })
    }

    /// As the settings say, with the system's resolver.
    pub fn open(settings: &crate::config::Settings) -> Result<Self, Error> {
        Self::new(settings.callbacks.allowed(settings.listen), Arc::new(SystemLookup))
    }

    /// Judges a URL as far as that goes without resolving its name: at submit, and again before every attempt. Plain http to
    /// a name is let through when any network is allowed; whether the name lies in it is judged when it is resolved.
    pub fn check_url(&self, text: &str) -> Result<Url, Error> {
        if text.len() > MAX_URL {
            return Err(Error::NotAUrl);
        }
        let url = Url::parse(text).map_err(|_| Error::NotAUrl)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::Credentials);
        }
        let plain = match url.scheme() {
            "https" => Plain::No,
            "http" => Plain::Yes,
            other => return Err(Error::Scheme(other.to_owned())),
        };
        match url.host() {
            Some(Host::Ipv4(address)) => judge(&self.allow, plain, &address.to_string(), IpAddr::V4(address))?,
            Some(Host::Ipv6(address)) => judge(&self.allow, plain, &address.to_string(), IpAddr::V6(address))?,
            Some(Host::Domain(name)) if plain == Plain::Yes && self.allow.is_empty() => {
                return Err(Error::PlainHttp(name.to_owned()));
            }
            Some(Host::Domain(_)) => {}
            None => return Err(Error::NotAUrl),
        }
        Ok(url)
    }

    /// Makes one attempt. Never an error: whatever goes wrong is a failed attempt. Ends within [`TIMEOUT`]. A failure may
    /// still have reached the receiver.
    pub async fn deliver(&self, attempt: Attempt<'_>) -> Outcome {
        let failed = |reason: String| Outcome::Failed { reason, retry_after: None };
        let url = match self.check_url(attempt.url) {
            Ok(url) => url,
            Err(error) => return failed(error.to_string()),
        };
        let client = if url.scheme() == "https" { &self.https } else { &self.http };
        let timestamp = attempt.now.as_second();
        let response = client
            .post(url)
            .header(http::header::CONTENT_TYPE, attempt.content_type)
            .header("webhook-id", attempt.id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", sign(attempt.secret, attempt.id, timestamp, attempt.body))
            .body(attempt.body.to_vec())
            .send()
            .await;
        match response {
            Ok(response) => judge_answer(&response, attempt.now),
            Err(error) => failed(chain(&error.without_url())),
        }
    }
}

/// `v1,<base64>` of HMAC-SHA256 over `{id}.{timestamp}.{body}` (Standard Webhooks), `timestamp` in seconds since 1970. The
/// body is signed as it is sent, byte for byte.
pub fn sign(secret: &[u8], id: &str, timestamp: i64, body: &[u8]) -> String {
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
    let mut context = aws_lc_rs::hmac::Context::with_key(&key);
    context.update(format!("{id}.{timestamp}.").as_bytes());
    context.update(body);
    format!("v1,{}", BASE64.encode(context.sign().as_ref()))
}

fn judge_answer(response: &reqwest::Response, now: Timestamp) -> Outcome {
    let status = response.status();
    if status.is_success() {
        return Outcome::Delivered;
    }
    if status == http::StatusCode::GONE {
        return Outcome::Gone;
    }
    let retry_after =
        response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).and_then(|text| wait_of(text, now));
    let reason = if status.is_redirection() {
        format!("answered {status}; redirects are not followed, give the final URL")
    } else {
        format!("answered {status}")
    };
    Outcome::Failed { reason, retry_after }
}

/// `Retry-After` (RFC 9110): seconds or an HTTP date; `None` for a date that is over and for anything else.
fn wait_of(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let at = jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp();
    Duration::try_from(at.duration_since(now)).ok()
}

/// With its causes, since "error sending request" alone helps nobody; cut to 500 characters.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text.chars().filter(|c| !c.is_control()).take(500).collect()
}

/// Whether the connection is in the clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plain {
    No,
    Yes,
}

/// An allowed network permits both: addresses that are not public, and plain http to them.
fn judge(allow: &[Cidr], plain: Plain, host: &str, address: IpAddr) -> Result<(), Error> {
    if allow.iter().any(|network| network.contains(address)) {
        return Ok(());
    }
    if !is_public(address) {
        return Err(Error::Forbidden { host: host.to_owned(), address });
    }
    match plain {
        Plain::No => Ok(()),
        Plain::Yes => Err(Error::PlainHttp(host.to_owned())),
    }
}

/// Resolves names for the client and lets only judged addresses through; one bad address among several refuses the name, or
/// the client might choose that one.
#[derive(Debug)]
struct Guard {
    allow: Arc<[Cidr]>,
    plain: Plain,
    lookup: Arc<dyn Lookup>,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let (allow, plain, lookup) = (self.allow.clone(), self.plain, self.lookup.clone());
        Box::pin(async move {
            let addresses = lookup.lookup(name.as_str()).await?;
            if addresses.is_empty() {
                return Err(Error::NoAddress(name.as_str().to_owned()).into());
            }
            for address in &addresses {
                judge(&allow, plain, name.as_str(), *address)?;
            }
            Ok(Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests;
