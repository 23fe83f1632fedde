//! What surrounds every request: its id and log line, the budget of requests at one moment, panics, time limits, pace.
//!
//! The log names method, route pattern, status and time; never a token, a query or a path that a user chose.
//!
//! Limits here protect the service as a whole; what one token or one team may use is counted elsewhere. A request that is
//! refused as overloaded has touched neither database nor store.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::HttpBody;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use tokio::sync::Semaphore;
use tracing::Instrument;

use super::error::{Refusal, respond};
use super::pace::paced;
use crate::api::problem::Problem;
use crate::app::{App, Code, Error, Kind};

/// 503 with `Retry-After`. Nothing was done: the same request may be sent again, to any replica.
pub const OVERLOADED: Code = Code::new(Kind::Unavailable, "overloaded", "the service has all hands full");
/// 503 with `Retry-After`. It may have happened: a creation is to be sent again with the same `Idempotency-Key`.
pub const TIMED_OUT: Code = Code::new(Kind::Unavailable, "timeout", "the answer took too long");
/// A wrong address, or a client newer than the service.
pub const NO_ROUTE: Code = Code::new(Kind::NotFound, "no_route", "there is no such call");
pub const WRONG_METHOD: Code = Code::new(Kind::Invalid, "wrong_method", "the call exists with another method");

/// Taken from the caller where it is sane, so that one id joins the logs of both sides, and always answered.
static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// State of the outermost layer.
#[derive(Debug)]
pub(super) struct Front {
    pub app: Arc<App>,
    /// One permit from the head of a request to the head of its answer: long polls count, bodies that stream out do not.
    pub in_flight: Semaphore,
}

impl Front {
    pub(super) fn new(app: Arc<App>) -> Self {
        let most = app.settings.limits.requests_in_flight as usize;
        Self { app, in_flight: Semaphore::new(most.min(Semaphore::MAX_PERMITS)) }
    }
}

/// Outermost: names the request, runs it, completes problems with the name, logs one line.
pub(super) async fn front(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response {
    let id = request_id(&front.app, &request);
    let route = request.extensions().get::<MatchedPath>().map_or("-", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!("request", id, method = %request.method(), route);
    let began = Instant::now();
    let mut response = admitted(&front, request, next).instrument(span.clone()).await;
    if let Some(mut problem) = response.extensions_mut().remove::<Problem>() {
        problem.request_id = Some(id.clone());
        let (mut parts, _) = response.into_parts();
        let (fresh, body) = respond(&problem).into_parts();
        parts.headers.extend(fresh.headers);
        parts.headers.remove(http::header::CONTENT_LENGTH);
        response = Response::from_parts(parts, body);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(&REQUEST_ID, id);
    }
    let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), milliseconds, "answered"));
    response
}

/// Refuses rather than queues: who waits in line would time out and come again. The body is paced unless it is empty.
async fn admitted(front: &Front, request: Request, next: Next) -> Response {
    let Ok(_permit) = front.in_flight.try_acquire() else {
        let detail = "too many requests are being served at this moment";
        let error =
            Error::new(OVERLOADED, detail, "send the same request again shortly").retry_after(Duration::from_secs(1));
        return Refusal(error).into_response();
    };
    let (parts, body) = request.into_parts();
    let window = front.app.settings.limits.body_idle.0;
    let body = if body.is_end_stream() { body } else { paced(body, window) };
    next.run(Request::from_parts(parts, body)).await
}

/// At most 64 of `A-Z a-z 0-9 - _ .`; anything else could write into a log, and is replaced by a UUID.
fn request_id(app: &App, request: &Request) -> String {
    let said = request.headers().get(&REQUEST_ID).and_then(|id| id.to_str().ok());
    let sane = |id: &&str| {
        (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    said.filter(sane).map_or_else(|| app.ids.uuid().to_string(), str::to_owned)
}

/// Around calls that are answered as a whole; not around bodies that stream.
///
/// The handler is dropped at the limit, which rolls its transaction back unless the commit was under way.
/// `limits.longest_wait` is shorter, so that a long poll ends by itself.
pub(super) async fn in_time(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let limit = app.settings.limits.request_timeout.0;
    tokio::time::timeout(limit, next.run(request)).await.unwrap_or_else(|_| {
        let detail = format!("the call was not answered within {} s and was given up", limit.as_secs());
        let hint = "send the same request again, with the same Idempotency-Key: it may have happened";
        Refusal(Error::new(TIMED_OUT, detail, hint).retry_after(Duration::from_secs(2))).into_response()
    })
}

/// A panic is a bug of ours: it is logged with its text, and the caller is told to report the request id.
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = text.unwrap_or("?"), "a handler panicked");
    Refusal(Error::internal("the request hit a fault of the service")).into_response()
}

/// The path is shown escaped and cut to 200 characters, since it is the caller's.
pub(super) async fn no_route(method: Method, uri: Uri) -> Refusal {
    let path: String = uri.path().chars().take(200).collect();
    let hint = "check the address; /openapi.json lists every call of this release";
    Refusal(Error::new(NO_ROUTE, format!("there is no call `{method} {}`", path.escape_debug()), hint))
}

/// 405, which no kind of error has: so the status is put in by hand, in the answer and in its problem. axum adds `Allow`.
pub(super) async fn wrong_method(method: Method) -> Response {
    let detail = format!("this path does not take `{method}`");
    let mut response =
        Refusal(Error::new(WRONG_METHOD, detail, "the `Allow` header lists what it takes")).into_response();
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    if let Some(problem) = response.extensions_mut().get_mut::<Problem>() {
        problem.status = StatusCode::METHOD_NOT_ALLOWED.as_u16();
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tower::ServiceExt;
    use tower_http::catch_panic::CatchPanicLayer;

    use super::*;

    async fn boom() -> &'static str {
        panic!("secret detail of ours")
    }

    #[tokio::test]
    async fn a_panic_is_a_problem_that_tells_nothing() {
        let router: Router = Router::new().route("/", get(boom)).layer(CatchPanicLayer::custom(panicked));
        let response = router.oneshot(Request::new(axum::body::Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.extensions().get::<Problem>().unwrap().code, "internal");
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        assert!(!String::from_utf8_lossy(&body).contains("secret detail"));
    }
}
