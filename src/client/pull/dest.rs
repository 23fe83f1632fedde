//! DEST: everything below it is reached through directory handles, name by name, without following a link.
//!
//! DEST itself may be a link. Whatever stands in the way of a directory (a link above all) ends the pull; nothing is removed
//! to make room. A file gets its name only when it is whole: by rename, from a temporary name in the same directory, or by a link to a file without a
//! name.
//!
//! Why by handles: DEST may be writable by a job that runs, and a link put in the place of a directory between a check and a write would
//! lead a pull to anywhere on the machine. Modes are opened up on the way, and restored by `settle`.

use crate::client::context::TransferError;
use crate::content::path::{RelPath, escaped};
use crate::content::tree::Time;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The place that a pull writes to.
#[derive(Debug)]
pub(in crate::client) struct Dest {
    pub path: PathBuf,
    /// Everything below is reached from here.
    pub root: OwnedFd,
    /// Names this pull's temporary files.
    /// 32 hex digits, never used twice.
    pub run: String,
    /// Shared by all threads.
    next: AtomicU64,
    /// Unfinished large files stay for the next pull, which knows of this one. Set before the first file is made, where the `.run` stands.
    pub keeps: AtomicBool,
    /// Small files are written without a name: until it failed once, for whatever reason, and never on ZFS.
    pub unnamed: AtomicBool,
}

impl Dest {
    /// Opens DEST, made where it is missing. [`TransferError::Local`] where it is no directory or may not be entered.
    pub fn open(path: &Path, run: String) -> Result<Self, TransferError> {
        fs_err::create_dir_all(path).map_err(TransferError::local(path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| local(path, error))?;
        // `ZFS_SUPER_MAGIC` of OpenZFS: its link of a file without a name waits until all that was written lies on the disk (`zfs_link`).
        let is_zfs = rustix::fs::fstatfs(&root).is_ok_and(|fs| fs.f_type == 0x2fc1_2fc1);
        Ok(Self {
            path: path.to_owned(),
            root,
            run,
            next: AtomicU64::new(0),
            keeps: AtomicBool::new(false),
            unnamed: AtomicBool::new(!is_zfs),
        })
    }

    /// A name that no one else uses: `.dray-<pull>-<number>.part`. A tree may hold names of this form; the pull's id makes it
    /// another.
    pub fn temporary(&self) -> String {
        format!(".dray-{}-{}.part", self.run, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether there is nothing at all in it.
    pub fn is_empty(&self) -> io::Result<bool> {
        for entry in rustix::fs::Dir::read_from(&self.root)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The directories on the way to the last path asked for, open. Paths in tree order share most of them. One for each thread: at most
/// as many handles as the path has names.
#[derive(Debug)]
pub(in crate::client) struct Dirs {
    dest: Arc<Dest>,
    open: Vec<(Vec<u8>, OwnedFd)>,
}

/// Whether directories are made that are missing, and opened up that are not writable. Only the planning thread makes any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Make,
    Fail,
}

impl Dirs {
    pub fn new(dest: Arc<Dest>) -> Self {
        Self { dest, open: Vec::new() }
    }

    /// The directory that `path` lies in. `NOTDIR` or `LOOP` = something else, a link above all, is in the way.
    pub fn parent(&mut self, path: &RelPath, missing: Missing) -> Result<BorrowedFd<'_>, Errno> {
        match path.parent_bytes() {
            Some(parent) => self.dir(parent, missing),
            None => {
                self.open.clear();
                Ok(self.dest.root.as_fd())
            }
        }
    }

    /// The directory itself.
    pub fn dir(&mut self, path: &[u8], missing: Missing) -> Result<BorrowedFd<'_>, Errno> {
        let mut depth = 0;
        for name in path.split(|byte| *byte == b'/') {
            let is_open = self.open.get(depth).is_some_and(|(open, _)| open == name);
            if !is_open {
                self.open.truncate(depth);
                let above = self.open.last().map_or(self.dest.root.as_fd(), |(_, dir)| dir.as_fd());
                let dir = open_dir(above, name, missing)?;
                self.open.push((name.to_vec(), dir));
            }
            depth += 1;
        }
        self.open.truncate(depth);
        Ok(self.open.last().map_or(self.dest.root.as_fd(), |(_, dir)| dir.as_fd()))
    }
}

/// Opens one directory. One of ours that is not writable becomes so until its mode is restored at the end.
fn open_dir(above: BorrowedFd<'_>, name: &[u8], missing: Missing) -> Result<OwnedFd, Errno> {
    if missing == Missing::Make {
        match rustix::fs::mkdirat(above, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    let dir = match rustix::fs::openat(above, name, DIR, Mode::empty()) {
        Err(Errno::ACCESS) if missing == Missing::Make => {
            // Not readable: our own all the same, perhaps. The link check comes first, since chmod follows links.
            let stat = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
            let handle = rustix::fs::openat(
                above,
                name,
                OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            // By the handle, so it is that very directory whatever the name means by now.
            let by_handle = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&handle));
            rustix::fs::chmod(by_handle, Mode::RWXU)?;
            rustix::fs::openat(above, name, DIR, Mode::empty())?
        }
        other => other?,
    };
    if missing == Missing::Make {
        let mode = rustix::fs::fstat(&dir)?.st_mode;
        if mode & 0o700 != 0o700 {
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode & 0o777 | 0o700))?;
        }
    }
    Ok(dir)
}

/// Free bytes for this user at DEST; a moment later it may be fewer.
pub(super) fn free_bytes(dest: &Dest) -> io::Result<u64> {
    let stat = rustix::fs::fstatvfs(&dest.root)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// What is at a name, without following a link; `None` when nothing is.
pub(super) fn look(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Both times set to this one: the time of access is no part of a version.
pub(super) fn timestamps(time: Time) -> Timestamps {
    let spec = Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) };
    Timestamps { last_access: spec, last_modification: spec }
}

/// Nothing but permission bits ever reaches the disk.
pub(super) fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits & 0o777)
}

pub(super) fn local(path: &Path, error: Errno) -> TransferError {
    TransferError::Local { path: path.to_owned(), source: error.into() }
}

pub(super) fn in_the_way(path: &RelPath, why: &'static str) -> TransferError {
    TransferError::InTheWay { path: escaped(path.as_bytes()).to_string(), why }
}
