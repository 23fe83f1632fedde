//! Stage-out: what a job declared to bring back, taken out of its reach, pushed, and its directory cleared away.
//!
//! An output is first *sealed* ([`seal`](super::seal)). Sealed outputs survive a restart and are pushed by the same road as
//! a team's data. Where an output failed, or something of one could not be sealed, the directory is set aside, not deleted.

use super::home::{Home, Phase, Record};
use super::report::{OutputFacts, Unheard, Voice, is_refusal};
use super::seal::seal;
use super::stage_in::Ended;
use crate::api::jobs::{OutputSpec, OutputState, StagingError, StagingState, WorkReturn};
use crate::api::uploads::OutputOf;
use crate::client::push::{PushOptions, PushReport, push};
use crate::client::{Error as ClientError, Exit, TransferError};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// One ended staging to bring home.
///
/// `work.outputs` names what is due; outputs that have reached their end before are not in it.
#[derive(Debug)]
pub struct StageOut {
    pub home: Arc<Home>,
    pub voice: Arc<Voice>,
    pub work: WorkReturn,
    pub memory: u64,
}

impl StageOut {
    /// Brings every due output home and clears the directory away. Ends early only when the agent stops or the service refuses.
    pub async fn run(self) -> Ended {
        match self.bring_home().await {
            Ok(()) => Ended::Returned,
            Err(Unheard::Stopped) => Ended::Dropped,
            Err(Unheard::Refused(problem)) => {
                tracing::warn!(staging = %self.voice.staging, code = problem.code, detail = problem.detail, "the service refused a return");
                Ended::Refused
            }
        }
    }

    async fn bring_home(&self) -> Result<(), Unheard> {
        let known = self.home.record(&self.work.staging.id);
        let mut record = Record { phase: Phase::Returning, ..known.clone().unwrap_or_else(|| self.record()) };
        if known.is_some()
            && let Err(error) = self.home.save(&record)
        {
            tracing::error!(%error, "cannot record a return");
        }
        for name in &self.work.outputs {
            if let Some(spec) = self.work.job.spec.output.iter().find(|spec| spec.name == *name) {
                self.bring(spec, &mut record).await?;
            }
        }
        match known {
            Some(_) => self.take_away(&record).await?,
            None => self.leave(&record),
        }
        // Begun before it is said: the list may be without this staging as soon as the service knows, and then this task is told to stop.
        let home = Arc::clone(&self.home);
        let emptying = tokio::task::spawn_blocking(move || home.empty_trash());
        self.voice.say(&self.voice.report(StagingState::Released)).await?;
        if let Err(error) = emptying.await {
            tracing::error!(%error, "emptying the trash broke");
        }
        Ok(())
    }

    fn record(&self) -> Record {
        Record {
            staging: self.work.staging.id.clone(),
            job: self.work.job.id.clone(),
            epoch: self.work.lease.epoch,
            phase: Phase::Returning,
            ready_seq: self.work.staging.ready_seq,
            receipt: None,
            bytes: 0,
            unreturned: false,
        }
    }

    /// Clears the directories away, however often that takes: what could not be brought home is never deleted, so it stays until it can be set aside.
    ///
    /// Ends only when it is done or the agent stops: `released` is said after it.
    async fn take_away(&self, record: &Record) -> Result<(), Unheard> {
        let kept = self.home.kept_dir(record);
        let mut pause = FIRST_PAUSE;
        loop {
            match self.home.forget(record, &self.voice.context.ids.uuid().to_string()) {
                Ok(()) if record.unreturned => {
                    tracing::error!(path = %kept.display(), "not every output came home whole; what the job wrote is kept there");
                    return Ok(());
                }
                Ok(()) => return Ok(()),
                Err(error) => {
                    let path = self.home.job_dir(&record.job, record.epoch);
                    let why = super::chain(&error);
                    tracing::error!(path = %path.display(), why, "an ended staging cannot be taken away; it stays, trying again");
                }
            }
            self.rest(&mut pause).await?;
        }
    }

    /// A directory without a record is not ours to take away.
    fn leave(&self, record: &Record) {
        let path = self.home.job_dir(&record.job, record.epoch);
        if path.exists() {
            tracing::warn!(path = %path.display(), "not in this agent's records, so it stays; look at it and move it away");
        }
        if !record.unreturned
            && let Err(error) = self.home.discard(
                &self.home.sealed_dir(&record.job, record.epoch),
                &format!("{}-sealed", self.voice.context.ids.uuid()),
            )
        {
            tracing::error!(%error, "cannot take sealed outputs away");
        }
    }

    async fn rest(&self, pause: &mut Duration) -> Result<(), Unheard> {
        tokio::select! {
            () = self.voice.context.cancel.cancelled() => return Err(Unheard::Stopped),
            () = tokio::time::sleep(*pause) => *pause = (*pause * 2).min(LONGEST_PAUSE),
        }
        Ok(())
    }

    /// Records that something of an output is only here. Before anything more is said of it: once its end is said, nobody
    /// asks for the output again, and a restarted agent must know.
    async fn unreturned(&self, spec: &OutputSpec, record: &mut Record) -> Result<(), Unheard> {
        record.unreturned = true;
        let mut pause = FIRST_PAUSE;
        while self.home.record(&record.staging).is_some()
            && let Err(error) = self.home.save(record)
        {
            let why = super::chain(&error);
            tracing::error!(
                output = spec.name,
                why,
                "an output is not home, and that cannot be recorded; trying again"
            );
            self.rest(&mut pause).await?;
        }
        Ok(())
    }

    /// Says that an output failed, once that is recorded.
    async fn failed(
        &self,
        spec: &OutputSpec,
        record: &mut Record,
        error: StagingError,
        facts: OutputFacts,
    ) -> Result<(), Unheard> {
        self.unreturned(spec, record).await?;
        let facts = OutputFacts { error: Some(error), ..facts };
        self.voice.output(&spec.name, OutputState::Failed, facts).await
    }

    async fn bring(&self, spec: &OutputSpec, record: &mut Record) -> Result<(), Unheard> {
        let voice = &self.voice;
        voice.output(&spec.name, OutputState::Sealing, OutputFacts::default()).await?;
        let out = self.home.job_dir(&self.work.job.id, self.work.lease.epoch).join("out");
        // An output's name is checked at submit; a directory of its own all the same, by position.
        let number = self.work.job.spec.output.iter().position(|other| other.name == spec.name).unwrap_or(0);
        let sealed = self.home.sealed_dir(&self.work.job.id, self.work.lease.epoch).join(number.to_string());
        let globs = spec.path.clone();
        let into = sealed.clone();
        let done = tokio::task::spawn_blocking(move || seal(&out, &into, &globs)).await;
        let found = match done.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(found) => found,
            Err(error) => {
                let error = StagingError { code: "seal_failed".to_owned(), detail: error.to_string() };
                return self.failed(spec, record, error, OutputFacts::default()).await;
            }
        };
        if found.refused > 0 {
            tracing::warn!(
                output = spec.name,
                refused = found.refused,
                left = found.left,
                "not everything could be sealed"
            );
        }
        if found.left > 0 {
            self.unreturned(spec, record).await?;
        }
        if found.files == 0 {
            return voice.output(&spec.name, OutputState::Missing, found.facts()).await;
        }
        voice.output(&spec.name, OutputState::Sealed, found.facts()).await?;
        voice.output(&spec.name, OutputState::Storing, found.facts()).await?;
        match self.push(spec, &sealed).await? {
            Ok(report) => {
                let facts = OutputFacts {
                    files: report.files,
                    bytes: report.bytes,
                    version: report.version_id,
                    ..found.facts()
                };
                voice.output(&spec.name, OutputState::Stored, facts).await
            }
            Err(error) => {
                let error = StagingError { code: error.code().to_owned(), detail: error.to_string() };
                self.failed(spec, record, error, found.facts()).await
            }
        }
    }

    /// Pushes until it is stored or refused; a line that is down is waited for.
    async fn push(&self, spec: &OutputSpec, sealed: &Path) -> Result<Result<PushReport, TransferError>, Unheard> {
        let context = &self.voice.context;
        let mut options = PushOptions::new(spec.to.clone(), vec![sealed.to_owned()]);
        options.memory = self.memory;
        options.temp_dir = Some(self.home.temp());
        options.output = Some(OutputOf {
            job: self.work.job.id.clone(),
            lease_epoch: self.work.lease.epoch,
            name: spec.name.clone(),
        });
        let mut pause = FIRST_PAUSE;
        loop {
            match push(context, options.clone()).await {
                Err(error) if error.exit() == Exit::Interrupted => return Err(Unheard::Stopped),
                Err(TransferError::Api(error)) if is_transient(&error) => {
                    tracing::warn!(staging = %self.voice.staging, output = spec.name, %error, "an output is interrupted; trying again");
                }
                done => return Ok(done),
            }
            tokio::select! {
                () = context.cancel.cancelled() => return Err(Unheard::Stopped),
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }
}

fn is_transient(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(problem) => !is_refusal(problem),
        other => other.exit() == Exit::Network,
    }
}
