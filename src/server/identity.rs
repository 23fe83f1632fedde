//! Who the caller is; teams, tokens, nodes, public keys.
//!
//! Secrets are in the answer of the call that made them; kept are their hashes. A repeat with the same `Idempotency-Key`
//! within `limits.idempotency_ttl` gets the same answer again, which is stored encrypted until then.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::error::Refusal;
use super::extract::{Asked, Named, Said};
use crate::api::events::PublicKeys;
use crate::api::nodes::{CreateNode, CreatedNode, Node};
use crate::api::problem::Problem;
use crate::api::teams::{CreateTeam, CreateToken, CreatedToken, Page, PageQuery, Team, TokenInfo, WhoAmI};
use crate::app::{App, Caller};

type AppState = State<Arc<App>>;
type Created<T> = Result<(StatusCode, Json<T>), Refusal>;

#[utoipa::path(get, path = "/v1/whoami", tag = "identity",
    responses((status = 200, description = "The bearer of this token", body = WhoAmI),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn whoami(State(app): AppState, caller: Caller) -> Result<Json<WhoAmI>, Refusal> {
    Ok(Json(app.whoami(&caller).await?))
}

#[utoipa::path(get, path = "/v1/teams", tag = "identity", params(PageQuery),
    responses((status = 200, description = "All teams for the operator, else the caller's", body = Page<Team>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_teams(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<Team>>, Refusal> {
    Ok(Json(app.list_teams(&caller, &query).await?))
}

#[utoipa::path(post, path = "/v1/teams", tag = "identity", request_body = CreateTeam,
    responses((status = 201, description = "The new team", body = Team),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create_team(State(app): AppState, caller: Caller, said: Said<CreateTeam>) -> Created<Team> {
    Ok((StatusCode::CREATED, Json(app.create_team(&caller, &said.body, &said.idempotency).await?)))
}

#[utoipa::path(get, path = "/v1/tokens", tag = "identity", params(PageQuery),
    responses((status = 200, description = "The team's tokens, without their secrets", body = Page<TokenInfo>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_tokens(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<TokenInfo>>, Refusal> {
    Ok(Json(app.list_tokens(&caller, &query).await?))
}

#[utoipa::path(post, path = "/v1/tokens", tag = "identity", request_body = CreateToken,
    responses((status = 201, description = "The new token; its secret is shown this once", body = CreatedToken),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create_token(
    State(app): AppState,
    caller: Caller,
    said: Said<CreateToken>,
) -> Created<CreatedToken> {
    Ok((StatusCode::CREATED, Json(app.create_token(&caller, &said.body, &said.idempotency).await?)))
}

#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "identity", params(("id" = String, Path, description = "UUID")),
    responses((status = 204, description = "Revoked, now or before"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn revoke_token(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
) -> Result<StatusCode, Refusal> {
    app.revoke_token(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", params(PageQuery),
    responses((status = 200, description = "The team's nodes", body = Page<Node>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_nodes(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<Node>>, Refusal> {
    Ok(Json(app.list_nodes(&caller, &query).await?))
}

#[utoipa::path(post, path = "/v1/nodes", tag = "nodes", request_body = CreateNode,
    responses((status = 201, description = "The new node; its token is shown this once", body = CreatedNode),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn add_node(State(app): AppState, caller: Caller, said: Said<CreateNode>) -> Created<CreatedNode> {
    Ok((StatusCode::CREATED, Json(app.add_node(&caller, &said.body, &said.idempotency).await?)))
}

#[utoipa::path(delete, path = "/v1/nodes/{name}", tag = "nodes", params(("name" = String, Path, description = "Name")),
    responses((status = 204, description = "Removed; its token stopped working"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove_node(
    State(app): AppState,
    caller: Caller,
    Named(name): Named<String>,
) -> Result<StatusCode, Refusal> {
    app.remove_node(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/v1/keys", tag = "service",
    responses((status = 200, description = "Public keys that verify receipts, retired ones too", body = PublicKeys),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn public_keys(State(app): AppState) -> Result<Json<PublicKeys>, Refusal> {
    Ok(Json(app.public_keys().await?))
}
