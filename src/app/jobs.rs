//! Jobs: declared, shown, cancelled.
//!
//! At submit every input is resolved to a version that the job then keeps, so that what runs is what was meant, whatever `@latest` becomes. A refusal
//! leaves nothing behind. The callback's secret is shown once and kept sealed.
//!
//! Everything that belongs to a job (leases, stagings, outputs) changes under the lock of the job's row, taken first
//! ([`App::locked_job`]), and is told last ([`App::tell`]).

use std::sync::Arc;

use data_encoding::BASE64;
use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::{App, Caller, CallerNode, Idempotency, Paging};
use crate::api::datasets::Version;
use crate::api::jobs::{InputSpec, Job, JobInput, JobSpec, JobState};
use crate::api::teams::Page;
use crate::db::{Tx, jobs, leases, outbox::NewEvent, outputs, versions};
use crate::domain::id::{DatasetName, DatasetRef};
use crate::domain::job::{self, State, Step};
use crate::domain::lease::Reason;
use crate::domain::near::nearest;
use crate::transaction;

/// Correct what `data.faults` lists; nothing was made.
pub const BAD_JOB: Code = Code::new(Kind::Invalid, "bad_job", "the job file cannot mean anything");
/// Some files of the version could not be read when it was pushed. Push again, or say that it will do.
pub const INCOMPLETE: Code = Code::new(Kind::Conflict, "version_incomplete", "an input's version is incomplete");
/// `data.nearest` lists names that were probably meant.
pub const DATASET_NOT_FOUND: Code = Code::new(Kind::NotFound, "dataset_not_found", "no such dataset in this team");
/// A job that is over never changes: submit a new one.
pub const JOB_OVER: Code = Code::new(Kind::Conflict, "job_over", "the job is over");
/// Judged without resolving the name; a name that leads to a private address is found at the attempt.
pub const CALLBACK_REFUSED: Code = Code::new(Kind::Invalid, "callback_refused", "the callback URL may not be used");

/// What a sealed callback secret is, for [`super::Keys::seal`]. Never changed: what was sealed under it would not open.
pub(super) const CALLBACK: &str = "callback secret";

/// An input resolved before the transaction begins; the transaction sees to it that the version is still there.
struct Resolved {
    version: versions::Version,
    path: String,
}

impl App {
    /// Declares a job. Everything is judged first: the spec as a whole, then each input's version and path, so that a typing
    /// error is known at once and not on the node. Answered with the callback's secret, which is shown this once (and to a
    /// repeat with the same Idempotency-Key, which is not judged anew).
    pub async fn submit_job(
        self: &Arc<Self>,
        caller: &Caller,
        spec: &JobSpec,
        call: &Idempotency,
    ) -> Result<Job, Error> {
        if let Some(earlier) = self.answered(caller.team, call).await? {
            return Ok(earlier);
        }
        self.check_spec(spec)?;
        let mut resolved = Vec::new();
        for input in spec.work.iter().chain(&spec.data) {
            resolved.push(self.resolve_input(caller, input).await?);
        }
        let secret = spec.callback.as_ref().map(|_| self.ids.secret());
        let sealed = secret.map(|secret| self.keys.seal(&*self.ids, CALLBACK, &secret));
        transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay(tx, caller.team, call).await? {
                return Ok(earlier);
            }
            let row = self.insert_job(tx, caller, spec, &resolved, sealed.clone()).await?;
            let mut document = self.job_document(tx, &row).await?;
            let fact = self.fact(&row, "dray.job.submitted.v1", &document)?;
            document.callback_secret = secret.map(|secret| format!("whsec_{}", BASE64.encode(&secret)));
            self.remember(tx, caller.team, call, &document).await?;
            self.tell(tx, caller.team, &[fact]).await?;
            Ok::<_, Error>(document)
        })
    }

    /// The versions are locked in the order of their ids, so that none is deleted before the job that keeps it is there. The
    /// outputs' declaration stands under epoch 0.
    async fn insert_job(
        &self,
        tx: &mut Tx,
        caller: &Caller,
        spec: &JobSpec,
        resolved: &[Resolved],
        sealed: Option<Vec<u8>>,
    ) -> Result<jobs::Job, Error> {
        let now = self.clock.now();
        let mut ids: Vec<Uuid> = resolved.iter().map(|input| input.version.id).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            if !jobs::lock_version(tx, id).await? {
                return Err(Error::not_found("version", id, "it was deleted just now; submit the job again"));
            }
        }
        let mut inputs = Vec::with_capacity(resolved.len());
        for input in resolved {
            let snapshot = json(&super::versions::document(&input.version))?;
            inputs.push(jobs::Input { version: input.version.id, path: input.path.clone(), snapshot });
        }
        let row = jobs::Job {
            id: self.ids.uuid(),
            team: caller.team,
            team_name: caller.team_name.clone(),
            name: spec.name.clone(),
            state: State::Submitted,
            reason: None,
            spec: json(spec)?,
            epoch: 0,
            callback_url: spec.callback.as_ref().map(|callback| callback.url.clone()),
            callback_secret: sealed,
            callback_disabled: false,
            created_at: now,
        };
        jobs::insert(tx, &row, &inputs).await?;
        let names: Vec<&str> = spec.output.iter().map(|output| output.name.as_str()).collect();
        outputs::declare(tx, row.id, 0, &names, now).await?;
        Ok(row)
    }

    /// References and names by their own parsers, all else by [`job::check`]; the callback's URL as far as that goes without
    /// resolving its name.
    fn check_spec(&self, spec: &JobSpec) -> Result<(), Error> {
        let input = |input: &'_ InputSpec| -> Result<(), Error> {
            DatasetRef::parse(input.from.as_bytes()).map(drop).map_err(|error| bad_job(vec![error.to_string()]))
        };
        spec.work.iter().chain(&spec.data).try_for_each(input)?;
        let mut faults: Vec<String> = job::check(&domain_spec(spec)).iter().map(ToString::to_string).collect();
        for output in &spec.output {
            if let Err(error) = DatasetName::parse(&output.to) {
                faults.push(error.to_string());
            }
        }
        if let Some(ready_by) = &spec.request.ready_by
            && ready_by.parse::<jiff::Timestamp>().is_err()
        {
            faults.push("`request.ready_by` must be an RFC 3339 instant with an offset".to_owned());
        }
        if !faults.is_empty() {
            return Err(bad_job(faults));
        }
        let Some(callback) = &spec.callback else { return Ok(()) };
        self.webhooks.check_url(&callback.url).map(drop).map_err(|error| {
            Error::new(
                CALLBACK_REFUSED,
                error.to_string(),
                "give an https URL on a public host, or poll `GET /v1/events`",
            )
        })
    }

    /// Finds the version an input means, and the path in it. An incomplete version is refused unless the input says that it
    /// will do.
    async fn resolve_input(self: &Arc<Self>, caller: &Caller, input: &InputSpec) -> Result<Resolved, Error> {
        let reference = DatasetRef::parse(input.from.as_bytes()).map_err(|error| bad_job(vec![error.to_string()]))?;
        let version = self.resolve_input_version(caller, &reference).await?;
        if version.incomplete && !input.allow_incomplete {
            let detail =
                format!("`{}` is incomplete: some files could not be read when it was pushed", version.reference());
            let hint = "push it again until nothing fails, or say `allow_incomplete = true` on the input";
            return Err(Error::new(INCOMPLETE, detail, hint));
        }
        if let Some(path) = &reference.path {
            self.check_path(&version, path).await?;
        }
        let path = reference.path.and_then(|path| path.as_str().map(str::to_owned)).unwrap_or_default();
        Ok(Resolved { version, path })
    }

    /// The version a reference means; when there is no such dataset, the names that were probably meant.
    /// Datasets without a live version count as none. Of a team with very many names only the first 1,000 are compared.
    async fn resolve_input_version(&self, caller: &Caller, reference: &DatasetRef) -> Result<versions::Version, Error> {
        let mut session = self.db.read().await?;
        let name = &reference.dataset;
        let known = match versions::dataset(&mut session, caller.team, name).await? {
            Some(dataset) => versions::newest(&mut session, dataset).await?.is_some(),
            None => false,
        };
        if known {
            return self.find_version(&mut session, caller.team, reference).await;
        }
        let listed = versions::list_datasets(&mut session, caller.team, "", "", 1_000).await?;
        let near = nearest(name.as_str(), listed.iter().map(|row| row.name.as_str()), 5);
        let hint = match near.is_empty() {
            true => "`dray ls` lists the datasets of the team".to_owned(),
            false => {
                format!("did you mean {}?", near.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))
            }
        };
        let data = serde_json::json!({ "nearest": near });
        Err(Error::new(DATASET_NOT_FOUND, format!("there is no dataset `{name}`"), hint).with_data(data))
    }

    pub async fn get_job(&self, caller: &Caller, id: Uuid) -> Result<Job, Error> {
        let mut session = self.db.snapshot().await?;
        let row = jobs::get(&mut session, caller.team, id).await?.ok_or_else(|| no_job(id))?;
        self.job_document(&mut session, &row).await
    }

    /// Newest first.
    pub async fn list_jobs(&self, caller: &Caller, paging: &Paging) -> Result<Page<Job>, Error> {
        let mut session = self.db.snapshot().await?;
        let rows = jobs::page(&mut session, caller.team, &paging.after, paging.rows()).await?;
        let mut items = Vec::with_capacity(rows.len());
        for row in &rows {
            items.push(self.job_document(&mut session, row).await?);
        }
        Ok(paging.page(items, |job| job.id.clone()))
    }

    /// Cancels a job: its lease ends, its stagings are cancelled, nothing comes back, whatever was due. Cancelled twice is
    /// cancelled; one that is over otherwise is [`JOB_OVER`]. Nodes learn of it by their work lists and clean up.
    pub async fn cancel_job(&self, caller: &Caller, id: Uuid) -> Result<Job, Error> {
        transaction!(self.db, |tx| {
            let mut row = self.locked_job(tx, caller.team, id).await?;
            if row.state == State::Cancelled {
                return self.job_document(tx, &row).await;
            }
            let Some(state) = row.state.after(Step::Cancelled, row.reason) else { return Err(over(&row)) };
            row.state = state;
            let mut facts: Vec<NewEvent> = Vec::new();
            if let Some(mut lease) = leases::newest(tx, row.id).await?.filter(|lease| lease.tenure.released.is_none()) {
                self.end_cancelled_lease(tx, &mut row, &mut lease, &mut facts).await?;
            }
            self.cancel_stagings(tx, &row, &mut facts).await?;
            jobs::update(tx, &row, self.clock.now()).await?;
            let document = self.job_document(tx, &row).await?;
            facts.push(self.fact(&row, "dray.job.cancelled.v1", &document)?);
            self.tell(tx, row.team, &facts).await?;
            Ok::<_, Error>(document)
        })
    }

    /// The job, locked: the first thing a transaction that changes anything of it does. What was read before is to be read
    /// again.
    pub(super) async fn locked_job(&self, tx: &mut Tx, team: Uuid, id: Uuid) -> Result<jobs::Job, Error> {
        jobs::lock(tx, team, id).await?.ok_or_else(|| no_job(id))
    }

    /// Inputs show their version as it is, or as it was at submit once it was deleted. Never with the callback's secret.
    pub(super) async fn job_document(&self, tx: &mut Tx, row: &jobs::Job) -> Result<Job, Error> {
        let spec = spec_of(row)?;
        let mut inputs = Vec::new();
        let declared = spec.work.iter().chain(&spec.data);
        for (input, row) in declared.zip(jobs::inputs(tx, row.id).await?) {
            let version = match versions::get(tx, row.version).await? {
                Some(live) => super::versions::document(&live),
                None => stored::<Version>(&row.snapshot)?,
            };
            inputs.push(JobInput { spec: input.clone(), path: row.path, version });
        }
        Ok(Job {
            id: row.id.to_string(),
            name: row.name.clone(),
            team: row.team_name.clone(),
            state: wire_state(row.state),
            spec,
            inputs,
            created_at: row.created_at.to_string(),
            callback_secret: None,
        })
    }
}

/// The spec as the pure rules read it.
/// `work` first, as [`job::Spec`] has it.
fn domain_spec(spec: &JobSpec) -> job::Spec<'_> {
    let inputs = spec.work.iter().chain(&spec.data).map(|input| job::Input {
        at: &input.at,
        include: &input.include,
        exclude: &input.exclude,
        shard: input.shard.as_deref(),
    });
    let outputs = spec.output.iter().map(|output| job::Output { name: &output.name, path: &output.path });
    job::Spec {
        name: &spec.name,
        has_work: spec.work.is_some(),
        inputs: inputs.collect(),
        outputs: outputs.collect(),
        checkpoint: spec.checkpoint.as_ref().map(|checkpoint| checkpoint.path.as_str()),
        hours: spec.request.hours,
    }
}

/// All faults at once; for programs one by one in `data.faults`.
fn bad_job(faults: Vec<String>) -> Error {
    let detail = faults.join("; ");
    Error::new(BAD_JOB, detail, "correct the job file and submit it again")
        .with_data(serde_json::json!({ "faults": faults }))
}

pub(super) fn no_job(id: Uuid) -> Error {
    Error::not_found("job", id, "`dray job list` shows the team's jobs")
}

pub(super) fn over(row: &jobs::Job) -> Error {
    let detail = format!("job `{}` is {}", row.id, row.state.word());
    Error::new(JOB_OVER, detail, "submit a new job")
}

/// As it was submitted. A field that a newer release added and this one does not know is an error, not passed over.
pub(super) fn spec_of(row: &jobs::Job) -> Result<JobSpec, Error> {
    stored(&row.spec)
}

/// JSON that we wrote ourselves: what cannot be read is our bug, or something else has changed the row.
pub(super) fn stored<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::internal("a stored document cannot be read").with_source(error))
}

pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|error| Error::internal("a document cannot be written as JSON").with_source(error))
}

fn wire_state(state: State) -> JobState {
    match state {
        State::Submitted => JobState::Submitted,
        State::Leased => JobState::Leased,
        State::Returning => JobState::Returning,
        State::Finished => JobState::Finished,
        State::Failed => JobState::Failed,
        State::Cancelled => JobState::Cancelled,
    }
}

pub(super) fn wire_reason(reason: Reason) -> crate::api::jobs::ReleaseReason {
    use crate::api::jobs::ReleaseReason as Wire;
    match reason {
        Reason::Finished => Wire::Finished,
        Reason::Failed => Wire::Failed,
        Reason::Preempted => Wire::Preempted,
        Reason::Expired => Wire::Expired,
    }
}

pub(super) fn reason_of(wire: crate::api::jobs::ReleaseReason) -> Reason {
    use crate::api::jobs::ReleaseReason as Wire;
    match wire {
        Wire::Finished => Reason::Finished,
        Wire::Failed => Reason::Failed,
        Wire::Preempted => Reason::Preempted,
        Wire::Expired => Reason::Expired,
    }
}

/// The node that calls; anybody else is refused.
pub(super) fn node_of(caller: &Caller) -> Result<&CallerNode, Error> {
    caller
        .node
        .as_ref()
        .ok_or_else(|| Error::denied("only a node's token may say this", "use the token that `dray node add` printed"))
}

/// Text from a node, cut to `most` characters: a node must not fill the database.
pub(super) fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// The spec's outputs by name, for those who need more than the row.
/// `None` for a name that the job never declared.
pub(super) fn declared_output(job: &jobs::Job, name: &str) -> Result<Option<crate::api::jobs::OutputSpec>, Error> {
    Ok(spec_of(job)?.output.into_iter().find(|output| output.name == name))
}
