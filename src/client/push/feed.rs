//! Filling batches and handing them out: the source's way into the pipeline.
//!
//! Blocks when all buffers are under way. A batch is handed out when its slot, its list of entries or its share of open directories
//! is full.
//!
//! One thread feeds. Batches are numbered in the order in which they are begun, which is tree order.

use super::batch::{Batch, FileFacts, MARGIN, MAX_DIRS, MAX_UNITS, REGION, Slot, SmallFile, Unit};
use super::messages::Job;
use crate::client::walk::Found;
use crate::content::buffer::PAGE;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use tokio_util::sync::CancellationToken;

/// Ends the source early: the other side is gone, or the caller has cancelled. Says nothing more, since whoever stopped it knows why.
#[derive(Debug)]
pub(super) struct Stop;

/// Where batches go and buffers come from.
#[derive(Debug)]
pub(super) struct Feed {
    pub slots: Receiver<Slot>,
    pub out: SyncSender<Job>,
    pub cancel: CancellationToken,
    next: u64,
    open: Option<Open>,
}

/// The batch being filled.
#[derive(Debug)]
struct Open {
    batch: Batch,
    /// Where the next small file may begin in the slot.
    free: usize,
    dirs: usize,
    last_dir: Option<Arc<OwnedFd>>,
}

impl Feed {
    pub fn new(slots: Receiver<Slot>, out: SyncSender<Job>, cancel: CancellationToken) -> Self {
        Self { slots, out, cancel, next: 0, open: None }
    }

    /// Batches handed out so far.
    pub fn batches(&self) -> u64 {
        self.next
    }

    /// Waits for a buffer: what bounds the push's memory, and ties its reading to the network.
    fn slot(&self) -> Result<Slot, Stop> {
        if self.cancel.is_cancelled() {
            return Err(Stop);
        }
        self.slots.recv().map_err(|_| Stop)
    }

    fn open(&mut self) -> Result<&mut Open, Stop> {
        if self.open.is_none() {
            let batch =
                Batch { number: self.next, slot: self.slot()?, units: Vec::new(), bytes: 0, frames: Vec::new() };
            self.next += 1;
            self.open = Some(Open { batch, free: 0, dirs: 0, last_dir: None });
        }
        self.open.as_mut().ok_or(Stop)
    }

    /// Hands out what is open; nothing where nothing is.
    pub fn flush(&mut self) -> Result<(), Stop> {
        match self.open.take() {
            Some(open) => self.out.send(Job::Hash(open.batch)).map_err(|_| Stop),
            None => Ok(()),
        }
    }

    /// Adds an entry that needs no bytes of the slot. May hand the batch out.
    pub fn unit(&mut self, unit: Unit) -> Result<(), Stop> {
        let open = self.open()?;
        open.batch.units.push(unit);
        if open.batch.units.len() >= MAX_UNITS { self.flush() } else { Ok(()) }
    }

    /// Adds a small file, in a new batch where it does not fit into this one. Only room is set aside: a worker reads it.
    pub fn small(&mut self, facts: FileFacts, found: Found) -> Result<(), Stop> {
        let room = usize::try_from(facts.stamp.size).expect("a small file") + 1;
        let open = self.open()?;
        let begin = align(open.free, room);
        let new_dir = !open.last_dir.as_ref().is_some_and(|dir| Arc::ptr_eq(dir, &found.place.dir));
        if begin + room > MARGIN + REGION || open.dirs + usize::from(new_dir) > MAX_DIRS {
            self.flush()?;
            return self.small(facts, found);
        }
        open.free = begin + room;
        open.dirs += usize::from(new_dir);
        open.last_dir = Some(Arc::clone(&found.place.dir));
        let file = SmallFile {
            facts,
            place: found.place,
            start: u32::try_from(begin).expect("a slot is smaller than 4 GiB"),
            parts: Vec::new(),
            outcome: Err(String::new()),
        };
        self.unit(Unit::Small(Box::new(file)))
    }

    /// A batch of its own for the next bytes of a large file, after what is open: the slot to fill.
    pub fn region(&mut self) -> Result<Batch, Stop> {
        let keep = self.open.as_ref().is_some_and(|open| open.free == 0);
        if !keep {
            self.flush()?;
        }
        self.open()?;
        self.open.take().map(|open| open.batch).ok_or(Stop)
    }

    /// Hands out a batch that [`region`](Self::region) gave.
    pub fn send(&mut self, batch: Batch) -> Result<(), Stop> {
        if self.cancel.is_cancelled() {
            return Err(Stop);
        }
        self.out.send(Job::Hash(batch)).map_err(|_| Stop)
    }
}

/// Larger files begin at pages, since reads to there are cheaper; small ones lie close, so that few pages are touched.
fn align(free: usize, room: usize) -> usize {
    if room >= 4 * PAGE { free.next_multiple_of(PAGE) } else { free.next_multiple_of(64) }
}
