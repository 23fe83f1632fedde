//! Stage-in: one job's inputs onto this node's disk, and the proof of it.
//!
//! Order: trees and space are checked before the first byte; the record is synced before the directory is made; each input is pulled with
//! every file synced and read back past the page cache; `out/` is made; facts are taken; the receipt is signed and recorded; only
//! then `ready` is said. A crash anywhere leaves a record that says how far it came, and the same road is walked again.
//!
//! ```text
//! record     none     -> trees -> room, no leftover -> record: Pulling -> mkdir -> pull
//!            Pulling  -> trees -> half-written files removed                    -> pull
//!            Ready    -> look  -> as it was: say `ready` again where the service has not heard it
//!                              -> lost: say `unready`, record: Pulling, then as above
//! any other than Ready while the service says `ready`: say `unready` first
//! pull       each input -> say `verifying` -> out/ -> facts -> counts agree -> sign -> record: Ready -> say `ready`
//! ```
//!
//! A fault of the input or of the disk is said as `failed`, and what was staged is taken away. One of the line, or of the
//! disk while trees are fetched, is waited out, without end: when the lease is over is for the service to say.

use super::home::{Home, Key, Phase, Record};
use super::report::{Ear, Unheard, Voice, is_refusal};
use super::staged::{self, Fault, Look, Trees};
use crate::api::jobs::{JobInput, Staging, StagingError, StagingReport, StagingState, WorkStaging};
use crate::client::pull::{Durability, OutsideLinks, PullOptions, PullReport, Select, pull};
use crate::client::{Context, Error as ClientError, Exit, TransferError};
use crate::content::path::RelPath;
use crate::content::tree::Counts;
use crate::domain::receipt::{Envelope, Method, Readiness, key_id};
use crate::domain::selection::space_needed;
use crate::domain::shard::Shard;
use fs_err as fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Staged files and directories keep no write bit for group and others, whatever the version says.
///
/// So that no other user of the node changes what was verified.
const MODE_MASK: u32 = 0o755;
/// Between attempts that a line broke; doubled up to [`LONGEST_PAUSE`]. Resuming is cheap: what lies there is proven and
/// used.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Everything one staging needs.
///
/// One task's own; runs once. `work` is the service's word of the moment it was started: what changes later reaches it as a
/// cancel.
#[derive(Debug)]
pub struct StageIn {
    pub home: Arc<Home>,
    pub key: Arc<Key>,
    pub voice: Arc<Voice>,
    pub work: WorkStaging,
    pub team: String,
    pub node: String,
    /// Bytes for the pull's buffers.
    pub memory: u64,
}

/// How it ended here.
///
/// For the loop's bookkeeping only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Ready was said and heard, or stands.
    Ready,
    /// Failed was said; its directories are gone.
    Failed,
    /// It left this node: its directories are gone, and the service has heard it.
    Returned,
    /// The service refused a report. What is to become of the staging, the list says.
    Refused,
    /// Not ours any more, or the agent stops.
    Dropped,
}

impl StageIn {
    /// Makes the staging ready, however often that takes while the service or the line is down.
    pub async fn run(mut self) -> Ended {
        let mut pause = FIRST_PAUSE;
        loop {
            let fault = match self.attempt().await {
                Ok(ended) => return ended,
                Err(Attempt::Unheard(unheard)) => return self.unheard(&unheard),
                Err(Attempt::Fault(Fault::Transient(ClientError::Interrupted))) => return Ended::Dropped,
                Err(Attempt::Fault(fault)) => fault,
            };
            match fault {
                Fault::Staging(error) => return self.failed(error).await,
                Fault::Transient(error) => {
                    tracing::warn!(staging = %self.voice.staging, %error, "staging is interrupted; trying again");
                }
            }
            tokio::select! {
                () = self.voice.context.cancel.cancelled() => return Ended::Dropped,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    /// Nothing is taken away: the list of work, which is asked for next, says what is to become of it.
    fn unheard(&self, unheard: &Unheard) -> Ended {
        match unheard {
            Unheard::Refused(problem) => {
                tracing::warn!(staging = %self.voice.staging, code = problem.code, detail = problem.detail, "the service refused a report");
                Ended::Refused
            }
            Unheard::Stopped => Ended::Dropped,
        }
    }

    /// Said first, taken away afterwards: a crash in between is made up for by the return, which the service asks for next.
    ///
    /// Only what is recorded is taken away: before [`Self::begin`] nothing here is ours, whatever lies there.
    async fn failed(&self, error: StagingError) -> Ended {
        match self.voice.fail(&error.code, error.detail).await {
            Ok(_) => {
                let name = self.voice.context.ids.uuid().to_string();
                if let Some(record) = self.home.record(&self.voice.staging)
                    && let Err(error) = self.home.forget(&record, &name)
                {
                    tracing::error!(%error, "cannot take a failed staging away");
                }
                Ended::Failed
            }
            Err(unheard) => self.unheard(&unheard),
        }
    }

    /// With a receipt, the record of the next `ready`; without one, of the service's present count.
    fn record(&self, phase: Phase, receipt: Option<serde_json::Value>, bytes: u64) -> Record {
        let staging = &self.work.staging;
        Record {
            staging: staging.id.clone(),
            job: self.work.job.id.clone(),
            epoch: self.work.lease.epoch,
            phase,
            ready_seq: if receipt.is_some() { staging.ready_seq + 1 } else { staging.ready_seq },
            receipt,
            bytes,
            unreturned: false,
        }
    }

    /// Once along the road above, from its begin; every step can be repeated.
    async fn attempt(&mut self) -> Result<Ended, Attempt> {
        let job_dir = self.home.job_dir(&self.work.job.id, self.work.lease.epoch);
        let known = self.home.record(&self.voice.staging);
        let ready = known.as_ref().filter(|record| record.phase == Phase::Ready);
        if let Some(record) = ready
            && let Some(ended) = self.still_ready(record, &job_dir).await?
        {
            return Ok(ended);
        }
        self.unready().await?;
        if ready.is_some() {
            self.home.save(&self.record(Phase::Pulling, None, 0)).map_err(|error| staging_fault("local_io", error))?;
        }
        let staging = &self.work.staging;
        let trees = Arc::new(staged::fetch(&self.voice.context, &self.home, &self.work.job).await?);
        let (digest, counts) = blocking(&trees, |trees| trees.staged()).await?;
        self.voice.progress.set_total(counts.bytes);
        if known.is_none() {
            self.begin(&job_dir, &counts)?;
        } else {
            let dir = job_dir.clone();
            let local = |error: std::io::Error| staging_fault("local_io", error);
            let removed = tokio::task::spawn_blocking(move || staged::remove_parts(&dir)).await;
            removed.map_err(|error| staging_fault("broken", error))?.map_err(local)?;
        }
        let pulled = self.voice.while_running(StagingState::Pulling, self.pull_all(&job_dir)).await?;
        self.voice.say(&self.voice.report(StagingState::Verifying)).await?;
        self.make_out(&job_dir).map_err(|error| staging_fault("local_io", error))?;
        let facts = self.home.facts(&staging.id);
        let (dir, path) = (job_dir.clone(), facts.clone());
        let files = blocking(&trees, move |trees| trees.write_facts(&dir, &path)).await?;
        if files != counts.files || pulled.files != counts.files || pulled.bytes != counts.bytes {
            let text = format!(
                "{} files and {} bytes were staged where {} files and {} bytes are declared",
                files, pulled.bytes, counts.files, counts.bytes
            );
            return Err(staging_fault("incomplete_staging", text));
        }
        let statement = Readiness {
            team: self.team.clone(),
            job: self.work.job.id.clone(),
            staging: staging.id.clone(),
            ready_seq: staging.ready_seq + 1,
            lease_epoch: self.work.lease.epoch,
            node: self.node.clone(),
            tree: digest,
            files: counts.files,
            bytes: counts.bytes,
            verified_at: self.voice.context.clock.now().to_string(),
            method: Method { reread_files: counts.files, unchanged_files: 0, unchanged_since: None },
        };
        let mut envelope = Envelope::new(&statement);
        let signed = envelope.signed_bytes().map_err(|error| staging_fault("receipt", error))?;
        envelope.add(key_id(&self.key.public()), &self.key.sign(&signed));
        let receipt = serde_json::to_value(&envelope).map_err(|error| staging_fault("receipt", error))?;
        let record = self.record(Phase::Ready, Some(receipt), counts.bytes);
        self.home.save(&record).map_err(|error| staging_fault("local_io", error))?;
        self.say_ready(&record, &job_dir).await
    }

    /// The receipt is the recorded one: said twice, it is the same statement with the same signature.
    async fn say_ready(&self, record: &Record, job_dir: &Path) -> Result<Ended, Attempt> {
        let report = StagingReport {
            path: Some(job_dir.to_string_lossy().into_owned()),
            receipt: record.receipt.clone(),
            ..self.voice.report(StagingState::Ready)
        };
        self.voice.say(&report).await?;
        tracing::info!(staging = %self.voice.staging, path = %job_dir.display(), "ready");
        Ok(Ended::Ready)
    }

    /// A recorded `ready` stands while the disk bears it out; it is said again when the service has not heard it.
    ///
    /// None where it is to be staged again. A `ready` that belongs to another round of the service's count is not said
    /// again.
    async fn still_ready(&self, record: &Record, job_dir: &Path) -> Result<Option<Ended>, Attempt> {
        let (dir, facts) = (job_dir.to_owned(), self.home.facts(&record.staging));
        let seen = tokio::task::spawn_blocking(move || staged::look(&dir, &facts)).await;
        let seen = seen.map_err(|error| staging_fault("broken", error))?;
        match seen {
            Ok(Look::Same | Look::Touched) => {}
            Ok(Look::Lost) | Err(_) => return Ok(None),
        }
        self.voice.progress.set_total(record.bytes);
        let staging = &self.work.staging;
        if staging.state == StagingState::Ready && staging.ready_seq == record.ready_seq {
            return Ok(Some(Ended::Ready));
        }
        if record.ready_seq != staging.ready_seq + 1 {
            return Ok(None);
        }
        self.say_ready(record, job_dir).await.map(Some)
    }

    /// Takes `ready` back at the service where it still believes it, whatever the record says: a crash, or a loss of the
    /// record, may lie between the two.
    ///
    /// Before the record changes and before anything is fetched: until it is heard, the next start comes here again. Once it
    /// is heard the staging is known as unready here, so another attempt does not say it again.
    async fn unready(&mut self) -> Result<(), Attempt> {
        if self.work.staging.state == StagingState::Ready {
            let error =
                StagingError { code: "lost".to_owned(), detail: "a staged file was lost or changed".to_owned() };
            let report = StagingReport { error: Some(error), ..self.voice.report(StagingState::Unready) };
            self.work.staging = self.voice.say(&report).await?;
        }
        Ok(())
    }

    /// Checks that there is room and no leftover, then records and makes the job's directory, in this order.
    ///
    /// Room is checked once: others may fill the disk afterwards, which the pull then meets as `no_space`.
    fn begin(&self, job_dir: &Path, counts: &Counts) -> Result<(), Attempt> {
        if job_dir.exists() {
            let text = format!(
                "`{}` lies there from before and is not in this agent's records; look at it and move it away",
                job_dir.display()
            );
            return Err(staging_fault("directory_exists", text));
        }
        let needed = space_needed(counts);
        let free = self.home.free_bytes();
        if needed > free {
            return Err(no_space(needed, free));
        }
        let local = |error: std::io::Error| staging_fault("local_io", error);
        self.home.save(&self.record(Phase::Pulling, None, 0)).map_err(|error| staging_fault("local_io", error))?;
        std::fs::DirBuilder::new().mode(0o755).create(job_dir).map_err(local)
    }

    /// One after the other, so that the memory of one transfer is enough and progress adds up. The first that fails ends
    /// the attempt.
    async fn pull_all(&self, job_dir: &Path) -> Result<Pulled, Attempt> {
        let mut sum = Pulled::default();
        for input in &self.work.job.inputs {
            self.voice.progress.next_transfer();
            let dest = job_dir.join(&input.spec.at);
            if let Some(parent) = dest.parent() {
                fs::create_dir_all(parent).map_err(|error| staging_fault("local_io", error))?;
            }
            let options = self.pull_options(input, &dest)?;
            let context = Context { reporter: Arc::new(Ear(Arc::clone(&self.voice))), ..self.voice.context.clone() };
            let report = pull(&context, options).await.map_err(|error| pull_fault(error, &self.home))?;
            sum.add(&report)?;
        }
        Ok(sum)
    }

    /// `overwrite`, since the directory is this lease's alone, and `ReadBack`, which is what the receipt's method states.
    fn pull_options(&self, input: &JobInput, dest: &Path) -> Result<PullOptions, Attempt> {
        let bad = |what: &str| staging_fault("bad_input", format!("the input at `{}` has a bad {what}", input.spec.at));
        let path = match input.path.as_str() {
            "" => None,
            path => Some(RelPath::parse(path.as_bytes()).map_err(|_| bad("path"))?),
        };
        let shard = input.spec.shard.as_deref().map(|text| Shard::parse(text).ok_or_else(|| bad("shard")));
        let select = Select {
            path,
            include: input.spec.include.clone(),
            exclude: input.spec.exclude.clone(),
            shard: shard.transpose()?,
        };
        let mut options = PullOptions::new(input.version.id.clone(), dest.to_owned());
        options.select = select;
        options.overwrite = true;
        options.memory = self.memory;
        options.temp_dir = Some(self.home.temp());
        options.durability = Durability::ReadBack;
        options.mode_mask = MODE_MASK;
        options.outside_links = if input.spec.allow_outside_links { OutsideLinks::Keep } else { OutsideLinks::Refuse };
        Ok(options)
    }

    /// `out/`, writable by the job's user. Made after the inputs, and given away only when the agent is root. What lies in it stays.
    fn make_out(&self, job_dir: &Path) -> std::io::Result<()> {
        let out = job_dir.join("out");
        match fs::create_dir(&out) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::set_permissions(&out, PermissionsExt::from_mode(0o755))?;
        if let Some(uid) = self.work.job.spec.run_as
            && rustix::process::geteuid().is_root()
        {
            std::os::unix::fs::chown(&out, Some(uid), None)?;
        }
        std::fs::File::open(job_dir)?.sync_all()
    }
}

/// What the pulls came to.
///
/// Held against the declared counts: an entry left out in silence would else be signed for.
#[derive(Debug, Default)]
struct Pulled {
    files: u64,
    bytes: u64,
}

impl Pulled {
    fn add(&mut self, report: &PullReport) -> Result<(), Attempt> {
        if let Some(first) = report.failed.first() {
            let text = format!(
                "{} entries could not be staged, `{}` first: {}",
                report.failed_count, first.path, first.reason
            );
            return Err(staging_fault(&first.reason, text));
        }
        self.files += report.files;
        self.bytes += report.bytes;
        Ok(())
    }
}

/// Why one attempt ended.
///
/// A fault is handled here; what the service does not hear or refuses ends the task.
#[derive(Debug)]
enum Attempt {
    Fault(Fault),
    Unheard(Unheard),
}

impl From<Fault> for Attempt {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Unheard> for Attempt {
    fn from(unheard: Unheard) -> Self {
        Self::Unheard(unheard)
    }
}

fn staging_fault(code: &str, detail: impl std::fmt::Display) -> Attempt {
    Attempt::Fault(Fault::Staging(StagingError { code: code.to_owned(), detail: detail.to_string() }))
}

fn no_space(needed: u64, free: u64) -> Attempt {
    staging_fault(
        "no_space",
        format!("{needed} bytes needed on the node, {free} free; free some, or lease another node"),
    )
}

/// The pull's own codes become the staging's, so that a scheduler reads one list of them.
fn pull_fault(error: TransferError, home: &Home) -> Attempt {
    match error {
        TransferError::Api(ClientError::Refused(problem)) if is_refusal(&problem) => {
            staging_fault(&problem.code, &problem.detail)
        }
        TransferError::Api(error) => Attempt::Fault(Fault::Transient(error)),
        TransferError::NoSpace { needed, free, .. } => no_space(needed, free),
        TransferError::Local { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            let free = home.free_bytes();
            staging_fault("no_space", format!("the node's disk filled up while files were written; {free} bytes free"))
        }
        error if error.exit() == Exit::Interrupted => Attempt::Fault(Fault::Transient(ClientError::Interrupted)),
        error => staging_fault(error.code(), &error),
    }
}

/// For walks over trees. A panic becomes `broken`, so that one bad tree does not end the agent.
async fn blocking<T: Send + 'static>(
    trees: &Arc<Trees>,
    work: impl FnOnce(&Trees) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Attempt> {
    let trees = Arc::clone(trees);
    let done = tokio::task::spawn_blocking(move || work(&trees)).await;
    Ok(done.map_err(|error| staging_fault("broken", error))??)
}

/// Whether what the service says of a staging and what is recorded of it here agree that it is ready. The disk is not
/// asked.
pub fn stands_ready(staging: &Staging, record: Option<&Record>) -> bool {
    staging.state == StagingState::Ready
        && record.is_some_and(|record| record.phase == Phase::Ready && record.ready_seq == staging.ready_seq)
}
