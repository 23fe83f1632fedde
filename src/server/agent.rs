//! What a node's agent hears and says.
//!
//! Only tokens of role `node` come here, each bound to one node. The service never calls an agent: it asks for work, and
//! says what it has done. Reports may be said twice and arrive late: all are fenced by lease epoch, those of stagings by the agent's instance too.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::error::Refusal;
use super::extract::{Asked, Named, Said};
use crate::api::jobs::{AskWork, Hello, OutputReport, Staging, StagingReport, Welcome, Work};
use crate::api::problem::Problem;
use crate::app::tokens::parse_id;
use crate::app::{App, Caller};

type AppState = State<Arc<App>>;

/// Take the node's place
///
/// Refused while another process was heard for this node within the last minute. The agent's key is enrolled on first use
/// and must be the same from then on.
#[utoipa::path(post, path = "/v1/agent/hello", tag = "agent", request_body = Hello,
    responses((status = 200, description = "The node is this process's", body = Welcome),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn hello(State(app): AppState, caller: Caller, said: Said<Hello>) -> Result<Json<Welcome>, Refusal> {
    Ok(Json(app.agent_hello(&caller, &said.body).await?))
}

/// Ask for the node's work
///
/// Answers at once when it differs from what `seen` names, else when it changes or the wait is over.
#[utoipa::path(get, path = "/v1/agent/work", tag = "agent", params(AskWork),
    responses((status = 200, description = "All that the node should be doing", body = Work),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn work(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<AskWork>,
) -> Result<Json<Work>, Refusal> {
    Ok(Json(app.agent_work(&caller, query.seen.as_deref(), app.wait(query.wait)).await?))
}

#[utoipa::path(post, path = "/v1/agent/stagings/{id}/report", tag = "agent", request_body = StagingReport,
    params(("id" = String, Path, description = "UUID")),
    responses((status = 200, description = "The staging as it is now", body = Staging),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn report_staging(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
    said: Said<StagingReport>,
) -> Result<Json<Staging>, Refusal> {
    Ok(Json(app.report_staging(&caller, parse_id("staging", &id)?, &said.body).await?))
}

#[utoipa::path(post, path = "/v1/agent/outputs/report", tag = "agent", request_body = OutputReport,
    responses((status = 204, description = "Taken"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn report_output(
    State(app): AppState,
    caller: Caller,
    said: Said<OutputReport>,
) -> Result<StatusCode, Refusal> {
    app.report_output(&caller, &said.body).await?;
    Ok(StatusCode::NO_CONTENT)
}
