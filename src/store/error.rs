//! What can be so when the store says no.
//!
//! One enum for every kind of store. [`Error::is_retryable`] answers the one question a caller has; the text says what to do
//! next. Keys are made of UUIDs only, so they may be shown.
//!
//! Which error a room above meets, and what it does:
//!
//! ```text
//! Unavailable                 try again later; where `settled` is unknown, under a new key
//! NotFound, Corrupt           damage when a row refers to the object: it is taken out of service, never served
//! AlreadyExists               a key used twice: a bug, or an answer that was lost
//! Denied, ClockSkew, NoSpace  a person must act; retrying only hides it
//! Settings, Unsupported       the configuration or the store is wrong; `dray store check` says more
//! Range, Length               the caller's mistake: a wrong index, a body that is not what it announced
//! ```

use std::io;

use super::keys::Key;

/// The boxed cause of an error, kept for the log.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The texts are for operators and may reach a log; a caller of the API is told by the use cases. No variant carries a
/// credential, a signature or a signed URL.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// On a GET from a bucket, said only by the store's own `NoSuchKey`; a 404 by something before it is `Unavailable`.
    #[error("the store holds no object `{key}`")]
    NotFound { key: Key },
    #[error("the store already holds an object `{key}`; a key is written once")]
    AlreadyExists { key: Key },
    /// A refused signature, missing rights, or a redirect, which is never followed.
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
    /// The disk is full, a quota is used up, or the bucket's owner has no room. Not retried: space does not come back by
    /// waiting.
    #[error("no space is left on the store's disk; free some, or point the service at a larger store")]
    NoSpace,
    /// The store's bytes or answers contradict what was written. Never retried, never served.
    #[error("the store's object `{key}` is damaged: {detail}")]
    Corrupt { key: Key, detail: String },
    /// Positive when ours is ahead. Told apart from `Denied`, since every request fails in the same way until the clock is
    /// set.
    #[error("this machine's clock is {} min {} the store's; set it right, or signed requests are refused", minutes.abs(), if *minutes > 0 { "ahead of" } else { "behind" })]
    ClockSkew { minutes: i64 },
    /// The store lacks an operation, or the object is larger than it takes.
    #[error("the store cannot do this: {what}")]
    Unsupported { what: String },
    /// Bytes, `end` exclusive; `size` is the object's. Nothing was read.
    #[error("range {start}..{end} lies outside of object `{key}` of {size} bytes")]
    Range { key: Key, start: u64, end: u64, size: u64 },
    /// From a writer with an exact length. Nothing is made under the key.
    #[error("object `{key}` was announced with {expected} bytes, but {actual} came")]
    Length { key: Key, expected: u64, actual: u64 },
    #[error("store setting `{field}`: {detail}")]
    Settings { field: &'static str, detail: String },
    /// Any error of a local store's disk that is not lack of space. Not retried: after a failed sync the kernel tells
    /// nothing twice.
    #[error("the store's disk failed at `{what}`")]
    Disk {
        what: String,
        #[source]
        source: io::Error,
    },
}

/// What is known of a write that failed.
///
/// It decides whether the key may be used again, and whether the store must be asked before a success can be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Nothing was written.
    Yes,
    /// The answer was lost: the object may exist, now or a little later. Never use its key again.
    Unknown,
}

impl Error {
    /// Whether the same call may succeed later without anybody doing anything.
    ///
    /// "The same call" means the use case's, with a new writer and a new key, never a failed
    /// [`PackWriter`](super::PackWriter) again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// The text with all its causes, in one line.
    ///
    /// For logs and the probe. Library texts may be in it, signed URLs not: they are cut out where requests fail.
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
