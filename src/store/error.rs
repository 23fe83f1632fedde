//! What can be so when the store says no.
//!
//! One enum for every kind of store. [`Error::is_retryable`] answers the one question a caller has; the text says what to do
//! next. Keys are made of UUIDs only, so they may be shown.

use std::io;

use super::keys::Key;

/// The boxed cause of an error, kept for the log.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the store holds no object `{key}`")]
    NotFound { key: Key },
    #[error("the store already holds an object `{key}`; a key is written once")]
    AlreadyExists { key: Key },
    #[error("the store refused the request ({detail}); check the credentials and their rights to the bucket")]
    Denied { detail: String },
    /// Worth trying again later. `settled` says whether it is known that nothing was written.
    #[error("the store is not available ({detail}); try again")]
    Unavailable {
        detail: String,
        settled: Settled,
        #[source]
        source: Option<Cause>,
    },
    #[error("no space is left on the store's disk; free some, or point the service at a larger store")]
    NoSpace,
    /// The store's bytes or answers contradict what was written. Never retried, never served.
    #[error("the store's object `{key}` is damaged: {detail}")]
    Corrupt { key: Key, detail: String },
    #[error("this machine's clock is {} min {} the store's; set it right, or signed requests are refused", minutes.abs(), if *minutes > 0 { "ahead of" } else { "behind" })]
    ClockSkew { minutes: i64 },
    #[error("the store cannot do this: {what}")]
    Unsupported { what: String },
    #[error("range {start}..{end} lies outside of object `{key}` of {size} bytes")]
    Range { key: Key, start: u64, end: u64, size: u64 },
    #[error("object `{key}` was announced with {expected} bytes, but {actual} came")]
    Length { key: Key, expected: u64, actual: u64 },
    #[error("store setting `{field}`: {detail}")]
    Settings { field: &'static str, detail: String },
    #[error("the store's disk failed at `{what}`")]
    Disk {
        what: String,
        #[source]
        source: io::Error,
    },
}

/// What is known of a write that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Nothing was written.
    Yes,
    /// The answer was lost: the object may exist, now or a little later. Never use its key again.
    Unknown,
}

impl Error {
    /// Whether the same call may succeed later without anybody doing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// The text with all its causes, in one line.
    pub fn in_full(&self) -> String {
        chain(self)
    }

    /// Turns a disk error into what it means; `what` names the step and the path.
    pub(super) fn disk(what: impl Into<String>, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Disk { what: what.into(), source },
        }
    }
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    // some say their cause themselves
    texts.dedup_by(|cause, error| error.contains(cause.as_str()));
    texts.join(": ")
}
