//! Leases: granted, renewed, released, and released by the reconciler when their time has run out.
//!
//! Everything happens under the job's lock. The end of a lease decides, in the same transaction, which outputs are due and what becomes of its
//! stagings; the node learns of it by its work list.
//!
//! ```text
//! grant:    job -> leased, epoch + 1, the outputs' rows of this epoch declared
//! release:  lease -> released; its staging -> released; outputs due by (reason, when); job -> returning, or settled at once
//! ```

use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::jobs::{no_job, over, reason_of, wire_reason};
use super::upkeep::pass_over;
use super::{App, Caller, Idempotency, Paging};
use crate::api::jobs::{GrantLease, Lease, ReleaseReason};
use crate::api::teams::Page;
use crate::db::outbox::NewEvent;
use crate::db::{Tx, jobs, leases, nodes, outputs, stagings};
use crate::domain::job::Step;
use crate::domain::lease::{self, Reason};
use crate::domain::{output, staging};
use crate::transaction;

/// `data.nodes` lists those that there are.
pub const NODE_NOT_FOUND: Code = Code::new(Kind::NotFound, "node_not_found", "no such node in this team");
/// Release it first, or wait for the reconciler, which ends it within seconds of its end.
pub const LEASE_HELD: Code = Code::new(Kind::Conflict, "lease_held", "the job holds a lease already");
/// For good: grant a new lease, which has a new epoch.
pub const LEASE_OVER: Code = Code::new(Kind::Conflict, "lease_over", "the lease has ended");

/// Leases looked up at a time by the reconciler.
const SWEEP: u32 = 100;

impl App {
    /// Gives a job its next lease, on a node of the team. [`LEASE_HELD`] while another is unreleased, also one whose time
    /// has run out; `job_over` when the job's state allows none. The epoch that is answered fences everything the node will
    /// say. Whether the node's agent is alive is not asked.
    pub async fn grant_lease(&self, caller: &Caller, request: &GrantLease, call: &Idempotency) -> Result<Lease, Error> {
        let job = super::tokens::parse_id("job", &request.job)?;
        transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay(tx, caller.team, call).await? {
                return Ok(earlier);
            }
            let now = self.clock.now();
            let until = lease::parse_until(&request.until, now).map_err(refused)?;
            let mut job = self.locked_job(tx, caller.team, job).await?;
            let node = self.node_named(tx, caller.team, &request.node).await?;
            let newest = leases::newest(tx, job.id).await?;
            let tenure = lease::grant(newest.as_ref().map(|lease| &lease.tenure), until).map_err(refused)?;
            job.state = job.state.after(Step::Granted, job.reason).ok_or_else(|| over(&job))?;
            job.epoch = tenure.epoch;
            job.reason = None;
            let node_name = request.node.clone();
            let row = leases::Lease { id: self.ids.uuid(), team: job.team, job: job.id, node, node_name, tenure };
            leases::insert(tx, &row, request.gpus, now).await?;
            let spec = super::jobs::spec_of(&job)?;
            let names: Vec<&str> = spec.output.iter().map(|output| output.name.as_str()).collect();
            outputs::declare(tx, job.id, tenure.epoch, &names, now).await?;
            jobs::update(tx, &job, now).await?;
            let made = document(&row);
            self.remember(tx, caller.team, call, &made).await?;
            let fact = self.fact(&job, "dray.lease.granted.v1", &made)?;
            self.tell(tx, job.team, &[fact]).await?;
            Ok::<_, Error>(made)
        })
    }

    /// The node's id, or [`NODE_NOT_FOUND`] with the names of those there are.
    pub(super) async fn node_named(&self, tx: &mut Tx, team: Uuid, name: &str) -> Result<Uuid, Error> {
        if let Some(node) = nodes::by_name(tx, team, name).await? {
            return Ok(node.id);
        }
        let known: Vec<String> = nodes::page(tx, team, "", 100).await?.into_iter().map(|node| node.name).collect();
        let detail = format!("there is no node `{}`", name.escape_debug());
        let hint = match known.is_empty() {
            true => "add it with `dray node add NAME`, then start its agent".to_owned(),
            false => format!("the team's nodes are {}", known.iter().take(10).cloned().collect::<Vec<_>>().join(", ")),
        };
        Err(Error::new(NODE_NOT_FOUND, detail, hint).with_data(serde_json::json!({ "nodes": known })))
    }

    /// Moves the end of a live lease, nearer too. [`LEASE_OVER`] once it was released or its time has run out.
    pub async fn renew_lease(&self, caller: &Caller, id: Uuid, until: &str) -> Result<Lease, Error> {
        transaction!(self.db, |tx| {
            let now = self.clock.now();
            let until = lease::parse_until(until, now).map_err(refused)?;
            let (job, mut row) = self.locked_lease(tx, caller.team, id).await?;
            row.tenure.renew(until, now).map_err(refused)?;
            leases::update(tx, &row, now).await?;
            let fact = self.fact(&job, "dray.lease.renewed.v1", &document(&row))?;
            tx.notify(format!("node/{}", row.node));
            self.tell(tx, job.team, &[fact]).await?;
            Ok::<_, Error>(document(&row))
        })
    }

    /// Ends a lease. Said twice with the same reason, it is done once; with another reason it is [`LEASE_OVER`], and the
    /// first stays. Allowed after its time has run out, as long as the reconciler has not come: then the reason said here
    /// counts.
    pub async fn release_lease(&self, caller: &Caller, id: Uuid, reason: ReleaseReason) -> Result<Lease, Error> {
        transaction!(self.db, |tx| {
            let (mut job, mut row) = self.locked_lease(tx, caller.team, id).await?;
            let mut probe = row.tenure;
            if probe.release(reason_of(reason)).map_err(refused)? {
                let mut facts = Vec::new();
                self.end_lease(tx, &mut job, &mut row, reason_of(reason), &mut facts).await?;
                self.tell(tx, job.team, &facts).await?;
            }
            Ok::<_, Error>(document(&row))
        })
    }

    pub async fn list_leases(&self, caller: &Caller, job: Uuid, paging: &Paging) -> Result<Page<Lease>, Error> {
        let below = match paging.after.as_str() {
            "" => i64::MAX.unsigned_abs(),
            epoch => epoch
                .parse()
                .map_err(|_| Error::invalid("cursor", "no page ends there", "use `next` of the page before"))?,
        };
        let mut session = self.db.read().await?;
        jobs::get(&mut session, caller.team, job).await?.ok_or_else(|| no_job(job))?;
        let rows = leases::of_job(&mut session, job, below, paging.rows()).await?;
        Ok(paging.page(rows.iter().map(document).collect(), |lease: &Lease| lease.epoch.to_string()))
    }

    /// Releases leases whose time has run out; answers how many were found due. May run in several replicas at once: each is
    /// judged again under its job's lock. One that cannot be ended holds up no other.
    pub async fn expire_leases(&self) -> Result<usize, Error> {
        let (mut after, mut count) = (Uuid::nil(), 0);
        loop {
            let due = leases::due(&mut self.db.read().await?, self.clock.now(), after, SWEEP).await?;
            let Some(last) = due.last() else { return Ok(count) };
            (after, count) = (last.id, count + due.len());
            for lease in &due {
                pass_over("a lease that is over", lease.id, self.expire_lease(lease.team, lease.job).await)?;
            }
        }
    }

    /// Judged again under the lock: it may have been renewed or released since it was found.
    async fn expire_lease(&self, team: Uuid, job: Uuid) -> Result<(), Error> {
        transaction!(self.db, |tx| {
            let mut job = self.locked_job(tx, team, job).await?;
            let newest = leases::newest(tx, job.id).await?;
            let Some(mut row) = newest.filter(|row| row.tenure.is_due(self.clock.now())) else { return Ok(()) };
            let mut facts = Vec::new();
            self.end_lease(tx, &mut job, &mut row, Reason::Expired, &mut facts).await?;
            self.tell(tx, team, &facts).await
        })
    }

    /// The job and its lease, the job locked. Read twice: first to know the job, then, locked, as it stands.
    async fn locked_lease(&self, tx: &mut Tx, team: Uuid, id: Uuid) -> Result<(jobs::Job, leases::Lease), Error> {
        let missing = || Error::not_found("lease", id, "`GET /v1/leases?job=` lists a job's leases");
        let before = leases::get(tx, team, id).await?.ok_or_else(missing)?;
        let job = self.locked_job(tx, team, before.job).await?;
        let row = leases::get(tx, team, id).await?.ok_or_else(missing)?;
        Ok((job, row))
    }

    /// Ends the live lease of a job: outputs become due, stagings are released, the job is returning or settled. Writes
    /// lease, outputs and job; the caller tells the facts. When the lease has no live staging, nothing of the job is on the
    /// node: what is due is `missing` at once, so that the job does not wait for ever.
    async fn end_lease(
        &self,
        tx: &mut Tx,
        job: &mut jobs::Job,
        row: &mut leases::Lease,
        reason: Reason,
        facts: &mut Vec<NewEvent>,
    ) -> Result<(), Error> {
        let now = self.clock.now();
        row.tenure.released = Some(reason);
        leases::update(tx, row, now).await?;
        facts.push(self.fact(job, "dray.lease.released.v1", &document(row))?);
        if let Some(state) = job.state.after(Step::Released(reason), job.reason) {
            job.state = state;
        }
        job.reason = Some(reason);
        let staged = self.release_staging(tx, job, row, facts).await?;
        let spec = super::jobs::spec_of(job)?;
        let mut due = outputs::of_epoch(tx, job.id, row.tenure.epoch).await?;
        for output in &mut due {
            let declared = spec.output.iter().find(|declared| declared.name == output.name);
            output.due = declared.is_some_and(|declared| super::outputs::when_of(declared.when).is_due(reason));
        }
        due.retain(|output| output.due);
        for mut output in due.iter().cloned() {
            if !staged && !output.state.is_final() {
                output.state = output::State::Missing;
                let detail = "the job's data never came to the node, so nothing can come back from it";
                output.error = Some(("not_staged".to_owned(), detail.to_owned()));
            }
            outputs::update(tx, &output, now).await?;
        }
        self.tell_outputs(tx, job, row.tenure.epoch, &due, facts).await?;
        self.settle_job(tx, job, row.tenure.epoch, facts).await?;
        jobs::update(tx, job, now).await?;
        tx.notify(format!("node/{}", row.node));
        Ok(())
    }

    /// Ends the lease of a cancelled job, as preempted: nothing is due. Stagings and the job's row are the caller's.
    pub(super) async fn end_cancelled_lease(
        &self,
        tx: &mut Tx,
        job: &mut jobs::Job,
        row: &mut leases::Lease,
        facts: &mut Vec<NewEvent>,
    ) -> Result<(), Error> {
        row.tenure.released = Some(Reason::Preempted);
        job.reason = Some(Reason::Preempted);
        leases::update(tx, row, self.clock.now()).await?;
        facts.push(self.fact(job, "dray.lease.released.v1", &document(row))?);
        tx.notify(format!("node/{}", row.node));
        Ok(())
    }

    /// Releases the lease's live staging; `false` when there was none, so that nothing can come back. The node's work list
    /// then shows it as one to bring back from.
    async fn release_staging(
        &self,
        tx: &mut Tx,
        job: &jobs::Job,
        row: &leases::Lease,
        facts: &mut Vec<NewEvent>,
    ) -> Result<bool, Error> {
        let Some(live) = stagings::live(tx, job.id, Some(row.id)).await? else { return Ok(false) };
        self.move_staging(tx, job, live, staging::State::Released, facts).await?;
        Ok(true)
    }
}

fn refused(error: lease::Error) -> Error {
    let text = error.to_string();
    match error {
        lease::Error::NotAnInstant { .. } | lease::Error::NotFuture { .. } | lease::Error::TooLong { .. } => {
            Error::invalid("until", text, "give an RFC 3339 instant in the future, such as `2026-12-01T02:00:00Z`")
        }
        lease::Error::Held { .. } => Error::new(LEASE_HELD, text, "release it, or wait until it expires"),
        lease::Error::Over { .. } => Error::new(LEASE_OVER, text, "grant a new lease"),
    }
}

pub(super) fn document(row: &leases::Lease) -> Lease {
    Lease {
        id: row.id.to_string(),
        job: row.job.to_string(),
        node: row.node_name.clone(),
        epoch: row.tenure.epoch,
        expires_at: row.tenure.until.to_string(),
        released: row.tenure.released.map(wire_reason),
    }
}
