//! Events to poll, and how their deliveries fare.
//!
//! The same events go out as callbacks; here they can be read again, in one order per team, by who keeps the last id seen.
//! At least once: an id that was seen before is the same fact.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::error::Refusal;
use super::extract::{Asked, Named, Origin};
use crate::api::events::{AskDeliveries, AskEvents, Delivery, Event};
use crate::api::problem::Problem;
use crate::api::teams::Page;
use crate::app::events::Poll;
use crate::app::tokens::parse_id;
use crate::app::{App, Caller, Paging};

type AppState = State<Arc<App>>;

/// Poll events
///
/// Waits for one when there is none after the last seen, as long as asked.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(AskEvents),
    responses((status = 200, description = "Events after the one last seen, oldest first; `next` is the last one's id", body = Page<Event>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn poll(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<AskEvents>,
    Origin(origin): Origin,
) -> Result<Json<Page<Event>>, Refusal> {
    let after = query.after.as_deref().map(|id| parse_id("event", id)).transpose()?;
    let paging = Paging::new(&query.page())?;
    let poll = Poll { after, wait: app.wait(query.wait), limit: paging.rows() - 1 };
    Ok(Json(app.events(&caller, &poll, &origin).await?))
}

#[utoipa::path(get, path = "/v1/webhooks/deliveries", tag = "events", params(AskDeliveries),
    responses((status = 200, description = "Deliveries, newest first", body = Page<Delivery>),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn deliveries(
    State(app): AppState,
    caller: Caller,
    Asked(query): Asked<AskDeliveries>,
) -> Result<Json<Page<Delivery>>, Refusal> {
    let job = query.job.as_deref().map(|id| parse_id("job", id)).transpose()?;
    Ok(Json(app.deliveries(&caller, job, &Paging::new(&query.page())?).await?))
}

#[utoipa::path(post, path = "/v1/webhooks/deliveries/{id}/replay", tag = "events",
    params(("id" = String, Path, description = "The event's id")),
    responses((status = 202, description = "It is pending again"),
              (status = "default", description = "A problem", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn replay(
    State(app): AppState,
    caller: Caller,
    Named(id): Named<String>,
) -> Result<StatusCode, Refusal> {
    app.replay_delivery(&caller, parse_id("delivery", &id)?).await?;
    Ok(StatusCode::ACCEPTED)
}
