//! A file that is being written: its temporary name, its bytes, and how it gets its own name.
//!
//! Until the rename nothing of it is visible under its name; a file that is given up is unlinked.

use super::Durability;
use super::dest::{Dest, Dirs, Missing, mode, timestamps};
use super::file::{FileFacts, Run, may_resume, part_name};
use crate::client::walk::{Found, READ, Stamp, errno_reason};
use crate::content::buffer::AlignedBuf;
use crate::content::digest::{Digest, Hasher};
use crate::direct;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Advice, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

const CREATE: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Bytes written at a time.
///
/// A file system with large folios (ext4 of Linux 6.18) asks for memory in one piece as long as the call. Where the page cache has filled the memory, the
/// kernel makes room for long ones by moving pages: 1 GiB of zeros by `dd` took 1.9 s of system time in calls of 512 KiB or 4 MiB, 1.4 in calls of 64 or 128 KiB, and a
/// quarter of a pull went there. In fresh memory 128 KiB costs what 512 does, and shorter calls more.
const PIECE: u64 = 128 << 10;

/// A temporary file. Dropped before it was finished, it stays for the next pull where that will know of it; else it is unlinked.
#[derive(Debug)]
pub(super) struct LargeFile {
    file: OwnedFd,
    dir: OwnedFd,
    temporary: String,
    /// An earlier pull wrote in it.
    pub resumed: bool,
    stays: AtomicBool,
    /// One writes at a time, as the kernel has it anyway: writers that wait for a file's lock there spin, and two of them took a gibibyte
    /// 0.9 s of system time, where taking turns here took 0.5.
    turn: Mutex<()>,
}

/// How a file's bytes are proven once more after they were written.
#[derive(Debug, Clone, Copy)]
pub(in crate::client) struct Finish {
    pub durability: Durability,
    pub mode_mask: u32,
}

/// Why a file did not get its name.
#[derive(Debug)]
pub(super) enum Unfinished {
    Io(Errno),
    /// What was read back is not what was written.
    ReadBack(Digest),
}

impl From<Errno> for Unfinished {
    fn from(error: Errno) -> Self {
        Self::Io(error)
    }
}

impl LargeFile {
    /// A new temporary file beside where the file will be.
    pub fn create(dest: &Dest, dirs: &mut Dirs, job: &FileFacts) -> Result<Self, Errno> {
        let dir = dirs.parent(&job.path, Missing::Fail)?;
        let keeps = dest.keeps.load(Ordering::Relaxed) && may_resume(job.size, &job.layout);
        let (file, temporary) = match keeps {
            true => create_as(dir, part_name(&dest.run, job.path.name(), &job.digest))?,
            false => create(dest, dir)?,
        };
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        Ok(Self { file, dir, temporary, resumed: false, stays: AtomicBool::new(keeps), turn: Mutex::default() })
    }

    /// One that an earlier pull began, under this pull's name by now.
    pub fn taken_over(file: OwnedFd, dir: BorrowedFd<'_>, temporary: String) -> Result<Self, Errno> {
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        Ok(Self { file, dir, temporary, resumed: true, stays: AtomicBool::new(true), turn: Mutex::default() })
    }

    /// Reads what it holds; an error where it is shorter.
    pub fn read(&self, to: &mut [u8], offset: u64) -> Result<(), Errno> {
        let mut read = 0;
        while read < to.len() {
            match rustix::io::pread(&self.file, &mut to[read..], offset + read as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(more) => read += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes runs; holes are left out, so the file stays sparse there.
    pub fn write(&self, runs: &[Run], slot: &AlignedBuf) -> Result<(), Errno> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        write_runs(&self.file, runs, slot)
    }

    /// Gives the file its length, mode, times and name. The bytes were proven by the caller.
    pub fn finish(&self, job: &FileFacts, how: Finish) -> Result<Stamp, Unfinished> {
        fill_out(&self.file, job)?;
        sync(&self.file, how)?;
        let stamp = name(&self.file, self.dir.as_fd(), &self.temporary, job, how)?;
        self.stays.store(true, Ordering::Relaxed);
        Ok(stamp)
    }
}

impl Drop for LargeFile {
    fn drop(&mut self) {
        if !self.stays.load(Ordering::Relaxed) {
            let _ = rustix::fs::unlinkat(&self.dir, &*self.temporary, AtFlags::empty());
        }
    }
}

/// Gives a written file its length where it ends in a hole.
pub(super) fn fill_out(file: &OwnedFd, job: &FileFacts) -> Result<(), Errno> {
    match job.layout.segments.last() {
        Some(last) if last.pack.is_none() => rustix::fs::ftruncate(file, job.size),
        _ => Ok(()),
    }
}

/// Brings a file's bytes to the disk where they are read back from there.
pub(super) fn sync(file: &OwnedFd, how: Finish) -> Result<(), Errno> {
    match how.durability {
        Durability::ReadBack => rustix::fs::fsync(file),
        Durability::Batch => Ok(()),
    }
}

/// Gives a written file its mode, times and name; before that, where it is asked for, proves what the disk holds of it, which
/// the caller has synced. The end of the pull syncs the names.
pub(super) fn name(
    file: &OwnedFd,
    dir: BorrowedFd<'_>,
    temporary: &str,
    job: &FileFacts,
    how: Finish,
) -> Result<Stamp, Unfinished> {
    if how.durability == Durability::ReadBack {
        let actual = read_disk(file, job.size)?;
        if actual != job.digest {
            return Err(Unfinished::ReadBack(actual));
        }
    }
    rustix::fs::fchmod(file, mode(job.mode & how.mode_mask))?;
    rustix::fs::futimens(file, &timestamps(job.mtime))?;
    rustix::fs::renameat(dir, temporary, dir, job.path.name())?;
    Ok(Stamp::of(&rustix::fs::fstat(file)?))
}

/// A new file under a temporary name.
pub(super) fn create(dest: &Dest, dir: BorrowedFd<'_>) -> Result<(OwnedFd, String), Errno> {
    create_as(dir, dest.temporary())
}

fn create_as(dir: BorrowedFd<'_>, temporary: String) -> Result<(OwnedFd, String), Errno> {
    let file = rustix::fs::openat(dir, &*temporary, CREATE, Mode::RUSR | Mode::WUSR)?;
    Ok((file, temporary))
}

/// Writes all runs that are no holes.
pub(super) fn write_runs(file: &OwnedFd, runs: &[Run], slot: &AlignedBuf) -> Result<(), Errno> {
    for run in runs {
        let Some(at) = run.at else { continue };
        let mut bytes = &slot[at..at + usize::try_from(run.length).expect("a run fits its buffer")];
        let mut offset = run.offset;
        while !bytes.is_empty() {
            let room = usize::try_from(PIECE - offset % PIECE).expect("at most a piece");
            match rustix::io::pwrite(file, &bytes[..room.min(bytes.len())], offset) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The digest of what the disk holds of a synced file: read past the cache, or else after the cache was told to forget it.
fn read_disk(file: &OwnedFd, size: u64) -> Result<Digest, Errno> {
    if direct::on(file) {
        match read_back(file, size) {
            Err(Errno::INVAL) => direct::off(file)?,
            told => return told,
        }
    }
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
    read_back(file, size)
}

/// The digest of a file's bytes to its end. `size` is what is expected: the end that comes there is not asked for once more.
pub(super) fn read_back(file: impl AsFd, size: u64) -> Result<Digest, Errno> {
    let room = size.clamp(1, 1 << 20).next_multiple_of(direct::ALIGN as u64);
    let mut buffer = AlignedBuf::new(usize::try_from(room).expect("a MiB at most"));
    let mut hasher = Hasher::new();
    let mut at = 0;
    loop {
        match rustix::io::pread(&file, &mut buffer[..], at) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                at += read as u64;
                if read < buffer.len() && at >= size {
                    return Ok(hasher.finalize());
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The digest of a file that a walk found, read now.
pub(in crate::client) fn read_found(found: &Found) -> Result<Digest, String> {
    let read = || {
        let file = rustix::fs::openat(&found.place.dir, &found.place.name, READ, Mode::empty())?;
        read_back(&file, found.stamp.size)
    };
    read().map_err(errno_reason)
}
