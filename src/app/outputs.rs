//! Outputs: what a job declared to bring back, and where each of them stands.
//!
//! Every lease has its own rows, fenced by (job, lease epoch, output): the lease may be over, a newer one may run, and what arrives is still taken, as a
//! version marked `late`. When the last due output has reached its end the job is settled, in the same transaction.
//!
//! ```text
//! lease ends -> rows `due` -> node reports sealing .. sealed  => outputs.sealed (the GPU may go)
//!                             .. storing, stored | missing    => outputs.stored, and the job is settled
//! ```

use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::jobs::{cut, declared_output, json, no_job, node_of, spec_of, stored};
use super::{App, Caller};
use crate::api::jobs::{Output, OutputReport, OutputState, OutputWhen, Outputs, SkippedEntry, StagingError};
use crate::db::outbox::NewEvent;
use crate::db::uploads::OutputOf;
use crate::db::{Tx, jobs, leases, outputs, versions};
use crate::domain::job::Step;
use crate::domain::output::{Due, Move, Need, State, When, settle};
use crate::transaction;

/// Also an output that has reached its end. Bring what the node's work lists.
pub const NOT_DUE: Code = Code::new(Kind::Conflict, "not_due", "the output is not asked for");
/// The job, the lease or the name is not this node's: ask for the node's work.
pub const OUTPUT_NOT_FOUND: Code =
    Code::new(Kind::NotFound, "output_not_found", "the node has no such output to bring back");

/// Refused entries that are kept per output; the first ones said.
const MOST_SKIPPED: usize = 100;

/// One output of one lease, as a node names it.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub job: Uuid,
    /// The lease that asked for it; it may be over and another one live.
    pub lease_epoch: u64,
    pub name: String,
}

impl From<&OutputOf> for Wanted {
    fn from(output: &OutputOf) -> Self {
        Self { job: output.job, lease_epoch: output.lease_epoch, name: output.name.clone() }
    }
}

/// Whether a version made for an output comes after a newer lease of its job has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timely {
    InTime,
    /// The version is marked so and is no less a version.
    Late,
}

impl App {
    /// Every declared output, from submit on: as its newest lease left it that has anything to tell. With links that still
    /// work; their URLs begin with `origin`.
    pub async fn get_outputs(&self, caller: &Caller, job: Uuid, origin: &str) -> Result<Outputs, Error> {
        let mut session = self.db.snapshot().await?;
        let row = jobs::get(&mut session, caller.team, job).await?.ok_or_else(|| no_job(job))?;
        let mut document = self.outputs_document(&mut session, &row).await?;
        for (output, stored) in document.outputs.iter_mut().zip(outputs::newest(&mut session, row.id).await?) {
            if let Some(version) = stored.version {
                output.links = self.links_of(&mut session, version, origin).await?;
            }
        }
        Ok(document)
    }

    /// In the order of the job file, without links: those are for whoever asks, not for events.
    pub(super) async fn outputs_document(&self, tx: &mut Tx, job: &jobs::Job) -> Result<Outputs, Error> {
        let mut list = Vec::new();
        for row in outputs::newest(tx, job.id).await? {
            let reference = match row.version {
                Some(version) => versions::get(tx, version).await?.map(|version| version.reference()),
                None => None,
            };
            list.push(document(row, reference)?);
        }
        Ok(Outputs { job: job.id.to_string(), outputs: list })
    }

    /// Whether a node may push this output into this dataset, and whether it would be late. The lease must have been the
    /// node's, the output due and not at its end, the dataset the declared one; that the lease is over is no hindrance.
    /// Someone of the team without a node may push it as well. [`OUTPUT_NOT_FOUND`] says the same for whatever is not the
    /// node's.
    pub async fn may_push_output(
        &self,
        tx: &mut Tx,
        caller: &Caller,
        wanted: &Wanted,
        dataset: &str,
    ) -> Result<Timely, Error> {
        let job = jobs::get(tx, caller.team, wanted.job).await?.ok_or_else(|| no_output(wanted))?;
        self.lease_of_node(tx, caller, &job, wanted).await?;
        let declared = declared_output(&job, &wanted.name)?.ok_or_else(|| no_output(wanted))?;
        let row = outputs::get(tx, job.id, wanted.lease_epoch, &wanted.name).await?.ok_or_else(|| no_output(wanted))?;
        if declared.to != dataset {
            let detail = format!("output `{}` goes to `{}`", wanted.name, declared.to);
            return Err(Error::denied(detail, "push it into the dataset that the job declared"));
        }
        if !row.due || row.state.is_final() {
            return Err(not_due(&row));
        }
        Ok(timely(&job, wanted.lease_epoch))
    }

    /// The lease under which a node brings an output, when it was the node's.
    /// For callers that are no node the lease need only exist.
    async fn lease_of_node(&self, tx: &mut Tx, caller: &Caller, job: &jobs::Job, wanted: &Wanted) -> Result<(), Error> {
        let lease = leases::of_epoch(tx, job.id, wanted.lease_epoch).await?.ok_or_else(|| no_output(wanted))?;
        match &caller.node {
            Some(node) if node.id != lease.node => Err(no_output(wanted)),
            _ => Ok(()),
        }
    }

    /// Where a node stands with one output. May be said again or out of order; what had reached its end stays, and that is
    /// no error. [`NOT_DUE`] for what the lease's end did not ask for. `stored` names the version it became, which must be
    /// one of the declared dataset.
    pub async fn report_output(&self, caller: &Caller, report: &OutputReport) -> Result<(), Error> {
        node_of(caller)?;
        let job = Uuid::try_parse(&report.job)
            .map_err(|_| Error::not_found("job", report.job.escape_debug(), "check the id"))?;
        let wanted = &Wanted { job, lease_epoch: report.lease_epoch, name: report.name.clone() };
        transaction!(self.db, |tx| {
            let mut job = jobs::lock(tx, caller.team, job).await?.ok_or_else(|| no_output(wanted))?;
            self.lease_of_node(tx, caller, &job, wanted).await?;
            let row =
                outputs::get(tx, job.id, wanted.lease_epoch, &wanted.name).await?.ok_or_else(|| no_output(wanted))?;
            let mut facts = Vec::new();
            self.apply_output(tx, &mut job, row, report, &mut facts).await?;
            self.tell(tx, job.team, &facts).await
        })
    }

    /// The counts, refused entries and error of the newest report replace those before.
    async fn apply_output(
        &self,
        tx: &mut Tx,
        job: &mut jobs::Job,
        mut row: outputs::Output,
        report: &OutputReport,
        facts: &mut Vec<NewEvent>,
    ) -> Result<(), Error> {
        if !row.due {
            return Err(not_due(&row));
        }
        let said = state_of(report.state);
        match row.state.report(said) {
            Move::Over => return Ok(()), // said late or twice; what is stored stays stored
            Move::Same => {}
            Move::To(state) => row.state = state,
        }
        if said == State::Stored && row.version.is_none() {
            row.version = Some(self.stored_version(tx, job, report).await?);
        }
        let before = outputs::of_epoch(tx, job.id, row.epoch).await?;
        row.files = report.files;
        row.bytes = report.bytes;
        let skipped = report.skipped.iter().take(MOST_SKIPPED);
        let skipped: Vec<SkippedEntry> = skipped
            .map(|entry| SkippedEntry { path: cut(&entry.path, 4_096), reason: cut(&entry.reason, 256) })
            .collect();
        row.skipped = json(&skipped)?;
        row.error = report.error.as_ref().map(|error| (cut(&error.code, 64), cut(&error.detail, 4_096)));
        outputs::update(tx, &row, self.clock.now()).await?;
        self.tell_outputs(tx, job, row.epoch, &before, facts).await?;
        self.settle_job(tx, job, row.epoch, facts).await?;
        jobs::update(tx, job, self.clock.now()).await?;
        if let Some(lease) = leases::of_epoch(tx, job.id, row.epoch).await? {
            tx.notify(format!("node/{}", lease.node));
        }
        Ok(())
    }

    /// The version a `stored` report names: one of the output's dataset; marked late when a newer lease has begun, which the
    /// version could not know when it was made before that.
    async fn stored_version(&self, tx: &mut Tx, job: &jobs::Job, report: &OutputReport) -> Result<Uuid, Error> {
        let refused =
            |what: &str| Error::invalid("version", what, "push the output first, then report the version it became");
        let id = report.version.as_deref().ok_or_else(|| refused("is missing from a report of `stored`"))?;
        let id = Uuid::try_parse(id).map_err(|_| refused("is no UUID"))?;
        let version = versions::get(tx, id).await?.filter(|version| version.team == job.team);
        let version = version.ok_or_else(|| refused("names no version of this team"))?;
        let declared =
            declared_output(job, &report.name)?.ok_or_else(|| Error::internal("an output's declaration is gone"))?;
        if version.name != declared.to {
            return Err(refused("is a version of another dataset than the output's"));
        }
        if timely(job, report.lease_epoch) == Timely::Late && !version.late {
            outputs::mark_late(tx, id).await?;
        }
        Ok(id)
    }

    /// The facts that all due outputs of a lease are sealed, and that all have reached their end; each is told once, since
    /// outputs only move forward. `before` says which are due now and how they stood before; the rows as they are now are
    /// read here. Nothing due, nothing told.
    pub(super) async fn tell_outputs(
        &self,
        tx: &mut Tx,
        job: &jobs::Job,
        epoch: u64,
        before: &[outputs::Output],
        facts: &mut Vec<NewEvent>,
    ) -> Result<(), Error> {
        let after = outputs::of_epoch(tx, job.id, epoch).await?;
        let all = |rows: &[outputs::Output], is: fn(State) -> bool| {
            rows.iter().filter(|row| row.due).all(|row| is(row.state))
        };
        let crossed = |is: fn(State) -> bool| !all(before, is) && all(&after, is);
        for (is, kind) in [
            (State::is_sealed as fn(State) -> bool, "dray.outputs.sealed.v1"),
            (State::is_final as fn(State) -> bool, "dray.outputs.stored.v1"),
        ] {
            if crossed(is) {
                facts.push(self.fact(job, kind, &self.outputs_document(tx, job).await?)?);
            }
        }
        Ok(())
    }

    /// The node brings nothing more: due outputs that have not reached their end never will, and are `missing`. Writes the
    /// job's row.
    pub(super) async fn give_up_outputs(
        &self,
        tx: &mut Tx,
        job: &mut jobs::Job,
        epoch: u64,
        facts: &mut Vec<NewEvent>,
    ) -> Result<(), Error> {
        let before = outputs::of_epoch(tx, job.id, epoch).await?;
        for mut row in before.iter().filter(|row| row.due && !row.state.is_final()).cloned() {
            row.state = State::Missing;
            row.error = Some(("not_returned".to_owned(), "the node removed the job's directory without it".to_owned()));
            outputs::update(tx, &row, self.clock.now()).await?;
        }
        self.tell_outputs(tx, job, epoch, &before, facts).await?;
        self.settle_job(tx, job, epoch, facts).await?;
        Ok(jobs::update(tx, job, self.clock.now()).await?)
    }

    /// Settles a returning job once every due output of its newest lease has reached its end; does nothing for an older
    /// lease's, or while any is on its way. The caller writes the job's row.
    pub(super) async fn settle_job(
        &self,
        tx: &mut Tx,
        job: &mut jobs::Job,
        epoch: u64,
        facts: &mut Vec<NewEvent>,
    ) -> Result<(), Error> {
        let Some(reason) = job.reason.filter(|_| epoch == job.epoch) else { return Ok(()) };
        let spec = spec_of(job)?;
        let required = |name: &str| spec.output.iter().any(|output| output.name == name && output.required);
        let rows = outputs::of_epoch(tx, job.id, epoch).await?;
        let due: Vec<Due> = rows
            .iter()
            .filter(|row| row.due)
            .map(|row| Due {
                state: row.state,
                required: if required(&row.name) { Need::Required } else { Need::Optional },
            })
            .collect();
        let Some(outcome) = settle(&due) else { return Ok(()) };
        let Some(state) = job.state.after(Step::Settled(reason, outcome), job.reason) else { return Ok(()) };
        job.state = state;
        let kind = match state {
            crate::domain::job::State::Finished => "dray.job.finished.v1",
            crate::domain::job::State::Failed => "dray.job.failed.v1",
            _ => "dray.job.submitted.v1",
        };
        facts.push(self.fact(job, kind, &self.job_document(tx, job).await?)?);
        Ok(())
    }
}

/// By the job's present epoch, in the caller's transaction.
fn timely(job: &jobs::Job, epoch: u64) -> Timely {
    if epoch < job.epoch { Timely::Late } else { Timely::InTime }
}

fn no_output(wanted: &Wanted) -> Error {
    let name = wanted.name.escape_debug();
    let detail =
        format!("job `{}`, lease epoch {}, output `{name}`: nothing for this node", wanted.job, wanted.lease_epoch);
    Error::new(OUTPUT_NOT_FOUND, detail, "ask for the node's work again")
}

fn not_due(row: &outputs::Output) -> Error {
    let detail = format!("output `{}` is {} and not asked for", row.name, row.state.word());
    Error::new(NOT_DUE, detail, "bring back the outputs that the node's work lists, after the lease has ended")
}

fn document(row: outputs::Output, reference: Option<String>) -> Result<Output, Error> {
    Ok(Output {
        name: row.name,
        state: wire_state(row.state),
        reference,
        files: row.files,
        bytes: row.bytes,
        missing: row.state == State::Missing,
        links: Vec::new(),
        skipped: stored(&row.skipped)?,
        error: row.error.map(|(code, detail)| StagingError { code, detail }),
    })
}

pub(super) fn when_of(wire: OutputWhen) -> When {
    match wire {
        OutputWhen::Success => When::Success,
        OutputWhen::Always => When::Always,
        OutputWhen::Evicted => When::Evicted,
    }
}

fn wire_state(state: State) -> OutputState {
    match state {
        State::Declared => OutputState::Declared,
        State::Sealing => OutputState::Sealing,
        State::Sealed => OutputState::Sealed,
        State::Storing => OutputState::Storing,
        State::Stored => OutputState::Stored,
        State::Missing => OutputState::Missing,
        State::Failed => OutputState::Failed,
    }
}

fn state_of(wire: OutputState) -> State {
    match wire {
        OutputState::Declared => State::Declared,
        OutputState::Sealing => State::Sealing,
        OutputState::Sealed => State::Sealed,
        OutputState::Storing => State::Storing,
        OutputState::Stored => State::Stored,
        OutputState::Missing => State::Missing,
        OutputState::Failed => State::Failed,
    }
}
