//! Bodies in and out of the HTTP client: streamed, watched for stalls, resumed.
//!
//! A PUT's body is made anew for every attempt without copying it. A GET goes on at the byte where it was cut, so its
//! reader sees one unbroken stream; what the bytes mean is checked above, against digests. Memory: one slice of a body.

use super::address::{join, origin};
use super::api::{Api, Attempt, Failure, retry_after};
use super::document::{Decode, Decoded};
use super::error::Error;
use super::retry::{Attempts, Next, Progress};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use reqwest::header::{self, HeaderMap};
use reqwest::{Method, Response, StatusCode};
use serde::de::DeserializeOwned;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use url::Url;

/// Largest slice handed to the socket at once: progress is seen in steps of this.
const SLICE: usize = 128 << 10;

/// Holds a body back to a rate. `grant` resolves when `bytes` more may be sent; the wait is not counted as a stall.
///
/// Called once a slice, from several bodies of one transfer at once; the future borrows nothing, so it may outlive the call.
pub trait Pace: Send + Sync + std::fmt::Debug {
    fn grant(&self, bytes: usize) -> BoxFuture<'static, ()>;
}

type Make = dyn Fn() -> BoxStream<'static, io::Result<Bytes>> + Send + Sync;

/// A request body that can be sent again.
#[derive(Clone)]
pub struct Body {
    len: u64,
    make: Arc<Make>,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Body {
    /// `make` gives the same `len` bytes each time: it is called once an attempt, and the length is sent as `Content-Length` beforehand.
    pub fn new(len: u64, make: impl Fn() -> BoxStream<'static, io::Result<Bytes>> + Send + Sync + 'static) -> Self {
        Self { len, make: Arc::new(make) }
    }

    /// Segments in memory, shared and not copied.
    pub fn segments(segments: Vec<Bytes>) -> Self {
        let len = segments.iter().map(|segment| segment.len() as u64).sum();
        let segments: Arc<[Bytes]> = segments.into();
        Self::new(len, move || {
            let segments = Arc::clone(&segments);
            stream::iter((0..segments.len()).map(move |n| Ok(segments[n].clone()))).boxed()
        })
    }

    /// The first `len` bytes of a file, read piece by piece. The file is opened anew for every attempt and must not change meanwhile; one that
    /// became shorter ends the attempt with an I/O fault.
    pub fn file(path: PathBuf, len: u64) -> Self {
        Self::new(len, move || {
            let path = path.clone();
            stream::try_unfold((None, 0), move |(file, at): (Option<Arc<std::fs::File>>, u64)| {
                let path = path.clone();
                async move {
                    if at == len {
                        return Ok(None);
                    }
                    let (file, piece) = tokio::task::spawn_blocking(move || read_piece(file, &path, at, len))
                        .await
                        .map_err(io::Error::other)??;
                    let next = at + piece.len() as u64;
                    Ok(Some((piece, (Some(file), next))))
                }
            })
            .boxed()
        })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn read_piece(
    file: Option<Arc<std::fs::File>>,
    path: &std::path::Path,
    at: u64,
    len: u64,
) -> io::Result<(Arc<std::fs::File>, Bytes)> {
    let file = match file {
        Some(file) => file,
        None => Arc::new(fs_err::File::open(path)?.into_file()),
    };
    let want = usize::try_from((len - at).min(2 * SLICE as u64)).expect("at most two slices");
    let mut piece = vec![0; want];
    file.read_exact_at(&mut piece, at)?;
    Ok((file, piece.into()))
}

/// One streamed PUT.
#[derive(Debug)]
pub struct Put<'a> {
    /// Path on the service, as [`super::api::route`] makes it.
    pub path: &'a str,
    pub headers: HeaderMap,
    pub body: Body,
    /// Counts body bytes handed to the network, retries included: what travelled, not what arrived.
    pub sent: Arc<AtomicU64>,
    /// None: as fast as the line takes it.
    pub pace: Option<Arc<dyn Pace>>,
}

/// Where a GET goes.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A path on the service, with the bearer token.
    Service(&'a str),
    /// A grant's or link's URL, or a path on the service's origin when it begins with `/`. No token is sent.
    Signed(&'a str),
}

impl Api {
    /// PUTs a body and decodes the answer (`()` where there is none). Tried again whole, with a fresh body: the path must be one where a
    /// repeat does no harm (packs, trees and layouts are named by their digests).
    pub async fn put_stream<T: DeserializeOwned + Send>(&self, put: Put<'_>) -> Result<T, Error> {
        let decoded = Decoded::new();
        self.call_put(&put, &decoded).await?;
        Ok(decoded.into_inner())
    }

    fn call_put<'a>(&'a self, put: &'a Put<'_>, decoded: &'a dyn Decode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.attempts(None, Duration::ZERO, move |attempt| async move {
            let parts = slices((put.body.make)(), Arc::clone(&attempt.progress), put);
            let request = self
                .request(Method::PUT, &attempt, put.path)?
                .headers(put.headers.clone())
                .header(header::CONTENT_LENGTH, put.body.len)
                .body(reqwest::Body::wrap_stream(parts));
            let response = self.send(request, &attempt).await?;
            self.decode(response, &attempt, decoded).await
        }))
    }

    /// Opens a stream of a body, or of a byte range of it. The returned stream resumes by itself.
    ///
    /// Resolves when the head of a good answer has come. A refusal is an error here; so is a page that cannot be the bytes asked for.
    pub async fn get_stream(&self, target: Target<'_>, range: Option<Range<u64>>) -> Result<Download, Error> {
        let place = match target {
            Target::Service(path) => Place::Service(path.to_owned()),
            Target::Signed(path) if path.starts_with('/') => Place::SignedHere(path.to_owned()),
            Target::Signed(url) => Place::Foreign(
                Url::parse(url)
                    .map_err(|_| Error::BadUrl { url: "a signed URL".to_owned(), why: "it does not parse" })?,
            ),
        };
        let mut download = Download {
            api: self.clone(),
            place,
            start: range.as_ref().map_or(0, |range| range.start),
            end: range.as_ref().map(|range| range.end),
            ranged: range.is_some(),
            got: 0,
            skip: 0,
            open: None,
            etag: None,
            attempts: None,
        };
        download.reopen().await?;
        Ok(download)
    }
}

/// Cuts a body into slices, counts and paces them, and ticks the stall watch.
fn slices(
    body: BoxStream<'static, io::Result<Bytes>>,
    progress: Arc<Progress>,
    put: &Put<'_>,
) -> impl futures::Stream<Item = io::Result<Bytes>> + Send + 'static + use<> {
    let (sent, pace) = (Arc::clone(&put.sent), put.pace.clone());
    let state = (body, Bytes::new(), progress, sent, pace);
    stream::try_unfold(state, |(mut body, mut rest, progress, sent, pace)| async move {
        while rest.is_empty() {
            match body.next().await {
                Some(part) => rest = part?,
                None => return Ok(None),
            }
        }
        let slice = rest.split_to(rest.len().min(SLICE));
        if let Some(pace) = &pace {
            progress.hold();
            pace.grant(slice.len()).await;
            progress.release();
        }
        progress.tick();
        sent.fetch_add(slice.len() as u64, Ordering::Relaxed);
        Ok(Some((slice, (body, rest, progress, sent, pace))))
    })
}

/// How to ask again: the target, owned.
#[derive(Debug)]
enum Place {
    Service(String),
    SignedHere(String),
    Foreign(Url),
}

/// A streamed answer that goes on by itself where a connection broke or stalled.
#[derive(Debug)]
pub struct Download {
    api: Api,
    place: Place,
    start: u64,
    /// Exclusive; `None` = to the end of the body, wherever that is.
    end: Option<u64>,
    ranged: bool,
    /// Bytes given to the caller so far.
    got: u64,
    /// Bytes to drop: the other side sent all where a range was asked.
    skip: u64,
    open: Option<(Response, Attempt)>,
    /// Of the first answer that had one. An answer with another is another object, whose bytes must never be joined to these. Where none
    /// has any, an object that was replaced meanwhile shows only in the digests that the reader compares.
    etag: Option<header::HeaderValue>,
    /// Failures since the last byte: a stream that moves at all keeps its whole patience.
    attempts: Option<Attempts>,
}

impl Download {
    /// Bytes given so far, counted from the range's start.
    pub fn position(&self) -> u64 {
        self.got
    }

    /// The next bytes, in order and without gaps over all breaks; `None` at the end. After an error the stream is done.
    ///
    /// Nothing is proven here: the reader compares digests.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if self.end.is_some_and(|end| self.start + self.got >= end) {
                return Ok(None);
            }
            let Some((response, attempt)) = &mut self.open else {
                self.reopen().await?;
                continue;
            };
            let stall = self.api.options().stall_timeout;
            let part = tokio::select! {
                biased;
                () = self.api.cancel.cancelled() => return Err(Error::Interrupted),
                part = response.chunk() => part.map_err(|source| attempt.broke(source)),
                () = attempt.progress.stalled(stall) => Err(attempt.stalled(stall)),
            };
            match part {
                Ok(Some(part)) => {
                    attempt.progress.tick();
                    if let Some(part) = self.take(part) {
                        return Ok(Some(part));
                    }
                }
                Ok(None) => match self.end {
                    // Shorter than asked: cut by something that ended the answer as if it were whole.
                    Some(_) => {
                        let failure = attempt.protocol("fewer bytes than asked for".to_owned(), again());
                        self.pause(failure).await?;
                    }
                    None => return Ok(None),
                },
                Err(failure) => self.pause(failure).await?,
            }
        }
    }

    /// A blocking reader, for a thread that may block inside a runtime (`spawn_blocking`). Faults are `io::Error`s that
    /// downcast to [`Error`]. Must be called inside a runtime; reading inside a task panics.
    pub fn into_read(self) -> BlockingRead {
        BlockingRead { download: self, runtime: tokio::runtime::Handle::current(), rest: Bytes::new() }
    }

    fn take(&mut self, mut part: Bytes) -> Option<Bytes> {
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(part.len());
        self.skip -= skipped as u64;
        let _ = part.split_to(skipped);
        if let Some(end) = self.end {
            let left = end - self.start - self.got;
            part.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if part.is_empty() {
            return None;
        }
        self.got += part.len() as u64;
        self.attempts = None;
        Some(part)
    }

    /// Waits before the stream is opened again, or gives up with the failure.
    async fn pause(&mut self, failure: Failure) -> Result<(), Error> {
        let (_, attempt) = self.open.take().expect("a failure comes from an open response");
        let options = self.api.options();
        let (patience, stall) = (options.patience, options.stall_timeout);
        let attempts = self.attempts.get_or_insert_with(|| Attempts::new(patience, stall, 1));
        let Some(pause) = attempts.failed(attempt.progress.silence(), failure.next) else { return Err(failure.error) };
        tracing::info!(error = %failure.error, at = self.got, "reading on after a break");
        tokio::select! {
            () = self.api.cancel.cancelled() => Err(Error::Interrupted),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }

    /// Asks for what is missing. The attempts within have a patience of their own, as those of any call.
    async fn reopen(&mut self) -> Result<(), Error> {
        let from = self.start + self.got;
        let range = (self.ranged || self.got > 0).then(|| match self.end {
            Some(end) => format!("bytes={from}-{}", end.saturating_sub(1)),
            None => format!("bytes={from}-"),
        });
        if self.end.is_some_and(|end| from >= end) {
            return Ok(());
        }
        let (api, place, end) = (&self.api, &self.place, self.end);
        let fixed = match place {
            Place::Foreign(url) => Some(url),
            _ => None,
        };
        let began = Instant::now();
        let (response, attempt) = api
            .attempts(fixed, Duration::ZERO, |attempt| {
                let range = range.clone();
                async move {
                    let mut request = match place {
                        Place::Service(path) => api.request(Method::GET, &attempt, path)?,
                        Place::SignedHere(path) => {
                            let url =
                                join(&attempt.base, path).map_err(|error| Failure { error, next: Next::Never })?;
                            api.foreign(&url)?.get(url)
                        }
                        Place::Foreign(url) => api.foreign(url)?.get(url.clone()),
                    };
                    if let Some(range) = range {
                        request = request.header(header::RANGE, range);
                    }
                    let response = request.send().await.map_err(|source| attempt.broke(source))?;
                    attempt.progress.tick();
                    if response.status().is_success() {
                        return match strange(&response, place, end) {
                            Some(what) => Err(attempt.protocol(what, again())),
                            None => Ok((response, attempt)),
                        };
                    }
                    Err(match place {
                        Place::Foreign(url) => url_refused(url, &response),
                        _ => api.refusal(response, &attempt).await,
                    })
                }
            })
            .await?;
        tracing::debug!(waited_ms = began.elapsed().as_millis(), from, "stream opened");
        self.accept(response, attempt, from)
    }

    /// Checks that the answer holds the bytes asked for.
    fn accept(&mut self, response: Response, attempt: Attempt, from: u64) -> Result<(), Error> {
        let etag = response.headers().get(header::ETAG).cloned();
        if self.etag.is_some() && etag != self.etag {
            return Err(attempt.protocol("another object than before the break".to_owned(), Next::Never).error);
        }
        self.skip = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                if content_range_start(response.headers()) != Some(from) {
                    return Err(attempt.protocol("another byte range than asked".to_owned(), Next::Never).error);
                }
                0
            }
            _ => from,
        };
        self.etag = etag;
        self.open = Some((response, attempt));
        Ok(())
    }
}

/// What betrays an answer of 200 that is not the bytes asked for: a proxy's page, an error document.
fn strange(response: &Response, place: &Place, end: Option<u64>) -> Option<String> {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if matches!(place, Place::Service(_)) && !["application/zstd", "application/octet-stream"].contains(&kind) {
        return Some(format!("content type `{kind}` where stored bytes were asked for"));
    }
    // A whole object in the place of a range of it reaches the range's end at least.
    let is_short = response.status() != StatusCode::PARTIAL_CONTENT
        && end.zip(response.content_length()).is_some_and(|(end, length)| length < end);
    is_short.then(|| "an object that ends before the bytes asked for".to_owned())
}

fn again() -> Next {
    Next::Again { after: None }
}

/// Of a foreign store: only the status is believed, its body is not read. 403 and 404 mean that the grant is dead or the object gone.
fn url_refused(url: &Url, response: &Response) -> Failure {
    let status = response.status().as_u16();
    let next = match status {
        429 | 500 | 502 | 503 | 504 => Next::Again { after: retry_after(response.headers()) },
        _ => Next::Never,
    };
    Failure { error: Error::UrlRefused { origin: origin(url), status }, next }
}

fn content_range_start(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    text.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

/// [`Download`] as `std::io::Read`.
#[derive(Debug)]
pub struct BlockingRead {
    download: Download,
    runtime: tokio::runtime::Handle,
    rest: Bytes,
}

impl io::Read for BlockingRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            match self.runtime.block_on(self.download.next()).map_err(io::Error::other)? {
                Some(part) => self.rest = part,
                None => return Ok(0),
            }
        }
        let part = self.rest.split_to(self.rest.len().min(buffer.len()));
        buffer[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}
