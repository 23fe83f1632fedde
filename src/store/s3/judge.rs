//! What a failed request means, and whether to send it again.
//!
//! `object_store` reports every refusal as a generic error around our own `Refusal`; here it becomes one of [`Error`]'s variants
//! and the next step. Retries are ours alone, so that each attempt is signed anew, waits with jitter, and stops in time.
//!
//! A retry ends at the first of three: `retries` times, `retry_timeout_ms` since the first failure, or a failure that time
//! does not heal. Pauses double from 100 ms to 10 s with jitter, so that many clients of a store that comes back do not
//! arrive together.
//!
//! Codes of the S3 error document decide before the status does: a store behind a proxy is precise in the first only.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use http::StatusCode;
use object_store::client::{HttpError, HttpErrorKind};
use tokio::time::Instant;

use super::credentials::Credentials;
use super::wire::{Refusal, is_skewed};
use crate::config::store::StoreSettings;
use crate::store::error::chain;
use crate::store::{Error, Key, Settled};

/// The longest a store's `Retry-After` is obeyed.
///
/// Longer ones would eat the whole patience of a request in one pause.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// A failed attempt.
///
/// `settled` stands beside the error, since only `Unavailable` carries it, while every attempt counts for the end.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: Error,
    pub next: Next,
    /// Whether the store may have done what was asked.
    pub settled: Settled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It would fail again.
    Fail,
    Again {
        /// The shortest pause, as the store asked for it; then the same bytes are sent, signed anew.
        after: Option<Duration>,
    },
    /// Credentials lapsed: with fresh ones at once.
    ///
    /// Once for each request; refused again, the credentials are wrong and not old.
    Renew,
}

impl Failure {
    /// What an answer or a broken line means for the object `key`.
    pub(super) fn of(key: &Key, error: object_store::Error) -> Self {
        match cause::<Refusal>(&error) {
            Some(refusal) => Self::refused(key, &refusal.clone()),
            None => Self::transport(error),
        }
    }

    /// Of a GET, whose refusal has a body: only the store's own word proves that an object is absent. Who stands before it can say 404 too.
    pub(super) fn of_get(key: &Key, error: object_store::Error) -> Self {
        let is_proven = cause::<Refusal>(&error).is_some_and(|refusal| refusal.code.as_deref() == Some("NoSuchKey"));
        let failure = Self::of(key, error);
        if is_proven || !matches!(failure.error, Error::NotFound { .. }) {
            return failure;
        }
        let detail = format!("404 for `{key}`, and not by the store, which would say NoSuchKey");
        let error = Error::Unavailable { detail, settled: Settled::Yes, source: None };
        Self { error, next: Next::Again { after: None }, settled: Settled::Yes }
    }

    fn fail(error: Error) -> Self {
        Self { error, next: Next::Fail, settled: Settled::Yes }
    }

    /// `Settled::Yes` only where the store said so by refusing; a 5xx other than 503 may hide a write that was done.
    fn refused(key: &Key, refusal: &Refusal) -> Self {
        let code = refusal.code.as_deref().unwrap_or_default();
        let detail = refusal.to_string();
        let again = |settled: Settled| {
            let error = Error::Unavailable { detail: detail.clone(), settled, source: Some(Box::new(refusal.clone())) };
            Self { error, next: Next::Again { after: refusal.retry_after }, settled }
        };
        match code {
            "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "InvalidToken" => {
                return Self { next: Next::Renew, ..Self::fail(Error::Denied { detail }) };
            }
            "RequestTimeTooSkewed" => return Self::fail(skewed(refusal)),
            // what arrived is not what was sent: the line's fault
            "BadDigest"
            | "InvalidDigest"
            | "XAmzContentSHA256Mismatch"
            | "XAmzContentChecksumMismatch"
            | "IncompleteBody"
            | "RequestTimeout"
            | "SlowDown"
            | "ServiceUnavailable" => return again(Settled::Yes),
            "NoSuchBucket" => {
                let detail = "the bucket does not exist; create it, or correct the name".to_owned();
                return Self::fail(Error::Settings { field: "url", detail });
            }
            "QuotaExceeded" | "StorageFull" | "XMinioStorageFull" | "InsufficientCapacity" => {
                return Self::fail(Error::NoSpace);
            }
            _ => {}
        }
        match refusal.status {
            // an error inside a success: the store's own trouble
            status if status.is_success() => again(Settled::Unknown),
            StatusCode::NOT_FOUND => Self::fail(Error::NotFound { key: key.clone() }),
            StatusCode::PRECONDITION_FAILED | StatusCode::NOT_MODIFIED => {
                Self::fail(Error::AlreadyExists { key: key.clone() })
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let size = refusal.size.unwrap_or(0);
                Self::fail(Error::Range { key: key.clone(), start: size, end: size, size })
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => match refusal.skew_seconds {
                Some(seconds) if is_skewed(seconds) => Self::fail(skewed(refusal)),
                _ => Self::fail(Error::Denied { detail }),
            },
            StatusCode::NOT_IMPLEMENTED | StatusCode::METHOD_NOT_ALLOWED => {
                Self::fail(Error::Unsupported { what: detail })
            }
            StatusCode::INSUFFICIENT_STORAGE => Self::fail(Error::NoSpace),
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::CONFLICT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE => again(Settled::Yes),
            status if status.is_server_error() => again(Settled::Unknown),
            status if status.is_redirection() => Self::fail(Error::Denied { detail }),
            _ => Self::fail(Error::Unsupported { what: detail }),
        }
    }

    /// No answer of the store's. Only a connection that was never made proves that nothing happened.
    fn transport(error: object_store::Error) -> Self {
        let Some(kind) = cause::<HttpError>(&error).map(HttpError::kind) else {
            return match error {
                object_store::Error::Unauthenticated { source, .. } => {
                    Self::fail(Error::Denied { detail: chain(&*source) })
                }
                // an answer that makes no sense; a middle box may have made it
                other => Self::again("its answer makes no sense", Settled::Unknown, other),
            };
        };
        match kind {
            HttpErrorKind::Connect => Self::again("it cannot be reached", Settled::Yes, error),
            HttpErrorKind::Timeout => Self::again("it went silent", Settled::Unknown, error),
            _ => Self::again("the connection broke", Settled::Unknown, error),
        }
    }

    fn again(detail: &str, settled: Settled, error: object_store::Error) -> Self {
        let error = Error::Unavailable { detail: detail.to_owned(), settled, source: Some(Box::new(error)) };
        Self { error, next: Next::Again { after: None }, settled }
    }
}

fn skewed(refusal: &Refusal) -> Error {
    // half a minute up counts as one, so that it is never said to be 0
    let seconds = refusal.skew_seconds.unwrap_or(0);
    Error::ClockSkew { minutes: (seconds + 30 * seconds.signum()) / 60 }
}

/// The first of a type in the chain of sources.
fn cause<T: std::error::Error + 'static>(error: &object_store::Error) -> Option<&T> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        source = error.source();
    }
    None
}

/// The attempts at one request, or at one body with its resumptions.
#[derive(Debug)]
pub(super) struct Tries {
    pauses: ExponentialBackoff,
    fresh: ExponentialBuilder,
    /// From the first failure, not from the first attempt: a long transfer uses none of it up.
    patience: Duration,
    /// The first failure since the last progress.
    since: Option<Instant>,
    renewed: bool,
    /// Whether some attempt may have done what was asked without our knowing.
    ///
    /// Never taken back by `reset`: what is unknown stays unknown.
    pub lost: bool,
}

impl Tries {
    pub(super) fn new(settings: &StoreSettings) -> Self {
        let fresh = ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(10))
            .with_max_times(settings.retries as usize);
        let patience = Duration::from_millis(settings.retry_timeout_ms);
        Self { pauses: fresh.build(), fresh, patience, since: None, renewed: false, lost: false }
    }

    /// Returns when the request should be sent again, or fails when it should not. Waits in between; dropping it gives the
    /// request up.
    pub(super) async fn again(&mut self, failure: Failure, credentials: &Credentials) -> Result<(), Error> {
        self.lost |= failure.settled == Settled::Unknown;
        let after = match failure.next {
            Next::Fail => return Err(failure.error),
            Next::Renew if self.renewed => return Err(failure.error),
            Next::Renew => {
                self.renewed = true;
                credentials.forget().await;
                return Ok(());
            }
            Next::Again { after } => after.unwrap_or_default().min(LONGEST_WAIT),
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        let Some(pause) = self.pauses.next().map(|pause| pause.max(after)) else {
            return Err(self.ended(failure.error));
        };
        if since.elapsed() + pause > self.patience {
            return Err(self.ended(failure.error));
        }
        tracing::debug!(error = %failure.error, ?pause, "store request failed, sent again");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Forgets earlier failures, after real progress.
    pub(super) fn reset(&mut self) {
        self.pauses = self.fresh.build();
        self.since = None;
        self.renewed = false;
    }

    /// What is known at the end is what is known of all attempts.
    fn ended(&self, error: Error) -> Error {
        match error {
            Error::Unavailable { detail, source, .. } if self.lost => {
                Error::Unavailable { detail, settled: Settled::Unknown, source }
            }
            other => other,
        }
    }
}
