//! Events: what is told of a job, to a poll and to a callback.
//!
//! A fact gets its id where it happens and keeps it. Use cases collect facts and write them last, in the transaction of the change itself
//! ([`crate::db::outbox::append`]). The document here is the same for every reader.
//!
//! Order: a team's events have rising numbers in the order of commits, so a poll that has seen one never misses an earlier
//! one. A poller names the last event by its id.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::error::Error;
use super::{App, Caller, Paging};
use crate::api::events::{Delivery, DeliveryState, Event};
use crate::api::teams::Page;
use crate::db::jobs::Job;
use crate::db::outbox::{self, NewEvent};
use crate::db::{Tx, Woken};
use crate::transaction;

/// What a poll of events asks for.
#[derive(Debug, Clone, Default)]
pub struct Poll {
    /// Id of the last event seen.
    pub after: Option<Uuid>,
    /// Within the service's limit already ([`App::wait`]).
    pub wait: Duration,
    pub limit: u32,
}

impl App {
    /// A fact about a job, to be appended to the outbox at the end of the transaction. `data` is the document as it is at
    /// this moment, and stays so. Whether there is a callback is decided here, by the job's row.
    pub(super) fn fact<T: Serialize>(&self, job: &Job, kind: &'static str, data: &T) -> Result<NewEvent, Error> {
        let data = serde_json::to_string(data)
            .map_err(|error| Error::internal("an event cannot be written as JSON").with_source(error))?;
        let callback = job.callback_url.as_ref().filter(|_| !job.callback_disabled).map(|url| {
            let origin = url::Url::parse(url).map_or(String::new(), |url| url.origin().ascii_serialization());
            (url.clone(), origin)
        });
        Ok(NewEvent { id: self.ids.uuid(), job: job.id, kind, data, callback })
    }

    /// A team's events after the one last seen, oldest first; waits for one when there is none, and answers an empty page
    /// when the time is up. `next` is the last item's id also on the last page: poll again with it. `source` is the
    /// CloudEvents source, the service's origin.
    pub async fn events(&self, caller: &Caller, poll: &Poll, source: &str) -> Result<Page<Event>, Error> {
        let deadline = Instant::now() + poll.wait;
        let mut ear = self.db.wakeups().listen(&format!("events/{}", caller.team));
        let after = match poll.after {
            None => 0,
            Some(id) => outbox::seq_of(&mut self.db.read().await?, caller.team, id)
                .await?
                .ok_or_else(|| Error::not_found("event", id, "leave `after` away to begin with the oldest event"))?,
        };
        loop {
            let rows = outbox::after(&mut self.db.read().await?, caller.team, after, poll.limit).await?;
            if rows.is_empty() && ear.wait(deadline).await == Woken::LookAgain {
                continue;
            }
            let items = rows.iter().map(|row| document(row, source)).collect::<Result<Vec<_>, _>>()?;
            let next = items.last().map(|event| event.id.clone());
            return Ok(Page { items, next });
        }
    }

    /// Deliveries, newest first, of one job or all.
    pub async fn deliveries(
        &self,
        caller: &Caller,
        job: Option<Uuid>,
        paging: &Paging,
    ) -> Result<Page<Delivery>, Error> {
        let mut session = self.db.read().await?;
        let rows = outbox::deliveries(&mut session, caller.team, job, &paging.after, paging.rows()).await?;
        Ok(paging.page(rows.into_iter().map(delivery).collect(), |delivery| delivery.event.clone()))
    }

    /// Sends an event to its callback again, from the first attempt; nothing happens to one that is still pending. Also
    /// where the receiver has disabled the callback: who asks for it knows better.
    pub async fn replay_delivery(&self, caller: &Caller, event: Uuid) -> Result<(), Error> {
        transaction!(self.db, |tx| {
            if outbox::replay(tx, caller.team, event, self.clock.now()).await? {
                return Ok(());
            }
            match outbox::is_delivery(tx, caller.team, event).await? {
                true => Ok(()),
                false => Err(Error::not_found("delivery", event, "`GET /v1/webhooks/deliveries` lists them")),
            }
        })
    }

    /// How long a caller may wait who asked for so many seconds: never longer than the service's limit, which ends before
    /// the request's own.
    pub fn wait(&self, seconds: Option<u32>) -> Duration {
        Duration::from_secs(seconds.unwrap_or(0).into()).min(self.settings.limits.longest_wait.0)
    }

    /// The last act of a transaction: it takes the team's count, which every event of the team needs. No facts, no lock.
    pub(super) async fn tell(&self, tx: &mut Tx, team: Uuid, facts: &[NewEvent]) -> Result<(), Error> {
        Ok(outbox::append(tx, team, facts, self.clock.now()).await?)
    }
}

/// The CloudEvent (1.0, structured JSON) of a row. `time` is when the change was made, not when it is told.
pub(super) fn document(row: &outbox::Event, source: &str) -> Result<Event, Error> {
    let data = serde_json::from_str(&row.data)
        .map_err(|error| Error::internal("an event in the outbox cannot be read").with_source(error))?;
    Ok(Event {
        specversion: "1.0".to_owned(),
        id: row.id.to_string(),
        source: source.to_owned(),
        kind: row.kind.clone(),
        subject: row.job.to_string(),
        time: row.at.to_string(),
        datacontenttype: "application/json".to_owned(),
        data,
    })
}

fn delivery(row: outbox::Delivery) -> Delivery {
    let state = match row.state.as_str() {
        "pending" => DeliveryState::Pending,
        "delivered" => DeliveryState::Delivered,
        _ => DeliveryState::Dead,
    };
    Delivery {
        event: row.event.to_string(),
        job: row.job.to_string(),
        url: row.url,
        state,
        attempts: row.attempts,
        last_error: row.last_error,
        next_attempt_at: (state == DeliveryState::Pending).then(|| row.next_at.to_string()),
    }
}
