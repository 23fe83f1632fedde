//! A file that is being written: its temporary name, its bytes, and how it gets its own name.
//!
//! Until the rename, or the link of a file without a name, nothing of it is visible under its name; a file that is given up is unlinked.

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
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

const CREATE: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const UNNAMED: OFlags = OFlags::RDWR.union(OFlags::TMPFILE).union(OFlags::CLOEXEC);

/// Of what may be opened again, to be written or read, before it has its name.
pub(super) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Bytes written at a time.
///
/// A file system with large folios (ext4 of Linux 6.18) asks for memory in one piece as long as the call. Where the page cache has filled the memory, the
/// kernel makes room for long ones by moving pages: 1 GiB of zeros by `dd` took 1.9 s of system time in calls of 512 KiB or 4 MiB, 1.4 in calls of 64 or 128 KiB, and a
/// quarter of a pull went there. In fresh memory 128 KiB costs what 512 does, and shorter calls more.
const PIECE: u64 = 128 << 10;
/// From so many whole pages on, in bytes, a run goes to the disk past the page cache: a pull ends with a sync anyway, and the cache's copy of what it
/// wrote cost more than BLAKE3, several times so where the memory for it was not at hand.
const DIRECT_FROM: usize = 1 << 20;

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
            true => create_as(dir, part_name(&dest.run, job.path.name(), &job.digest), PRIVATE)?,
            false => create(dest, dir, PRIVATE)?,
        };
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        Ok(Self { file, dir, temporary, resumed: false, stays: AtomicBool::new(keeps), turn: Mutex::default() })
    }

    /// One that an earlier pull began, under this pull's name by now.
    pub fn taken_over(file: OwnedFd, dir: BorrowedFd<'_>, temporary: String) -> Result<Self, Errno> {
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        Ok(Self { file, dir, temporary, resumed: true, stays: AtomicBool::new(true), turn: Mutex::default() })
    }

    /// Reads what it holds; an error where it is shorter. Takes its turn, since a write changes how the file is reached.
    pub fn read(&self, to: &mut [u8], offset: u64) -> Result<(), Errno> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
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
    set_facts(file, job, how)?;
    rustix::fs::renameat(dir, temporary, dir, job.path.name())?;
    Ok(Stamp::of(&rustix::fs::fstat(file)?))
}

/// Gives a written file its mode and times.
fn set_facts(file: &OwnedFd, job: &FileFacts, how: Finish) -> Result<(), Errno> {
    let wanted = job.mode & how.mode_mask;
    // To look costs a tenth of to set, and most files are made with their mode.
    if rustix::fs::fstat(file)?.st_mode & 0o7777 != wanted {
        rustix::fs::fchmod(file, mode(wanted))?;
    }
    rustix::fs::futimens(file, &timestamps(job.mtime))
}

/// Writes a proven file that has no name until it is whole: its directory is changed once instead of three times. Fails where the file system cannot do
/// that, or `/proc` is not there; the file can be written under a temporary name then.
pub(super) fn write_unnamed(
    dest: &Dest,
    dir: BorrowedFd<'_>,
    job: &FileFacts,
    runs: &[Run],
    slot: &AlignedBuf,
    how: Finish,
) -> Result<Stamp, Errno> {
    let file = rustix::fs::openat(dir, ".", UNNAMED, mode(job.mode & how.mode_mask))?;
    write_runs(&file, runs, slot)?;
    fill_out(&file, job)?;
    set_facts(&file, job, how)?;
    let by_handle = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |name: &[u8]| rustix::fs::linkat(rustix::fs::CWD, &*by_handle, dir, name, AtFlags::SYMLINK_FOLLOW);
    match link(job.path.name()) {
        // What has the name already is replaced in one step.
        Err(Errno::EXIST) => {
            let temporary = dest.temporary();
            link(temporary.as_bytes())?;
            rustix::fs::renameat(dir, &*temporary, dir, job.path.name()).inspect_err(|_| {
                let _ = rustix::fs::unlinkat(dir, &*temporary, AtFlags::empty());
            })?;
        }
        linked => linked?,
    }
    Ok(Stamp::of(&rustix::fs::fstat(&file)?))
}

/// A new file under a temporary name. Its mode may have fewer bits than asked for.
pub(super) fn create(dest: &Dest, dir: BorrowedFd<'_>, mode: Mode) -> Result<(OwnedFd, String), Errno> {
    create_as(dir, dest.temporary(), mode)
}

fn create_as(dir: BorrowedFd<'_>, temporary: String, mode: Mode) -> Result<(OwnedFd, String), Errno> {
    let file = rustix::fs::openat(dir, &*temporary, CREATE, mode)?;
    Ok((file, temporary))
}

/// Writes all runs that are no holes. One thread at a time.
pub(super) fn write_runs(file: &OwnedFd, runs: &[Run], slot: &AlignedBuf) -> Result<(), Errno> {
    for run in runs {
        let Some(at) = run.at else { continue };
        let bytes = &slot[at..at + usize::try_from(run.length).expect("a run fits its buffer")];
        let pages = whole_pages(at, run.offset, bytes.len());
        if pages.len() < DIRECT_FROM || !write_direct(file, &bytes[pages.clone()], run.offset + pages.start as u64)? {
            write_cached(file, bytes, run.offset)?;
            continue;
        }
        write_cached(file, &bytes[..pages.start], run.offset)?;
        write_cached(file, &bytes[pages.end..], run.offset + pages.end as u64)?;
    }
    Ok(())
}

/// Which of a run's bytes are whole pages, of the file and of the buffer both; empty where the two lie apart.
fn whole_pages(at: usize, offset: u64, len: usize) -> Range<usize> {
    let page = direct::ALIGN;
    let within = usize::try_from(offset % page as u64).expect("less than a page");
    if at % page != within {
        return 0..0;
    }
    let start = (page - within) % page;
    let end = ((within + len) / page * page).saturating_sub(within);
    if start < end { start..end } else { 0..0 }
}

/// Writes whole pages past the page cache. `false` where the file system does not do it, and then some of them may be written.
fn write_direct(file: &OwnedFd, pages: &[u8], offset: u64) -> Result<bool, Errno> {
    if !direct::on(file) {
        return Ok(false);
    }
    let written = write_all(file, pages, offset, u64::MAX);
    direct::off(file)?;
    match written {
        Err(Errno::INVAL) => Ok(false),
        written => written.map(|()| true),
    }
}

fn write_cached(file: &OwnedFd, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    write_all(file, bytes, offset, PIECE)
}

/// Writes in calls that end at multiples of `piece` in the file, or with the bytes.
fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64, piece: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let room = usize::try_from(piece - offset % piece).unwrap_or(usize::MAX);
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
    Ok(())
}

/// The digest of what the disk holds of a synced file: read past the cache. Where the file system does not promise that, the cache is told to
/// forget the file first.
fn read_disk(file: &OwnedFd, size: u64) -> Result<Digest, Errno> {
    if !direct::on(file) {
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        if !direct::ask(file) {
            return read_back(file, size);
        }
    }
    match read_back(file, size) {
        Err(Errno::INVAL) => {}
        told => return told,
    }
    direct::off(file)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_whole_in_the_file_and_in_the_buffer() {
        let page = direct::ALIGN;
        assert_eq!(whole_pages(0, 0, 3 * page), 0..3 * page);
        assert_eq!(whole_pages(page, 8 * page as u64, page + 1), 0..page);
        assert_eq!(whole_pages(100, 100, 3 * page), page - 100..3 * page - 100);
        assert_eq!(whole_pages(5 * page + 1, 1, page - 1), 0..0, "the end of one page");
        assert_eq!(whole_pages(1, 1, 2 * page - 2), 0..0, "parts of two");
        assert_eq!(whole_pages(0, 1, 3 * page), 0..0, "they lie apart");
        assert_eq!(whole_pages(0, 0, 0), 0..0);
    }

    /// Runs as two windows cut them, in either order: pages that both share and an end that is no page among them.
    #[test]
    fn runs_that_share_pages_are_written_whole_in_any_order() {
        let len = 5 * DIRECT_FROM + 777;
        let (mut wanted, mut slot) = (vec![0; len], AlignedBuf::new(len));
        wanted.iter_mut().zip(0_u32..).for_each(|(byte, n)| *byte = (n.wrapping_mul(2_654_435_761) >> 24) as u8);
        slot.copy_from_slice(&wanted);
        let cuts = [0, 2 * DIRECT_FROM + 1234, 4 * DIRECT_FROM + 5, len];
        let run = |n: usize| Run { offset: cuts[n] as u64, length: (cuts[n + 1] - cuts[n]) as u64, at: Some(cuts[n]) };
        for order in [[0, 1, 2], [2, 0, 1]] {
            let file = OwnedFd::from(tempfile::tempfile().unwrap());
            order.iter().for_each(|n| write_runs(&file, &[run(*n)], &slot).unwrap());
            rustix::fs::fsync(&file).unwrap();
            assert_eq!(read_disk(&file, len as u64).unwrap(), crate::content::digest::digest(&wanted), "{order:?}");
        }
    }
}
