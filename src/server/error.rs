//! Use-case errors as HTTP answers: status by kind, body an RFC 9457 problem.
//!
//! The caller reads code, title, detail and hint; drivers' texts and sources go to the log only, once, here. The request id
//! is filled in by the outermost layer, which finds the problem in the response's extensions.
//!
//! Log levels: what is damaged or a fault of ours is an error, a store or database that is away a warning, a caller's
//! mistake only a debug line, or anybody could fill the log. A 401 carries `WWW-Authenticate`, and what may be tried again
//! `Retry-After`.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use crate::api::problem::{PROBLEM_JSON, Problem};
use crate::app::{Error, Kind};

/// A refusal on its way out. Handlers return `Result<_, Refusal>` and use `?` on [`Error`].
///
/// Made into an answer once; that is where it is logged.
#[derive(Debug)]
pub struct Refusal(pub Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let error = self.0;
        let status = status(error.kind());
        log(&error, status);
        let problem = error.problem();
        let mut response = respond(&problem);
        if let Some(after) = error.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(problem);
        response
    }
}

/// The body and its media type, nothing else: used again by `front`, once the request id is known.
pub(super) fn respond(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = serde_json::to_vec(problem).expect("a problem has string keys only");
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response()
}

fn status(kind: Kind) -> StatusCode {
    StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn log(error: &Error, status: StatusCode) {
    let causes = causes(error);
    let code = error.code.code;
    if matches!(error.kind(), Kind::Corrupt | Kind::Internal) {
        tracing::error!(code, causes, "{}", error.detail);
    } else if status.is_server_error() {
        tracing::warn!(code, causes, "{}", error.detail);
    } else {
        tracing::debug!(code, causes, "{}", error.detail);
    }
}

/// Drivers' texts may name tables, hosts or keys: for the log only.
fn causes(error: &Error) -> String {
    let mut causes = Vec::new();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes.join(": ")
}
