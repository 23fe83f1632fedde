//! The ordering end of a pull: windows come back from the workers in any order, large files are hashed and named in order.
//!
//! Also keeps the account: what is good, what failed, what is damaged, and the record of what was written, which must be in
//! tree order.
//!
//! One thread. Small files arrive ended; of large ones the runs are hashed here as their windows come by
//! in order, since BLAKE3 over a file needs its bytes in order. A window's buffer goes back once it was hashed, so a slow window holds
//! the later ones, and through the buffers the planner.

use super::large::{Finish, Unfinished};
use super::window::{Done, Ended, FileJob, hash_runs};
use super::write::Sink;
use crate::client::context::TransferError;
use crate::client::progress::Meter;
use crate::client::report::{Item, list};
use crate::client::stat_cache;
use crate::client::walk::{NO_SPACE, Stamp, errno_reason};
use crate::content::buffer::AlignedBuf;
use crate::content::digest::{Digest, Hasher};
use crate::content::pack::PackId;
use crate::content::path::RelPath;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

/// A file that was not written since it is good already.
#[derive(Debug)]
pub(in crate::client) struct Kept {
    pub number: u64,
    pub path: RelPath,
    pub stamp: Stamp,
    pub digest: Digest,
}

/// What arrives in the inbox.
#[derive(Debug)]
pub(in crate::client) enum Event {
    Done(Done),
    /// In tree order with the windows: comes before the window with this number.
    ///
    /// So the record, which has one order, can be put together from both.
    Kept {
        before: u64,
        kept: Vec<Kept>,
    },
    /// The plan is over.
    Planned {
        windows: u64,
    },
    /// A file that could not even be planned.
    /// It is in no window, so it may come at any time.
    Ended(Box<FileJob>, Ended),
    /// The plan ended with an error of its own, which its thread gives back: this end only stops.
    Stop,
    /// Something that concerns the whole transfer.
    Failed(TransferError),
}

/// Bytes that are not what they should be: damage at rest, or a disk that gives back others. Each is told with its file, since that
/// is what a person must push again.
#[derive(Debug, Clone)]
pub(in crate::client) struct Wrong {
    pub path: RelPath,
    pub expected: Digest,
    pub actual: Option<Digest>,
    /// The pack with the damage, where it could be found.
    pub pack: Option<PackId>,
    pub why: String,
}

/// What the pull came to. Lists are bounded, counts are not.
#[derive(Debug, Default)]
pub(in crate::client) struct Account {
    pub failed: Vec<Item>,
    pub failed_count: u64,
    pub wrong: Vec<Wrong>,
    pub wrong_count: u64,
    /// Not in place yet; none without a cache directory, or where it could not be written, which costs the next pull a reading of all files.
    pub record: Option<stat_cache::Writer>,
}

/// A file that goes over several windows.
#[derive(Debug)]
struct Open {
    hasher: Hasher,
    /// Bytes hashed, or passed over since the fault.
    hashed: u64,
    /// The first fault; the rest of the file does not matter then.
    fault: Option<Ended>,
}

/// The thread's state.
#[derive(Debug)]
pub(in crate::client) struct Finisher<'a> {
    pub sink: &'a Sink,
    /// The layout's, by which a pack's number becomes its id in the account.
    pub list: &'a [PackId],
    pub meter: &'a Meter,
    /// Gives buffers back to the planner.
    pub slots: SyncSender<AlignedBuf>,
    pub account: Account,
    /// Windows that came before their turn: fewer than there are buffers.
    waiting: BTreeMap<u64, Done>,
    kept: BTreeMap<u64, Vec<Kept>>,
    /// The window whose turn it is; all before it are closed.
    next: u64,
    /// Files that have begun and not ended, by number: as many as have a piece in the window at hand and go on.
    open: HashMap<u64, Open>,
    /// Records of the current window, by file number.
    records: Vec<Kept>,
}

impl<'a> Finisher<'a> {
    pub fn new(
        sink: &'a Sink,
        list: &'a [PackId],
        meter: &'a Meter,
        slots: SyncSender<AlignedBuf>,
        record: Option<stat_cache::Writer>,
    ) -> Self {
        Self {
            sink,
            list,
            meter,
            slots,
            account: Account { record, ..Account::default() },
            waiting: BTreeMap::new(),
            kept: BTreeMap::new(),
            next: 0,
            open: HashMap::new(),
            records: Vec::new(),
        }
    }

    /// Runs until all windows are done. Files that failed or are damaged are in the account; an error is the transfer's, with
    /// [`TransferError::NoSpace`] among them, since every further file would meet a full disk too.
    pub fn run(mut self, inbox: Receiver<Event>) -> Result<Account, TransferError> {
        let mut windows = None;
        loop {
            match inbox.recv().map_err(|_| TransferError::Broken { what: "all other threads ended" })? {
                Event::Done(done) => {
                    self.waiting.insert(done.job.number, done);
                }
                Event::Kept { before, kept } => self.kept.entry(before).or_default().extend(kept),
                Event::Planned { windows: all } => windows = Some(all),
                Event::Ended(job, end) => self.close(&job, end)?,
                Event::Stop => return Err(TransferError::Broken { what: "the plan" }),
                Event::Failed(error) => return Err(error),
            }
            while let Some(done) = self.waiting.remove(&self.next) {
                self.next += 1;
                self.window(done)?;
            }
            if windows == Some(self.next) {
                self.records(u64::MAX);
                return Ok(self.account);
            }
        }
    }

    /// In the order of the windows. A file with a fault is not hashed any further, but closed only with its last window.
    fn window(&mut self, mut done: Done) -> Result<(), TransferError> {
        let mut ended: HashMap<u64, Ended> = done.ended.drain(..).collect();
        let files: Vec<Arc<FileJob>> = done.job.files.values().cloned().collect();
        for job in files {
            let runs = done.runs.get(&job.number).map_or(&[][..], Vec::as_slice);
            let is_small = job.is_whole(runs) || (runs.is_empty() && ended.contains_key(&job.number));
            if is_small {
                if let Some(end) = ended.remove(&job.number) {
                    self.close(&job, end)?;
                }
                continue;
            }
            let fault = ended.remove(&job.number).or_else(|| {
                let damage = done.damage.get(&job.number)?;
                Some(Ended::Wrong { actual: None, pack: Some(damage.pack), why: damage.why.clone() })
            });
            let open =
                self.open.entry(job.number).or_insert_with(|| Open { hasher: Hasher::new(), hashed: 0, fault: None });
            if open.fault.is_none() {
                open.fault = fault;
            }
            if open.fault.is_none() {
                hash_runs(&mut open.hasher, runs, &done.job.slot);
            }
            open.hashed += runs.iter().map(|run| run.length).sum::<u64>();
            let completes = done.job.window.completed.contains(&job.number);
            if completes && let Some(open) = self.open.remove(&job.number) {
                let end = self.end_large(&job, open);
                self.close(&job, end)?;
            }
        }
        self.records(done.job.number);
        // The planner may have ended and left no one to take it.
        let _ = self.slots.send(done.job.slot);
        Ok(())
    }

    /// The whole-file proof: length and digest, before the file may have its name.
    fn end_large(&self, job: &FileJob, open: Open) -> Ended {
        if let Some(fault) = open.fault {
            return fault;
        }
        let actual = open.hasher.finalize();
        if open.hashed != job.size || actual != job.digest {
            let why = "its digest differs".to_owned();
            return Ended::Wrong { actual: Some(actual), pack: None, why };
        }
        let Sink::Write(_, how) = self.sink else { return Ended::Good(None) };
        self.name(job, *how)
    }

    fn name(&self, job: &FileJob, how: Finish) -> Ended {
        let file = match job.large.get() {
            Some(Ok(file)) => file,
            Some(Err(reason)) => return Ended::Failed(Item::new(job.path.as_bytes(), reason)),
            None => return Ended::Failed(Item::new(job.path.as_bytes(), "io_error")),
        };
        match file.finish(job, how) {
            Ok(stamp) => Ended::Good(Some(stamp)),
            Err(Unfinished::Io(error)) => Ended::Failed(Item::new(job.path.as_bytes(), &errno_reason(error))),
            Err(Unfinished::ReadBack(actual)) => {
                Ended::Wrong { actual: Some(actual), pack: None, why: "the disk gave back other bytes".to_owned() }
            }
        }
    }

    /// The one place where the end of a planned file is counted, so each is counted once.
    fn close(&mut self, job: &FileJob, end: Ended) -> Result<(), TransferError> {
        match end {
            Ended::Good(stamp) => {
                Meter::add(&self.meter.files, 1);
                Meter::add(&self.meter.bytes, job.size);
                if let Some(stamp) = stamp {
                    self.records.push(Kept { number: job.number, path: job.path.clone(), stamp, digest: job.digest });
                }
            }
            Ended::Failed(item) => {
                if item.reason == NO_SPACE
                    && let Sink::Write(dest, _) = self.sink
                {
                    let path = dest.path.clone();
                    let free = super::dest::free_bytes(dest).unwrap_or(0);
                    // Blocks and names take room too: a file can be smaller than what is free and still not fit.
                    return Err(TransferError::NoSpace { path, needed: job.size.max(free + 1), free });
                }
                Meter::add(&self.meter.failed, 1);
                list(&mut self.account.failed, &mut self.account.failed_count, item);
            }
            Ended::Wrong { actual, pack, why } => {
                Meter::add(&self.meter.failed, 1);
                let pack = pack.and_then(|pack| self.list.get(pack as usize).copied());
                let wrong = Wrong { path: job.path.clone(), expected: job.digest, actual, pack, why };
                list(&mut self.account.wrong, &mut self.account.wrong_count, wrong);
            }
        }
        Ok(())
    }

    /// Writes down what is good in all windows before this one.
    fn records(&mut self, before: u64) {
        let later = if before == u64::MAX { BTreeMap::new() } else { self.kept.split_off(&(before + 1)) };
        for kept in std::mem::replace(&mut self.kept, later).into_values() {
            self.records.extend(kept);
        }
        self.records.sort_unstable_by_key(|kept| kept.number);
        let Some(record) = &mut self.account.record else {
            self.records.clear();
            return;
        };
        for kept in self.records.drain(..) {
            if let Err(error) = record.add(&kept.path, &kept.stamp, &kept.digest) {
                tracing::warn!(%error, "the record of this pull cannot be written");
                self.account.record = None;
                return;
            }
        }
    }
}
