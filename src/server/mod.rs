//! HTTP in, use cases called, answers out.
//!
//! This page lists every route. Handlers are short: they take typed arguments, call one use case and wrap its answer. What a
//! route asks of its caller is in `auth`, how an error looks on the wire in `error`. No SQL, no store, no rule here.
//!
//! What a request passes, from outside in. The order is a contract: each layer relies on those before it.
//!
//! ```text
//! front       request id, log line, at most limits.requests_in_flight at once, pace of the body     every request
//! panics      become a problem of code `internal`                                                   every request
//! auth        the row of the table, the token, the token's rate                                     matched routes
//! in_time     limits.request_timeout                                                                calls only, not streams
//! handler     arguments, one use case, its answer
//! ```
//!
//! A handler that is dropped (the caller hung up, the time was over) drops its use case: a transaction in flight is rolled
//! back. Only POSTs that create take an `Idempotency-Key`. Other calls may be sent again as they are; the answer may differ
//! (a version deleted twice is 404), and each `reopen` raises the epoch.

mod agent;
mod auth;
mod background;
mod datasets;
mod error;
mod events;
mod extract;
mod health;
mod identity;
mod jobs;
mod layers;
mod links;
mod pace;
mod ranges;
mod rate;
mod reconcilers;
mod serve;
mod service;
mod stagings;
mod store_check;
mod uploads;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;

pub use auth::{Needs, TABLE};
pub use background::Task;
pub use error::Refusal;
pub use extract::{Asked, Named, Origin, Said, body_error};
pub use ranges::{Download, Wanted};
pub use reconcilers::reconcilers;
pub use serve::serve;
pub use service::{Error, Service};
pub use store_check::{StoreCheck, store_check};

type Routes = OpenApiRouter<Arc<App>>;

/// Calls that are answered as a whole, within `limits.request_timeout`.
///
/// A route belongs here unless a body of any size passes through it: the time limit would cut an honest slow line.
fn calls() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(health::healthz))
        // identity
        .routes(routes!(identity::whoami))
        .routes(routes!(identity::list_teams, identity::create_team))
        .routes(routes!(identity::list_tokens, identity::create_token))
        .routes(routes!(identity::revoke_token))
        .routes(routes!(identity::list_nodes, identity::add_node))
        .routes(routes!(identity::remove_node))
        .routes(routes!(identity::public_keys))
        // uploads
        .routes(routes!(uploads::open))
        .routes(routes!(uploads::get, uploads::abort))
        .routes(routes!(uploads::reopen))
        .routes(routes!(uploads::known))
        .routes(routes!(uploads::commit))
        .routes(routes!(uploads::operation))
        // datasets
        .routes(routes!(datasets::list, datasets::delete))
        .routes(routes!(datasets::list_versions))
        .routes(routes!(datasets::resolve))
        .routes(routes!(datasets::get_version, datasets::delete_version))
        .routes(routes!(datasets::grant))
        .routes(routes!(datasets::pack_index))
        // jobs, leases, stagings
        .routes(routes!(jobs::list, jobs::submit))
        .routes(routes!(jobs::show, jobs::cancel))
        .routes(routes!(jobs::outputs))
        .routes(routes!(jobs::list_leases, jobs::grant))
        .routes(routes!(jobs::renew))
        .routes(routes!(jobs::release))
        .routes(routes!(stagings::list, stagings::request))
        .routes(routes!(stagings::show, stagings::cancel))
        .routes(routes!(stagings::plan))
        // a node's agent
        .routes(routes!(agent::hello))
        .routes(routes!(agent::work))
        .routes(routes!(agent::report_staging))
        .routes(routes!(agent::report_output))
        // events
        .routes(routes!(events::poll))
        .routes(routes!(events::deliveries))
        .routes(routes!(events::replay))
        .routes(routes!(links::revoke))
}

/// Calls that stream a body in or out: as long as bytes move, they may take their time.
fn streams() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(uploads::put_pack))
        .routes(routes!(uploads::put_tree))
        .routes(routes!(uploads::put_layout))
        .routes(routes!(datasets::tree))
        .routes(routes!(datasets::layout))
        .routes(routes!(datasets::pack))
        // links; making a direct one writes its export object
        .routes(routes!(links::create))
        .routes(routes!(links::download))
}

/// The head of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(info(
    title = "Dray",
    description = "Data staging and artifact transfer: bytes verified on the rented node before the meter starts."
))]
struct Document;

/// The OpenAPI 3.1 document of this release; what a call asks of its caller is taken from the auth table.
///
/// Made from the routes themselves, so that no route is missing. The `///` of handlers and of wire types is its text.
pub fn document() -> serde_json::Value {
    let routes = OpenApiRouter::<Arc<App>>::with_openapi(Document::openapi()).merge(calls()).merge(streams());
    let mut document = serde_json::to_value(routes.into_openapi()).expect("a document has string keys only");
    auth::describe(&mut document);
    document
}

/// The service's router, complete with everything that surrounds a request.
///
/// Pure wiring: nothing runs until it is served. The document is made once and kept; unknown paths and methods answer
/// problems too.
pub fn router(app: Arc<App>) -> Router {
    let document = serde_json::to_vec(&document()).expect("a document has string keys only");
    let document = axum::body::Bytes::from(document);
    let answer = move || async move { ([(http::header::CONTENT_TYPE, "application/json")], document) };
    let gate = Arc::new(auth::Gate::new(app.clone()));
    let front = Arc::new(layers::Front::new(app.clone()));
    let calls = calls().route_layer(from_fn_with_state(app.clone(), layers::in_time));
    OpenApiRouter::new()
        .merge(calls)
        .merge(streams())
        .route("/openapi.json", get(answer))
        .route_layer(from_fn_with_state(gate, auth::enforce))
        .split_for_parts()
        .0
        .fallback(layers::no_route)
        .method_not_allowed_fallback(layers::wrong_method)
        .layer(CatchPanicLayer::custom(layers::panicked))
        .layer(from_fn_with_state(front, layers::front))
        .with_state(app)
}
