//! Uploads: opened, fed, committed; and the operations that commits are.
//!
//! PUTs stream: a body is proven and stored while it comes, and acknowledged only when it is durable. Whoever holds an older epoch is refused with
//! `fenced` and must not go on.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderName, StatusCode, header};
use serde::Deserialize;
use uuid::Uuid;

use super::error::Refusal;
use super::extract::{Asked, Named, Said, body_error};
use crate::api::datasets::PackInfo;
use crate::api::problem::Problem;
use crate::api::uploads::{Commit, EPOCH_HEADER, Known, KnownPacks, OpenUpload, Operation, Upload};
use crate::app::body::Body;
use crate::app::objects::PutObject;
use crate::app::seal::{Arrival, PutPack};
use crate::app::{App, Caller, Code, Error, Kind, ObjectKind};
use crate::content::digest::Digest;

/// Bodies of unknown length are not taken: size limits, quotas and the store's part size are decided before the first byte.
pub const LENGTH_REQUIRED: Code =
    Code::new(Kind::Malformed, "length_required", "the request does not say how long its body is");

type AppState = State<Arc<App>>;
type Answer<T> = Result<Json<T>, Refusal>;

/// A body that streams in, of an announced length, by the holder of an epoch.
///
/// The body is not read yet: a use case that refuses by the epoch costs the sender no upload.
#[derive(Debug)]
pub(super) struct Sent {
    epoch: u64,
    body: Body,
}

impl FromRequest<Arc<App>> for Sent {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        let epoch = number(&parts.headers, HeaderName::from_static(EPOCH_HEADER));
        let epoch = epoch.ok_or_else(|| {
            Error::invalid(EPOCH_HEADER, "is missing or no number", "send the epoch that the upload's document says")
        })?;
        let length = number(&parts.headers, header::CONTENT_LENGTH);
        let length = length.ok_or_else(|| Error::new(LENGTH_REQUIRED, "there is no `Content-Length`", "send one"))?;
        let stream = body.into_data_stream().map_err(body_error).boxed();
        Ok(Self { epoch, body: Body::new(stream, length) })
    }
}

/// None where it is missing or no plain number; which of both is not told apart.
fn number(headers: &HeaderMap, name: HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn digest(field: &'static str, hex: &str) -> Result<Digest, Error> {
    hex.parse().map_err(|error| Error::invalid(field, error, "digests are 64 lower-case hex digits"))
}

#[utoipa::path(post, path = "/v1/uploads", tag = "uploads", request_body = OpenUpload,
    responses((status = 201, description = "A new upload", body = Upload),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn open(
    State(app): AppState,
    caller: Caller,
    said: Said<OpenUpload>,
) -> Result<(StatusCode, Json<Upload>), Refusal> {
    Ok((StatusCode::CREATED, Json(app.open_upload(&caller, &said.body, &said.idempotency).await?)))
}

#[utoipa::path(get, path = "/v1/uploads/{id}", tag = "uploads", params(("id" = Uuid, Path, description = "Upload")),
    responses((status = 200, description = "How it stands", body = Upload),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(State(app): AppState, caller: Caller, Named(id): Named<Uuid>) -> Answer<Upload> {
    Ok(Json(app.get_upload(&caller, id).await?))
}

/// Take an upload over
///
/// Whoever held it before is fenced by the higher epoch. An expired upload comes back too, without its pins.
#[utoipa::path(post, path = "/v1/uploads/{id}/reopen", tag = "uploads", params(("id" = Uuid, Path, description = "Upload")),
    responses((status = 200, description = "Open, with a higher epoch", body = Upload),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn reopen(State(app): AppState, caller: Caller, Named(id): Named<Uuid>) -> Answer<Upload> {
    Ok(Json(app.reopen_upload(&caller, id).await?))
}

#[utoipa::path(delete, path = "/v1/uploads/{id}", tag = "uploads", params(("id" = Uuid, Path, description = "Upload")),
    responses((status = 204, description = "Aborted"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn abort(State(app): AppState, caller: Caller, Named(id): Named<Uuid>) -> Result<StatusCode, Refusal> {
    app.abort_upload(&caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/v1/uploads/{id}/known", tag = "uploads", request_body = Known,
    params(("id" = Uuid, Path, description = "Upload")),
    responses((status = 200, description = "Packs worth looking into, pinned", body = KnownPacks),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn known(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<Uuid>,
    said: Said<Known>,
) -> Answer<KnownPacks> {
    Ok(Json(app.known_packs(&caller, id, &said.body).await?))
}

/// Send a pack
///
/// Answered once every chunk is proven and the pack is durable. May be sent again whenever the answer was lost.
#[utoipa::path(put, path = "/v1/uploads/{id}/packs/{pack}", tag = "uploads",
    params(("id" = Uuid, Path, description = "Upload"), ("pack" = String, Path, description = "Pack id"),
           ("dray-upload-epoch" = u64, Header, description = "The upload's epoch")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "Pack v1"),
    responses((status = 201, description = "Sealed now", body = PackInfo),
              (status = 200, description = "The team had it; pinned", body = PackInfo),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_pack(
    State(app): AppState,
    caller: Caller,
    Named((upload, pack)): Named<(Uuid, String)>,
    mut sent: Sent,
) -> Result<(StatusCode, Json<PackInfo>), Refusal> {
    let put = PutPack { upload, epoch: sent.epoch, pack: digest("pack", &pack)? };
    let (arrival, pack) = app.put_pack(&caller, put, &mut sent.body).await?;
    let status = if arrival == Arrival::New { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(pack)))
}

#[utoipa::path(put, path = "/v1/uploads/{id}/tree/{digest}", tag = "uploads",
    params(("id" = Uuid, Path, description = "Upload"), ("digest" = String, Path, description = "BLAKE3 of the uncompressed tree"),
           ("dray-upload-epoch" = u64, Header, description = "The upload's epoch")),
    request_body(content = Vec<u8>, content_type = "application/zstd", description = "Tree v1, one zstd frame"),
    responses((status = 204, description = "Stored"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_tree(
    State(app): AppState,
    caller: Caller,
    Named((upload, hex)): Named<(Uuid, String)>,
    sent: Sent,
) -> Result<StatusCode, Refusal> {
    put_object(&app, &caller, (upload, ObjectKind::Tree, hex), sent).await
}

#[utoipa::path(put, path = "/v1/uploads/{id}/layout/{digest}", tag = "uploads",
    params(("id" = Uuid, Path, description = "Upload"), ("digest" = String, Path, description = "BLAKE3 of the uncompressed layout"),
           ("dray-upload-epoch" = u64, Header, description = "The upload's epoch")),
    request_body(content = Vec<u8>, content_type = "application/zstd", description = "Layout v1, one zstd frame"),
    responses((status = 204, description = "Stored"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_layout(
    State(app): AppState,
    caller: Caller,
    Named((upload, hex)): Named<(Uuid, String)>,
    sent: Sent,
) -> Result<StatusCode, Refusal> {
    put_object(&app, &caller, (upload, ObjectKind::Layout, hex), sent).await
}

/// Trees and layouts differ in their kind only.
async fn put_object(
    app: &App,
    caller: &Caller,
    (upload, kind, hex): (Uuid, ObjectKind, String),
    mut sent: Sent,
) -> Result<StatusCode, Refusal> {
    let put = PutObject { upload, epoch: sent.epoch, kind, digest: digest("digest", &hex)? };
    app.put_object(caller, put, &mut sent.body).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Begin to commit an upload
///
/// The same commit said again is the same operation, until it failed: then it is tried anew.
#[utoipa::path(post, path = "/v1/uploads/{id}/commit", tag = "uploads", request_body = Commit,
    params(("id" = Uuid, Path, description = "Upload")),
    responses((status = 202, description = "Being committed; ask for the operation", body = Operation),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn commit(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<Uuid>,
    said: Said<Commit>,
) -> Result<(StatusCode, Json<Operation>), Refusal> {
    Ok((StatusCode::ACCEPTED, Json(app.commit_upload(&caller, id, &said.body).await?)))
}

/// How long to wait for a change.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// Seconds; 0 when absent.
    #[serde(default)]
    wait: u64,
}

#[utoipa::path(get, path = "/v1/operations/{id}", tag = "uploads", params(("id" = Uuid, Path, description = "Operation"), WaitQuery),
    responses((status = 200, description = "How it stands", body = Operation),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn operation(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<Uuid>,
    Asked(query): Asked<WaitQuery>,
) -> Answer<Operation> {
    Ok(Json(app.get_operation(&caller, id, Duration::from_secs(query.wait)).await?))
}
