//! Large files that an earlier pull of this DEST did not finish: taken over, so that what of them is right is not fetched again.
//!
//! The part of a large file is named by the pull and by the file: `.dray-<pull>-<key>.part`, where the key is the BLAKE3 of the file's name and
//! digest, cut to 32 hex digits. A later pull renames it to a name of its own and writes on in it. What it holds is proven chunk by chunk, by
//! chunk id, before it counts; the rest (holes that were never written, damage) is fetched as if nothing were there.
//!
//! Proven by id and not by what the record says: a part is whatever a killed process left in the page cache or on the disk.

use super::dest::Dest;
use super::file::{FileFacts, part_name};
use super::large::LargeFile;
use super::window::{FileJob, Job};
use crate::content::digest::{Digest, digest};
use crate::content::plan::{Read, Wanted};
use bytes::Bytes;
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

/// For reading and writing on; a pipe that took the part's place must not hang the pull.
const TAKE: OFlags = OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// The part that one of the earlier `runs` left of a file: its name, and the bytes of disk that it takes. Looks only; used to reckon the
/// room that is needed.
pub(super) fn left_of(dir: BorrowedFd<'_>, runs: &str, name: &[u8], digest: &Digest) -> Option<(String, u64)> {
    runs.lines().find_map(|run| {
        let part = part_name(run, name, digest);
        let stat = rustix::fs::statat(dir, &*part, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((part, u64::try_from(stat.st_blocks).ok()? * 512))
    })
}

/// Takes over the part that one of the earlier `runs` left of this file, if there is one. What is no plain file of one name, or is longer
/// than the file, is left alone: no pull wrote it so.
pub(super) fn take_over(
    dest: &Dest,
    dir: BorrowedFd<'_>,
    runs: &str,
    job: &FileFacts,
) -> Result<Option<LargeFile>, Errno> {
    for run in runs.lines() {
        let left = part_name(run, job.path.name(), &job.digest);
        let file = match rustix::fs::openat(dir, &*left, TAKE, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => continue,
            Err(error) => return Err(error),
        };
        let stat = rustix::fs::fstat(&file)?;
        let is_ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_nlink == 1
            && u64::try_from(stat.st_size).is_ok_and(|size| size <= job.size);
        if !is_ours {
            continue;
        }
        let own = part_name(&dest.run, job.path.name(), &job.digest);
        rustix::fs::renameat(dir, &*left, dir, &*own)?;
        return LargeFile::taken_over(file, dir, own).map(Some);
    }
    Ok(None)
}

/// What the parts taken over hold of a window: for each read all its chunks, raw and proven, or nothing. All or nothing, since a read is
/// one request. Memory: the raw chunks of the window once more.
pub(super) fn held(job: &Job) -> Vec<Option<Vec<Bytes>>> {
    let chunks = |read: &Read| read.chunks.iter().map(|chunk| held_chunk(&job.files, chunk)).collect();
    job.window.reads.iter().map(chunks).collect()
}

/// Only a place that wants the whole chunk can prove it: an id is that of all its bytes.
fn held_chunk(files: &BTreeMap<u64, Arc<FileJob>>, chunk: &Wanted) -> Option<Bytes> {
    let whole = chunk.places.iter().filter(|place| place.skip == 0 && place.length == chunk.entry.raw);
    for place in whole {
        let Some(file) = files.get(&place.file).and_then(|file| file.resumed()) else { continue };
        let mut raw = vec![0; place.length as usize];
        if file.read(&mut raw, place.offset).is_ok() && digest(&raw) == chunk.entry.id {
            return Some(raw.into());
        }
    }
    None
}
