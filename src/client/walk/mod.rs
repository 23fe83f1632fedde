//! Walks the trees that are to be pushed, in tree order, in bounded memory.
//!
//! Everything is reached through directory handles and without following links, so a swap on the way cannot lead the walk
//! out. Special files are never opened. What cannot be read is one failed item and never ends the walk. Paths that the user
//! names are followed where they are links; nothing below them is.
//!
//! Tree order is depth-first, names by bytes, a directory directly before what it holds, as
//! [`RelPath`] compares: a tree can be written, and a stat cache or a parent version read beside the
//! walk, without sorting anything. Memory: the names in the open directories (16 MiB; a directory below those that have used it up
//! has 1 MiB all the same) and the open hard-link groups (16 MiB), whatever the number of entries. One handle is open for each
//! directory on the way, longer where a [`Place`] in it lives on.
//!
//! Push takes what it gives; `verify` holds it against a version. Nothing in a walk changes the disk, save temporary files for names.

mod links;
mod names;
mod notes;
mod roots;
mod rules;
#[cfg(test)]
mod tests;

pub use rules::Globs;

use super::context::TransferError;
use super::report::Item;
use crate::content::path::{PathError, RelPath};
use crate::content::tree::Time;
use links::LinkTable;
use names::{LEAST_BUDGET, Names};
use notes::Notes;
use roots::{Root, Top};
use rules::{Rules, Verdict};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of names held in memory over all open directories, before a directory is sorted by spilling.
const NAMES_BUDGET: usize = 16 << 20;

/// How files are opened for reading: not through a link, and without waiting for a pipe's other end.
/// A pipe or device that took a file's place after the look would else hang the reader; a link would lead it out of the tree.
pub(super) const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// What a `.drayignore` is to a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuleFiles {
    /// Its rules hold for its directory and below.
    #[default]
    Obey,
    /// A file like any other: nothing is left out for it.
    Ignore,
}

/// What to walk and what to leave out. A path is taken when `exclude` and the rule files let it be, and `include` matches it.
#[derive(Debug, Clone, Default)]
pub struct WalkOptions {
    /// One directory stands for its contents; else every path goes by its base name.
    pub paths: Vec<PathBuf>,
    /// Gitignore syntax, relative to the root. Decides before any `.drayignore`; `!pattern` takes what a rule file would leave out.
    pub exclude: Vec<String>,
    /// Globs; when there are any, only what matches one and the directories above. An empty directory is taken where it matches itself.
    pub include: Vec<String>,
    pub rule_files: RuleFiles,
    /// For the names of a directory too wide for memory; none = the system's place.
    pub temp_dir: Option<PathBuf>,
}

/// Where an entry can be opened: a directory and a name in it. What is opened there may have changed since the look: compare its
/// [`Stamp`]. Keeps the directory open while it lives, so few should be held.
#[derive(Debug, Clone)]
pub struct Place {
    pub dir: Arc<OwnedFd>,
    pub name: CString,
}

/// What tells whether a file is still the same. Equal stamps are taken for equal bytes, save for what was written in the same tick of the
/// file system's clock: whoever relies on that (the stat cache) keeps a distance of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub dev: u64,
    pub ino: u64,
    pub size: u64,
    pub mtime: Time,
    /// Cannot be set back by a user, so it betrays a write behind a restored `mtime`.
    pub ctime: Time,
}

impl Stamp {
    #[expect(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
    pub fn of(stat: &Stat) -> Self {
        let time = |seconds, nanos: u64| Time { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
        Self {
            dev: stat.st_dev as u64,
            ino: stat.st_ino as u64,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            ctime: time(stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        }
    }
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    Dir,
    /// `leads` = it has more names, which may follow.
    File {
        /// Only then need its facts be remembered. Other names may lie outside the walk, so they need not come.
        leads: bool,
    },
    /// A further name of the file at `first`, which came before; `last` = all its names were met.
    HardLink {
        /// As [`Step::Found`] gave it, though the caller may have failed to read it since.
        first: RelPath,
        last: bool,
    },
    /// With its target.
    /// Bytes as the kernel gave them, judged by nobody here; one that points out of the tree is a remark.
    Symlink(Vec<u8>),
}

/// One entry of the tree, as it was at the moment of the look.
#[derive(Debug, Clone)]
pub struct Found {
    pub path: RelPath,
    pub place: Place,
    pub stamp: Stamp,
    /// Permission bits only; setuid, setgid and the sticky bit are left out, with a remark.
    pub mode: u32,
    pub what: What,
}

/// One step of a walk. Neither `Skipped` nor `Failed` ends it.
#[derive(Debug)]
pub enum Step {
    Found(Found),
    /// Special files: named, never opened.
    Skipped(Item),
    /// Could not be looked at.
    Failed(Item),
}

/// A walk. Call [`Walk::next`] until it gives `None`; then ask for its [`warnings`](Walk::warnings). Blocks on the disk.
#[derive(Debug)]
pub struct Walk {
    exclude: Rules,
    include: Globs,
    rule_files: RuleFiles,
    temp_dir: Option<PathBuf>,
    roots: VecDeque<Root>,
    open: Vec<Frame>,
    ready: VecDeque<Step>,
    /// Directories not given out yet, since nothing below them was (only with `include`).
    waiting: Vec<Found>,
    links: LinkTable,
    notes: Notes,
}

/// A directory being walked.
#[derive(Debug)]
struct Frame {
    dir: Arc<OwnedFd>,
    /// `None` for the tree's root.
    path: Option<RelPath>,
    names: Names,
    rules: Option<Rules>,
}

impl Walk {
    /// Opens the roots; an unusable one is an error here, before anything is done: [`TransferError::Source`], `EqualNames`, `NoName` or
    /// `BadPattern`. No directory is held by its path afterwards, so a rename of a root does not end the walk.
    pub fn open(options: &WalkOptions) -> Result<Self, TransferError> {
        let mut walk = Self {
            exclude: Rules::given(&options.exclude)?,
            include: Globs::new(&options.include)?,
            rule_files: options.rule_files,
            temp_dir: options.temp_dir.clone(),
            roots: VecDeque::new(),
            open: Vec::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            links: LinkTable::default(),
            notes: Notes::default(),
        };
        match roots::open(&options.paths)? {
            Top::Contents(path, dir) => {
                let names = Names::list(&dir, NAMES_BUDGET, walk.temp_dir.as_deref())
                    .map_err(|source| TransferError::Source { path, source })?;
                walk.enter(Arc::new(dir), None, names);
            }
            Top::Names(roots) => walk.roots = roots,
        }
        Ok(walk)
    }

    /// The next entry, in tree order. Entries are looked at when they are asked for, not all at the begin.
    #[expect(
        clippy::should_implement_trait,
        reason = "a step is taken on purpose; no adaptor fits a walk with a summary"
    )]
    pub fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return Some(step);
            }
            let Some(frame) = self.open.last_mut() else {
                let root = self.roots.pop_front()?;
                self.look(root.path, Place { dir: root.dir, name: root.name });
                continue;
            };
            match frame.names.next() {
                Ok(Some(name)) => {
                    let dir = Arc::clone(&frame.dir);
                    self.name(name, dir);
                }
                Ok(None) => self.close(),
                Err(error) => {
                    let path = frame.path.as_ref().map_or(&b"."[..], RelPath::as_bytes);
                    self.ready.push_back(Step::Failed(Item::new(path, &reason(&error))));
                    self.close();
                }
            }
        }
    }

    /// Leaves the directory at hand.
    fn close(&mut self) {
        if let Some(frame) = self.open.pop() {
            self.pass(frame.path.as_ref());
        }
    }

    /// Nothing more comes from below this directory: where it still waits for something below it, it is no entry.
    fn pass(&mut self, dir: Option<&RelPath>) {
        self.waiting.pop_if(|waiting| Some(&waiting.path) == dir);
    }

    /// Remarks for people, once the walk is over.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        self.notes.tell(&mut warnings);
        if self.links.overflowed() > 0 {
            let count = self.links.overflowed();
            warnings.push(format!(
                "{count} hard links were stored as files of their own: too many groups are open at once"
            ));
        }
        warnings
    }

    fn name(&mut self, name: Vec<u8>, dir: Arc<OwnedFd>) {
        let parent = self.open.last().and_then(|frame| frame.path.as_ref());
        let path = match below(parent, &name) {
            Ok(path) => path,
            Err(error) => {
                let mut bytes = parent.map_or_else(Vec::new, |parent| [parent.as_bytes(), b"/"].concat());
                bytes.extend_from_slice(&name);
                self.ready.push_back(Step::Failed(Item::new(&bytes, path_reason(error))));
                return;
            }
        };
        let name = CString::new(name).expect("the kernel gives names without NUL");
        self.look(path, Place { dir, name });
    }

    /// Looks at one entry and puts what it is into `ready`.
    fn look(&mut self, path: RelPath, place: Place) {
        let stat = match rustix::fs::statat(&place.dir, &place.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(error) => return self.fail(&path, error),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.is_left_out(&path, kind == FileType::Directory) {
            return;
        }
        let is_dir = kind == FileType::Directory;
        if !is_dir && !self.include.matches(path.as_bytes()) {
            return;
        }
        let what = match kind {
            FileType::RegularFile => {
                let stamp = Stamp::of(&stat);
                self.links.meet((stamp.dev, stamp.ino), stat.st_nlink as u64, &path)
            }
            FileType::Directory => What::Dir,
            FileType::Symlink => match rustix::fs::readlinkat(&place.dir, &place.name, Vec::new()) {
                Ok(target) => What::Symlink(target.into_bytes()),
                Err(error) => return self.fail(&path, error),
            },
            special => {
                self.ready.push_back(Step::Skipped(Item::new(path.as_bytes(), special_reason(special))));
                return;
            }
        };
        self.notes.name(&path);
        match &what {
            What::Symlink(target) => self.notes.symlink(&path, target),
            _ => self.notes.mode(&path, stat.st_mode),
        }
        let found = Found { path, place, stamp: Stamp::of(&stat), mode: stat.st_mode & 0o777, what };
        if is_dir { self.descend(found) } else { self.give(found) }
    }

    fn give(&mut self, found: Found) {
        for dir in self.waiting.drain(..) {
            self.ready.push_back(Step::Found(dir));
        }
        self.ready.push_back(Step::Found(found));
    }

    /// Gives the directory out and opens it. One that cannot be read is an entry of the tree and a failed item, so that the version is
    /// marked incomplete; where only what lies below could be taken, it is a failed item alone. What stands there now must be the inode
    /// that was looked at: else someone has swapped it on the way.
    fn descend(&mut self, found: Found) {
        let (path, place, stamp) = (found.path.clone(), found.place.clone(), found.stamp);
        if self.include.matches(found.path.as_bytes()) {
            self.give(found);
        } else {
            self.waiting.push(found);
        }
        let flags = READ | OFlags::DIRECTORY;
        let opened = rustix::fs::openat(&place.dir, &place.name, flags, Mode::empty()).and_then(|dir| {
            let now = Stamp::of(&rustix::fs::fstat(&dir)?);
            Ok((dir, (now.dev, now.ino) == (stamp.dev, stamp.ino)))
        });
        let held: usize = self.open.iter().map(|frame| frame.names.held()).sum();
        let budget = NAMES_BUDGET.saturating_sub(held).max(LEAST_BUDGET);
        let listed = match opened {
            Ok((dir, true)) => Names::list(&dir, budget, self.temp_dir.as_deref()).map(|names| (dir, names)),
            Ok((_, false)) => {
                self.ready.push_back(Step::Failed(Item::new(path.as_bytes(), "changed")));
                return self.pass(Some(&path));
            }
            Err(error) => Err(error.into()),
        };
        match listed {
            Ok((dir, names)) => self.enter(Arc::new(dir), Some(path), names),
            Err(error) => {
                self.ready.push_back(Step::Failed(Item::new(path.as_bytes(), &reason(&error))));
                self.pass(Some(&path));
            }
        }
    }

    /// The rule file is read before any name is given out, since it is about them all.
    fn enter(&mut self, dir: Arc<OwnedFd>, path: Option<RelPath>, names: Names) {
        let read = match self.rule_files {
            RuleFiles::Obey => rules::read(&dir),
            RuleFiles::Ignore => Ok(None),
        };
        let rules = match read {
            Ok(None) => None,
            Ok(Some((rules, bad))) => {
                if let Ok(path) = below(path.as_ref(), rules::FILE)
                    && !bad.is_empty()
                {
                    self.notes.bad_rule(&path);
                }
                Some(rules)
            }
            Err(error) => {
                // Going on without its rules would send what the team meant to keep.
                let file = below(path.as_ref(), rules::FILE).map_or_else(|_| rules::FILE.to_vec(), RelPath::into_bytes);
                self.ready.push_back(Step::Failed(Item::new(&file, &reason(&error))));
                return self.pass(path.as_ref());
            }
        };
        if let Some(arena) = names.in_memory() {
            self.notes.siblings(path.as_ref(), arena);
        }
        self.open.push(Frame { dir, path, names, rules });
    }

    /// The command line's patterns decide first, then the nearest `.drayignore` that says anything.
    fn is_left_out(&self, path: &RelPath, is_dir: bool) -> bool {
        let bytes = path.as_bytes();
        match self.exclude.say(bytes, is_dir) {
            Verdict::Leave => return true,
            Verdict::Take => return false,
            Verdict::Silent => {}
        }
        for frame in self.open.iter().rev() {
            let Some(rules) = &frame.rules else { continue };
            let skip = frame.path.as_ref().map_or(0, |dir| dir.as_bytes().len() + 1);
            match rules.say(&bytes[skip.min(bytes.len())..], is_dir) {
                Verdict::Leave => return true,
                Verdict::Take => return false,
                Verdict::Silent => {}
            }
        }
        false
    }

    fn fail(&mut self, path: &RelPath, error: Errno) {
        self.ready.push_back(Step::Failed(Item::new(path.as_bytes(), &errno_reason(error))));
    }
}

/// `name` in the directory `parent`; `None` is the root.
fn below(parent: Option<&RelPath>, name: &[u8]) -> Result<RelPath, PathError> {
    match parent {
        Some(parent) => parent.join(name),
        None => RelPath::parse(name),
    }
}

/// The word for a full disk or an exhausted quota.
pub(super) const NO_SPACE: &str = "no_space";

/// A stable word for an error of the file system; it stands in reports (`Item::reason`) and is matched on there. What the walk, push and
/// pull meet goes through here, so equal faults read equally.
pub(super) fn errno_reason(error: Errno) -> String {
    match error {
        Errno::ACCESS | Errno::PERM => "permission_denied".to_owned(),
        Errno::NOENT | Errno::STALE => "vanished".to_owned(),
        Errno::LOOP | Errno::NOTDIR => "changed".to_owned(),
        Errno::ISDIR => "changed".to_owned(),
        Errno::NOSPC | Errno::DQUOT => NO_SPACE.to_owned(),
        Errno::IO => "io_error".to_owned(),
        Errno::MFILE | Errno::NFILE => "too_many_open_files".to_owned(),
        other => format!("errno_{}", other.raw_os_error()),
    }
}

/// The same for an I/O error; one without a code of the system is `io_error`.
pub(super) fn reason(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => errno_reason(Errno::from_raw_os_error(code)),
        None => "io_error".to_owned(),
    }
}

fn path_reason(error: PathError) -> &'static str {
    match error {
        PathError::NameTooLong { .. } => "name_too_long",
        PathError::TooLong { .. } => "path_too_long",
        PathError::TooDeep { .. } => "too_deep",
        _ => "bad_path",
    }
}

fn special_reason(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character_device",
        FileType::BlockDevice => "block_device",
        _ => "special_file",
    }
}
