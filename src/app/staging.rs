//! Stagings: requested, shown, cancelled, and driven by what agents report.
//!
//! A staging without a node ends at `near`, which the service settles itself (`app::inputs`). One with a node follows its agent's reports, each fenced by
//! the lease's epoch. Every change of state writes its event in the same transaction; `ready` is written only together with a checked, countersigned
//! receipt.
//!
//! A caller follows a staging by its `state_seq`: poll with the last one known, or listen for events.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::jobs::{no_job, over, stored};
use super::{App, Caller, Idempotency, Paging};
use crate::api::jobs::{Eta, RequestStaging, Sources, Staging, StagingError, StagingState};
use crate::api::teams::Page;
use crate::db::outbox::NewEvent;
use crate::db::{Tx, Woken, jobs, leases, stagings};
use crate::domain::staging::{self, Progress, State};
use crate::transaction;

/// Grant one on this node, or stage without a node.
pub const NO_LEASE: Code = Code::new(Kind::Conflict, "no_lease", "the job holds no live lease on this node");
/// Request a new staging. To an agent: bring back what is due and clean up.
pub const STAGING_OVER: Code = Code::new(Kind::Conflict, "staging_over", "the staging has ended");

/// Asks for a staging, and for how long to wait until it is another. With the default the answer comes at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Watch {
    /// The `state_seq` the caller knows.
    pub above: u64,
    pub wait: Duration,
}

impl App {
    /// Asks for a job's inputs; a repeat for the same lease gets the staging there is, whatever its Idempotency-Key. With a
    /// node the job must hold a live lease there ([`NO_LEASE`]); without one the data is brought near. The node hears of it
    /// at once by its work list.
    pub async fn request_staging(
        &self,
        caller: &Caller,
        request: &RequestStaging,
        call: &Idempotency,
    ) -> Result<Staging, Error> {
        let job = super::tokens::parse_id("job", &request.job)?;
        let ready_by = request.ready_by.as_ref().map(|text| text.parse::<jiff::Timestamp>()).transpose();
        let ready_by =
            ready_by.map_err(|_| Error::invalid("ready_by", "is no RFC 3339 instant with an offset", "correct it"))?;
        transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay(tx, caller.team, call).await? {
                return Ok(earlier);
            }
            let job = self.locked_job(tx, caller.team, job).await?;
            if job.state.is_over() {
                return Err(over(&job));
            }
            let lease = match &request.node {
                Some(node) => Some(self.lease_on(tx, &job, node).await?),
                None => None,
            };
            let (row, made) = self.staging_of(tx, &job, lease.as_ref(), ready_by).await?;
            let document = self.staging_document(&row)?;
            self.remember(tx, caller.team, call, &document).await?;
            if made == Made::New {
                let fact = self.fact(&job, "dray.staging.accepted.v1", &document)?;
                self.tell(tx, job.team, &[fact]).await?;
            }
            Ok::<_, Error>(document)
        })
    }

    /// The live staging of (job, lease), made when there is none. A `near` one is live: it is answered again, and nothing is
    /// proven anew, until it is cancelled. `bytes_total` is at first the sum of whole versions, and exact once the inputs
    /// were looked into.
    async fn staging_of(
        &self,
        tx: &mut Tx,
        job: &jobs::Job,
        lease: Option<&leases::Lease>,
        ready_by: Option<jiff::Timestamp>,
    ) -> Result<(stagings::Staging, Made), Error> {
        if let Some(live) = stagings::live(tx, job.id, lease.map(|lease| lease.id)).await? {
            return Ok((live, Made::Before));
        }
        let now = self.clock.now();
        let mut total = 0u64;
        for input in jobs::inputs(tx, job.id).await? {
            total = total.saturating_add(stored::<crate::api::datasets::Version>(&input.snapshot)?.bytes);
        }
        let row = stagings::Staging {
            id: self.ids.uuid(),
            team: job.team,
            job: job.id,
            lease: lease.map(|lease| lease.id),
            node: lease.map(|lease| (lease.node, lease.node_name.clone())),
            state: State::Accepted,
            state_seq: 1,
            ready_seq: 0,
            epoch: lease.map_or(0, |lease| lease.tenure.epoch),
            bytes: stagings::Bytes { total, ..stagings::Bytes::default() },
            path: None,
            receipt: None,
            error: None,
            expected: None,
            ready_by,
            created_at: now,
            pulled: None,
            changed_at: now,
            ready_at: None,
            cleaned_at: None,
        };
        stagings::insert(tx, &row).await?;
        tx.notify("stagings");
        if let Some(lease) = lease {
            tx.notify(format!("node/{}", lease.node));
        }
        Ok((row, Made::New))
    }

    /// The newest lease, when it is live at this moment and on this node. Under the job's lock, so it cannot be released
    /// before the staging is there.
    async fn lease_on(&self, tx: &mut Tx, job: &jobs::Job, node: &str) -> Result<leases::Lease, Error> {
        let newest = leases::newest(tx, job.id).await?;
        let live = newest.filter(|lease| lease.tenure.is_live(self.clock.now()) && lease.node_name == node);
        live.ok_or_else(|| {
            let detail = format!("job `{}` holds no live lease on `{}`", job.id, node.escape_debug());
            Error::new(
                NO_LEASE,
                detail,
                "grant one with `dray lease grant`, or stage without a node to bring the data near",
            )
        })
    }

    /// One staging; with `watch.wait`, once its `state_seq` is above what the caller knows or the time is up. Progress
    /// within a state does not end the wait.
    pub async fn get_staging(&self, caller: &Caller, id: Uuid, watch: Watch) -> Result<Staging, Error> {
        let deadline = Instant::now() + watch.wait;
        let mut ear = self.db.wakeups().listen(&format!("staging/{id}"));
        loop {
            let row =
                stagings::get(&mut self.db.read().await?, caller.team, id).await?.ok_or_else(|| no_staging(id))?;
            if row.state_seq > watch.above || ear.wait(deadline).await == Woken::TimeIsUp {
                return self.staging_document(&row);
            }
        }
    }

    /// A job's stagings, newest first.
    pub async fn list_stagings(&self, caller: &Caller, job: Uuid, paging: &Paging) -> Result<Page<Staging>, Error> {
        let mut session = self.db.snapshot().await?;
        jobs::get(&mut session, caller.team, job).await?.ok_or_else(|| no_job(job))?;
        let rows = stagings::page(&mut session, job, &paging.after, paging.rows()).await?;
        let items = rows.iter().map(|row| self.staging_document(row)).collect::<Result<_, _>>()?;
        Ok(paging.page(items, |staging: &Staging| staging.id.clone()))
    }

    /// Cancels a staging; one that was cancelled before is answered as it is, one that ended otherwise is [`STAGING_OVER`].
    /// The lease goes on, and another staging may be requested under it. The node learns of it by its work list and removes
    /// what it has.
    pub async fn cancel_staging(&self, caller: &Caller, id: Uuid) -> Result<Staging, Error> {
        transaction!(self.db, |tx| {
            let before = stagings::get(tx, caller.team, id).await?.ok_or_else(|| no_staging(id))?;
            let job = self.locked_job(tx, caller.team, before.job).await?;
            let row = stagings::get(tx, caller.team, id).await?.ok_or_else(|| no_staging(id))?;
            if row.state == State::Cancelled {
                return self.staging_document(&row);
            }
            if row.state.is_over() {
                let detail = format!("the staging is {}", row.state.word());
                return Err(Error::new(STAGING_OVER, detail, "request a new staging"));
            }
            let mut facts = Vec::new();
            let row = self.move_staging(tx, &job, row, State::Cancelled, &mut facts).await?;
            self.tell(tx, job.team, &facts).await?;
            self.staging_document(&row)
        })
    }

    /// Cancels whatever is live of a cancelled job.
    pub(super) async fn cancel_stagings(
        &self,
        tx: &mut Tx,
        job: &jobs::Job,
        facts: &mut Vec<NewEvent>,
    ) -> Result<(), Error> {
        for row in stagings::live_of_job(tx, job.id).await? {
            self.move_staging(tx, job, row, State::Cancelled, facts).await?;
        }
        Ok(())
    }

    /// Moves a staging to another state: sequence, event, wake-ups. Under the job's lock. Whether the step is allowed is the
    /// caller's to have asked ([`State::report`]); for `ready` the receipt is in the row already. The event holds the
    /// document as it is now.
    pub(super) async fn move_staging(
        &self,
        tx: &mut Tx,
        job: &jobs::Job,
        mut row: stagings::Staging,
        state: State,
        facts: &mut Vec<NewEvent>,
    ) -> Result<stagings::Staging, Error> {
        let was = row.state_seq;
        row.state = state;
        row.state_seq += 1;
        row.changed_at = self.clock.now();
        if state == State::Ready {
            row.ready_seq += 1;
            row.ready_at = Some(row.changed_at);
        }
        self.write_staging(tx, &row, was).await?;
        facts.push(self.fact(job, event_of(state), &self.staging_document(&row)?)?);
        Ok(row)
    }

    /// Writes a staging's row and wakes whoever watches it, and its node. `was_seq` is the sequence that was read; another
    /// one in the row is our bug, as the job's lock is held.
    pub(super) async fn write_staging(&self, tx: &mut Tx, row: &stagings::Staging, was_seq: u64) -> Result<(), Error> {
        if !stagings::update(tx, row, was_seq).await? {
            return Err(Error::internal("a staging changed under its job's lock"));
        }
        tx.notify(format!("staging/{}", row.id));
        if let Some((node, _)) = &row.node {
            tx.notify(format!("node/{node}"));
        }
        Ok(())
    }

    /// Whether a node may read a version: one of its stagings that has not ended needs it.
    pub async fn node_may_read(&self, tx: &mut Tx, node: Uuid, version: Uuid) -> Result<bool, Error> {
        Ok(stagings::node_stages(tx, node, version).await?)
    }

    pub(super) fn staging_document(&self, row: &stagings::Staging) -> Result<Staging, Error> {
        Ok(Staging {
            id: row.id.to_string(),
            job: row.job.to_string(),
            lease: row.lease.map(|id| id.to_string()),
            node: row.node.as_ref().map(|(_, name)| name.clone()),
            state: wire_state(row.state),
            state_seq: row.state_seq,
            ready_seq: row.ready_seq,
            epoch: row.epoch,
            bytes_total: row.bytes.total,
            bytes_done: row.bytes.done,
            bytes_reused: row.bytes.reused,
            sources: Sources { cache: row.bytes.cache, peer: row.bytes.peer, store: row.bytes.store },
            eta: self.eta(row),
            path: row.path.clone(),
            receipt: row.receipt.as_deref().map(stored).transpose()?,
            error: row.error.clone().map(|(code, detail)| StagingError { code, detail }),
            created_at: row.created_at.to_string(),
            ready_at: row.ready_at.map(|at| at.to_string()),
        })
    }

    /// Only while it pulls or verifies; measured from the first report of bytes in this pull, so that what was on the node
    /// already does not count as speed.
    fn eta(&self, row: &stagings::Staging) -> Eta {
        let pulling = matches!(row.state, State::Pulling | State::Verifying);
        let Some((began, bytes)) = row.pulled.filter(|_| pulling) else { return Eta::default() };
        let left = row.bytes.total.saturating_sub(row.bytes.done);
        let progress = Progress { began, now: self.clock.now(), done: row.bytes.done.saturating_sub(bytes), left };
        staging::eta(progress)
            .map_or_else(Eta::default, |(p50, p90)| Eta { p50: Some(second(p50)), p90: Some(second(p90)) })
    }
}

/// Only a new one is told as an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    New,
    Before,
}

/// An estimate, without digits it does not have.
fn second(at: jiff::Timestamp) -> String {
    jiff::Timestamp::from_second(at.as_second()).map_or_else(|_| at.to_string(), |at| at.to_string())
}

pub(super) fn no_staging(id: Uuid) -> Error {
    Error::not_found("staging", id, "`GET /v1/stagings?job=` lists a job's stagings")
}

/// The words of the states, as the event types have them: never renamed.
fn event_of(state: State) -> &'static str {
    match state {
        State::Accepted => "dray.staging.accepted.v1",
        State::Pulling => "dray.staging.pulling.v1",
        State::Verifying => "dray.staging.verifying.v1",
        State::Near => "dray.staging.near.v1",
        State::Ready => "dray.staging.ready.v1",
        State::Unready => "dray.staging.unready.v1",
        State::Failed => "dray.staging.failed.v1",
        State::Cancelled => "dray.staging.cancelled.v1",
        State::Released => "dray.staging.released.v1",
    }
}

fn wire_state(state: State) -> StagingState {
    match state {
        State::Accepted => StagingState::Accepted,
        State::Pulling => StagingState::Pulling,
        State::Verifying => StagingState::Verifying,
        State::Near => StagingState::Near,
        State::Ready => StagingState::Ready,
        State::Unready => StagingState::Unready,
        State::Failed => StagingState::Failed,
        State::Cancelled => StagingState::Cancelled,
        State::Released => StagingState::Released,
    }
}

pub(super) fn state_of(wire: StagingState) -> State {
    match wire {
        StagingState::Accepted => State::Accepted,
        StagingState::Pulling => State::Pulling,
        StagingState::Verifying => State::Verifying,
        StagingState::Near => State::Near,
        StagingState::Ready => State::Ready,
        StagingState::Unready => State::Unready,
        StagingState::Failed => State::Failed,
        StagingState::Cancelled => State::Cancelled,
        StagingState::Released => State::Released,
    }
}
