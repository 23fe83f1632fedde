//! What an agent hears and says: hello, its work list, and how its stagings stand.
//!
//! The agent is told states, not commands: it may be told the same again and makes it so. What it reports is fenced twice, by the process that speaks
//! for the node and by the lease's epoch. A node sees its own stagings and nothing else of the team.
//!
//! ```text
//! agent_hello   once a process: takes the node's place, enrols its key
//! agent_work    long poll: all stagings that are the node's to do or to clean up, and a `seq` that names this state
//! report_*      where it stands; `released` says that the directory is gone
//! ```
//!
//! Order of locks in a report: job, node, then the rows of the job.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use jiff::SignedDuration;
use tokio::time::Instant;
use uuid::Uuid;

use super::error::{Code, Error, FENCED, Kind};
use super::jobs::{cut, json, node_of};
use super::staging::{STAGING_OVER, no_staging, state_of};
use super::upkeep::pass_over;
use super::{App, Caller, CallerNode};
use crate::api::jobs::{Hello, Staging, StagingReport, Welcome, Work, WorkReturn, WorkStaging};
use crate::db::outbox::NewEvent;
use crate::db::{Tx, Woken, jobs, keys, leases, nodes, outputs, stagings};
use crate::domain::receipt::key_id;
use crate::domain::staging::{Move, State};
use crate::transaction;

/// End the other agent, or come again after the time that is told. An agent that meets this in the middle of its work has
/// lost the node's place.
pub const NODE_IN_USE: Code = Code::new(Kind::Conflict, "node_in_use", "another process speaks for this node");
/// What is signed must lead to one agent: a key is never exchanged silently.
pub const KEY_MISMATCH: Code = Code::new(Kind::Conflict, "key_mismatch", "the node is enrolled with another key");
/// Ask for the node's work and report from the state that it shows.
pub const BAD_TRANSITION: Code =
    Code::new(Kind::Conflict, "bad_transition", "the report cannot follow the staging's state");

/// Stagings of removed nodes looked up at a time.
const SWEEP: u32 = 100;
/// A silent agent's place may be taken after this: two of an agent's long polls of 30 s, each of which is a sign of life.
const SILENCE: SignedDuration = SignedDuration::from_secs(60);

impl App {
    /// An agent starts: it takes the node's place unless another process was heard lately, and enrols its key on first use.
    /// `instance` is the process's random id; the same one may say hello again at any time. Refused with [`NODE_IN_USE`] and
    /// the time to wait, or with [`KEY_MISMATCH`] when the node signs with another key.
    pub async fn agent_hello(&self, caller: &Caller, hello: &Hello) -> Result<Welcome, Error> {
        let node = node_of(caller)?;
        let public: [u8; 32] =
            BASE64.decode(hello.public_key.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(
                || Error::invalid("public_key", "is not base64 of 32 bytes", "send the agent's Ed25519 key"),
            )?;
        if hello.instance.is_empty() || hello.instance.len() > 128 {
            return Err(Error::invalid(
                "instance",
                "must have 1 to 128 bytes",
                "send a random id, a new one for each process",
            ));
        }
        let inventory = json(&hello.inventory)?;
        transaction!(self.db, |tx| {
            let now = self.clock.now();
            let agent = nodes::lock(tx, caller.team, node.id).await?.ok_or_else(gone)?;
            let other = agent.instance.as_ref().is_some_and(|instance| *instance != hello.instance);
            if let Some(silent) = agent.seen_at.filter(|_| other).map(|seen| now.duration_since(seen))
                && silent < SILENCE
            {
                return Err(in_use(&node.name, SILENCE - silent));
            }
            let key_id = self.enrol(tx, caller, node, public).await?;
            nodes::seen(tx, node.id, &hello.instance, Some(&inventory), now).await?;
            tx.notify("nodes");
            Ok::<_, Error>(Welcome { node: node.name.clone(), team: caller.team_name.clone(), key_id })
        })
    }

    /// Under the node's lock. A key that any node has ever used is refused for another, so that a receipt's key says which
    /// node made it.
    async fn enrol(&self, tx: &mut Tx, caller: &Caller, node: &CallerNode, public: [u8; 32]) -> Result<String, Error> {
        let key_id = key_id(&public);
        let key = keys::NodeKey { key_id: &key_id, team: caller.team, node: node.id, public_key: public };
        match keys::of_node(tx, node.id).await? {
            Some(known) if known.public_key == public => Ok(known.key_id),
            Some(known) => {
                let detail =
                    format!("node `{}` signs with key `{}`; this agent brought another", node.name, known.key_id);
                let hint = "start the agent with its old cache directory, or remove the node and add it anew";
                Err(Error::new(KEY_MISMATCH, detail, hint))
            }
            None => match keys::enrol_node(tx, &key, self.clock.now()).await {
                Ok(_) => Ok(key_id),
                Err(error) if error.is_taken() => {
                    let detail = format!("key `{key_id}` is another node's, or that of one that was removed");
                    let hint = "start the agent with a new cache directory: it makes a key there, and a key is one node's for ever";
                    Err(Error::new(KEY_MISMATCH, detail, hint))
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Everything the node should be doing, once its `seq` differs from `seen` or the time is up; `wait` is within the
    /// service's limit already. Counts as a sign of life. Unchanged work is answered too, at the end of the wait. Nothing is
    /// lost when the answer is: the next call says the same.
    pub async fn agent_work(&self, caller: &Caller, seen: Option<&str>, wait: Duration) -> Result<Work, Error> {
        let node = node_of(caller)?;
        let deadline = Instant::now() + wait;
        let mut ear = self.db.wakeups().listen(&format!("node/{}", node.id));
        transaction!(self.db, |tx| {
            let known = nodes::lock(tx, caller.team, node.id).await?.ok_or_else(gone)?;
            match &known.instance {
                Some(instance) => Ok::<_, Error>(nodes::seen(tx, node.id, instance, None, self.clock.now()).await?),
                None => Ok(()),
            }
        })?;
        loop {
            let work = self.work_of(node).await?;
            if seen != Some(work.seq.as_str()) || ear.wait(deadline).await == Woken::TimeIsUp {
                return Ok(work);
            }
        }
    }

    /// `seq` is a hash over what the agent acts upon: each staging's id and state, its lease's end and release, the outputs
    /// that are due. Progress of its own does not change it.
    async fn work_of(&self, node: &CallerNode) -> Result<Work, Error> {
        let mut session = self.db.snapshot().await?;
        let mut work = Work::default();
        let mut hash = blake3::Hasher::new();
        for row in stagings::of_node(&mut session, node.id).await? {
            let (Some(job), Some(lease)) = self.job_and_lease(&mut session, &row).await? else { continue };
            let outputs = due_outputs(&mut session, &row, &lease).await?;
            let fact =
                (row.id, row.state_seq, lease.tenure.until.as_microsecond(), lease.tenure.released.is_some(), &outputs);
            hash.update(format!("{fact:?}").as_bytes());
            let staging = self.staging_document(&row)?;
            let job = self.job_document(&mut session, &job).await?;
            let lease = super::leases::document(&lease);
            if row.state.is_over() {
                work.returns.push(WorkReturn { staging, job, lease, outputs });
            } else {
                work.stagings.push(WorkStaging { staging, job, lease });
            }
        }
        work.seq = hash.finalize().to_hex().chars().take(16).collect();
        Ok(work)
    }

    async fn job_and_lease(
        &self,
        tx: &mut Tx,
        row: &stagings::Staging,
    ) -> Result<(Option<jobs::Job>, Option<leases::Lease>), Error> {
        let lease = match row.lease {
            Some(lease) => leases::get(tx, row.team, lease).await?,
            None => None,
        };
        Ok((jobs::get(tx, row.team, row.job).await?, lease))
    }

    /// Where the node stands with one staging. Said twice, it is done once; told by state, so a lost report is made good by
    /// the next one. For `ready` the service must know what the receipt has to say: where the inputs have not been looked
    /// into yet, that is done first, outside the transaction.
    ///
    /// Refused: [`FENCED`] for another lease epoch, [`NODE_IN_USE`] for another process, [`STAGING_OVER`] once it has ended,
    /// [`BAD_TRANSITION`] for what cannot follow, `bad_receipt` for a `ready` that does not hold. What is refused
    /// changes nothing, save what the look into the inputs has found.
    pub async fn report_staging(
        self: &Arc<Self>,
        caller: &Caller,
        id: Uuid,
        report: &StagingReport,
    ) -> Result<Staging, Error> {
        let node = node_of(caller)?;
        let before = stagings::get(&mut self.db.read().await?, caller.team, id).await?;
        let before = before.filter(|row| is_of(row, node)).ok_or_else(|| no_staging(id))?;
        if state_of(report.state) == State::Ready && before.expected.is_none() {
            self.look_into(&before).await?; // so that the receipt can be held against it
        }
        transaction!(self.db, |tx| {
            let job = self.locked_job(tx, caller.team, before.job).await?;
            let row = stagings::get(tx, caller.team, id).await?.ok_or_else(|| no_staging(id))?;
            self.fence(tx, node, &row, report).await?;
            let mut facts = Vec::new();
            let row = self.apply_report(tx, job, row, report, &mut facts).await?;
            self.tell(tx, caller.team, &facts).await?;
            self.staging_document(&row)
        })
    }

    /// Both fences, under the job's and the node's locks; counts as a sign of life. The epoch is compared, no clock is
    /// asked: a node that was cut off for hours and comes back is refused as surely as a fast one.
    async fn fence(
        &self,
        tx: &mut Tx,
        node: &CallerNode,
        row: &stagings::Staging,
        report: &StagingReport,
    ) -> Result<(), Error> {
        if report.epoch != row.epoch {
            let detail = format!("the staging belongs to lease epoch {}, the report to {}", row.epoch, report.epoch);
            return Err(Error::new(FENCED, detail, "ask for the node's work again"));
        }
        let known = nodes::lock(tx, row.team, node.id).await?.ok_or_else(gone)?;
        if known.instance.as_deref() != Some(report.instance.as_str()) {
            return Err(in_use(&node.name, SILENCE));
        }
        Ok(nodes::seen(tx, node.id, &report.instance, None, self.clock.now()).await?)
    }

    /// A report of `released` is no state here: it says that the directory was removed. Leaving `ready` drops the receipt
    /// from the row; it stays among the staging's receipts.
    async fn apply_report(
        &self,
        tx: &mut Tx,
        mut job: jobs::Job,
        mut row: stagings::Staging,
        report: &StagingReport,
        facts: &mut Vec<NewEvent>,
    ) -> Result<stagings::Staging, Error> {
        let said = state_of(report.state);
        if said == State::Released {
            return self.cleaned_up(tx, &mut job, row, facts).await;
        }
        if row.state.is_over() {
            let detail = format!("the staging is {}", row.state.word());
            return Err(Error::new(
                STAGING_OVER,
                detail,
                "bring back the outputs that are due, then remove the directory",
            ));
        }
        let next = row.state.report(said).map_err(|refusal| {
            Error::new(
                BAD_TRANSITION,
                refusal.to_string(),
                "report `unready` first when something was lost after `ready`",
            )
        })?;
        let was = row.state_seq;
        self.take_progress(&mut row, report);
        match next {
            Move::Same => {
                self.write_staging(tx, &row, was).await?;
                Ok(row)
            }
            Move::To(state) => {
                row.error = report
                    .error
                    .as_ref()
                    .filter(|_| state != State::Ready)
                    .map(|error| (cut(&error.code, 64), cut(&error.detail, 4_096)));
                if state == State::Ready {
                    self.take_receipt(tx, &job, &mut row, report).await?;
                } else {
                    row.receipt = None;
                    row.ready_at = None;
                }
                self.move_staging(tx, &job, row, state, facts).await
            }
        }
    }

    /// Counts are taken as they are said. The pull's beginning, from which the estimate is made, is set anew when bytes fall
    /// back or the staging was unready: then the node has begun again.
    fn take_progress(&self, row: &mut stagings::Staging, report: &StagingReport) {
        let now = self.clock.now();
        row.bytes = stagings::Bytes {
            total: report.bytes_total,
            done: report.bytes_done,
            reused: report.bytes_reused,
            cache: report.sources.cache,
            peer: report.sources.peer,
            store: report.sources.store,
        };
        if report.path.is_some() {
            row.path = report.path.as_deref().map(|path| cut(path, 4_096));
        }
        let pulling = state_of(report.state) == State::Pulling;
        let begun_again = row.pulled.is_some_and(|(_, bytes)| report.bytes_done < bytes);
        if pulling && (row.pulled.is_none() || begun_again || row.state == State::Unready) {
            row.pulled = Some((now, report.bytes_done));
        }
        row.changed_at = now;
    }

    /// The node has removed the directory: the staging leaves its list, and outputs it did not bring will not come. Refused
    /// while the staging lives, since its directory is still needed. Said twice, it is done once.
    async fn cleaned_up(
        &self,
        tx: &mut Tx,
        job: &mut jobs::Job,
        mut row: stagings::Staging,
        facts: &mut Vec<NewEvent>,
    ) -> Result<stagings::Staging, Error> {
        if !row.state.is_over() {
            let detail = format!("the staging is {}; its directory is still needed", row.state.word());
            return Err(Error::new(BAD_TRANSITION, detail, "keep the directory until the lease has ended"));
        }
        if row.cleaned_at.is_some() {
            return Ok(row);
        }
        row.cleaned_at = Some(self.clock.now());
        let was = row.state_seq;
        self.write_staging(tx, &row, was).await?;
        if row.state == State::Released {
            self.give_up_outputs(tx, job, row.epoch, facts).await?;
        }
        Ok(row)
    }

    /// Ends what belongs to nodes that were removed: they will never report. Answers how many stagings there were; a live one
    /// takes two runs, first failed, then cleaned up. One that cannot be ended holds up no other.
    pub async fn bury_removed_nodes(&self) -> Result<usize, Error> {
        let (mut after, mut count) = (Uuid::nil(), 0);
        loop {
            let orphans = stagings::of_removed_nodes(&mut self.db.read().await?, after, SWEEP).await?;
            let Some((_, _, last)) = orphans.last() else { return Ok(count) };
            (after, count) = (*last, count + orphans.len());
            for (team, job, id) in &orphans {
                pass_over("a removed node's staging", *id, self.bury(*team, *job, *id).await)?;
            }
        }
    }

    async fn bury(&self, team: Uuid, job: Uuid, staging: Uuid) -> Result<(), Error> {
        transaction!(self.db, |tx| {
            let mut job = self.locked_job(tx, team, job).await?;
            let Some(mut row) = stagings::get(tx, team, staging).await? else { return Ok(()) };
            let mut facts = Vec::new();
            if row.state.is_over() {
                self.cleaned_up(tx, &mut job, row, &mut facts).await?;
            } else {
                row.error = Some(("node_removed".to_owned(), "the node was removed from the team".to_owned()));
                self.move_staging(tx, &job, row, State::Failed, &mut facts).await?;
            }
            self.tell(tx, job.team, &facts).await
        })
    }
}

/// Names of the outputs that the end of this staging's lease asks for and that are not there yet.
/// None before the lease is released, or while the staging is not: until then nothing is asked for.
async fn due_outputs(tx: &mut Tx, row: &stagings::Staging, lease: &leases::Lease) -> Result<Vec<String>, Error> {
    if row.state != State::Released || lease.tenure.released.is_none() {
        return Ok(Vec::new());
    }
    let rows = outputs::of_epoch(tx, row.job, row.epoch).await?;
    Ok(rows.into_iter().filter(|output| output.due && !output.state.is_final()).map(|output| output.name).collect())
}

fn is_of(row: &stagings::Staging, node: &CallerNode) -> bool {
    row.node.as_ref().is_some_and(|(id, _)| *id == node.id)
}

/// A node's token that outlived its node: it was let in just before both were ended.
fn gone() -> Error {
    Error::denied("the node was removed", "add it again with `dray node add`")
}

fn in_use(name: &str, left: SignedDuration) -> Error {
    let detail = format!("another process speaks for node `{name}`");
    let wait = Duration::try_from(left).unwrap_or(Duration::from_secs(1)).max(Duration::from_secs(1));
    let hint = "end the other agent, or wait until it has been silent for 60 s";
    Error::new(NODE_IN_USE, detail, hint).retry_after(wait)
}
