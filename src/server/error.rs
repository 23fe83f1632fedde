//! Use-case errors as HTTP answers: status by kind, body an RFC 9457 problem.
//!
//! The caller reads code, title, detail and hint; drivers' texts and sources go to the log only, once, here. The request id
//! is filled in by the outermost layer, which finds the problem in the response's extensions.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use crate::api::problem::{PROBLEM_JSON, Problem};
use crate::app::{Error, Kind};

/// A refusal on its way out. Handlers return `Result<_, Refusal>` and use `?` on [`Error`].
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
        let problem = problem(&error);
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

/// The wire form of an error; operations keep it as well.
pub fn problem(error: &Error) -> Problem {
    Problem {
        kind: "about:blank".to_owned(),
        code: error.code.code.to_owned(),
        title: error.code.title.to_owned(),
        status: status(error.kind()).as_u16(),
        detail: error.detail.clone(),
        hint: Some(error.hint.clone()),
        request_id: None,
        data: error.data.as_deref().cloned(),
    }
}

pub(super) fn respond(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = serde_json::to_vec(problem).expect("a problem has string keys only");
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response()
}

fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Conflict => StatusCode::CONFLICT,
        Kind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        Kind::Unauthenticated => StatusCode::UNAUTHORIZED,
        Kind::Denied => StatusCode::FORBIDDEN,
        Kind::Expired => StatusCode::GONE,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::TimedOut => StatusCode::REQUEST_TIMEOUT,
        Kind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Corrupt | Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
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

fn causes(error: &Error) -> String {
    let mut causes = Vec::new();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    causes.join(": ")
}
