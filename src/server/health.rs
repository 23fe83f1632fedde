//! Whether this replica should be sent requests.
//!
//! For load balancers: 200 while requests are welcome. A replica that drains takes no new connections, and answers 503 on
//! those that are open. It asks the database and not the store, whose absence does not make another replica any better.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::Refusal;
use crate::api::problem::Problem;
use crate::app::App;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    /// `ok`; anything else is answered as a problem.
    status: &'static str,
    /// Release of the service.
    version: &'static str,
}

#[utoipa::path(get, path = "/healthz", tag = "service",
    responses((status = 200, description = "Answers, and its database does", body = Health),
              (status = 503, description = "Draining, or without its database", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn healthz(State(app): State<Arc<App>>) -> Result<Json<Health>, Refusal> {
    app.healthy().await?;
    Ok(Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") }))
}
