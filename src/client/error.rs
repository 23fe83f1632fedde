//! What the outside house can fail with, and what each failure means for an exit code.
//!
//! Every error answers four questions: what is so (`Display`), which stable code it has, what to do next (`hint`) and which
//! exit class it belongs to. Texts never hold a token or the query of a signed URL; a source is never repeated in the text.
//!
//! [`Error`] is what is left after all retries: whoever sees it need not try again at once. `Refused` carries the service's own words;
//! everything else arose between the two machines or on this one.

use crate::api::problem::Problem;
use std::borrow::Cow;
use std::path::PathBuf;

/// Exit code of the process that ends with an error. Part of the outside face: as a rule 4 says that a repeat
/// may help, 1 that something has to change first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Refused or failed: 1.
    Failed,
    /// Some items failed: 3.
    Partial,
    /// Network or service unavailable: 4.
    Network,
    /// Interrupted by the user: 130.
    Interrupted,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Partial => 3,
            Self::Network => 4,
            Self::Interrupted => 130,
        }
    }
}

/// A failure of a call, of a push or of a pull.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service understood and said no (or said that it cannot now): an RFC 9457 problem. Boxed, so that a `Result` stays small.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    /// No connection to any base URL within the patience of the client; nothing was sent in the last attempt.
    #[error("cannot connect to `{origin}`")]
    Unreachable {
        origin: String,
        request_id: String,
        #[source]
        source: reqwest::Error,
    },
    /// The connection broke in the middle of a request or an answer, again and again.
    #[error("the connection to `{origin}` broke")]
    Broken {
        origin: String,
        request_id: String,
        #[source]
        source: reqwest::Error,
    },
    /// Not a byte moved for the stall time, again and again.
    #[error("no byte moved to or from `{origin}` for {seconds} s")]
    Stalled { origin: String, request_id: String, seconds: u64 },
    /// The other side does not speak our protocol: a proxy's page, a redirect, a cut or malformed document.
    /// Tried again only where a second answer may differ.
    #[error("`{origin}` answered with {what}")]
    Protocol { origin: String, request_id: String, what: String },
    /// A signed URL is not honoured (any more): ask for a new grant. 404 may also mean that the store has lost the object, and the
    /// next request for a grant should say so (`missing`).
    #[error("the signed URL at `{origin}` was refused with status {status}")]
    UrlRefused { origin: String, status: u16 },
    /// Cancelled by the user or the role's shutdown. What was acknowledged before stays.
    #[error("interrupted")]
    Interrupted,
    /// A base URL that cannot be used.
    #[error("`{url}` is not a usable service URL: {why}")]
    BadUrl { url: String, why: &'static str },
    /// A local file the operation needs.
    #[error("cannot read or write `{}`", path.display())]
    Local {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The HTTP client could not be set up (no trust roots, for example).
    #[error("cannot set up the HTTP client")]
    Setup(#[source] reqwest::Error),
}

impl Error {
    /// Stable code, the service's own when it refused.
    /// Part of the outside face: a code is never given another meaning.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(problem) => &problem.code,
            Self::Unreachable { .. } => "unreachable",
            Self::Broken { .. } => "connection_broken",
            Self::Stalled { .. } => "stalled",
            Self::Protocol { .. } => "protocol",
            Self::UrlRefused { .. } => "url_refused",
            Self::Interrupted => "interrupted",
            Self::BadUrl { .. } => "bad_url",
            Self::Local { .. } => "local_file",
            Self::Setup(_) => "http_setup",
        }
    }

    /// What kind of thing went wrong, the same for every occurrence of the code.
    pub fn title(&self) -> &str {
        match self {
            Self::Refused(problem) => &problem.title,
            Self::Unreachable { .. } => "service unreachable",
            Self::Broken { .. } => "connection broken",
            Self::Stalled { .. } => "transfer stalled",
            Self::Protocol { .. } => "unexpected answer",
            Self::UrlRefused { .. } => "signed URL refused",
            Self::Interrupted => "interrupted",
            Self::BadUrl { .. } => "unusable URL",
            Self::Local { .. } => "local file",
            Self::Setup(_) => "HTTP client",
        }
    }

    /// What to do next, in words.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Refused(problem) => problem.hint.as_deref().map(Cow::Borrowed),
            Self::Unreachable { .. } => Some(Cow::Borrowed(
                "check that the service runs and that `DRAY_URL` names it; run the same command again to go on",
            )),
            Self::Broken { .. } | Self::Stalled { .. } => {
                Some(Cow::Borrowed("run the same command again: it goes on where it stopped"))
            }
            Self::Protocol { .. } => {
                Some(Cow::Borrowed("check that `DRAY_URL` names a Dray service and that no proxy answers in its place"))
            }
            Self::UrlRefused { .. } => Some(Cow::Borrowed(
                "run the same command again; if it stays, compare this machine's clock with the store's",
            )),
            Self::Interrupted => Some(Cow::Borrowed("run the same command again: it goes on where it stopped")),
            Self::BadUrl { .. } => Some(Cow::Borrowed("give one like `http://127.0.0.1:7420`")),
            Self::Local { .. } => None,
            Self::Setup(_) => Some(Cow::Borrowed("install the system's CA certificates")),
        }
    }

    /// Names the request in the service's log.
    pub fn request_id(&self) -> Option<&str> {
        match self {
            Self::Refused(problem) => problem.request_id.as_deref(),
            Self::Unreachable { request_id, .. }
            | Self::Broken { request_id, .. }
            | Self::Stalled { request_id, .. }
            | Self::Protocol { request_id, .. } => Some(request_id),
            _ => None,
        }
    }

    /// A refusal belongs to the network's class only by the statuses that ask to come again (429, 502, 503, 504); a 500 is a fault to report.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Refused(problem) => match problem.status {
                429 | 502 | 503 | 504 => Exit::Network,
                _ => Exit::Failed,
            },
            Self::Unreachable { .. } | Self::Broken { .. } | Self::Stalled { .. } => Exit::Network,
            Self::Protocol { .. } | Self::UrlRefused { .. } => Exit::Network,
            Self::Interrupted => Exit::Interrupted,
            Self::BadUrl { .. } | Self::Local { .. } | Self::Setup(_) => Exit::Failed,
        }
    }

    /// The service's refusal, to look at its code and data.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the service refused with this code.
    /// False for every failure that is no refusal, whatever its own code.
    pub fn is(&self, code: &str) -> bool {
        self.problem().is_some_and(|problem| problem.code == code)
    }
}
