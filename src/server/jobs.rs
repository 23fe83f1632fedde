//! Jobs, their leases and outputs.
//!
//! Submitting and granting take an `Idempotency-Key`; cancelling, renewing and releasing are safe to repeat as they are. A
//! change and the events that tell of it are one transaction, so what is answered is also told by callback and by `GET
//! /v1/events`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::error::Refusal;
use super::extract::{Asked, Named, Origin, Said};
use crate::api::jobs::{GrantLease, Job, JobSpec, Lease, OfJob, Outputs, ReleaseLease, RenewLease};
use crate::api::problem::Problem;
use crate::api::teams::{Page, PageQuery};
use crate::app::tokens::parse_id;
use crate::app::{App, Caller, Paging};

type AppState = State<Arc<App>>;

#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = JobSpec,
    responses((status = 201, description = "The job; a callback's secret is shown this once", body = Job),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn submit(
    State(app): AppState,
    caller: Caller,
    said: Said<JobSpec>,
) -> Result<(StatusCode, Json<Job>), Refusal> {
    Ok((StatusCode::CREATED, Json(app.submit_job(&caller, &said.body, &said.idempotency).await?)))
}

#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(PageQuery),
    responses((status = 200, description = "The team's jobs, newest first", body = Page<Job>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<Job>>, Refusal> {
    Ok(Json(app.list_jobs(&caller, &Paging::new(&query)?).await?))
}

#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "UUID")),
    responses((status = 200, description = "The job", body = Job),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(State(app): AppState, caller: Caller, Named(id): Named<String>) -> Result<Json<Job>, Refusal> {
    Ok(Json(app.get_job(&caller, parse_id("job", &id)?).await?))
}

/// Cancel a job
///
/// Its lease ends, its stagings are cancelled, and nothing comes back. Cancelled twice is cancelled.
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "UUID")),
    responses((status = 200, description = "The job, cancelled", body = Job),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn cancel(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
) -> Result<Json<Job>, Refusal> {
    Ok(Json(app.cancel_job(&caller, parse_id("job", &id)?).await?))
}

#[utoipa::path(get, path = "/v1/jobs/{id}/outputs", tag = "jobs", params(("id" = String, Path, description = "UUID")),
    responses((status = 200, description = "Every declared output, from submit on", body = Outputs),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn outputs(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
    Origin(origin): Origin,
) -> Result<Json<Outputs>, Refusal> {
    Ok(Json(app.get_outputs(&caller, parse_id("job", &id)?, &origin).await?))
}

#[utoipa::path(post, path = "/v1/leases", tag = "leases", request_body = GrantLease,
    responses((status = 201, description = "The lease; its epoch is above every earlier one of the job", body = Lease),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn grant(
    State(app): AppState,
    caller: Caller,
    said: Said<GrantLease>,
) -> Result<(StatusCode, Json<Lease>), Refusal> {
    Ok((StatusCode::CREATED, Json(app.grant_lease(&caller, &said.body, &said.idempotency).await?)))
}

#[utoipa::path(get, path = "/v1/leases", tag = "leases", params(OfJob),
    responses((status = 200, description = "A job's leases, newest first", body = Page<Lease>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_leases(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<OfJob>,
) -> Result<Json<Page<Lease>>, Refusal> {
    Ok(Json(app.list_leases(&caller, parse_id("job", &query.job)?, &Paging::new(&query.page())?).await?))
}

#[utoipa::path(post, path = "/v1/leases/{id}/renew", tag = "leases", request_body = RenewLease,
    params(("id" = String, Path, description = "UUID")),
    responses((status = 200, description = "The lease with its new end", body = Lease),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn renew(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
    said: Said<RenewLease>,
) -> Result<Json<Lease>, Refusal> {
    Ok(Json(app.renew_lease(&caller, parse_id("lease", &id)?, &said.body.until).await?))
}

#[utoipa::path(post, path = "/v1/leases/{id}/release", tag = "leases", request_body = ReleaseLease,
    params(("id" = String, Path, description = "UUID")),
    responses((status = 200, description = "The lease, released now or before for the same reason", body = Lease),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn release(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
    said: Said<ReleaseLease>,
) -> Result<Json<Lease>, Refusal> {
    Ok(Json(app.release_lease(&caller, parse_id("lease", &id)?, said.body.reason).await?))
}
