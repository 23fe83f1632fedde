//! Datasets, versions, their documents; grants and the bytes of packs.
//!
//! Documents and packs are streamed by range from the store; memory does not grow with their size. Deletions are of the
//! versions' rows: bytes that nothing refers to any more are not freed by these calls.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use uuid::Uuid;

use super::error::Refusal;
use super::extract::{Asked, Named, Said};
use super::ranges::Download;
use crate::api::datasets::{Dataset, GrantRequest, Grants, Version};
use crate::api::problem::Problem;
use crate::api::teams::{Page, PageQuery};
use crate::app::versions::Part;
use crate::app::{App, Caller};

type AppState = State<Arc<App>>;
type Answer<T> = Result<Json<T>, Refusal>;

/// Which datasets to list.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Names that begin so.
    #[serde(default)]
    prefix: String,
    cursor: Option<String>,
    limit: Option<u32>,
}

/// Which dataset is meant.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct NameQuery {
    name: String,
}

/// Which dataset's versions to list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct VersionsQuery {
    dataset: String,
    cursor: Option<String>,
    limit: Option<u32>,
}

/// A version by its reference.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RefQuery {
    /// `DATASET[@V]`.
    #[serde(rename = "ref")]
    reference: String,
}

/// What a grant's URL carries.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SignedQuery {
    team: String,
    /// Seconds since 1970.
    exp: i64,
    sig: String,
}

#[utoipa::path(get, path = "/v1/datasets", tag = "datasets", params(ListQuery),
    responses((status = 200, description = "Datasets that have versions, by name", body = Page<Dataset>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<ListQuery>,
) -> Answer<Page<Dataset>> {
    let page = PageQuery { cursor: query.cursor, limit: query.limit };
    Ok(Json(app.list_datasets(&caller, &query.prefix, &page).await?))
}

/// Delete a dataset with all its versions
///
/// Numbers are not used again: the next version pushed under this name goes on where they were.
#[utoipa::path(delete, path = "/v1/datasets", tag = "datasets", params(NameQuery),
    responses((status = 204, description = "Every version deleted"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<NameQuery>,
) -> Result<StatusCode, Refusal> {
    app.delete_dataset(&caller, &query.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/v1/versions", tag = "datasets", params(VersionsQuery),
    responses((status = 200, description = "Versions, newest first", body = Page<Version>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_versions(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<VersionsQuery>,
) -> Answer<Page<Version>> {
    let page = PageQuery { cursor: query.cursor, limit: query.limit };
    Ok(Json(app.list_versions(&caller, &query.dataset, &page).await?))
}

#[utoipa::path(get, path = "/v1/resolve", tag = "datasets", params(RefQuery),
    responses((status = 200, description = "The version meant", body = Version),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn resolve(State(app): AppState, caller: Caller, Asked(query): Asked<RefQuery>) -> Answer<Version> {
    Ok(Json(app.resolve(&caller, &query.reference).await?))
}

#[utoipa::path(get, path = "/v1/versions/{id}", tag = "datasets", params(("id" = Uuid, Path, description = "Version")),
    responses((status = 200, description = "The version", body = Version),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get_version(State(app): AppState, caller: Caller, Named(id): Named<Uuid>) -> Answer<Version> {
    Ok(Json(app.get_version(&caller, id).await?))
}

#[utoipa::path(delete, path = "/v1/versions/{id}", tag = "datasets", params(("id" = Uuid, Path, description = "Version")),
    responses((status = 204, description = "Deleted"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete_version(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<Uuid>,
) -> Result<StatusCode, Refusal> {
    app.delete_version(&caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/v1/versions/{id}/tree", tag = "datasets", params(("id" = Uuid, Path, description = "Version")),
    responses((status = 200, description = "Tree v1, one zstd frame; Range, ETag = its digest", content_type = "application/zstd", body = Vec<u8>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn tree(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<Uuid>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    part(&app, &caller, (id, Part::Tree), &headers).await
}

#[utoipa::path(get, path = "/v1/versions/{id}/layout", tag = "datasets", params(("id" = Uuid, Path, description = "Version")),
    responses((status = 200, description = "Layout v1, one zstd frame; Range, ETag = its id", content_type = "application/zstd", body = Vec<u8>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn layout(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<Uuid>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    part(&app, &caller, (id, Part::Layout), &headers).await
}

/// Streams a stored tree or layout as it lies in the store. The tag is the digest or the layout's id, so a client resumes
/// only what it began.
async fn part(app: &App, caller: &Caller, (id, part): (Uuid, Part), headers: &HeaderMap) -> Result<Response, Refusal> {
    let stored = app.version_part(caller, id, part).await?;
    let download = Download { bytes: stored.bytes, tag: stored.tag.clone(), media_type: "application/zstd" };
    let wanted = download.wanted(headers);
    let stream = match download.range(&wanted) {
        Some(range) => Some(app.stream_part(&stored, range).await?),
        None => None,
    };
    Ok(download.respond(&wanted, stream))
}

#[utoipa::path(post, path = "/v1/grants", tag = "datasets", request_body = GrantRequest,
    responses((status = 200, description = "URLs for the packs, in the order asked", body = Grants),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn grant(State(app): AppState, caller: Caller, said: Said<GrantRequest>) -> Answer<Grants> {
    Ok(Json(app.grant(&caller, &said.body).await?))
}

#[utoipa::path(get, path = "/v1/packs/{pack}/index", tag = "datasets", params(("pack" = String, Path, description = "Pack id")),
    responses((status = 200, description = "Header and index", content_type = "application/octet-stream", body = Vec<u8>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn pack_index(
    State(app): AppState,
    caller: Caller,
    Named(pack): Named<String>,
) -> Result<Response, Refusal> {
    let index = app.sealed_index(&caller, &pack).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], index).into_response())
}

#[utoipa::path(get, path = "/v1/packs/{pack}", tag = "datasets", params(("pack" = String, Path, description = "Pack id"), SignedQuery),
    responses((status = 200, description = "The pack's bytes; Range", content_type = "application/octet-stream", body = Vec<u8>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn pack(
    State(app): AppState,
    Named(pack): Named<String>,
    Asked(query): Asked<SignedQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let pack = app.signed_pack(&pack, &query.team, query.exp, &query.sig).await?;
    let download = Download { bytes: pack.bytes, tag: pack.id.to_string(), media_type: "application/octet-stream" };
    let wanted = download.wanted(&headers);
    let stream = match download.range(&wanted) {
        Some(range) => Some(app.stream_pack(pack, range).await?),
        None => None,
    };
    Ok(download.respond(&wanted, stream))
}
