//! Who may call what: one table, enforced by one layer.
//!
//! The layer looks up the matched route in [`TABLE`]; a route without a row is refused, so a forgotten row closes a door
//! instead of leaving it open. Handlers take the proven [`Caller`] as an argument. Use cases still scope every query by the
//! caller's team; this file decides on roles only.
//!
//! Order of the checks: route, token, rate, role. So a stranger learns nothing about roles, and a token that calls too
//! often is held back before any use case costs the database more than the look at the token.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Method, header};

use super::error::Refusal;
use super::rate::Rate;
use crate::api::teams::Role;
use crate::app::tokens::UNAUTHENTICATED;
use crate::app::{App, Caller, Error};

/// What a route asks of its caller.
///
/// Roles do not include one another: each row lists all that may call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// No token.
    Nothing,
    /// No token: the URL itself is signed, and the handler checks that.
    Signature,
    /// A token with one of these roles.
    Roles(&'static [Role]),
    /// A token of role `admin` of team `default`.
    ///
    /// Who runs the service, not one of its teams.
    Operator,
}

use Role::{Admin, Node, Scheduler, Team, TeamRead};

/// Any valid token. The use case decides what it sees.
const ANYONE: Needs = Needs::Roles(&[Admin, Team, TeamRead, Scheduler, Node]);
const ADMIN: Needs = Needs::Roles(&[Admin]);
/// Whoever brings data: people and what runs for them, and nodes their declared outputs.
const SENDERS: Needs = Needs::Roles(&[Admin, Team, Node]);
/// Whoever may delete what a team holds; a scheduler may not.
const WRITERS: Needs = Needs::Roles(&[Admin, Team]);
/// Whoever looks at a team's things: everybody but a node.
const READERS: Needs = Needs::Roles(&[Admin, Team, TeamRead, Scheduler]);

/// Whoever says what runs where.
const SCHEDULERS: Needs = Needs::Roles(&[Admin, Team, Scheduler]);
const NODE: Needs = Needs::Roles(&[Node]);

/// Every route of the service, once. `HEAD` follows `GET`.
///
/// A test holds it against the OpenAPI document. Changing a row changes who may do what: it is a change of the API.
pub const TABLE: &[(Method, &str, Needs)] = &[
    (Method::GET, "/healthz", Needs::Nothing),
    (Method::GET, "/openapi.json", Needs::Nothing),
    (Method::GET, "/v1/keys", Needs::Nothing),
    // identity
    (Method::GET, "/v1/whoami", ANYONE),
    (Method::GET, "/v1/teams", READERS),
    (Method::POST, "/v1/teams", Needs::Operator),
    (Method::GET, "/v1/tokens", ADMIN),
    (Method::POST, "/v1/tokens", ADMIN),
    (Method::DELETE, "/v1/tokens/{id}", ADMIN),
    (Method::GET, "/v1/nodes", READERS),
    (Method::POST, "/v1/nodes", ADMIN),
    (Method::DELETE, "/v1/nodes/{name}", ADMIN),
    // uploads
    (Method::POST, "/v1/uploads", SENDERS),
    (Method::GET, "/v1/uploads/{id}", SENDERS),
    (Method::DELETE, "/v1/uploads/{id}", SENDERS),
    (Method::POST, "/v1/uploads/{id}/reopen", SENDERS),
    (Method::POST, "/v1/uploads/{id}/known", SENDERS),
    (Method::PUT, "/v1/uploads/{id}/packs/{pack}", SENDERS),
    (Method::PUT, "/v1/uploads/{id}/tree/{digest}", SENDERS),
    (Method::PUT, "/v1/uploads/{id}/layout/{digest}", SENDERS),
    (Method::POST, "/v1/uploads/{id}/commit", SENDERS),
    (Method::GET, "/v1/operations/{id}", SENDERS),
    // datasets: a node sees what is staged on it, the use cases see to that
    (Method::GET, "/v1/datasets", READERS),
    (Method::DELETE, "/v1/datasets", WRITERS),
    (Method::GET, "/v1/versions", READERS),
    (Method::GET, "/v1/resolve", ANYONE),
    (Method::GET, "/v1/versions/{id}", ANYONE),
    (Method::DELETE, "/v1/versions/{id}", WRITERS),
    (Method::GET, "/v1/versions/{id}/tree", ANYONE),
    (Method::GET, "/v1/versions/{id}/layout", ANYONE),
    (Method::POST, "/v1/grants", ANYONE),
    (Method::GET, "/v1/packs/{pack}/index", ANYONE),
    (Method::GET, "/v1/packs/{pack}", Needs::Signature),
    // jobs, leases, stagings
    (Method::GET, "/v1/jobs", READERS),
    (Method::POST, "/v1/jobs", SCHEDULERS),
    (Method::GET, "/v1/jobs/{id}", READERS),
    (Method::DELETE, "/v1/jobs/{id}", SCHEDULERS),
    (Method::GET, "/v1/jobs/{id}/outputs", READERS),
    (Method::GET, "/v1/jobs/{id}/plan", READERS),
    (Method::GET, "/v1/leases", READERS),
    (Method::POST, "/v1/leases", SCHEDULERS),
    (Method::POST, "/v1/leases/{id}/renew", SCHEDULERS),
    (Method::POST, "/v1/leases/{id}/release", SCHEDULERS),
    (Method::GET, "/v1/stagings", READERS),
    (Method::POST, "/v1/stagings", SCHEDULERS),
    (Method::GET, "/v1/stagings/{id}", READERS),
    (Method::DELETE, "/v1/stagings/{id}", SCHEDULERS),
    // a node's agent
    (Method::POST, "/v1/agent/hello", NODE),
    (Method::GET, "/v1/agent/work", NODE),
    (Method::POST, "/v1/agent/stagings/{id}/report", NODE),
    (Method::POST, "/v1/agent/outputs/report", NODE),
    // events
    (Method::GET, "/v1/events", READERS),
    (Method::GET, "/v1/webhooks/deliveries", READERS),
    (Method::POST, "/v1/webhooks/deliveries/{id}/replay", SCHEDULERS),
    // links
    (Method::POST, "/v1/links", Needs::Roles(&[Admin, Team])),
    (Method::DELETE, "/v1/links/{id}", Needs::Roles(&[Admin, Team])),
    (Method::GET, "/l/{id}/{name}", Needs::Signature),
];

/// None: the route has no row, which `admit` treats as a fault of ours and refuses.
pub(super) fn needs(method: &Method, path: &str) -> Option<Needs> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    TABLE.iter().find(|row| row.0 == *method && row.1 == path).map(|row| row.2)
}

/// Adds to an OpenAPI document which calls need a token, and whose.
pub(super) fn describe(document: &mut serde_json::Value) {
    document["components"]["securitySchemes"]["token"] = serde_json::json!({ "type": "http", "scheme": "bearer", "description": "A token as `dray token create` prints it" });
    for (method, path, needs) in TABLE {
        let item = document["paths"].get_mut(path).and_then(|item| item.get_mut(method.as_str().to_ascii_lowercase()));
        let Some(operation) = item.and_then(serde_json::Value::as_object_mut) else { continue };
        let roles = match needs {
            Needs::Nothing | Needs::Signature => continue,
            Needs::Roles(roles) => serde_json::json!(roles),
            Needs::Operator => serde_json::json!(["operator"]),
        };
        operation.insert("security".to_owned(), serde_json::json!([{ "token": [] }]));
        operation.insert("x-roles".to_owned(), roles);
    }
}

/// State of the layer.
///
/// One for all connections of this replica; rates are counted by replica.
#[derive(Debug)]
pub(super) struct Gate {
    app: Arc<App>,
    rate: Rate,
}

impl Gate {
    pub(super) fn new(app: Arc<App>) -> Self {
        let rate = Rate::new(app.settings.limits.requests_per_second);
        Self { app, rate }
    }
}

/// Refuses whoever may not call the matched route; hands the proven caller on.
///
/// A refused request's body is not read here.
pub(super) async fn enforce(
    State(gate): State<Arc<Gate>>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match admit(&gate, path.as_str(), &parts).await {
        Ok(caller) => {
            if let Some(caller) = caller {
                parts.extensions.insert(caller);
            }
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => Refusal(error).into_response(),
    }
}

/// None where the route needs no token: a token that is sent all the same is not looked at.
async fn admit(gate: &Gate, path: &str, request: &Parts) -> Result<Option<Caller>, Error> {
    let needs = needs(&request.method, path)
        .ok_or_else(|| Error::internal(format!("`{} {path}` has no row in the auth table", request.method)))?;
    if matches!(needs, Needs::Nothing | Needs::Signature) {
        return Ok(None);
    }
    let caller = gate.app.authenticate(bearer(request)?).await?;
    gate.rate.take(caller.token_id, Instant::now())?;
    let admitted = match needs {
        Needs::Roles(roles) => roles.contains(&caller.role),
        _ => caller.is_operator(),
    };
    if !admitted {
        let detail =
            format!("a token of role `{}` may not call this", serde_json::json!(caller.role).as_str().unwrap_or("?"));
        return Err(Error::denied(detail, "ask an admin of the team for a token with another role"));
    }
    Ok(Some(caller))
}

/// RFC 6750's header only: a token in a query or a form would end in logs. The scheme is compared without case.
fn bearer(request: &Parts) -> Result<&str, Error> {
    let header = request.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token =
        header.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    token.map(|(_, token)| token.trim()).ok_or_else(|| {
        let detail = "the request carries no `Authorization: Bearer` header";
        Error::new(UNAUTHENTICATED, detail, "set DRAY_TOKEN, or send `Authorization: Bearer dray_...`")
    })
}

/// Only on routes that need a token; on others it is `internal`, a handler's mistake found by its first test.
impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| Refusal(Error::internal("a handler asks for the caller of a route that needs no token")))
    }
}
