//! The agent's loop: hello, what the service wants of this node, and one task for each staging to make it so.
//!
//! The service says states, not commands. A staging on the list without a running task gets one; a task whose staging left the list is
//! stopped; a record that the list does not know is thrown away with its directory. What stands ready is looked at again from time to
//! time, so that `ready` never outlives the files.
//!
//! ```text
//! hello -> work? -> list -> on the list, no task, not standing ready   -> stage_in, two at a time
//!            ^               on the returns                            -> stage_out, a stage_in there is stopped first
//!            |               neither, recorded                         -> directories to the trash
//!            +-- a change, 30 s, or a task that ended; one that was refused rests before it ends
//! ```

use super::home::{Home, Key};
use super::report::{Progress, Voice, is_refusal};
use super::stage_in::{Ended, StageIn, stands_ready};
use super::stage_out::StageOut;
use super::{Error, Options, gpu, staged};
use crate::api::jobs::{Hello, Welcome, Work, WorkReturn, WorkStaging};
use crate::api::nodes::Inventory;
use crate::api::teams::WhoAmI;
use crate::client::api::route;
use crate::client::{Context, Error as ClientError};
use data_encoding::{BASE64, HEXLOWER};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Stagings that pull at the same time; the others wait.
///
/// Each takes `Options::memory`, and a third would only share the same line and disk.
const AT_ONCE: usize = 2;
/// How long the service may hold a long poll.
///
/// The wish is sent as `wait=30`; both must agree, or the client takes the service for silent.
const WAIT: Duration = Duration::from_secs(30);
/// How often staged files are looked at while they stand ready.
///
/// A look is a `stat` for each file. It happens when a list arrives, so at the latest one poll later.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long a task whose report was refused is held back before it ends.
///
/// Its staging is often still on the list, and would be begun again at once and refused again.
const REST: Duration = Duration::from_secs(10);
/// Pauses while the service is away double from this to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const NOT_THERE: &str = "the service is not there; trying until it is";

/// Runs until the context's token is cancelled; then everything under way stops and what it has done stays recorded.
///
/// Ends by itself only when the service refuses this node for good: an unknown token, another node's, or an unknown key.
///
/// Holds the cache directory's lock for as long as it runs.
pub async fn run(context: Context, options: Options) -> Result<(), Error> {
    let home = Arc::new(Home::open(&options.cache)?);
    let key = Arc::new(home.key()?);
    let inventory = inventory(&home, &options);
    let fresh = HEXLOWER.encode(context.ids.secret().first_chunk::<16>().expect("32 bytes"));
    let instance = home.instance(&fresh)?;
    let public_key = BASE64.encode(&key.public());
    let hello = Hello { instance: instance.clone(), public_key, inventory };
    let Some(welcome) = enter(&context, options.node.as_deref(), &hello).await? else { return Ok(()) };
    tracing::info!(node = welcome.node, cache = %home.root().display(), "agent is at work");
    let sweep = Arc::clone(&home);
    let sweeping = tokio::task::spawn_blocking(move || sweep.empty_trash());
    let mut node = Node {
        context: context.clone(),
        home,
        key,
        welcome,
        instance,
        memory: options.memory,
        slots: Arc::new(Semaphore::new(AT_ONCE)),
        tasks: JoinSet::new(),
        running: HashMap::new(),
        looked: HashMap::new(),
    };
    let ended = node.work().await;
    node.stop().await;
    let _ = sweeping.await;
    ended
}

fn inventory(home: &Home, options: &Options) -> Inventory {
    let found = gpu::inventory(options.nvml.as_deref());
    match &found.note {
        Some(note) => tracing::info!(gpus = found.gpus.len(), note, "GPUs of this node"),
        None => tracing::info!(gpus = found.gpus.len(), "GPUs of this node"),
    }
    Inventory {
        free_bytes: home.free_bytes(),
        gpus: found.gpus,
        gpu_note: found.note,
        driver: found.driver,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Takes this node's place at the service. `None` when the agent was stopped meanwhile.
///
/// Whose token it is comes first: a hello enrols this directory's key for the token's node, which must not be another one.
async fn enter(context: &Context, wanted: Option<&str>, hello: &Hello) -> Result<Option<Welcome>, Error> {
    let mut absence = Absence::default();
    if let Some(wanted) = wanted {
        let path = route(&["v1", "whoami"], &[]);
        let who: Option<WhoAmI> = until_heard(context, &mut absence, async || context.api.get(&path).await).await?;
        let Some(who) = who else { return Ok(None) };
        if let Some(actual) = who.node.filter(|actual| actual != wanted) {
            return Err(Error::WrongNode { wanted: wanted.to_owned(), actual });
        }
    }
    let path = route(&["v1", "agent", "hello"], &[]);
    until_heard(context, &mut absence, async || context.api.post(&path, hello).await).await
}

/// Asks until it is answered. `None` when the agent was stopped meanwhile.
///
/// A refusal ends it, since asking again would be refused again; all else is waited for.
async fn until_heard<T>(
    context: &Context,
    absence: &mut Absence,
    ask: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<Option<T>, Error> {
    let mut pause = FIRST_PAUSE;
    loop {
        match ask().await {
            Ok(answer) => {
                absence.back();
                return Ok(Some(answer));
            }
            Err(ClientError::Interrupted) => return Ok(None),
            // Another process spoke for this node a moment ago: perhaps this one's predecessor. Its place is free after a minute.
            Err(error) if error.is("node_in_use") => absence.away("waiting for the node's place", &error),
            Err(error) if is_final(&error) => return Err(error.into()),
            Err(error) => absence.away(NOT_THERE, &error),
        }
        tokio::select! {
            () = context.cancel.cancelled() => return Ok(None),
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
}

/// A service that is away is told once, and once when it is back, however often it was asked meanwhile.
#[derive(Debug, Default)]
struct Absence(Option<&'static str>);

impl Absence {
    fn away(&mut self, what: &'static str, error: &ClientError) {
        if self.0.replace(what) != Some(what) {
            tracing::warn!(%error, "{what}");
        }
    }

    fn back(&mut self) {
        if self.0.take().is_some() {
            tracing::info!("the service answers again");
        }
    }
}

/// A refusal, or a URL or setting that no waiting mends.
fn is_final(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(problem) => is_refusal(problem),
        ClientError::BadUrl { .. } | ClientError::Setup(_) => true,
        _ => false,
    }
}

/// A task under way for a staging.
#[derive(Debug)]
struct Running {
    kind: Kind,
    cancel: CancellationToken,
    /// Only asked whether the task is over, after one that panicked and so gave no id back.
    abort: AbortHandle,
}

/// A staging has one task: stage-out begins once its stage-in has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    In,
    Out,
}

/// Owned by one loop: no lock, and no task knows of another.
#[derive(Debug)]
struct Node {
    context: Context,
    home: Arc<Home>,
    key: Arc<Key>,
    welcome: Welcome,
    /// As the hello said it; every report carries it.
    instance: String,
    memory: u64,
    /// Of stage-ins. A return never waits for one: its node is wanted back.
    slots: Arc<Semaphore>,
    /// Gives back the staging's id.
    tasks: JoinSet<(String, Ended)>,
    /// By staging. An entry goes when its task has ended, not when it is told to.
    running: HashMap<String, Running>,
    /// When what stands ready was looked at last.
    looked: HashMap<String, Instant>,
}

impl Node {
    /// A task that ends interrupts the poll: the list is asked for anew with nothing seen, which is answered at once.
    async fn work(&mut self) -> Result<(), Error> {
        let (mut seen, mut pause, mut absence) = (String::new(), FIRST_PAUSE, Absence::default());
        loop {
            let path = route(&["v1", "agent", "work"], &[("wait", "30"), ("seen", &seen)]);
            let api = self.context.api.clone();
            let answer = tokio::select! {
                () = self.context.cancel.cancelled() => return Ok(()),
                answer = api.get_waiting::<Work>(&path, WAIT) => answer,
                // A task that ended may leave room for the next, or a list that must be read again.
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.ended(done);
                    seen.clear();
                    continue;
                }
            };
            match answer {
                Ok(work) => {
                    pause = FIRST_PAUSE;
                    absence.back();
                    seen.clone_from(&work.seq);
                    self.reconcile(work).await;
                }
                Err(ClientError::Interrupted) => return Ok(()),
                Err(error) if is_final(&error) => return Err(error.into()),
                Err(error) => {
                    absence.away(NOT_THERE, &error);
                    tokio::select! {
                        () = self.context.cancel.cancelled() => return Ok(()),
                        () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                    }
                }
            }
        }
    }

    /// Waits for every task to come to its next safe point. Nothing is reported: the service sees an agent that is silent.
    async fn stop(&mut self) {
        for running in self.running.values() {
            running.cancel.cancel();
        }
        while let Some(done) = self.tasks.join_next().await {
            self.ended(done);
        }
    }

    /// Bookkeeping only. What follows is decided by the next list.
    fn ended(&mut self, done: Result<(String, Ended), tokio::task::JoinError>) {
        match done {
            Ok((staging, ended)) => {
                self.running.remove(&staging);
                if ended == Ended::Ready {
                    self.looked.insert(staging, Instant::now());
                }
            }
            Err(error) => {
                tracing::error!(%error, "a staging's task broke");
                self.running.retain(|_, running| !running.abort.is_finished());
            }
        }
    }

    /// Idempotent: the same list twice starts nothing twice. Tasks are told to stop first, and their directories are
    /// touched only after they have ended.
    async fn reconcile(&mut self, work: Work) {
        let wanted: HashSet<&str> = work
            .stagings
            .iter()
            .map(|item| item.staging.id.as_str())
            .chain(work.returns.iter().map(|item| item.staging.id.as_str()))
            .collect();
        for (staging, running) in &self.running {
            let is_return = work.returns.iter().any(|item| item.staging.id == *staging);
            if !wanted.contains(staging.as_str()) || (is_return && running.kind == Kind::In) {
                running.cancel.cancel();
            }
        }
        self.throw_away_unknown(&wanted);
        for item in work.stagings {
            self.stage_in(item).await;
        }
        for item in work.returns {
            self.stage_out(item);
        }
        self.looked.retain(|staging, _| self.home.record(staging).is_some());
    }

    /// What the service does not name and no task holds. Deleting is left to the blocking pool, since it may take long.
    fn throw_away_unknown(&self, wanted: &HashSet<&str>) {
        let mut thrown = false;
        for record in self.home.records() {
            if wanted.contains(record.staging.as_str()) || self.running.contains_key(&record.staging) {
                continue;
            }
            tracing::info!(staging = record.staging, "no longer wanted: its directory goes");
            match self.home.forget(&record, &self.context.ids.uuid().to_string()) {
                Ok(()) => thrown = true,
                Err(error) => {
                    let why = super::chain(&error);
                    tracing::error!(staging = record.staging, why, "a directory cannot be taken away; it stays");
                }
            }
        }
        if thrown {
            let home = Arc::clone(&self.home);
            drop(tokio::task::spawn_blocking(move || home.empty_trash()));
        }
    }

    /// A client that ends with the task's token, so that a task which was told to stop does not wait for a service that is
    /// away.
    fn voice(&self, staging: &str, job: &str, epoch: u64, cancel: &CancellationToken) -> Arc<Voice> {
        let context = Context {
            api: self.context.api.cancelled_by(cancel.clone()),
            cancel: cancel.clone(),
            ..self.context.clone()
        };
        Arc::new(Voice {
            context,
            staging: staging.to_owned(),
            job: job.to_owned(),
            epoch,
            instance: self.instance.clone(),
            progress: Progress::default(),
        })
    }

    /// Waits for a slot inside the task, so that one which is cancelled while it waits does no work.
    async fn stage_in(&mut self, item: WorkStaging) {
        let id = item.staging.id.clone();
        if self.running.contains_key(&id) {
            return;
        }
        let record = self.home.record(&id);
        if stands_ready(&item.staging, record.as_ref()) && !self.is_lost(&item).await {
            return;
        }
        let cancel = self.context.cancel.child_token();
        let voice = self.voice(&id, &item.job.id, item.lease.epoch, &cancel);
        let task = StageIn {
            home: Arc::clone(&self.home),
            key: Arc::clone(&self.key),
            voice,
            work: item,
            team: self.welcome.team.clone(),
            node: self.welcome.node.clone(),
            memory: self.memory,
        };
        let (slots, stop, name) = (Arc::clone(&self.slots), cancel.clone(), id.clone());
        let abort = self.tasks.spawn(async move {
            let slot = tokio::select! {
                () = stop.cancelled() => None,
                slot = slots.acquire_owned() => slot.ok(),
            };
            let ended = match slot {
                Some(_slot) => Box::pin(task.run()).await,
                None => Ended::Dropped,
            };
            rest(ended, &stop).await;
            (name, ended)
        });
        self.running.insert(id, Running { kind: Kind::In, cancel, abort });
    }

    /// Looks at what stands ready, at most every [`LOOK_EVERY`]. Facts that cannot be read count as lost; a look that broke
    /// does not.
    async fn is_lost(&mut self, item: &WorkStaging) -> bool {
        let id = &item.staging.id;
        if self.looked.get(id).is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return false;
        }
        let (dir, facts) = (self.home.job_dir(&item.job.id, item.lease.epoch), self.home.facts(id));
        let seen = tokio::task::spawn_blocking(move || staged::look(&dir, &facts)).await;
        self.looked.insert(id.clone(), Instant::now());
        match seen {
            Ok(Ok(staged::Look::Same | staged::Look::Touched)) => false,
            Ok(Ok(staged::Look::Lost)) => true,
            Ok(Err(error)) => {
                tracing::warn!(staging = id, %error, "cannot look at staged files");
                true
            }
            Err(error) => {
                tracing::error!(%error, "looking at staged files broke");
                false
            }
        }
    }

    /// Nothing while another task of the staging runs: its end brings the next list.
    fn stage_out(&mut self, item: WorkReturn) {
        let id = item.staging.id.clone();
        if self.running.contains_key(&id) {
            return;
        }
        let cancel = self.context.cancel.child_token();
        let voice = self.voice(&id, &item.job.id, item.lease.epoch, &cancel);
        let task = StageOut { home: Arc::clone(&self.home), voice, work: item, memory: self.memory };
        let (stop, name) = (cancel.clone(), id.clone());
        let abort = self.tasks.spawn(async move {
            let ended = Box::pin(task.run()).await;
            rest(ended, &stop).await;
            (name, ended)
        });
        self.running.insert(id, Running { kind: Kind::Out, cancel, abort });
    }
}

/// Holds a task that was refused back for [`REST`], without a slot, or until it is told to stop: then its staging has left
/// the list or is to be returned, and nothing should wait for it.
async fn rest(ended: Ended, stop: &CancellationToken) {
    if ended == Ended::Refused {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(REST) => {}
        }
    }
}
