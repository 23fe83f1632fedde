//! The wire to the bucket: one HTTP client for all requests, put below `object_store`.
//!
//! What it adds: no redirect is ever followed, since the next host would get our signature; a request on which no byte moves in
//! either direction is given up, however long the transfer may take as a whole; an answer that is not a success becomes a typed
//! [`Refusal`] with the store's own code; a success with an error document inside is no success; and the store's clock is noted.
//! It never retries: every attempt is signed anew above.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use jiff::Timestamp;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use tokio::time::{Instant, Sleep};

use super::xml;
use crate::clock::Clock;

/// Most bytes read of an answer that is not an object: error documents, and those of multipart uploads.
///
/// Bounds what a broken or hostile store can make us keep.
const DOCUMENT: usize = 256 << 10;
/// Most bytes read of a page of the list of open uploads.
///
/// A thousand of them, the most a page has, with keys as long as they can be.
const LISTING: usize = 4 << 20;
/// Largest piece of a body handed down at once, so that a slow line shows progress.
///
/// hyper takes the next piece when it has room, so smaller pieces note movement more often.
const FRAME: usize = 256 << 10;
/// No skew is known yet.
const UNKNOWN_SKEW: i64 = i64::MIN;

/// Clones share connections and the noted clock.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    client: reqwest::Client,
    /// The longest time without a byte in either direction.
    stall: Duration,
    clock: Arc<dyn Clock>,
    /// [`UNKNOWN_SKEW`] until an answer has carried a `Date`.
    skew_seconds: Arc<AtomicI64>,
}

/// An answer by which the store refused a request.
///
/// Found again by `judge` in the chain of sources. Its texts are cut to 300 characters: a store's words go to a log, not a
/// flood.
#[derive(Debug, Clone, thiserror::Error)]
#[error("status {status}{}{}", code.as_ref().map(|code| format!(" {code}")).unwrap_or_default(), message.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
pub(super) struct Refusal {
    pub status: StatusCode,
    /// The store's own code: `SlowDown`, `ExpiredToken`.
    pub code: Option<String>,
    pub message: Option<String>,
    /// What the store asks us to wait.
    pub retry_after: Option<Duration>,
    /// The object's size, where a range was refused.
    pub size: Option<u64>,
    /// Our clock minus the store's.
    pub skew_seconds: Option<i64>,
}

/// Nothing moved for too long.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("no byte moved for {} ms", .0.as_millis())]
struct Stalled(Duration);

/// The checksum an answer carried, as `name:base64`; put into the extensions of `object_store`'s results.
#[derive(Debug, Clone)]
pub(super) struct Checksummed(pub String);

impl Wire {
    pub(super) fn new(client: reqwest::Client, stall: Duration, clock: Arc<dyn Clock>) -> Self {
        Self { client, stall, clock, skew_seconds: Arc::new(AtomicI64::new(UNKNOWN_SKEW)) }
    }

    /// For requests that are signed already, or not at all.
    pub(super) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Our clock minus the store's, by its last answer.
    pub(super) fn skew_seconds(&self) -> Option<i64> {
        Some(self.skew_seconds.load(Ordering::Relaxed)).filter(|skew| *skew != UNKNOWN_SKEW)
    }

    /// By HTTP's `Date`, which has whole seconds and counts the way of the answer in.
    fn note_skew(&self, headers: &HeaderMap) -> Option<i64> {
        let date = headers.get(header::DATE)?.to_str().ok()?;
        let theirs = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
        let skew = self.clock.now().duration_since(theirs).as_secs();
        self.skew_seconds.store(skew, Ordering::Relaxed);
        Some(skew)
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// Gives up when nothing has moved for `stall`, counted from the last piece of the body that was taken. A store that
    /// has all of the body and thinks about it has as long again.
    async fn send(&self, request: HttpRequest) -> Result<http::Response<reqwest::Body>, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts
            .uri
            .to_string()
            .parse()
            .map_err(|error: url::ParseError| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        let moved = Arc::new(Moved::new());
        if body.content_length() > 0 {
            *request.body_mut() =
                Some(reqwest::Body::wrap(Outgoing { body, piece: Bytes::new(), moved: Arc::clone(&moved) }));
        }
        let answer = self.client.execute(request);
        tokio::pin!(answer);
        loop {
            let deadline = moved.at() + self.stall;
            tokio::select! {
                answer = &mut answer => return answer.map(Into::into).map_err(transport),
                () = tokio::time::sleep_until(deadline) => {
                    if moved.at() + self.stall <= deadline {
                        return Err(HttpError::new(HttpErrorKind::Timeout, Stalled(self.stall)));
                    }
                }
            }
        }
    }

    /// An answer's body that cannot go silent unnoticed.
    fn watched(&self, body: reqwest::Body) -> HttpResponseBody {
        HttpResponseBody::new(Incoming { body, stall: self.stall, timer: None })
    }

    /// GETs a page of a listing by a signed URL.
    pub(super) async fn page(&self, url: &url::Url) -> object_store::Result<Bytes> {
        let generic = |error: HttpError| object_store::Error::Generic { store: "S3", source: Box::new(error) };
        let request = http::Request::get(url.as_str()).body(HttpRequestBody::empty());
        let request = request.map_err(|error| generic(HttpError::new(HttpErrorKind::Unknown, error)))?;
        let answer = self.call(request).await.map_err(generic)?;
        self.collect(answer.into_body(), LISTING).await.map_err(generic)
    }

    async fn document(&self, body: reqwest::Body) -> Result<Bytes, HttpError> {
        self.collect(self.watched(body), DOCUMENT).await
    }

    /// Reads an answer's document; one of more than `most` bytes is an error, never cut.
    async fn collect(&self, body: HttpResponseBody, most: usize) -> Result<Bytes, HttpError> {
        use futures::TryStreamExt;
        let pieces = body.bytes_stream();
        let document = Vec::new();
        let read = pieces.try_fold(document, |mut document, piece| async move {
            if document.len() + piece.len() > most {
                return Err(HttpError::new(
                    HttpErrorKind::Decode,
                    std::io::Error::other("the store's answer is far too long"),
                ));
            }
            document.extend_from_slice(&piece);
            Ok(document)
        });
        Ok(read.await?.into())
    }
}

impl HttpConnector for Wire {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Wire {
    /// Everything but 2xx becomes a [`Refusal`], and so does a 2xx to a POST whose body holds an error:
    /// `CompleteMultipartUpload` says 200 first. Bodies of other answers are passed on as they come.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_post = request.method() == Method::POST;
        let (mut parts, body) = self.send(request).await?.into_parts();
        let skew_seconds = self.note_skew(&parts.headers);
        if !parts.status.is_success() {
            // a body that breaks off leaves the status, which says enough
            let document = self.document(body).await.unwrap_or_default();
            return Err(refusal(parts.status, &parts.headers, &document, skew_seconds));
        }
        if let Some(checksum) = checksum(&parts.headers) {
            parts.extensions.insert(checksum);
        }
        if is_post {
            // "complete" may answer 200 long before it knows, and put an error into the body
            let document = self.document(body).await?;
            if document.windows(7).any(|window| window == b"<Error>") {
                return Err(refusal(parts.status, &parts.headers, &document, skew_seconds));
            }
            return Ok(HttpResponse::from_parts(parts, document.into()));
        }
        Ok(HttpResponse::from_parts(parts, self.watched(body)))
    }
}

/// A redirect is told in words of what to set, since following it would send our signature to the next host.
fn refusal(status: StatusCode, headers: &HeaderMap, document: &[u8], skew_seconds: Option<i64>) -> HttpError {
    let document = String::from_utf8_lossy(document);
    let header = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let shorten = |text: String| text.chars().take(300).collect::<String>();
    let mut message = xml::text(&document, "Message").map(shorten);
    if status.is_redirection() {
        let region = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
        let host = header(header::LOCATION)
            .and_then(|to| url::Url::parse(to).ok())
            .and_then(|to| to.host_str().map(str::to_owned));
        message = Some(match (region, host) {
            (Some(region), _) => format!("the bucket lies in region `{region}`; set `region`"),
            (None, Some(host)) => {
                format!("it points to `{host}`, which is not followed; set `endpoint` to it if you trust it")
            }
            (None, None) => "a redirect is not followed; set `endpoint` and `region` right".to_owned(),
        });
    }
    let refusal = Refusal {
        status,
        code: xml::text(&document, "Code").map(shorten),
        message,
        retry_after: header(header::RETRY_AFTER).and_then(|wait| wait.parse().ok()).map(Duration::from_secs),
        size: header(header::CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes */")?.parse().ok()),
        skew_seconds,
    };
    HttpError::new(HttpErrorKind::Unknown, refusal)
}

/// Checksums of a whole object and of its parts are not told apart here; `contradicts` takes one kind only.
fn checksum(headers: &HeaderMap) -> Option<Checksummed> {
    ["crc64nvme", "sha256"].into_iter().find_map(|name| {
        let value = headers.get(format!("x-amz-checksum-{name}"))?.to_str().ok()?;
        Some(Checksummed(format!("{name}:{value}")))
    })
}

/// Never with the URL, which may be signed.
fn transport(error: reqwest::Error) -> HttpError {
    let kind = if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_timeout() {
        HttpErrorKind::Timeout
    } else {
        HttpErrorKind::Interrupted
    };
    HttpError::new(kind, error.without_url())
}

/// When a byte of a request last moved. Milliseconds since `start`, so that one atomic is enough.
#[derive(Debug)]
struct Moved {
    start: Instant,
    millis: AtomicU64,
}

impl Moved {
    fn new() -> Self {
        Self { start: Instant::now(), millis: AtomicU64::new(0) }
    }

    fn at(&self) -> Instant {
        self.start + Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }

    fn note(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.millis.store(millis, Ordering::Relaxed);
    }
}

/// A request's body that notes when a piece of it is taken.
struct Outgoing {
    body: HttpRequestBody,
    piece: Bytes,
    moved: Arc<Moved>,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.moved.note();
        while self.piece.is_empty() {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.piece = frame.into_data().unwrap_or_default(),
                other => return other,
            }
        }
        let len = self.piece.len().min(FRAME);
        Poll::Ready(Some(Ok(Frame::data(self.piece.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.body.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(rest + self.piece.len() as u64),
            None => SizeHint::default(),
        }
    }
}

/// An answer's body that fails when nothing comes for too long while somebody waits for it.
///
/// A reader of ours that is slow is not the store's silence: the timer starts when a poll finds nothing.
struct Incoming {
    body: reqwest::Body,
    stall: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(transport)));
        }
        let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(this.stall)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, Stalled(this.stall))))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether a refusal is put down to our clock: stores take signatures up to 15 minutes off, and the header's seconds are
/// not exact.
pub(super) fn is_skewed(seconds: i64) -> bool {
    seconds.abs() >= 14 * 60
}

/// Cuts the fraction off, as `X-Amz-Date` does: a URL's end must not be told later than the store counts it.
pub(super) fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).expect("a timestamp's own seconds are in range")
}
