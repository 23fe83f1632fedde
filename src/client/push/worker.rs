//! The workers: read small files, cut them, hash chunks, compress what is new. Everything here may run in any order.
//!
//! A small file is opened without following links, read into the batch's slot and compared with what the walk saw; one that
//! changed is read once more and then given up. No error here ends a push: it becomes the file's outcome.
//!
//! Encoders are one a worker; slots and frames belong to the batch. A file's digest is that of its only chunk where it has one, so small
//! files are hashed once.

use super::batch::{Batch, Chunk, Fate, Part, SmallFile, Stored, Unit};
use super::catalog::Location;
use crate::client::walk::{READ, Stamp, errno_reason};
use crate::content::chunker::{End, Piece, Splitter};
use crate::content::codec::{Codec, Encoder};
use crate::content::crc::Crc32;
use crate::content::digest::{Digest, digest};
use rustix::fd::OwnedFd;
use rustix::fs::Mode;
use rustix::io::Errno;
use std::sync::LazyLock;

/// Digest of no bytes.
pub(super) static EMPTY: LazyLock<Digest> = LazyLock::new(|| digest(&[]));

/// When a chunk's crc32 is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crcs {
    /// With its id, while its bytes are in the processor's near cache.
    AtOnce,
    /// By who encodes, so that chunks which a pack's index or the parent has told about cost none: a push of what was pushed before.
    WhenNew,
}

impl Crcs {
    fn at_once(self, raw: &[u8]) -> Option<Crc32> {
        (self == Self::AtOnce).then(|| Crc32::of(raw))
    }
}

/// Fills in the ids of all chunks, and reads the small files. Small files are cut here too.
pub(super) fn hash(batch: &mut Batch, crcs: Crcs) {
    let mut read = 0;
    for unit in &mut batch.units {
        match unit {
            Unit::Small(file) => {
                let room = small_room(file);
                let window = &mut batch.slot[file.start as usize..file.start as usize + room];
                file.outcome = read_small(file, window, crcs);
                read += file.outcome.as_ref().map_or(0, |_| file.facts.stamp.size);
            }
            Unit::LargeParts { parts, .. } => {
                for part in parts {
                    if let Part::Chunk(chunk) = part {
                        let raw = chunk.bytes(&batch.slot);
                        (chunk.id, chunk.crc) = (digest(raw), crcs.at_once(raw));
                    }
                }
            }
            _ => {}
        }
    }
    batch.bytes += read;
}

/// Bytes of the slot that belong to a small file: its size and one more.
pub(super) fn small_room(file: &SmallFile) -> usize {
    usize::try_from(file.facts.stamp.size).map_or(0, |size| size + 1)
}

/// Reads, cuts and hashes one file. The facts are those of the moment of reading. An error is a stable word for the report.
fn read_small(file: &mut SmallFile, window: &mut [u8], crcs: Crcs) -> Result<Digest, String> {
    let mut tries = 2;
    let read = loop {
        tries -= 1;
        match read_stable(file, window) {
            Ok(Some(read)) => break read,
            Ok(None) if tries > 0 => {}
            Ok(None) => return Err("changed".to_owned()),
            Err(error) => return Err(errno_reason(error)),
        }
    };
    let bytes = &window[..read];
    file.parts = cut_whole(bytes, file.start as usize);
    let mut offset = 0;
    for part in &mut file.parts {
        match part {
            Part::Chunk(chunk) => {
                let raw = &bytes[offset..offset + chunk.len as usize];
                (chunk.id, chunk.crc) = (digest(raw), crcs.at_once(raw));
                offset += raw.len();
            }
            Part::Hole(len) => offset += usize::try_from(*len).expect("a hole in a small file is small"),
        }
    }
    Ok(match &file.parts[..] {
        [] => *EMPTY,
        [Part::Chunk(only)] => only.id,
        _ => digest(bytes),
    })
}

/// One read of the whole file: how many bytes, or `None` when it was not the same before and after.
/// `None` leaves the facts as they stand on the disk now, unless the file outgrew its room in the slot: then it has changed for good.
fn read_stable(file: &mut SmallFile, window: &mut [u8]) -> Result<Option<usize>, Errno> {
    let open = rustix::fs::openat(&file.place.dir, &file.place.name, READ, Mode::empty())?;
    let read = read_full(&open, window)?;
    let after = rustix::fs::fstat(&open)?;
    let stamp = Stamp::of(&after);
    let is_file = rustix::fs::FileType::from_raw_mode(after.st_mode) == rustix::fs::FileType::RegularFile;
    let same = is_file && stamp == file.facts.stamp && read as u64 == stamp.size;
    if !same && is_file {
        // The second try is measured against what is there now.
        if stamp.size as usize >= window.len() {
            return Ok(None);
        }
        file.facts.stamp = stamp;
        file.facts.mode = after.st_mode & 0o777;
        file.facts.parent = None;
    }
    Ok(same.then_some(read))
}

/// Reads until the window is full or the file ends.
pub(super) fn read_full(file: &OwnedFd, window: &mut [u8]) -> Result<usize, Errno> {
    let mut read = 0;
    while read < window.len() {
        match rustix::io::read(file, &mut window[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        // A regular file gives all it has: a short read is the end, and one call less for every small file.
        if read + 1 == window.len() {
            break;
        }
    }
    Ok(read)
}

/// Cuts bytes that are a whole file and lie at `start` of the slot. Chunks are not hashed yet; together with the holes they are the file.
pub(super) fn cut_whole(bytes: &[u8], start: usize) -> Vec<Part> {
    let mut splitter = Splitter::new();
    let (mut parts, mut at) = (Vec::new(), 0);
    while let Some(piece) = splitter.next(&bytes[at..], End::Yes) {
        match piece {
            Piece::Chunk(len) => {
                parts.push(Part::Chunk(Chunk::cut(start + at, len)));
                at += len;
            }
            Piece::Hole(len) => {
                parts.push(Part::Hole(len));
                at += usize::try_from(len).expect("a hole is no longer than the bytes shown");
            }
        }
    }
    parts
}

/// Compresses the chunks that are new; those that do not shrink stay in the slot. Takes the crc32 that is still wanted. To be called once a batch,
/// after its fates are fixed.
pub(super) fn encode(batch: &mut Batch, encoder: &mut Encoder) {
    let mut frames = std::mem::take(&mut batch.frames);
    let slot = std::mem::replace(&mut batch.slot, super::batch::Slot::new(0));
    for chunk in batch.chunks_mut() {
        if chunk.crc.is_none() && matches!(chunk.fate, Fate::New(_) | Fate::Known(Location::Own(_))) {
            chunk.crc = Some(Crc32::of(chunk.bytes(&slot)));
        }
        if let Fate::New(stored) = &mut chunk.fate {
            let raw = &slot[chunk.start as usize..chunk.start as usize + chunk.len as usize];
            let start = frames.len();
            let codec = encoder.shrink(raw, &mut frames);
            let (start, len) = match codec {
                Codec::Raw => (chunk.start, chunk.len),
                Codec::Zstd => (
                    u32::try_from(start).expect("frames are shorter than the slot"),
                    u32::try_from(frames.len() - start).expect("frames are shorter than the slot"),
                ),
            };
            *stored = Stored { codec, start, len };
        }
    }
    batch.slot = slot;
    batch.frames = frames;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file_is_cut_with_holes() {
        let mut bytes = vec![7_u8; 65_536 * 3];
        bytes[65_536..131_072].fill(0);
        let parts = cut_whole(&bytes, 4096);
        let total: u64 = parts
            .iter()
            .map(|part| match part {
                Part::Chunk(chunk) => u64::from(chunk.len),
                Part::Hole(len) => *len,
            })
            .sum();
        assert_eq!(total, bytes.len() as u64);
        assert!(parts.iter().any(|part| matches!(part, Part::Hole(65_536))));
        assert!(matches!(&parts[0], Part::Chunk(chunk) if chunk.start == 4096));
        assert!(cut_whole(&[], 0).is_empty());
    }
}
