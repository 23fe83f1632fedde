//! Work between requests: reconcilers that run by period and by signal.
//!
//! A task takes no input and reads its work from the database, so one code path serves a signal, a period and a restart, and
//! it may run in several replicas at once (work is claimed by row locks). A task that fails or panics is logged and runs
//! again. Tasks are owned here and end with the service.
//!
//! ```text
//! run -> ok     -> sleep `every`, or until `topic` is notified -> run
//!     -> failed -> sleep 0.5 s, 1 s, 2 s ... at most `every`   -> run     (signals are not heard)
//! ```
//!
//! What a task must hold to: idempotent, safe beside itself in another replica, bounded in what one run holds, and at ease
//! with being dropped at any await.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Error, Listener, Woken};

type Run = Box<dyn Fn(Arc<App>) -> BoxFuture<'static, Result<(), Error>> + Send + Sync>;

/// One reconciler.
///
/// Named in the log by `name`, which no two tasks should share.
pub struct Task {
    pub name: &'static str,
    /// Longest time between two runs that went well, but for a tenth of jitter.
    every: Duration,
    /// A wake-up may be lost: the period makes up for it.
    topic: Option<&'static str>,
    run: Run,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({}, every {:?})", self.name, self.every)
    }
}

impl Task {
    /// Runs at the start and then `every` so often.
    pub fn new<F>(name: &'static str, every: Duration, run: impl Fn(Arc<App>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        Self { name, every, topic: None, run: Box::new(move |app| run(app).boxed()) }
    }

    /// Runs also when `topic` is notified by a transaction.
    #[must_use]
    pub fn woken_by(mut self, topic: &'static str) -> Self {
        self.topic = Some(topic);
        self
    }

    /// One run, for tests and for the loop.
    ///
    /// A panic is an error here, so that one bad row does not end the task for good.
    pub async fn run(&self, app: &Arc<App>) -> Result<(), Error> {
        let run = AssertUnwindSafe((self.run)(app.clone())).catch_unwind();
        run.await.unwrap_or_else(|_| Err(Error::internal(format!("task `{}` panicked", self.name))))
    }

    /// Ends only when told to stop; the run at hand is dropped then.
    async fn keep_running(self, app: Arc<App>, stop: CancellationToken) {
        let mut failures: u32 = 0;
        while !stop.is_cancelled() {
            // listening begins before the run: what is committed meanwhile is a reason to run again
            let mut ear = app.db.wakeups().listen(self.topic.unwrap_or(self.name));
            let outcome = tokio::select! {
                outcome = self.run(&app) => outcome,
                () = stop.cancelled() => return,
            };
            failures = if outcome.is_err() { failures.saturating_add(1) } else { 0 };
            if let Err(error) = outcome {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(task = self.name, failures, source, "{error}");
            }
            // a failing task is not driven by signals, or it would spin
            let pause = if failures == 0 { self.every } else { back_off(self.every, failures) };
            let deadline = Instant::now() + jittered(pause, &app);
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => {}
                () = heard(&mut ear, deadline), if failures == 0 && self.topic.is_some() => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

/// Ends with a wake-up (or a listener's poll behind it). Never ends because the deadline is over or waits are closed.
async fn heard(ear: &mut Listener, deadline: Instant) {
    if ear.wait(deadline).await == Woken::TimeIsUp {
        std::future::pending().await
    }
}

/// Doubles from half a second; no longer than the period, or a second where the period is shorter.
fn back_off(every: Duration, failures: u32) -> Duration {
    let pause = Duration::from_millis(250).saturating_mul(1 << failures.min(8));
    pause.min(every.max(Duration::from_secs(1)))
}

/// Within a tenth, so that replicas do not move in step.
fn jittered(period: Duration, app: &App) -> Duration {
    let random = u32::from(app.ids.secret()[0]);
    period + period / 10 * random / 255
}

/// Runs all tasks of a service until it stops.
#[derive(Debug)]
pub struct Background {
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Background {
    /// Also carries wake-ups between replicas (PostgreSQL), which is to be done once for each [`App`].
    pub fn start(app: &Arc<App>, tasks: Vec<Task>) -> Self {
        let mut background = Self { tasks: JoinSet::new(), stop: CancellationToken::new() };
        let (carrier, stop) = (app.clone(), background.stop.clone());
        background.tasks.spawn(async move {
            tokio::select! {
                () = carrier.db.carry_wakeups() => {}
                () = stop.cancelled() => {}
            }
        });
        for task in tasks {
            background.tasks.spawn(task.keep_running(app.clone(), background.stop.clone()));
        }
        background
    }

    /// Lets every task go at its next await and waits until all are gone. Transactions in flight are rolled back.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}
