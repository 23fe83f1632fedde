//! The one thread that keeps the order: batches come back from the workers in any order and leave here in tree order.
//!
//! ```text
//! hashed (in order) -> large files' digests -> group of batches -> ask, load indexes -> decide -> encode -> place
//! ```
//!
//! A group is asked about as a whole before anything in it is decided, so that a hit late in it also serves what came before.
//! Everything that waits is a batch, and batches are as many as there are buffers; packs are at most two in flight and one
//! being filled. This thread blocks only on its inbox.

use super::batch::{Batch, Part, Slot, Unit};
use super::decide::Decisions;
use super::messages::{Command, Event, Job};
use super::place::Placing;
use crate::client::Error;
use crate::client::context::TransferError;
use crate::content::digest::Hasher;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

/// Packs in flight: while the service works on the end of one, the next one's bytes are on their way.
const IN_FLIGHT: usize = 2;
/// Zeros that holes are hashed from.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The channels around this thread.
#[derive(Debug)]
pub(super) struct Links {
    pub inbox: Receiver<Event>,
    /// Holds as many jobs as there are buffers, so sending never waits.
    pub jobs: SyncSender<Job>,
    pub commands: tokio::sync::mpsc::Sender<Command>,
    /// Holds all buffers.
    pub slots: SyncSender<Slot>,
}

/// The thread's state.
#[derive(Debug)]
pub(super) struct Order<'a> {
    links: Links,
    decisions: Decisions<'a>,
    placing: Placing<'a>,
    /// Came back before their turn.
    hashed: BTreeMap<u64, Batch>,
    next_hashed: u64,
    /// The large file that is being hashed.
    whole: Option<Hasher>,
    to_encode: VecDeque<Batch>,
    encoding: usize,
    /// One more than there are workers: all may encode while one batch waits.
    encoding_most: usize,
    /// Ready to be placed, in the order of their numbers.
    decided: BTreeMap<u64, Batch>,
    next_placed: u64,
    in_flight: usize,
    /// How many batches there are, once the walk is over.
    batches: Option<u64>,
    warnings: Vec<String>,
}

/// What an attempt leaves behind.
#[derive(Debug)]
pub(super) struct Ordered<'a> {
    pub placing: Placing<'a>,
    pub catalog: super::catalog::Catalog,
    pub warnings: Vec<String>,
}

impl<'a> Order<'a> {
    pub fn new(links: Links, decisions: Decisions<'a>, placing: Placing<'a>, workers: usize) -> Self {
        Self {
            links,
            decisions,
            placing,
            hashed: BTreeMap::new(),
            next_hashed: 0,
            whole: None,
            to_encode: VecDeque::new(),
            encoding: 0,
            encoding_most: workers + 1,
            decided: BTreeMap::new(),
            next_placed: 0,
            in_flight: 0,
            batches: None,
            warnings: Vec::new(),
        }
    }

    /// Runs until everything is placed and every pack acknowledged.
    ///
    /// An error ends the attempt at once; what is acknowledged by then stays with the upload. [`Error::Interrupted`] comes after the packs
    /// under way have arrived or their grace is over.
    pub fn run(mut self) -> Result<Ordered<'a>, TransferError> {
        loop {
            let event = self.links.inbox.recv().map_err(|_| broken("all other threads ended"))?;
            match event {
                Event::Hashed(batch) => {
                    self.hashed.insert(batch.number, batch);
                }
                Event::Encoded(batch) => {
                    self.encoding -= 1;
                    self.decided.insert(batch.number, batch);
                }
                Event::SourceEnded { batches, warnings } => {
                    self.batches = Some(batches);
                    self.warnings = warnings;
                }
                Event::Known { group, packs } => self.decisions.known(group, &packs),
                Event::Loaded { group, indexes } => self.decisions.loaded(group, &indexes),
                Event::Sent { bytes, took } => self.sent(bytes, took),
                Event::Stop => return self.stop(),
                Event::Abandoned => return Err(Error::Interrupted.into()),
                Event::Failed(error) => return Err(error),
            }
            self.advance()?;
            if self.is_done() {
                return Ok(Ordered {
                    placing: self.placing,
                    catalog: self.decisions.into_catalog(),
                    warnings: self.warnings,
                });
            }
        }
    }

    /// Moves on whatever can move.
    fn advance(&mut self) -> Result<(), TransferError> {
        while let Some(mut batch) = self.hashed.remove(&self.next_hashed) {
            self.next_hashed += 1;
            self.hash_large(&mut batch);
            self.decisions.add(batch);
        }
        if self.batches == Some(self.next_hashed) {
            self.decisions.close();
        }
        for command in self.decisions.commands() {
            self.command(command)?;
        }
        while let Some((batch, has_work)) = self.decisions.next() {
            if has_work {
                self.to_encode.push_back(batch);
            } else {
                self.decided.insert(batch.number, batch);
            }
        }
        while self.encoding < self.encoding_most
            && let Some(batch) = self.to_encode.pop_front()
        {
            self.encoding += 1;
            self.links.jobs.send(Job::Encode(batch)).map_err(|_| broken("all workers ended"))?;
        }
        self.place()
    }

    /// Places while no sealed pack waits: what is placed beyond that would be held in memory until the line is free.
    fn place(&mut self) -> Result<(), TransferError> {
        loop {
            while self.in_flight < IN_FLIGHT
                && let Some(pack) = self.placing.next_sealed()
            {
                self.in_flight += 1;
                self.command(Command::Put(pack))?;
            }
            if self.placing.is_waiting() {
                return Ok(());
            }
            let Some(batch) = self.decided.remove(&self.next_placed) else {
                if self.batches == Some(self.next_placed) && self.placing.seal_last() {
                    continue;
                }
                return Ok(());
            };
            self.next_placed += 1;
            let slot = self.placing.place(batch, self.decisions.catalog())?;
            // The source may have ended and left no one to take it.
            let _ = self.links.slots.send(slot);
        }
    }

    fn is_done(&self) -> bool {
        self.batches == Some(self.next_placed) && self.in_flight == 0 && self.placing.is_empty()
    }

    fn sent(&mut self, bytes: u64, took: Duration) {
        self.in_flight -= 1;
        self.placing.acknowledged(bytes, took);
    }

    /// No new work; packs under way may still arrive, since the courier drops them when their grace is over.
    fn stop(mut self) -> Result<Ordered<'a>, TransferError> {
        while self.in_flight > 0 {
            match self.links.inbox.recv() {
                Ok(Event::Sent { .. }) => self.in_flight -= 1,
                Ok(Event::Failed(_) | Event::Abandoned) | Err(_) => break,
                Ok(_) => {}
            }
        }
        Err(Error::Interrupted.into())
    }

    fn command(&self, command: Command) -> Result<(), TransferError> {
        self.links.commands.blocking_send(command).map_err(|_| broken("the courier ended"))
    }

    /// Hashes large files as wholes, in order.
    /// At most one large file is under way: units of two never mix.
    fn hash_large(&mut self, batch: &mut Batch) {
        for unit in &mut batch.units {
            match unit {
                Unit::LargeStart(_) => self.whole = Some(Hasher::new()),
                Unit::LargeDropped => self.whole = None,
                Unit::LargeEnd { digest, .. } => *digest = self.whole.take().map(|whole| whole.finalize()),
                Unit::LargeParts { parts, .. } => {
                    if let Some(whole) = &mut self.whole {
                        hash_parts(whole, parts, &batch.slot);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Runs of chunks that lie side by side are hashed in one go, which is faster than chunk by chunk.
fn hash_parts(whole: &mut Hasher, parts: &[Part], slot: &Slot) {
    let mut run = 0..0;
    for part in parts {
        match part {
            Part::Chunk(chunk) => {
                let (start, end) = (chunk.start as usize, chunk.start as usize + chunk.len as usize);
                if start == run.end {
                    run.end = end;
                } else {
                    whole.update(&slot[run]);
                    run = start..end;
                }
            }
            Part::Hole(len) => {
                whole.update(&slot[std::mem::take(&mut run)]);
                let mut left = *len;
                while left > 0 {
                    let now = left.min(ZEROS.len() as u64);
                    whole.update(&ZEROS[..usize::try_from(now).expect("at most the zeros' length")]);
                    left -= now;
                }
            }
        }
    }
    whole.update(&slot[run]);
}

fn broken(what: &'static str) -> TransferError {
    TransferError::Broken { what }
}
