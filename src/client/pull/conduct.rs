//! The planning thread of a pull: goes through the selected entries in tree order, makes directories, links and empty files,
//! keeps what is good already, and turns the rest into windows for the reads.
//!
//! Blocks when all buffers are under way. Holds a bounded number of pack indexes, the files of the windows under way, and
//! nothing that grows with the tree: what must wait until the end (directory modes and times, hard links) is spooled.
//!
//! The one thread that makes directories and looks into packs, so neither needs a lock. An entry is made or kept here, goes into a window,
//! is told as failed or damaged, or is put off to [`Later`].

use super::LocalFiles;
use super::dest::{Dest, Dirs, Missing, in_the_way, local, look, mode, timestamps};
use super::file::{FileFacts, may_resume};
use super::finish::{Event, Kept};
use super::large::{Finish, PRIVATE, create};
use super::reads::is_pack_fault;
use super::resume::take_over;
use super::scan::{Decision, Decisions, link_digest};
use super::settle::Later;
use super::window::{Ended, FileJob, Job};
use super::write::Sink;
use crate::client::context::TransferError;
use crate::client::fetch::Packs;
use crate::client::progress::Meter;
use crate::client::report::{Item, Listed};
use crate::client::walk::{Stamp, errno_reason};
use crate::content::buffer::AlignedBuf;
use crate::content::layout::{FileLayout, Line};
use crate::content::merge::Pair;
use crate::content::pack::PackIndex;
use crate::content::path::{RelPath, symlink_escapes};
use crate::content::plan::{Limits, Planner, Step, Window};
use crate::content::tree::{Entry, Kind, Time};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, OnceLock};
use tokio_util::sync::CancellationToken;

/// Chunks in all indexes held, about 56 bytes each.
const MAX_INDEXED: usize = 200_000;
/// Segments of a file whose packs are looked at before it is planned.
const LOOK_AHEAD: usize = 64;
/// Kept files are told in runs of at most this many.
const KEPT_RUN: usize = 1_000;

/// What the planning thread works with.
#[derive(Debug)]
pub(in crate::client) struct Conductor {
    pub sink: Sink,
    pub packs: Arc<Packs>,
    pub runtime: tokio::runtime::Handle,
    /// Looked at after every entry.
    pub cancel: CancellationToken,
    pub meter: Arc<Meter>,
    pub local: Option<Arc<dyn LocalFiles>>,
    /// Ids of earlier pulls that did not end, one a line.
    pub earlier: Option<String>,
    pub limits: Limits,
    /// Comes back from the finisher; waiting here is what bounds the windows under way.
    pub slots: Receiver<AlignedBuf>,
    pub windows: tokio::sync::mpsc::Sender<Job>,
    pub inbox: SyncSender<Event>,
    pub reference: String,
}

/// What it comes to.
#[derive(Debug, Default)]
pub(in crate::client) struct Conducted {
    pub files: u64,
    pub dirs: u64,
    pub symlinks: u64,
    pub bytes: u64,
    /// Of files kept as they were at DEST.
    pub reused_bytes: u64,
    pub local_bytes: u64,
    pub outside_links: u64,
    pub windows: u64,
    /// Entries that could not be made, besides the files that failed.
    pub failed: Listed,
}

/// The thread's state.
struct State<'a> {
    with: &'a Conductor,
    planner: Planner,
    indexes: HashMap<u32, Arc<PackIndex>>,
    recent: VecDeque<u32>,
    /// Chunks in `indexes`; the pack that came first goes first.
    indexed: usize,
    /// Files that are fed and not yet completed by a window.
    pending: BTreeMap<u64, Arc<FileJob>>,
    /// To be told before the next window, so that the record stays in tree order.
    kept: Vec<Kept>,
    /// Packs whose indexes cannot be had, and why.
    /// They are not asked for again.
    bad: HashMap<u32, String>,
    /// None where nothing is written.
    dirs: Option<Dirs>,
    later: &'a mut Later,
    sums: Conducted,
}

impl Conductor {
    /// Goes through all entries. `decisions` says what is there already, entry by entry: both must be of the same selection.
    ///
    /// An error ends the whole transfer. What concerns one entry is in the answer, or told to the finisher.
    pub fn run(
        &self,
        pairs: impl Iterator<Item = Result<Pair, crate::content::merge::Error>>,
        mut decisions: Decisions,
        later: &mut Later,
    ) -> Result<Conducted, TransferError> {
        let dirs = match &self.sink {
            Sink::Write(dest, _) => Some(Dirs::new(Arc::clone(dest))),
            Sink::Prove => None,
        };
        let mut state = State {
            with: self,
            planner: Planner::new(self.limits),
            indexes: HashMap::new(),
            recent: VecDeque::new(),
            indexed: 0,
            pending: BTreeMap::new(),
            kept: Vec::new(),
            bad: HashMap::new(),
            dirs,
            later,
            sums: Conducted::default(),
        };
        for (number, pair) in (0..).zip(pairs) {
            let (entry, line) = pair.map_err(|error| self.damaged(&error.to_string()))?;
            let decision = decisions.next()?;
            state.entry(number, entry, line, decision)?;
            if self.cancel.is_cancelled() {
                return Err(crate::client::Error::Interrupted.into());
            }
        }
        state.planner.close();
        state.plan()?;
        state.tell_kept()?;
        self.send(Event::Planned { windows: state.sums.windows })?;
        Ok(state.sums)
    }

    fn damaged(&self, why: &str) -> TransferError {
        TransferError::BadVersion { reference: self.reference.clone(), what: "tree or layout", why: why.to_owned() }
    }

    fn send(&self, event: Event) -> Result<(), TransferError> {
        self.inbox.send(event).map_err(|_| gone())
    }
}

impl State<'_> {
    fn entry(
        &mut self,
        number: u64,
        entry: Entry,
        line: Option<Line>,
        decision: Decision,
    ) -> Result<(), TransferError> {
        match entry.kind {
            Kind::Dir { mode } => {
                self.sums.dirs += 1;
                self.directory(&entry.path, mode, line)
            }
            Kind::Symlink { mtime, target } => {
                self.sums.symlinks += 1;
                self.sums.outside_links += u64::from(symlink_escapes(&entry.path, &target));
                self.symlink(number, &entry.path, mtime, &target, decision)
            }
            Kind::File { hardlink: Some(first), digest, .. } => {
                self.sums.files += 1;
                Meter::add(&self.with.meter.files, 1);
                self.later.hard_link(&entry.path, &first, &digest)
            }
            Kind::File { size, mode, mtime, digest, hardlink: None } => {
                self.sums.files += 1;
                self.sums.bytes += size;
                let layout = match line {
                    Some(Line::File(layout)) => Arc::new(layout),
                    _ => Arc::new(no_layout(digest)),
                };
                let facts = FileFacts { number, path: entry.path, size, mode, mtime, digest, layout };
                self.file(FileJob { facts, large: OnceLock::new() }, decision)
            }
        }
    }

    /// Made with mode 0700 for now, whatever the tree says: what is below is still to be written. A file in its place ends the pull.
    fn directory(&mut self, path: &RelPath, mode: u32, line: Option<Line>) -> Result<(), TransferError> {
        let (Sink::Write(dest, how), Some(dirs)) = (&self.with.sink, &mut self.dirs) else { return Ok(()) };
        match dirs.dir(path.as_bytes(), Missing::Make) {
            Ok(_) => {}
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(in_the_way(path, "a directory belongs there, and something else is"));
            }
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(no_space(dest)),
            Err(error @ (Errno::NAMETOOLONG | Errno::ILSEQ | Errno::INVAL | Errno::ACCESS | Errno::PERM)) => {
                self.fail(path, error);
                return Ok(());
            }
            Err(error) => return Err(local(&dest.path, error)),
        }
        let mtime = match line {
            Some(Line::Dir { mtime }) => mtime,
            _ => Time::default(),
        };
        self.later.dir(path, mode & how.mode_mask, mtime)
    }

    /// Made under a temporary name and renamed, so that it replaces what is there in one step.
    fn symlink(
        &mut self,
        number: u64,
        path: &RelPath,
        mtime: Time,
        target: &[u8],
        decision: Decision,
    ) -> Result<(), TransferError> {
        let (Sink::Write(dest, _), Some(dirs)) = (&self.with.sink, &mut self.dirs) else { return Ok(()) };
        let made = dirs.parent(path, Missing::Make).and_then(|dir| {
            if decision == Decision::Keep {
                return look(dir, path.name());
            }
            let temporary = dest.temporary();
            rustix::fs::symlinkat(target, dir, &*temporary)?;
            let named = rustix::fs::utimensat(dir, &*temporary, &timestamps(mtime), AtFlags::SYMLINK_NOFOLLOW)
                .and_then(|()| rustix::fs::renameat(dir, &*temporary, dir, path.name()));
            if named.is_err() {
                let _ = rustix::fs::unlinkat(dir, &*temporary, AtFlags::empty());
            }
            named.and_then(|()| look(dir, path.name()))
        });
        match made {
            Ok(stat) => {
                if let Some(stat) = stat {
                    let (path, stamp, digest) = (path.clone(), Stamp::of(&stat), link_digest(target));
                    self.kept.push(Kept { number, path, stamp, digest });
                }
                if self.kept.len() >= KEPT_RUN { self.tell_kept() } else { Ok(()) }
            }
            Err(Errno::NOSPC | Errno::DQUOT) => Err(no_space(dest)),
            Err(error) => {
                self.fail(path, error);
                Ok(())
            }
        }
    }

    fn file(&mut self, job: FileJob, decision: Decision) -> Result<(), TransferError> {
        if decision == Decision::Keep && self.keep(&job)? {
            return Ok(());
        }
        if job.size == 0 {
            return self.empty(&job);
        }
        if self.local(&job)? {
            return Ok(());
        }
        if let Some((pack, why)) = self.unusable(&job.layout)? {
            let end = Ended::Wrong { actual: None, pack: Some(pack), why };
            return self.with.send(Event::Ended(Box::new(job), end));
        }
        self.take_over(&job);
        self.planner.feed(job.number, Arc::clone(&job.layout));
        self.pending.insert(job.number, Arc::new(job));
        self.plan()
    }

    /// Goes on with what an earlier pull left of a large file. Where that fails, the file is fetched whole.
    fn take_over(&mut self, job: &FileJob) {
        let (Sink::Write(dest, _), Some(dirs), Some(runs)) = (&self.with.sink, &mut self.dirs, &self.with.earlier)
        else {
            return;
        };
        if !may_resume(job.size, &job.layout) {
            return;
        }
        let taken = dirs.parent(&job.path, Missing::Make).and_then(|dir| take_over(dest, dir, runs, job));
        match taken {
            Ok(Some(file)) => drop(job.large.set(Ok(file))),
            Ok(None) => {}
            Err(error) => tracing::info!(%error, path = %job.path, "what an earlier pull left cannot be used"),
        }
    }

    /// An existing file with the right bytes: only mode and times are set. `false` when it is not there any more.
    fn keep(&mut self, job: &FileJob) -> Result<bool, TransferError> {
        let (Sink::Write(_, how), Some(dirs)) = (&self.with.sink, &mut self.dirs) else { return Ok(true) };
        let touched = dirs.parent(&job.path, Missing::Make).and_then(|dir| touch(dir, job, *how));
        let Ok(stamp) = touched else { return Ok(false) };
        self.sums.reused_bytes += job.size;
        Meter::add(&self.with.meter.reused_bytes, job.size);
        self.good(job, stamp)?;
        Ok(true)
    }

    /// Needs no window, and replaces what is there like any other file.
    fn empty(&mut self, job: &FileJob) -> Result<(), TransferError> {
        let (Sink::Write(dest, how), Some(dirs)) = (&self.with.sink, &mut self.dirs) else {
            Meter::add(&self.with.meter.files, 1);
            return Ok(());
        };
        let made = dirs.parent(&job.path, Missing::Make).map_err(super::large::Unfinished::Io).and_then(|dir| {
            let (file, temporary) = create(dest, dir, PRIVATE)?;
            let named = super::large::name(&file, dir, &temporary, job, *how);
            if named.is_err() {
                let _ = rustix::fs::unlinkat(dir, &*temporary, AtFlags::empty());
            }
            named
        });
        match made {
            Ok(stamp) => self.good(job, stamp),
            Err(super::large::Unfinished::Io(Errno::NOSPC | Errno::DQUOT)) => Err(no_space(dest)),
            Err(super::large::Unfinished::Io(error)) => {
                self.fail(&job.path, error);
                Ok(())
            }
            Err(super::large::Unfinished::ReadBack(_)) => {
                self.fail(&job.path, Errno::IO);
                Ok(())
            }
        }
    }

    /// Takes the file from this machine, when it is there and right.
    fn local(&mut self, job: &FileJob) -> Result<bool, TransferError> {
        let (Sink::Write(dest, how), Some(dirs)) = (&self.with.sink, &mut self.dirs) else { return Ok(false) };
        let Some(from) = self.with.local.as_ref().and_then(|local| local.open(&job.digest, job.size)) else {
            return Ok(false);
        };
        let made = dirs
            .parent(&job.path, Missing::Make)
            .map_err(super::large::Unfinished::Io)
            .and_then(|dir| super::copy::copy(dest, dir, &from, job, *how));
        match made {
            Ok(Some(stamp)) => {
                self.sums.local_bytes += job.size;
                self.good(job, stamp)?;
                Ok(true)
            }
            // Not what it was said to be: it comes over the network instead.
            Ok(None) | Err(super::large::Unfinished::ReadBack(_)) => Ok(false),
            Err(super::large::Unfinished::Io(Errno::NOSPC | Errno::DQUOT)) => Err(no_space(dest)),
            Err(super::large::Unfinished::Io(_)) => Ok(false),
        }
    }

    fn good(&mut self, job: &FileJob, stamp: Stamp) -> Result<(), TransferError> {
        Meter::add(&self.with.meter.files, 1);
        Meter::add(&self.with.meter.bytes, job.size);
        self.kept.push(Kept { number: job.number, path: job.path.clone(), stamp, digest: job.digest });
        if self.kept.len() >= KEPT_RUN { self.tell_kept() } else { Ok(()) }
    }

    fn tell_kept(&mut self) -> Result<(), TransferError> {
        if self.kept.is_empty() {
            return Ok(());
        }
        self.with.send(Event::Kept { before: self.sums.windows, kept: std::mem::take(&mut self.kept) })
    }

    fn fail(&mut self, path: &RelPath, error: Errno) {
        Meter::add(&self.with.meter.failed, 1);
        self.sums.failed.push(Item::new(path.as_bytes(), &errno_reason(error)));
    }

    /// Moves the planner on as far as it goes without another file.
    fn plan(&mut self) -> Result<(), TransferError> {
        loop {
            let indexes = &self.indexes;
            let step = self.planner.step(&|pack| indexes.get(&pack).cloned());
            match step.map_err(|error| self.with.damaged(&error.to_string()))? {
                Step::NeedFile | Step::Done => return Ok(()),
                Step::NeedIndex(pack) => self.index(pack)?,
                Step::Window(window) => self.dispatch(window)?,
            }
        }
    }

    /// The first pack of a file whose index cannot be had. The others are looked at all the same, so that the service hears of all that
    /// is lost, and one push heals it. Looks at a file's first packs only, since not all indexes of a huge one can be held; one that fails
    /// later ends the transfer.
    fn unusable(&mut self, layout: &FileLayout) -> Result<Option<(u32, String)>, TransferError> {
        let (mut first, mut last) = (None, None);
        for pack in layout.segments.iter().filter_map(|segment| segment.pack).take(LOOK_AHEAD) {
            if last == Some(pack) || self.indexes.contains_key(&pack) {
                continue;
            }
            last = Some(pack);
            if !self.bad.contains_key(&pack) {
                match self.index(pack) {
                    Ok(()) => continue,
                    Err(error) if is_pack_fault(&error) => drop(self.bad.insert(pack, error.to_string())),
                    Err(error) => return Err(error),
                }
            }
            first = first.or(Some(pack));
        }
        Ok(first.and_then(|pack| Some((pack, self.bad.get(&pack)?.clone()))))
    }

    fn index(&mut self, pack: u32) -> Result<(), TransferError> {
        let index = self.with.runtime.block_on(self.with.packs.index(pack))?;
        self.indexed += index.entries().len();
        while self.indexed > MAX_INDEXED
            && let Some(oldest) = self.recent.pop_front()
        {
            if let Some(index) = self.indexes.remove(&oldest) {
                self.indexed -= index.entries().len();
            }
        }
        self.indexes.insert(pack, Arc::new(index));
        self.recent.push_back(pack);
        Ok(())
    }

    /// Blocks until a buffer is free: this is what bounds the windows under way.
    fn dispatch(&mut self, window: Window) -> Result<(), TransferError> {
        self.tell_kept()?;
        let mut numbers: Vec<u64> = window.completed.clone();
        numbers.extend(window.holes.iter().map(|hole| hole.file));
        numbers.extend(
            window.reads.iter().flat_map(|read| &read.chunks).flat_map(|chunk| &chunk.places).map(|place| place.file),
        );
        numbers.sort_unstable();
        numbers.dedup();
        let mut files = BTreeMap::new();
        for number in numbers {
            if let Some(job) = self.pending.get(&number) {
                files.insert(number, Arc::clone(job));
            }
        }
        for number in &window.completed {
            self.pending.remove(number);
        }
        let slot = self.with.slots.recv().map_err(|_| gone())?;
        let job = Job { number: self.sums.windows, window, files, slot };
        self.sums.windows += 1;
        self.with.windows.blocking_send(job).map_err(|_| gone())
    }
}

/// Sets mode and times of a good file.
fn touch(dir: rustix::fd::BorrowedFd<'_>, job: &FileJob, how: Finish) -> Result<Stamp, Errno> {
    let stat = look(dir, job.path.name())?.ok_or(Errno::NOENT)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::NOENT);
    }
    let wanted = job.mode & how.mode_mask;
    let stamp = Stamp::of(&stat);
    if stat.st_mode & 0o7777 == wanted && stamp.mtime == job.mtime {
        return Ok(stamp);
    }
    if stat.st_nlink > 1 {
        // Its other names may be no business of this pull: it is written anew.
        return Err(Errno::MLINK);
    }
    let file = rustix::fs::openat(dir, job.path.name(), crate::client::walk::READ, rustix::fs::Mode::empty())?;
    rustix::fs::fchmod(&file, mode(wanted))?;
    rustix::fs::futimens(&file, &timestamps(job.mtime))?;
    Ok(Stamp::of(&rustix::fs::fstat(&file)?))
}

fn no_layout(digest: crate::content::digest::Digest) -> FileLayout {
    FileLayout {
        digest,
        size: 0,
        crc: crate::content::crc::Crc32(0),
        profile: crate::content::layout::PROFILE,
        segments: Vec::new(),
        sha256: None,
    }
}

fn no_space(dest: &Dest) -> TransferError {
    let free = super::dest::free_bytes(dest).unwrap_or(0);
    TransferError::NoSpace { path: dest.path.clone(), needed: free + 1, free }
}

fn gone() -> TransferError {
    TransferError::Broken { what: "the other end of a pull" }
}
