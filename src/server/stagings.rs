//! Stagings, for schedulers and people.
//!
//! A staging belongs to one lease, or to none when only the store is asked about. Watching is by `state_seq`: who names the
//! one it knows misses no change, since the answer comes at once when there was one meanwhile.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::error::Refusal;
use super::extract::{Asked, Named, Said};
use crate::api::jobs::{OfJob, RequestStaging, Staging, WatchStaging};
use crate::api::plans::{PlanQuery, StagingPlan};
use crate::api::problem::Problem;
use crate::api::teams::Page;
use crate::app::staging::Watch;
use crate::app::tokens::parse_id;
use crate::app::{App, Caller, Paging};

type AppState = State<Arc<App>>;

#[utoipa::path(post, path = "/v1/stagings", tag = "stagings", request_body = RequestStaging,
    responses((status = 201, description = "The staging; a repeat for the same lease gets the one there is", body = Staging),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn request(
    State(app): AppState,
    caller: Caller,
    said: Said<RequestStaging>,
) -> Result<(StatusCode, Json<Staging>), Refusal> {
    Ok((StatusCode::CREATED, Json(app.request_staging(&caller, &said.body, &said.idempotency).await?)))
}

#[utoipa::path(get, path = "/v1/stagings/{id}", tag = "stagings", params(("id" = String, Path, description = "UUID"), WatchStaging),
    responses((status = 200, description = "The staging, at once or when it has changed", body = Staging),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
    Asked(query): Asked<WatchStaging>,
) -> Result<Json<Staging>, Refusal> {
    let watch = Watch { above: query.state_seq.unwrap_or(0), wait: app.wait(query.wait) };
    Ok(Json(app.get_staging(&caller, parse_id("staging", &id)?, watch).await?))
}

#[utoipa::path(get, path = "/v1/stagings", tag = "stagings", params(OfJob),
    responses((status = 200, description = "A job's stagings, newest first", body = Page<Staging>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<OfJob>,
) -> Result<Json<Page<Staging>>, Refusal> {
    Ok(Json(app.list_stagings(&caller, parse_id("job", &query.job)?, &Paging::new(&query.page())?).await?))
}

#[utoipa::path(delete, path = "/v1/stagings/{id}", tag = "stagings", params(("id" = String, Path, description = "UUID")),
    responses((status = 200, description = "The staging, cancelled", body = Staging),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn cancel(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
) -> Result<Json<Staging>, Refusal> {
    Ok(Json(app.cancel_staging(&caller, parse_id("staging", &id)?).await?))
}

#[utoipa::path(get, path = "/v1/jobs/{id}/plan", tag = "stagings",
    params(("id" = String, Path, description = "UUID"), PlanQuery),
    responses((status = 200, description = "What staging the job would bring, the room it needs, and what stands against it; nothing is changed", body = StagingPlan),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn plan(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
    Asked(query): Asked<PlanQuery>,
) -> Result<Json<StagingPlan>, Refusal> {
    Ok(Json(app.plan_staging(&caller, parse_id("job", &id)?, query.node.as_deref()).await?))
}
