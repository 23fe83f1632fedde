//! Callbacks: deliveries are claimed, attempted, and settled.
//!
//! A claim is a lease on a row: a replica that dies with it loses it after [`CLAIM`], and another attempts the same event under the same id. Per job one
//! delivery is under way, the oldest; per receiver a few; each attempt is a task of its own, so that a slow receiver holds up nobody else.
//!
//! At least once, in the order of the events of a job. A delivery that is given up or refused for good ends; the job's next
//! event goes on. Receivers know a repeat by the event's id.

use std::sync::Arc;

use jiff::SignedDuration;
use zeroize::Zeroizing;

use super::App;
use super::error::Error;
use crate::api::events::CLOUDEVENTS_JSON;
use crate::db::jobs;
use crate::db::outbox::{self, Claimed, Ending};
use crate::domain::delivery::wait_after;
use crate::transaction;
use crate::webhook::{Attempt, Outcome, TIMEOUT};

/// Attempts of one process at a time: each is a connection and a body in memory.
pub const AT_ONCE: u32 = 64;
/// A claim outlives the longest attempt.
const CLAIM: SignedDuration = SignedDuration::from_secs(TIMEOUT.as_secs().cast_signed() * 3);

impl App {
    /// Claims deliveries that are due, `limit` at most, for [`CLAIM`]. Each is to be given to [`App::attempt_delivery`]; one
    /// that is not is attempted by somebody once its claim runs out.
    pub async fn claim_deliveries(&self, limit: u32) -> Result<Vec<Claimed>, Error> {
        let now = self.clock.now();
        let until = now.checked_add(CLAIM).unwrap_or(now);
        transaction!(self.db, |tx| outbox::claim(tx, now, until, limit).await.map_err(Error::from))
    }

    /// Attempts one claimed delivery and writes how it went, in one transaction after the attempt; nothing is written when
    /// the claim has run out and another has it. 410 disables the job's callback for good and buries what still waits. One
    /// that cannot be put together counts as a failed attempt, so that it comes to an end. An error means that the outcome
    /// could not be written: the claim runs out, and it is attempted again.
    pub async fn attempt_delivery(&self, claimed: &Claimed) -> Result<(), Error> {
        let outcome = self.deliver(claimed).await;
        let (id, job) = (claimed.event.id, claimed.event.job);
        let now = self.clock.now();
        let gone = "the receiver answered 410: it wants nothing more of this job";
        match &outcome {
            Outcome::Delivered => tracing::debug!(event = %id, %job, "callback delivered"),
            Outcome::Gone => tracing::info!(event = %id, %job, "callback disabled by its receiver"),
            Outcome::Failed { reason, .. } => {
                tracing::warn!(event = %id, %job, reason, attempt = claimed.attempts + 1, "callback failed")
            }
        }
        let settled = transaction!(self.db, |tx| {
            let settled = match &outcome {
                Outcome::Delivered => outbox::settle(tx, claimed, &Ending::Delivered, now).await?,
                Outcome::Gone => {
                    jobs::disable_callback(tx, job).await?;
                    outbox::bury(tx, job, gone).await?;
                    true
                }
                Outcome::Failed { reason, retry_after } => {
                    let jitter = self.ids.secret()[0];
                    let wait = wait_after(claimed.attempts + 1, *retry_after, jitter);
                    let at = wait.and_then(|wait| now.checked_add(wait).ok());
                    let ending = match at {
                        Some(at) => Ending::Later { at, error: reason },
                        None => Ending::Dead { error: reason },
                    };
                    outbox::settle(tx, claimed, &ending, now).await?
                }
            };
            tx.notify("deliveries");
            Ok::<_, Error>(settled)
        })?;
        if !settled {
            tracing::info!(event = %id, %job, "an attempt outlived its claim; a later one says how it went");
        }
        Ok(())
    }

    /// One POST, with the event's document as it is to poll and the job's own secret. Attempts of one
    /// event differ by their time and its signature alone.
    async fn deliver(&self, claimed: &Claimed) -> Outcome {
        let (id, job) = (claimed.event.id.to_string(), claimed.event.job);
        let (body, secret) = match self.put_together(claimed) {
            Ok(both) => both,
            Err(error) => {
                tracing::error!(event = %id, %job, %error, "an event cannot be put together for its callback");
                let reason = "the service could not put the event together; its log says why".to_owned();
                return Outcome::Failed { reason, retry_after: None };
            }
        };
        let attempt = Attempt {
            url: &claimed.url,
            secret: &secret,
            id: &id,
            now: self.clock.now(),
            content_type: CLOUDEVENTS_JSON,
            body: body.as_bytes(),
        };
        self.webhooks.deliver(attempt).await
    }

    /// The body and the secret it is signed with.
    fn put_together(&self, claimed: &Claimed) -> Result<(String, Zeroizing<Vec<u8>>), Error> {
        let body = super::jobs::json(&super::events::document(&claimed.event, &self.origin)?)?;
        Ok((body, self.keys.open_sealed(super::jobs::CALLBACK, &claimed.secret)?))
    }

    /// Delivers until nothing is due. New events are taken up as they come, while slow receivers are still waited for. When
    /// claiming fails, attempts under way are dropped with it and made again after their claims have run out.
    pub async fn deliver_callbacks(self: &Arc<Self>) -> Result<(), Error> {
        let mut running = tokio::task::JoinSet::new();
        loop {
            let mut ear = self.db.wakeups().listen("deliveries");
            let free = AT_ONCE.saturating_sub(u32::try_from(running.len()).unwrap_or(AT_ONCE));
            for work in self.claim_deliveries(free).await? {
                let app = self.clone();
                running.spawn(async move { app.attempt_and_log(&work).await });
            }
            if running.is_empty() {
                return Ok(());
            }
            tokio::select! {
                _ = running.join_next() => {}
                _ = ear.wait(tokio::time::Instant::now() + TIMEOUT) => {}
            }
        }
    }

    async fn attempt_and_log(&self, work: &Claimed) {
        if let Err(error) = self.attempt_delivery(work).await {
            tracing::warn!(%error, event = %work.event.id, "a delivery's outcome cannot be written; it will be attempted again");
        }
    }
}
