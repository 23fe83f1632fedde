//! One attempt of a push: the threads, the channels between them, and how they end.
//!
//! ```text
//! source --> jobs --> workers --> inbox --> order --> commands --> courier (async) --> service
//!    ^                   ^                   |  |                      |
//!    |                   +------ encode -----+  |                      |
//!    +--------------- buffers ------------------+        inbox <-------+
//! ```
//!
//! Threads are scoped: when this function returns, none is left. A thread that panics tells the ordering thread on its way
//! down, so that nothing waits for it for ever.
//!
//! No circle of waits: the ordering thread waits for its inbox only, and every other channel that it sends to has room for all that can be
//! under way; so buffers always come back, and the source, which waits for them, always goes on.

use super::PushOptions;
use super::batch::{MARGIN, REGION, Slot};
use super::catalog::Catalog;
use super::courier::{self, Destination};
use super::decide::Decisions;
use super::feed::Feed;
use super::messages::{Command, Event, Job};
use super::order::{Links, Order, Ordered};
use super::pack::Shape;
use super::parent::{Cursor, Parent};
use super::place::Placing;
use super::record::Record;
use super::source::Source;
use super::worker::{self, Crcs};
use crate::client::context::TransferError;
use crate::client::progress::Meter;
use crate::client::walk::Walk;
use crate::client::{Context, stat_cache};
use crate::content::codec::Encoder;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use tokio_util::sync::CancellationToken;

/// Events that are not batches and can be under way at once.
const SPARE: usize = 256;

/// What one attempt works on.
#[derive(Debug)]
pub(super) struct Attempt {
    pub options: Arc<PushOptions>,
    pub walk: Walk,
    pub cache: stat_cache::Reader,
    pub parent: Option<Arc<Parent>>,
    pub catalog: Catalog,
    pub record: Record,
    pub max_pack_bytes: u64,
    pub meter: Arc<Meter>,
}

/// What one attempt leaves behind.
#[derive(Debug)]
pub(super) struct Outcome {
    pub record: Record,
    pub sums: super::place::Sums,
    pub catalog: Catalog,
    pub warnings: Vec<String>,
}

/// Runs an attempt to its end. Dropping the future stops it.
pub(super) async fn run(context: &Context, to: &Destination, attempt: Attempt) -> Result<Outcome, TransferError> {
    let slots = slots(attempt.options.memory);
    let (inbox_in, inbox) = sync_channel(2 * slots + SPARE);
    let (commands, commands_out) = tokio::sync::mpsc::channel(64);
    let cancel = context.cancel.child_token();
    // Dropped with this future, so that the threads stop when nobody waits for them.
    let guard = cancel.clone().drop_guard();
    let abandon = Abandon(inbox_in.clone());
    let ends = Ends { inbox_in: inbox_in.clone(), inbox, commands, cancel, slots };
    let threads = tokio::task::spawn_blocking(move || threads(attempt, ends));
    let courier = courier::run(context, to, commands_out, inbox_in);
    tokio::pin!(threads);
    let outcome = tokio::select! {
        outcome = &mut threads => outcome,
        () = courier => threads.await,
    };
    drop((guard, abandon));
    outcome.unwrap_or(Err(TransferError::Broken { what: "the ordering thread" }))
}

/// Tells the ordering thread when the future that waits for it is dropped: the courier is gone with it, and no answer comes.
struct Abandon(SyncSender<Event>);

impl Drop for Abandon {
    fn drop(&mut self) {
        let _ = self.0.try_send(Event::Abandoned);
    }
}

/// Buffers under way: a sixth of the memory, and what the pipeline needs to move.
fn slots(memory: u64) -> usize {
    let one = (MARGIN + REGION) as u64;
    usize::try_from(memory / 6 / one).unwrap_or(usize::MAX).clamp(8, 12)
}

/// Ends of the channels, for the threads.
struct Ends {
    inbox_in: SyncSender<Event>,
    inbox: Receiver<Event>,
    commands: tokio::sync::mpsc::Sender<Command>,
    cancel: CancellationToken,
    slots: usize,
}

fn threads(attempt: Attempt, ends: Ends) -> Result<Outcome, TransferError> {
    let Attempt { walk, cache, parent, catalog, record, max_pack_bytes, meter, options } = attempt;
    let workers = thread::available_parallelism().map_or(2, usize::from).min(16);
    let (slots_in, slots_out) = sync_channel(ends.slots);
    for _ in 0..ends.slots {
        let _ = slots_in.send(Slot::new(MARGIN + REGION));
    }
    let (jobs, jobs_out) = sync_channel(2 * ends.slots);
    let jobs_out = Mutex::new(jobs_out);
    let feed = Feed::new(slots_out, jobs.clone(), ends.cancel.clone());
    let cursor = parent.as_ref().map_or_else(Cursor::none, |parent| parent.cursor(&catalog));
    let shape = Shape::new(options.memory, max_pack_bytes);
    let crcs = if parent.is_some() { Crcs::WhenNew } else { Crcs::AtOnce };
    thread::scope(|scope| {
        // Until all threads ended, whichever way this function is left.
        let _stop = ends.cancel.clone().drop_guard();
        let source = Source { walk, cache, parent: cursor, feed };
        let inbox = ends.inbox_in.clone();
        scope.spawn(move || {
            let guard = Guard::new(&inbox, "the walk");
            // Cancelled: the ordering thread knows, or is the one that left.
            if let Ok((batches, warnings)) = source.run() {
                let _ = inbox.send(Event::SourceEnded { batches, warnings });
            }
            guard.done();
        });
        for _ in 0..workers {
            let (inbox, jobs_out) = (ends.inbox_in.clone(), &jobs_out);
            scope.spawn(move || work(jobs_out, &inbox, crcs));
        }
        drop(ends.inbox_in);
        let links = Links { inbox: ends.inbox, jobs, commands: ends.commands, slots: slots_in };
        let placing = Placing::new(record, &meter, parent.as_deref(), shape);
        let decisions = Decisions::new(catalog, parent.as_deref());
        let Ordered { placing, catalog, warnings } = Order::new(links, decisions, placing, workers).run()?;
        Ok(Outcome { sums: placing.sums, record: placing.record, catalog, warnings })
    })
}

fn work(jobs: &Mutex<Receiver<Job>>, inbox: &SyncSender<Event>, crcs: Crcs) {
    let guard = Guard::new(inbox, "a worker");
    let mut encoder = Encoder::new();
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let event = match job {
            Ok(Job::Hash(mut batch)) => {
                worker::hash(&mut batch, crcs);
                Event::Hashed(batch)
            }
            Ok(Job::Encode(mut batch)) => {
                worker::encode(&mut batch, &mut encoder);
                Event::Encoded(batch)
            }
            Err(_) => break,
        };
        if inbox.send(event).is_err() {
            break;
        }
    }
    guard.done();
}

/// Tells the ordering thread when a thread dies.
struct Guard<'a> {
    inbox: &'a SyncSender<Event>,
    what: &'static str,
    done: bool,
}

impl<'a> Guard<'a> {
    fn new(inbox: &'a SyncSender<Event>, what: &'static str) -> Self {
        Self { inbox, what, done: false }
    }

    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.done {
            let _ = self.inbox.try_send(Event::Failed(TransferError::Broken { what: self.what }));
        }
    }
}
