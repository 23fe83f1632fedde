//! How the agent speaks of one staging: reports that are said until they are heard, and progress while a transfer runs.
//!
//! A report may be said twice; the service fences it by the lease's epoch and this process's instance. What the service refuses
//! is final for the staging here ([`Unheard::Refused`]); everything else is a matter of patience.
//!
//! Reports of state are worth waiting for: the next step depends on them, and `ready` must not be lost. Progress is not: it
//! is out of date as soon as it is late.

use crate::api::jobs::{
    OutputReport, OutputState, SkippedEntry, Sources, Staging, StagingError, StagingReport, StagingState,
};
use crate::api::problem::Problem;
use crate::client::api::route;
use crate::client::progress::{Reporter, Snapshot};
use crate::client::{Context, Error};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Pauses double from this to [`LONGEST_PAUSE`]; the client has retried by itself before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often progress is told at most.
///
/// Often enough for people who watch.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Why a report did not reach the service.
///
/// Either way the task for this staging ends there.
#[derive(Debug)]
pub enum Unheard {
    /// The service said no: this staging is no longer ours.
    ///
    /// By [`is_refusal`], so also a report that the service finds wrong; the problem's code tells which.
    Refused(Box<Problem>),
    /// The agent is shutting down.
    ///
    /// Or the staging left the service's list: its task was told to stop.
    Stopped,
}

/// Whether the service said no for good: the same would be refused again. The one rule of the agent.
///
/// Not for good are a fault of the service (5xx), a line that was too slow for a body (408, 425) and too much at once (429).
pub fn is_refusal(problem: &Problem) -> bool {
    problem.status < 500 && !matches!(problem.status, 408 | 425 | 429)
}

/// Speaks for one staging under one lease.
///
/// One for each task. Its client and its token are cut off with the task, so that nothing is said after it was stopped.
#[derive(Debug)]
pub struct Voice {
    /// `cancel` is the task's own token, a child of the agent's.
    pub context: Context,
    pub staging: String,
    pub job: String,
    /// The lease's fencing token: a report under an older one is refused.
    pub epoch: u64,
    /// The directory's name at the service. A report by another instance than the node's last hello is refused.
    pub instance: String,
    pub progress: Progress,
}

/// Counters of the transfer under way, on top of those that are done.
///
/// Plain counters in bytes, each right by itself; a report may mix two moments.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    done: AtomicU64,
    reused: AtomicU64,
    store: AtomicU64,
    /// Of transfers that ended: done, reused, store.
    base: Mutex<(u64, u64, u64)>,
}

impl Progress {
    /// Of all inputs together. Called once the trees are known.
    pub fn set_total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    /// The next transfer counts from what is reached now. Called before each input, since every transfer's own counters
    /// begin at 0.
    pub fn next_transfer(&self) {
        let reached = [&self.done, &self.reused, &self.store].map(|counter| counter.load(Ordering::Relaxed));
        *self.base.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = (reached[0], reached[1], reached[2]);
    }
}

/// A transfer's reporter that keeps the counters; the reports themselves are sent by [`Voice::while_running`].
#[derive(Debug)]
pub struct Ear(pub std::sync::Arc<Voice>);

impl Reporter for Ear {
    fn show(&self, now: &Snapshot) {
        let progress = &self.0.progress;
        let base = *progress.base.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        progress.done.store(base.0 + now.bytes, Ordering::Relaxed);
        progress.reused.store(base.1 + now.reused_bytes, Ordering::Relaxed);
        progress.store.store(base.2 + now.network_bytes, Ordering::Relaxed);
    }

    fn warn(&self, text: &str) {
        tracing::warn!(staging = %self.0.staging, "{text}");
    }
}

impl Voice {
    /// A report of `state` with the counters as they are.
    ///
    /// `path`, `receipt` and `error` are for the caller to add. Everything fetched counts as from the store: there is no
    /// other source yet.
    pub fn report(&self, state: StagingState) -> StagingReport {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StagingReport {
            instance: self.instance.clone(),
            epoch: self.epoch,
            state,
            bytes_total: get(&self.progress.total),
            bytes_done: get(&self.progress.done),
            bytes_reused: get(&self.progress.reused),
            sources: Sources { cache: 0, peer: 0, store: get(&self.progress.store) },
            path: None,
            receipt: None,
            error: None,
        }
    }

    /// Says it until it is heard or refused.
    ///
    /// Answers the staging as the service has it then. The body stays the same over all attempts, with the counters of the
    /// first.
    pub async fn say(&self, report: &StagingReport) -> Result<Staging, Unheard> {
        self.until_heard(&route(&["v1", "agent", "stagings", &self.staging, "report"], &[]), report).await
    }

    /// Logs, then says `failed` until it is heard. That is for good: the service then asks for the return of what is there.
    pub async fn fail(&self, code: &str, detail: String) -> Result<Staging, Unheard> {
        tracing::warn!(staging = %self.staging, code, detail, "staging failed");
        let error = Some(StagingError { code: code.to_owned(), detail });
        self.say(&StagingReport { error, ..self.report(StagingState::Failed) }).await
    }

    /// Says where an output stands, until it is heard.
    pub async fn output(&self, name: &str, state: OutputState, more: OutputFacts) -> Result<(), Unheard> {
        let report = OutputReport {
            job: self.job.clone(),
            lease_epoch: self.epoch,
            name: name.to_owned(),
            state,
            files: more.files,
            bytes: more.bytes,
            version: more.version,
            skipped: more.skipped,
            error: more.error,
        };
        self.until_heard(&route(&["v1", "agent", "outputs", "report"], &[]), &report).await
    }

    /// Ends only with an answer, a refusal or the end of the task. It may wait for days; that is meant.
    async fn until_heard<T: serde::de::DeserializeOwned + Send>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T, Unheard> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.context.api.post(path, body).await {
                Ok(answer) => return Ok(answer),
                Err(Error::Refused(problem)) if is_refusal(&problem) => return Err(Unheard::Refused(problem)),
                Err(Error::Interrupted) => return Err(Unheard::Stopped),
                Err(error) => {
                    tracing::warn!(staging = %self.staging, %error, "the report was not heard; saying it again")
                }
            }
            tokio::select! {
                () = self.context.cancel.cancelled() => return Err(Unheard::Stopped),
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    /// Runs `work`, telling `state` and its progress meanwhile. Progress that is not heard is not said again: the next one
    /// will be.
    ///
    /// A report on its way is dropped when the work ends. `work` is polled by this task alone: it is not spawned and ends
    /// with it.
    pub async fn while_running<T>(&self, state: StagingState, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let path = route(&["v1", "agent", "stagings", &self.staging, "report"], &[]);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = tick.tick() => {}
            }
            let report = self.report(state);
            tokio::select! {
                done = &mut work => return done,
                said = self.context.api.post::<_, Staging>(&path, &report) => {
                    if let Err(error) = said {
                        tracing::debug!(staging = %self.staging, %error, "progress was not heard");
                    }
                }
            }
        }
    }
}

/// What is said of an output besides its state.
///
/// Empty where the state says it all.
#[derive(Debug, Clone, Default)]
pub struct OutputFacts {
    /// Sealed, or stored once it is.
    pub files: u64,
    pub bytes: u64,
    /// The version's id, once stored.
    pub version: Option<String>,
    /// What was refused when it was sealed, each with its reason.
    pub skipped: Vec<SkippedEntry>,
    pub error: Option<StagingError>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_slow_line_or_a_busy_service_says_is_no_refusal() {
        let says = |status| {
            let problem = serde_json::json!({ "type": "about:blank", "code": "x", "status": status, "title": "x", "detail": "x" });
            is_refusal(&serde_json::from_value(problem).expect("a problem"))
        };
        assert!([400, 401, 403, 404, 409, 413].into_iter().all(says));
        assert!(![408, 425, 429, 500, 503].into_iter().any(says));
    }
}
