//! Typed arguments of handlers: bodies, queries and paths that are refused in words when they make no sense.
//!
//! A JSON body is read within its budget: a `Content-Length` above it is refused before a byte is buffered, a body without
//! one is cut when it exceeds it.
//!
//! Use cases check what values mean; here it is only whether they can be read. Every refusal names the place and what to
//! compare with. Nothing is defaulted that the wire types do not default themselves.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use futures::StreamExt;
use http::request::Parts;
use http::{HeaderMap, header};
use serde::de::DeserializeOwned;

use super::error::Refusal;
use super::pace::Stalled;
use crate::app::{App, Code, Error, Idempotency, Kind};

/// 413. Not retryable as it is.
pub const BODY_TOO_LARGE: Code = Code::new(Kind::TooLarge, "body_too_large", "the body exceeds what this call takes");
/// 408: the sender was slower than `pace` allows.
pub const BODY_STALLED: Code = Code::new(Kind::TimedOut, "body_stalled", "the body came too slowly");
/// Seldom read by anybody: the sender has gone. It stops the use case.
pub const BODY_CUT: Code = Code::new(Kind::Invalid, "body_cut", "the body ended before its announced end");
/// JSON, query or path that does not parse, or has a field that is not known.
pub const MALFORMED: Code = Code::new(Kind::Invalid, "malformed", "the request cannot be read");

/// A JSON body, and the idempotency of the call that carries it.
///
/// Consumes the request, so it is a handler's last argument. Memory: one body of at most `limits.json_body`. The media type
/// is not looked at.
#[derive(Debug)]
pub struct Said<T> {
    pub body: T,
    /// Key, route and BLAKE3 of the very bytes: the same key with another body is refused by the use case, not answered as
    /// a repeat.
    pub idempotency: Idempotency,
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Said<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        let key = idempotency_key(&parts.headers)?;
        let bytes = collect(&parts.headers, body, app.settings.limits.json_body.0).await?;
        let Json(said) = Json::<T>::from_bytes(&bytes).map_err(|rejection| {
            let text = rejection.body_text();
            let text = text.rsplit_once("target type: ").map_or(text.as_str(), |(_, fault)| fault);
            let hint = "compare the body with the call's schema in /openapi.json; unknown fields are refused";
            Error::new(MALFORMED, format!("the JSON body: {text}"), hint)
        })?;
        let route = format!("{} {}", parts.method, parts.uri.path());
        let digest = *blake3::hash(&bytes).as_bytes();
        Ok(Self { body: said, idempotency: Idempotency { key, route, digest } })
    }
}

/// A key that cannot be one is refused and not ignored: the caller relies on it.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=128).contains(&key.len()));
    let hint = "send 1 to 128 visible ASCII characters, new for every new request, a UUID for example";
    key.map(|key| Some(key.to_owned())).ok_or_else(|| Error::invalid("Idempotency-Key", "cannot be a key", hint))
}

/// Reads a body of at most `limit` bytes, whatever its head announced.
async fn collect(headers: &HeaderMap, body: Body, limit: u64) -> Result<Bytes, Error> {
    let too_large = || {
        let detail = format!("this call takes {limit} bytes at most");
        Error::new(BODY_TOO_LARGE, detail, "send less in one call, or let the operator raise limits.json_body")
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut stream = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(part) = stream.next().await {
        let part = part.map_err(body_error)?;
        if whole.len() as u64 + part.len() as u64 > limit {
            return Err(too_large());
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.into())
}

/// Why a body ended early. For handlers that stream one, too: our own cut is told apart from a line that broke.
pub fn body_error(error: axum::Error) -> Error {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = next {
        if let Some(stalled) = cause.downcast_ref::<Stalled>() {
            return Error::new(BODY_STALLED, stalled.to_string(), "send it again, faster or in smaller parts");
        }
        next = cause.source();
    }
    Error::new(BODY_CUT, "the connection broke while the body was read", "send the same request again")
        .with_source(error)
}

/// The query string.
///
/// Whether unknown parameters are refused is for `T` to say.
#[derive(Debug)]
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let Query(query) = Query::<T>::try_from_uri(&parts.uri).map_err(|rejection| {
            let hint = "compare the query with the call's parameters in /openapi.json";
            Error::new(MALFORMED, format!("the query: {}", rejection.body_text()), hint)
        })?;
        Ok(Self(query))
    }
}

/// The variable parts of the path.
///
/// Percent-decoded. Not to be shown or logged unescaped: it is the caller's text.
#[derive(Debug)]
pub struct Named<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(named) = Path::<T>::from_request_parts(parts, state).await.map_err(|rejection| {
            Error::new(MALFORMED, format!("the path: {}", rejection.body_text()), "percent-encode UTF-8 text in paths")
        })?;
        Ok(Self(named))
    }
}

/// What URLs made for this caller begin with: `public_url`, else the origin of the request itself. No `/` at its end.
///
/// From `Host` only while no `public_url` is set: a caller could then be answered links to a host of its own choice, and
/// only that caller sees them. A host with user information is not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(pub String);

impl FromRequestParts<Arc<App>> for Origin {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        if app.settings.public_url.is_some() {
            return Ok(Self(app.origin.clone()));
        }
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host =
            host.filter(|host| host.parse::<http::uri::Authority>().is_ok_and(|host| !host.as_str().contains('@')));
        let scheme = if app.settings.tls.cert.is_some() { "https" } else { "http" };
        Ok(Self(host.map_or_else(|| app.origin.clone(), |host| format!("{scheme}://{host}"))))
    }
}
