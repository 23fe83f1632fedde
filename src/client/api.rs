//! The HTTP client of the outside house: base URLs with fail-over, bearer token, typed JSON, retries, stall watch.
//!
//! The token goes to the configured base URLs only, never to a signed URL, and redirects are not followed. Every POST
//! carries an `Idempotency-Key` that stays the same over its retries, so a lost answer never makes a thing twice. There is
//! no total timeout: a call fails when nothing moves. Bodies in and out are in [`super::transfer`].
//!
//! One call is a loop of attempts, see `retry`. Who calls sees the last failure only; the log has the others.

use super::address::{join, origin};
pub use super::address::{parse_urls, route};
use super::document::{Decode, Decoded, encode};
use super::error::Error;
use super::retry::{Attempts, Next, Progress};
use crate::api::problem::{PROBLEM_JSON, Problem};
use crate::api::teams::Page;
use crate::clock::{Clock, Ids, RandomIds, SystemClock};
use futures::future::BoxFuture;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use url::Url;

/// Largest JSON answer that is read.
/// More is refused for good: a page of a listing is far smaller.
const MAX_JSON: usize = 64 << 20;
/// Largest error body that is read.
const MAX_PROBLEM: usize = 256 << 10;

/// How the client waits and gives up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Until a connection stands, of one attempt.
    pub connect_timeout: Duration,
    /// No byte moved for this long: the attempt is dropped and made again.
    pub stall_timeout: Duration,
    /// How long failed attempts and pauses of one call may add up before it gives up, once the service has answered.
    pub patience: Duration,
    /// The same before the service has ever answered: a mistyped URL is told soon.
    pub first_contact: Duration,
    /// Proxy for all requests. The environment's proxies are not used.
    pub proxy: Option<Url>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            patience: Duration::from_secs(180),
            first_contact: Duration::from_secs(5),
            proxy: None,
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
        }
    }
}

/// A client of one service. Cheap to clone; clones share connections and the memory of the base URL that works.
#[derive(Debug, Clone)]
pub struct Api {
    pub(super) inner: Arc<Inner>,
    pub(super) cancel: CancellationToken,
}

#[derive(Debug)]
pub(super) struct Inner {
    bases: Vec<Url>,
    /// Index of the base URL that answered last.
    good: AtomicUsize,
    answered: AtomicBool,
    /// `Bearer ...`, marked sensitive.
    bearer: Option<HeaderValue>,
    service: reqwest::Client,
    /// Every base URL is plain http: `service` has no trust roots.
    plain: bool,
    /// For https URLs beside plain base URLs; made when first needed, since trust roots are dear to load.
    foreign: OnceLock<reqwest::Client>,
    pub options: Options,
}

/// An attempt that ended without a result.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: Error,
    pub next: Next,
}

/// One attempt of one call.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub base: Url,
    pub request_id: String,
    pub progress: Arc<Progress>,
}

impl Api {
    /// `urls` must not be empty (see [`parse_urls`]). An empty token sends no `Authorization`.
    pub fn new(urls: Vec<Url>, token: SecretString, options: Options) -> Result<Self, Error> {
        if urls.is_empty() {
            return Err(Error::BadUrl { url: String::new(), why: "it is empty" });
        }
        let bearer = match token.expose_secret() {
            "" => None,
            secret => {
                let mut value = HeaderValue::from_str(&format!("Bearer {secret}"))
                    .map_err(|_| Error::BadUrl { url: origin(&urls[0]), why: "the token holds a control character" })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let plain = urls.iter().all(|url| url.scheme() == "http");
        let service = client(&options, plain).map_err(Error::Setup)?;
        Ok(Self {
            inner: Arc::new(Inner {
                bases: urls,
                good: AtomicUsize::new(0),
                answered: AtomicBool::new(false),
                bearer,
                service,
                plain,
                foreign: OnceLock::new(),
                options,
            }),
            cancel: CancellationToken::new(),
        })
    }

    /// The same client, whose calls end with [`Error::Interrupted`] once `token` is cancelled.
    pub fn cancelled_by(&self, token: CancellationToken) -> Self {
        Self { inner: Arc::clone(&self.inner), cancel: token }
    }

    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancel
    }

    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The base URL in use, for messages.
    pub fn base(&self) -> &Url {
        &self.inner.bases[self.inner.good.load(Ordering::Relaxed) % self.inner.bases.len()]
    }

    pub async fn get<T: DeserializeOwned + Send>(&self, path: &str) -> Result<T, Error> {
        self.json(Method::GET, path, None, Duration::ZERO).await
    }

    /// A long poll: the service may stay silent for `wait` before it answers.
    pub async fn get_waiting<T: DeserializeOwned + Send>(&self, path: &str, wait: Duration) -> Result<T, Error> {
        self.json(Method::GET, path, None, wait).await
    }

    /// Sends one `Idempotency-Key` over all attempts. `T` may be `()` where the answer has no body.
    pub async fn post<B: Serialize + ?Sized, T: DeserializeOwned + Send>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, Error> {
        self.json(Method::POST, path, Some(encode(body)), Duration::ZERO).await
    }

    pub async fn put<B: Serialize + ?Sized, T: DeserializeOwned + Send>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, Error> {
        self.json(Method::PUT, path, Some(encode(body)), Duration::ZERO).await
    }

    pub async fn delete<T: DeserializeOwned + Send>(&self, path: &str) -> Result<T, Error> {
        self.json(Method::DELETE, path, None, Duration::ZERO).await
    }

    /// One page of a listing; `query` without the cursor.
    pub async fn page<T: DeserializeOwned + Send>(
        &self,
        segments: &[&str],
        query: &[(&str, &str)],
        cursor: Option<&str>,
    ) -> Result<Page<T>, Error> {
        let mut query = query.to_vec();
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        self.get(&route(segments, &query)).await
    }

    async fn json<T: DeserializeOwned + Send>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        wait: Duration,
    ) -> Result<T, Error> {
        let body = body.map(|body| (body, self.inner.options.ids.uuid().to_string()));
        let decoded = Decoded::new();
        self.call(method, path, body, wait, &decoded).await?;
        Ok(decoded.into_inner())
    }

    /// One call, whatever its answer decodes to: compiled once and not for every document.
    fn call<'a>(
        &'a self,
        method: Method,
        path: &'a str,
        body: Option<(Vec<u8>, String)>,
        wait: Duration,
        decoded: &'a dyn Decode,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let body = body.map(|(body, key)| (bytes::Bytes::from(body), key));
        Box::pin(self.attempts(None, wait, move |attempt| {
            let (method, body) = (method.clone(), body.clone());
            async move {
                let mut request = self.request(method.clone(), &attempt, path)?;
                if let Some((body, key)) = body {
                    request = request.header(header::CONTENT_TYPE, "application/json").body(body);
                    if method == Method::POST {
                        request = request.header("idempotency-key", key);
                    }
                }
                let response = self.send(request, &attempt).await?;
                self.decode(response, &attempt, decoded).await
            }
        }))
    }

    /// A request to the service itself, with the bearer token.
    pub(super) fn request(
        &self,
        method: Method,
        attempt: &Attempt,
        path: &str,
    ) -> Result<reqwest::RequestBuilder, Failure> {
        let url = join(&attempt.base, path).map_err(|error| Failure { error, next: Next::Never })?;
        let mut request = self.inner.service.request(method, url).header("x-request-id", &attempt.request_id);
        if let Some(bearer) = &self.inner.bearer {
            request = request.header(header::AUTHORIZATION, bearer.clone());
        }
        Ok(request)
    }

    /// The client for a signed URL. Such requests never carry the token.
    pub(super) fn foreign(&self, url: &Url) -> Result<reqwest::Client, Failure> {
        if url.scheme() == "http" || !self.inner.plain {
            return Ok(self.inner.service.clone());
        }
        if let Some(client) = self.inner.foreign.get() {
            return Ok(client.clone());
        }
        let made = client(&self.inner.options, false)
            .map_err(|source| Failure { error: Error::Setup(source), next: Next::Never })?;
        Ok(self.inner.foreign.get_or_init(|| made).clone())
    }

    /// Sends, and turns an answer that is no success into the service's problem.
    pub(super) async fn send(&self, request: reqwest::RequestBuilder, attempt: &Attempt) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|source| attempt.broke(source))?;
        attempt.progress.tick();
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response, attempt).await)
    }

    /// Runs `once` until it succeeds, is refused for good, or patience ends. `fixed` is the origin of a call that has only
    /// one place to go; `silence` is added to the stall time.
    pub(super) async fn attempts<T, F, Fut>(&self, fixed: Option<&Url>, silence: Duration, once: F) -> Result<T, Error>
    where
        F: Fn(Attempt) -> Fut,
        Fut: Future<Output = Result<T, Failure>>,
    {
        let inner = &*self.inner;
        let patience = match inner.answered.load(Ordering::Relaxed) {
            true => inner.options.patience,
            false => inner.options.first_contact,
        };
        let stall = inner.options.stall_timeout + silence;
        let bases = fixed.map_or(inner.bases.len(), |_| 1);
        let mut attempts = Attempts::new(patience, inner.options.stall_timeout, bases);
        loop {
            let good = inner.good.load(Ordering::Relaxed);
            let attempt = Attempt {
                base: fixed.unwrap_or(&inner.bases[good % inner.bases.len()]).clone(),
                request_id: inner.options.ids.uuid().to_string(),
                progress: Arc::new(Progress::new()),
            };
            let began = Instant::now();
            let outcome = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(Error::Interrupted),
                outcome = once(attempt.clone()) => outcome,
                () = attempt.progress.stalled(stall) => Err(attempt.stalled(stall)),
            };
            let Failure { error, next } = match outcome {
                Ok(value) => {
                    inner.answered.store(true, Ordering::Relaxed);
                    return Ok(value);
                }
                Err(failure) => failure,
            };
            if let (Next::Elsewhere { .. }, None) = (next, fixed) {
                // Only who saw this base fail moves on; a crowd of failing calls moves one step, not many.
                let _ = inner.good.compare_exchange(good, good + 1, Ordering::Relaxed, Ordering::Relaxed);
            }
            let Some(pause) = attempts.failed(began.elapsed(), next) else { return Err(error) };
            tracing::info!(%error, code = error.code(), pause_ms = pause.as_millis(), "trying again");
            tokio::select! {
                () = self.cancel.cancelled() => return Err(Error::Interrupted),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reads and decodes a JSON answer; an empty one is `null`.
    pub(super) async fn decode(
        &self,
        response: Response,
        attempt: &Attempt,
        decoded: &dyn Decode,
    ) -> Result<(), Failure> {
        let body = read(response, MAX_JSON, attempt).await?;
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        decoded.take(body).map_err(|fault| {
            attempt.protocol(format!("a document that does not fit: {fault}"), Next::Again { after: None })
        })
    }

    /// What an answer other than 2xx means.
    pub(super) async fn refusal(&self, response: Response, attempt: &Attempt) -> Failure {
        let status = response.status();
        let after = retry_after(response.headers());
        let skew = self.skew(response.headers());
        let is_problem = content_type(response.headers()).starts_with(PROBLEM_JSON);
        let echoed = response.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let next = match status.as_u16() {
            502..=504 => Next::Elsewhere { after },
            408 | 425 | 429 | 500 => Next::Again { after },
            _ => Next::Never,
        };
        let body = match read(response, MAX_PROBLEM, attempt).await {
            Ok(body) => body,
            Err(_) if next == Next::Never => Vec::new(),
            Err(failure) => return failure,
        };
        let Some(mut problem) = is_problem.then(|| serde_json::from_slice::<Problem>(&body).ok()).flatten() else {
            let what = match status.is_redirection() {
                true => format!("a redirect (status {status}), which is not followed"),
                false => format!("status {status} and no problem document"),
            };
            return attempt.protocol(what, next);
        };
        self.inner.answered.store(true, Ordering::Relaxed);
        problem.request_id = problem.request_id.or(echoed).or_else(|| Some(attempt.request_id.clone()));
        if let (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(skew)) = (status, skew) {
            problem.hint = Some(match problem.hint {
                Some(hint) => format!("{hint}; {skew}"),
                None => skew,
            });
        }
        // The key's first request is still at work: its answer comes soon.
        let next = match problem.code.as_str() {
            "idempotency_in_progress" => Next::Again { after },
            // Damage does not mend by asking again.
            "corrupt" | "pack_quarantined" => Next::Never,
            _ => next,
        };
        Failure { error: Error::Refused(Box::new(problem)), next }
    }

    /// In words, how far this machine's clock is from the other side's, where that is two minutes or more, in whole minutes.
    pub(super) fn skew(&self, headers: &HeaderMap) -> Option<String> {
        let date = headers.get(header::DATE)?.to_str().ok()?;
        let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp();
        let ours = self.inner.options.clock.now();
        let minutes = (ours.as_second() - theirs.as_second()) / 60;
        (minutes.abs() >= 2).then(|| {
            let side = if minutes > 0 { "ahead of" } else { "behind" };
            format!("this machine's clock is {} min {side} the service's: set it right", minutes.abs())
        })
    }
}

impl Attempt {
    pub fn broke(&self, source: reqwest::Error) -> Failure {
        let source = source.without_url();
        let (origin, request_id) = (origin(&self.base), self.request_id.clone());
        if source.is_connect() {
            let next = Next::Elsewhere { after: None };
            return Failure { error: Error::Unreachable { origin, request_id, source }, next };
        }
        if source.is_builder() {
            return Failure { error: Error::Setup(source), next: Next::Never };
        }
        // What takes connections and closes them may stand in front of a replica that is dead.
        Failure { error: Error::Broken { origin, request_id, source }, next: Next::Elsewhere { after: None } }
    }

    pub fn protocol(&self, what: String, next: Next) -> Failure {
        let error = Error::Protocol { origin: origin(&self.base), request_id: self.request_id.clone(), what };
        Failure { error, next }
    }

    pub fn stalled(&self, limit: Duration) -> Failure {
        let error = Error::Stalled {
            origin: origin(&self.base),
            request_id: self.request_id.clone(),
            seconds: limit.as_secs(),
        };
        // Another replica may be well where this one hangs.
        Failure { error, next: Next::Elsewhere { after: None } }
    }
}

fn client(options: &Options, plain: bool) -> Result<reqwest::Client, reqwest::Error> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("dray/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .http1_only()
        .no_proxy()
        .connect_timeout(options.connect_timeout)
        .tcp_keepalive(Duration::from_secs(30))
        .pool_idle_timeout(Duration::from_secs(50))
        .pool_max_idle_per_host(16);
    if let Some(proxy) = &options.proxy {
        builder = builder.proxy(reqwest::Proxy::all(proxy.clone())?);
    }
    if plain {
        // Plain HTTP needs no trust roots: loading the system's costs more than many a command.
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}

/// The whole body, `limit` bytes at most.
async fn read(mut response: Response, limit: usize, attempt: &Attempt) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|source| attempt.broke(source))? {
        attempt.progress.tick();
        if body.len() + part.len() > limit {
            return Err(attempt.protocol(format!("more than {limit} bytes"), Next::Never));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

fn content_type(headers: &HeaderMap) -> &str {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// `Retry-After` in seconds, an hour at most. Dates are not used by our service nor by S3 stores.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(3600)))
}
