//! The lines of a layout, their limits and rules, and what can be wrong with them.
//!
//! `FileLayout::check` is the one place where the rules of segments stand; writer and reader both call it.

use super::super::chunker::{HOLE_BLOCK, MAX_CHUNK};
use super::super::crc::Crc32;
use super::super::digest::Digest;
use super::super::pack::PackId;
use super::super::tree::{MAX_FILE_SIZE, Time};
use std::io;

/// The one chunking profile there is: MinCDC, 32 to 96 KiB.
pub const PROFILE: u8 = 1;
/// Most packs one layout may name: 64 TiB in packs of 64 MiB, 32 MiB of memory.
pub const MAX_PACKS: usize = 1 << 20;
/// Most segments of one file. A file needs one for each pack it runs through, and one more for each place where it is
/// put together from older packs: a writer that comes near sends bytes anew rather than scatter the file further.
pub const MAX_SEGMENTS: usize = 1 << 18;
/// Most chunks in a pack, so the bound of `first + count`.
pub const MAX_COUNT: u32 = 65_536;
/// Longest line, its end included: a file of [`MAX_SEGMENTS`] fits.
pub const MAX_LINE: u64 = 16 << 20;
/// Longest layout, uncompressed.
pub const MAX_LAYOUT_BYTES: u64 = 16 << 30;

/// A run of chunks that follow each other in one pack, or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Index in the pack list; `None` for a hole, whose `first` and `count` are 0.
    pub pack: Option<u32>,
    /// Index of the first chunk in the pack.
    pub first: u32,
    pub count: u32,
    /// Bytes of the file it covers.
    pub raw: u64,
}

impl Segment {
    /// Joins `next` to this segment where the two can be one; `false` where they cannot.
    pub fn join(&mut self, next: &Self) -> bool {
        let joined = match (self.pack, next.pack) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                a == b
                    && self.first.checked_add(self.count) == Some(next.first)
                    && self.first + self.count + next.count <= MAX_COUNT
            }
            _ => false,
        };
        let Some(raw) = self.raw.checked_add(next.raw).filter(|_| joined) else { return false };
        self.count += next.count;
        self.raw = raw;
        true
    }
}

/// Where the bytes of one file lie. A plain value: [`check`](Self::check) says whether it may stand in a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLayout {
    /// Of the whole content; equal to the digest in the tree.
    pub digest: Digest,
    pub size: u64,
    /// Of the whole content, holes included.
    pub crc: Crc32,
    pub profile: u8,
    pub segments: Vec<Segment>,
    /// Of the whole content; for formats that want it (BagIt, OCI, in-toto). A claim: nothing in this room compares it.
    pub sha256: Option<[u8; 32]>,
}

impl FileLayout {
    /// Appends a segment, joined to the last one where the two can be one.
    pub fn push(&mut self, segment: Segment) {
        if !self.segments.last_mut().is_some_and(|last| last.join(&segment)) {
            self.segments.push(segment);
        }
    }

    /// Checks all that can be seen without the packs: indexes within `packs`, raw sums, alignment of holes, canonical
    /// joining.
    pub fn check(&self, packs: usize) -> Result<(), Fault> {
        if self.profile != PROFILE {
            return Err(Fault::Profile);
        }
        if self.size == 0 || self.size > MAX_FILE_SIZE {
            return Err(Fault::Size);
        }
        if self.segments.len() > MAX_SEGMENTS {
            return Err(Fault::TooManySegments);
        }
        let mut offset = 0_u64;
        let mut last: Option<Segment> = None;
        for segment in &self.segments {
            check_segment(segment, packs, offset)?;
            if last.is_some_and(|mut last| last.join(segment)) {
                return Err(Fault::Unjoined);
            }
            last = Some(*segment);
            offset = offset.checked_add(segment.raw).ok_or(Fault::Sum)?;
        }
        if offset == self.size { Ok(()) } else { Err(Fault::Sum) }
    }
}

fn check_segment(segment: &Segment, packs: usize, offset: u64) -> Result<(), Fault> {
    let block = HOLE_BLOCK as u64;
    match segment.pack {
        None if segment.first != 0 || segment.count != 0 => Err(Fault::Hole),
        None if segment.raw == 0 || !segment.raw.is_multiple_of(block) || !offset.is_multiple_of(block) => {
            Err(Fault::Hole)
        }
        None => Ok(()),
        Some(pack) => {
            let end = u64::from(segment.first) + u64::from(segment.count);
            let most = u64::from(segment.count) * MAX_CHUNK as u64;
            if pack as usize >= packs {
                Err(Fault::Pack)
            } else if segment.count == 0 || end > u64::from(MAX_COUNT) {
                Err(Fault::Chunks)
            } else if segment.raw < u64::from(segment.count) || segment.raw > most {
                Err(Fault::Raw)
            } else {
                Ok(())
            }
        }
    }
}

/// One line of a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    File(FileLayout),
    /// A directory's time: restored, but no part of the identity.
    Dir {
        mtime: Time,
    },
}

/// Whether two files of two layouts are the same bytes in the same places of the same packs.
pub fn same_place(a: &FileLayout, a_packs: &[PackId], b: &FileLayout, b_packs: &[PackId]) -> bool {
    let pack =
        |packs: &[PackId], segment: &Segment| segment.pack.map(|index| packs.get(index as usize).copied().ok_or(()));
    (a.digest, a.size, a.crc, a.profile) == (b.digest, b.size, b.crc, b.profile)
        && a.segments.len() == b.segments.len()
        && a.segments.iter().zip(&b.segments).all(|(x, y)| {
            let (left, right) = (pack(a_packs, x), pack(b_packs, y));
            (x.first, x.count, x.raw) == (y.first, y.count, y.raw) && left == right && left != Some(Err(()))
        })
}

/// What is wrong with one line. `Profile` asks for a newer dray, all others mean a writer at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("it is not in canonical form")]
    Form,
    #[error("its chunking profile is not known to this version of dray")]
    Profile,
    #[error("its size is 0 or beyond the limit")]
    Size,
    #[error("its segments do not add up to its size")]
    Sum,
    #[error("a segment names a pack that is not in the list")]
    Pack,
    #[error("a segment names no chunks, or more than a pack can hold")]
    Chunks,
    #[error("a segment's bytes cannot come from so many chunks")]
    Raw,
    #[error("its crc32 is not what its chunks and holes combine to")]
    Crc,
    #[error("a hole is not made of whole aligned blocks")]
    Hole,
    #[error("two neighbouring segments should be one")]
    Unjoined,
    #[error("it has more than {MAX_SEGMENTS} segments: send some of its bytes anew")]
    TooManySegments,
    #[error("its time is outside the years 1 to 9999: clamp it")]
    Time,
}

/// Why a layout is refused. Line numbers count from 1, the header's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the layout could not be read or written")]
    Io(#[source] io::Error),
    #[error("this is no layout of version 1: its first line is not the header of one")]
    Header,
    #[error("the layout names {packs} packs, more than the limit of {MAX_PACKS}: repack, or split the dataset")]
    TooManyPacks { packs: u64 },
    #[error("the layout names pack `{pack}` twice")]
    DuplicatePack { pack: PackId },
    #[error("line {line} of the layout is refused")]
    Line { line: u64, source: Fault },
    #[error("line {line} of the layout ends too soon: the layout is cut off")]
    CutOff { line: u64 },
    #[error("line {line} of the layout passes the limits of {MAX_LINE} bytes a line and {MAX_LAYOUT_BYTES} in all")]
    TooLong { line: u64 },
}

impl Error {
    /// A stable word for a problem document.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Header | Self::CutOff { .. } | Self::Line { .. } | Self::DuplicatePack { .. } => "bad_layout",
            Self::TooManyPacks { .. } | Self::TooLong { .. } => "layout_too_large",
        }
    }
}
