//! Links: made and revoked by the team, opened by whoever holds one.
//!
//! Opening one needs no token: the URL is signed. A wrong signature and an unknown id are answered alike; that a link is
//! over, revoked or without its version is told only to who holds a right one. The headers keep a browser from running,
//! caching for others or indexing what strangers uploaded.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::error::Refusal;
use super::extract::{Asked, Named, Origin, Said};
use super::ranges::Download;
use crate::api::links::{CreateLink, Link, LinkSignature};
use crate::api::problem::Problem;
use crate::app::tokens::parse_id;
use crate::app::{App, Caller};

type AppState = State<Arc<App>>;

#[utoipa::path(post, path = "/v1/links", tag = "links", request_body = CreateLink,
    responses((status = 201, description = "The link, with its true end", body = Link),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(app): AppState,
    caller: Caller,
    Origin(origin): Origin,
    said: Said<CreateLink>,
) -> Result<(StatusCode, Json<Link>), Refusal> {
    Ok((StatusCode::CREATED, Json(app.create_link(&caller, &said.body, &said.idempotency, &origin).await?)))
}

#[utoipa::path(delete, path = "/v1/links/{id}", tag = "links", params(("id" = String, Path, description = "UUID")),
    responses((status = 204, description = "Revoked; the URL stopped working"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn revoke(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
) -> Result<StatusCode, Refusal> {
    app.revoke_link(&caller, parse_id("link", &id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/l/{id}/{name}", tag = "links",
    params(("id" = String, Path), ("name" = String, Path, description = "For people; the link knows its name"), LinkSignature),
    responses((status = 200, description = "The file or archive", content_type = "application/octet-stream"),
              (status = 206, description = "The asked range of it", content_type = "application/octet-stream"),
              (status = 304, description = "The caller has it"),
              (status = 416, description = "The range lies beyond its end"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn download(
    State(app): AppState,
    Named((id, _name)): Named<(String, String)>,
    Asked(query): Asked<LinkSignature>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let target = app.open_link(&id, query.exp, &query.sig).await?;
    let download = Download { bytes: target.bytes, tag: target.tag.clone(), media_type: target.media_type };
    let wanted = download.wanted(&headers);
    let stream = download.range(&wanted).map(|range| target.read(&app, range));
    let mut response = download.respond(&wanted, stream);
    let disposition = HeaderValue::try_from(target.disposition());
    if let Ok(disposition) = disposition {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
    }
    for (name, value) in [
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (header::CACHE_CONTROL, "private, no-cache"),
        (header::HeaderName::from_static("x-robots-tag"), "noindex"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}
