//! HTTP in, use cases called, answers out.
//!
//! This page lists every route. Handlers are short: they take typed arguments, call one use case and wrap its answer. What a
//! route asks of its caller is in `auth`, how an error looks on the wire in `error`. No SQL, no store, no rule here.

mod auth;
mod error;
mod identity;

use std::sync::Arc;

use axum::Router;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;

pub use auth::{Needs, TABLE};
pub use error::Refusal;

/// The head of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(info(
    title = "Dray",
    description = "Data staging and artifact transfer: bytes verified on the rented node before the meter starts."
))]
struct Document;

/// All routes, without layers: also the source of the OpenAPI document and of the auth table's test.
fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(Document::openapi())
        // identity
        .routes(routes!(identity::whoami))
}

/// The service's router.
pub fn router(app: Arc<App>) -> Router {
    let (router, _document) = routes().split_for_parts();
    router.layer(axum::middleware::from_fn_with_state(app.clone(), auth::enforce)).with_state(app)
}
