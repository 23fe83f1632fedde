//! Who the caller is; teams, tokens, nodes, keys.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::error::Refusal;
use crate::api::problem::Problem;
use crate::api::teams::WhoAmI;
use crate::app::{App, Caller};

#[utoipa::path(get, path = "/v1/whoami", tag = "identity",
    responses((status = 200, description = "The bearer of this token", body = WhoAmI),
              (status = 401, description = "No valid token", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn whoami(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<WhoAmI>, Refusal> {
    Ok(Json(app.whoami(&caller).await?))
}
