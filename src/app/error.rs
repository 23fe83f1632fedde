//! What a use case answers when it does not do what was asked.
//!
//! [`Kind`] says what the caller shall do and decides the HTTP status; a [`Code`] is the stable word for programs, fixed
//! together with its title in one constant; `detail` and `hint` are for people and never hold another team's facts, a secret
//! or a driver's text. What the log needs besides is the `source`.
//!
//! One error type for the whole room, so that the server maps it in one place and an operation can keep it as it is.
//! `Display` is for logs; what goes over the wire is [`Error::problem`].

use std::time::Duration;

use crate::api::problem::Problem;
use crate::{db, store};

/// What shall the caller do?
/// Of two that fit, the one that tells the caller to do what will help. A new kind is a new answer to that question, not a
/// new thing that went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// There is no such thing, or it is another team's.
    NotFound,
    /// Look at the present state, then decide again.
    Conflict,
    /// Correct the request.
    Invalid,
    /// Send the bytes again: these are not what was announced.
    Malformed,
    /// Present a valid token.
    Unauthenticated,
    /// Use a token with more rights.
    Denied,
    /// Ask for a new lease, link or upload.
    Expired,
    /// Send less.
    TooLarge,
    /// Send faster, or on a new connection.
    TimedOut,
    /// Wait, then send again.
    TooMany,
    /// Send again shortly.
    Unavailable,
    /// Stop: bytes are not what they should be.
    Corrupt,
    /// A bug of ours: report it.
    Internal,
}

impl Kind {
    /// The HTTP status that says the same.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Unauthenticated => 401,
            Self::Denied => 403,
            Self::NotFound => 404,
            Self::TimedOut => 408,
            Self::Conflict => 409,
            Self::Expired => 410,
            Self::TooLarge => 413,
            Self::Invalid => 422,
            Self::TooMany => 429,
            Self::Corrupt | Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }
}

/// A stable code with its kind and title. One constant per code:
/// `const FENCED: Code = Code::new(Kind::Conflict, "fenced", "the epoch is not the current one")`. Programs decide by `code`:
/// it is never renamed and never gets another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    pub kind: Kind,
    pub code: &'static str,
    pub title: &'static str,
}

impl Code {
    pub const fn new(kind: Kind, code: &'static str, title: &'static str) -> Self {
        Self { kind, code, title }
    }
}

/// A refusal or failure, complete with what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{}: {detail}", code.title)]
pub struct Error {
    pub code: Code,
    /// What went wrong this time.
    pub detail: String,
    /// What to do next.
    pub hint: String,
    /// Further facts for programs, by code: packs to send again, the field at fault, the present epoch. Boxed to keep
    /// results small.
    pub data: Option<Box<serde_json::Value>>,
    /// When to come again, with `TooMany`, `Unavailable` and where a conflict passes by itself.
    pub retry_after: Option<Duration>,
    /// For the log alone; never on the wire. Also what tells contention from refusal, so whoever wraps a database's error
    /// keeps it here.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub fn new(code: Code, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), hint: hint.into(), data: None, retry_after: None, source: None }
    }

    #[must_use]
    pub fn with_data(mut self, data: serde_json::Value) -> Self {
        self.data = Some(Box::new(data));
        self
    }

    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    pub fn kind(&self) -> Kind {
        self.code.kind
    }

    /// The wire form (RFC 9457); operations keep it as well. The request's id is the server's to add.
    pub fn problem(&self) -> Problem {
        Problem {
            kind: "about:blank".to_owned(),
            code: self.code.code.to_owned(),
            title: self.code.title.to_owned(),
            status: self.kind().status(),
            detail: self.detail.clone(),
            hint: Some(self.hint.clone()),
            request_id: None,
            data: self.data.as_deref().cloned(),
        }
    }

    /// The same request may succeed later, unchanged. Also decides whether a commit runs again and whether a refused body is
    /// drained.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), Kind::Unavailable | Kind::TooMany)
    }

    /// `thing` is the glossary's word, `name` what the caller called it.
    pub fn not_found(thing: &str, name: impl std::fmt::Display, hint: impl Into<String>) -> Self {
        Self::new(NOT_FOUND, format!("there is no {thing} `{name}`"), hint)
    }

    /// One field of a request cannot mean anything. `what` follows the field's name in the sentence and quotes what was said
    /// only escaped.
    pub fn invalid(field: &str, what: impl std::fmt::Display, hint: impl Into<String>) -> Self {
        Self::new(INVALID, format!("`{field}`: {what}"), hint).with_data(serde_json::json!({ "field": field }))
    }

    /// A name that is taken becomes the caller's conflict; any other failure of the database stays what it is. Return it at
    /// once: on Postgres the transaction is spoilt.
    pub fn on_taken(error: db::Error, code: Code, detail: impl FnOnce() -> String, hint: &str) -> Self {
        if error.is_taken() { Self::new(code, detail(), hint).with_source(error) } else { error.into() }
    }

    /// The caller's role does not allow it.
    pub fn denied(detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(DENIED, detail, hint)
    }

    /// A state that our own code should have made impossible. `detail` goes to the caller: no secret, no other team's facts.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(INTERNAL, detail, "this is a fault of the service; report it with the request id")
    }
}

/// Look at the name, or at the team of the token. The same for what another team has.
pub const NOT_FOUND: Code = Code::new(Kind::NotFound, "not_found", "no such thing in this team");
/// `data.field` names the field; the same request fails again.
pub const INVALID: Code = Code::new(Kind::Invalid, "invalid", "the request does not make sense");
/// The hint says whether another token or another request will do.
pub const DENIED: Code = Code::new(Kind::Denied, "denied", "this token may not do that");
/// Send the same again after `retry_after`, with the same Idempotency-Key: whether it was done may not be known.
pub const UNAVAILABLE: Code = Code::new(Kind::Unavailable, "unavailable", "the service cannot do this right now");
/// Sending it again may or may not help; the log has the cause under the request's id.
pub const INTERNAL: Code = Code::new(Kind::Internal, "internal", "the service failed");

impl From<db::Error> for Error {
    fn from(error: db::Error) -> Self {
        if let db::Error::Nul = error {
            let hint = "leave out characters that cannot be seen";
            return Self::new(INVALID, "a text of the request holds a NUL character", hint).with_source(error);
        }
        if error.is_transient() {
            let detail = "the database is busy or cannot be reached";
            return Self::new(
                UNAVAILABLE,
                detail,
                "send the same request again shortly, with the same Idempotency-Key",
            )
            .retry_after(Duration::from_secs(2))
            .with_source(error);
        }
        Self::internal("the database did not do what it should").with_source(error)
    }
}

/// Somebody else holds it by now, or it has ended: nothing that is said under this epoch counts any more. Of an upload,
/// `data.epoch` is the present one and this holder must stop; of a lease, ask for the node's work.
pub const FENCED: Code = Code::new(Kind::Conflict, "fenced", "the epoch is not the current one");
/// Nothing was acknowledged; passes when the operator makes room.
pub const STORE_FULL: Code = Code::new(Kind::Unavailable, "store_full", "the store has no space left");
/// What is damaged is not handed out.
pub const CORRUPT: Code = Code::new(Kind::Corrupt, "corrupt", "stored bytes are not what they should be");

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        use store::Error as E;
        let later = Duration::from_secs(5);
        match error {
            E::NoSpace => {
                let hint = "tell the operator of the service to free or add space, then send the same again";
                Self::new(STORE_FULL, "nothing was written", hint)
                    .retry_after(Duration::from_secs(60))
                    .with_source(error)
            }
            E::Unavailable { .. } | E::Disk { .. } => {
                let hint = "send the same request again shortly, with the same Idempotency-Key";
                Self::new(UNAVAILABLE, "the store does not answer as it should", hint)
                    .retry_after(later)
                    .with_source(error)
            }
            E::Denied { .. } | E::ClockSkew { .. } => {
                let hint = "tell the operator: the service's log says why, `dray store check` shows more";
                Self::new(UNAVAILABLE, "the store refuses the service", hint).retry_after(later).with_source(error)
            }
            E::Corrupt { .. } => {
                let hint = "nothing wrong was handed out; tell the operator, and push the data again if you have it";
                Self::new(CORRUPT, "an object of the store is damaged", hint).with_source(error)
            }
            _ => Self::internal("the store did not do what it should").with_source(error),
        }
    }
}

impl db::Contended for Error {
    fn is_busy(&self) -> bool {
        let source = self.source.as_ref().and_then(|source| source.downcast_ref::<db::Error>());
        source.is_some_and(db::Error::is_busy)
    }
}
