//! What moves through the pipeline: batches of entries in tree order, each with one buffer for the bytes it holds.
//!
//! A batch is made by the source, hashed by a worker, decided about in order, encoded by a worker and placed in order. The
//! number of buffers is fixed, so the number of batches alive is too.
//!
//! ```text
//!         source            worker            order             worker           order
//! slot    filled            hashed            -                 -                given back
//! units   named, cut        read, cut         -                 -                consumed
//! chunks  (large) cut       id                fate              frames, crc      place
//! ```

use super::Item;
use super::catalog::Location;
use crate::client::walk::{Found, Place, Stamp};
use crate::content::buffer::AlignedBuf;
use crate::content::codec::Codec;
use crate::content::crc::Crc32;
use crate::content::digest::Digest;
use crate::content::layout::FileLayout;
use crate::content::path::RelPath;
use crate::content::tree::Time;

/// Bytes of files that one batch takes.
pub(super) const REGION: usize = 4 << 20;
/// Room before a region for what the cut left over from the region before; a multiple of the page size.
pub(super) const MARGIN: usize = 256 << 10;
/// A file of at most this size is read whole by a worker.
pub(super) const SMALL: u64 = 1 << 20;
/// Entries in one batch, so that a million empty files do not make one large.
pub(super) const MAX_UNITS: usize = 512;
/// Directory handles that the files of one batch keep open; with all batches under way they stay below the usual limit of 1,024.
pub(super) const MAX_DIRS: usize = 24;

/// A buffer that goes round: [`MARGIN`] and [`REGION`] bytes.
pub(super) type Slot = AlignedBuf;

/// A run of entries in tree order. Owned by one thread at a time; who holds it may change all of it.
#[derive(Debug)]
pub(super) struct Batch {
    /// Counts from 0 without gaps.
    pub number: u64,
    pub slot: Slot,
    pub units: Vec<Unit>,
    /// Logical bytes read into the slot.
    pub bytes: u64,
    /// Frames of the chunks that were compressed, back to back.
    pub frames: Vec<u8>,
}

/// What is at the front of a run of bytes. The parts of a file, in order, are the file.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Chunk(Chunk),
    /// Whole blocks of zeros; its bytes are not sent.
    Hole(u64),
}

/// A chunk whose bytes lie in the batch's slot.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    /// Where in the slot.
    pub start: u32,
    pub len: u32,
    pub id: Digest,
    /// Set by who hashes or who encodes, or never: of a chunk that a pack's index or the parent's layout has told about it is not needed.
    pub crc: Option<Crc32>,
    pub fate: Fate,
}

/// What becomes of a chunk. Set once, in tree order, by the ordering thread; the stored form is filled in by a worker.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    /// Also for good, in a file that is taken over from the parent as a whole.
    Undecided,
    /// The bytes are in a pack already, or will be once the batches before this one are placed.
    Known(Location),
    /// To be sent: the stored form.
    New(Stored),
}

/// The stored form of a new chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    pub codec: Codec,
    /// In the batch's frames where it was compressed; else it is the raw bytes in the slot.
    pub start: u32,
    pub len: u32,
}

/// The facts about a file that stand in the tree, and the parent's line for its path.
#[derive(Debug)]
pub(super) struct FileFacts {
    pub path: RelPath,
    pub stamp: Stamp,
    pub mode: u32,
    /// Further names of this file follow.
    pub leads: bool,
    pub parent: Option<Box<FileLayout>>,
}

impl FileFacts {
    pub fn new(found: &Found, leads: bool, parent: Option<Box<FileLayout>>) -> Self {
        Self { path: found.path.clone(), stamp: found.stamp, mode: found.mode, leads, parent }
    }
}

/// A file that a worker reads whole. `outcome` is its digest, or an error before it was read, and a stable word for why it could not be.
#[derive(Debug)]
pub(super) struct SmallFile {
    pub facts: FileFacts,
    pub place: Place,
    /// Where in the slot its bytes may lie: one byte more than its size, to see growth.
    pub start: u32,
    pub parts: Vec<Part>,
    pub outcome: Result<Digest, String>,
}

/// One entry, or a piece of one.
#[derive(Debug)]
pub(super) enum Unit {
    Dir {
        path: RelPath,
        mode: u32,
        mtime: Time,
    },
    Symlink {
        path: RelPath,
        mtime: Time,
        target: Vec<u8>,
    },
    /// `last` = all names of the file were met.
    HardLink {
        path: RelPath,
        first: RelPath,
        last: bool,
    },
    Small(Box<SmallFile>),
    /// Unchanged by the stat cache, and the parent's layout has its place. None for an empty file.
    /// Nothing of it is read.
    Cached(Box<FileFacts>),
    /// A large file begins (again, after a retry). Until it ends or is dropped, no unit of another file comes.
    LargeStart(Box<FileFacts>),
    /// The next bytes of the large file.
    LargeParts {
        parts: Vec<Part>,
        offset: u64,
    },
    /// The large file ends; `digest` is filled in on the way.
    LargeEnd {
        digest: Option<Digest>,
    },
    /// It changed while it was read: what came since its start does not count, though its chunks may be sent.
    LargeDropped,
    Skipped(Item),
    Failed(Item),
}

impl Unit {
    /// The parts it holds.
    pub fn parts(&self) -> &[Part] {
        match self {
            Self::Small(file) => &file.parts,
            Self::LargeParts { parts, .. } => parts,
            _ => &[],
        }
    }

    pub fn parts_mut(&mut self) -> &mut [Part] {
        match self {
            Self::Small(file) => &mut file.parts,
            Self::LargeParts { parts, .. } => parts,
            _ => &mut [],
        }
    }
}

impl Batch {
    /// All chunks, in order.
    pub fn chunks_mut(&mut self) -> impl Iterator<Item = &mut Chunk> {
        self.units.iter_mut().flat_map(Unit::parts_mut).filter_map(|part| match part {
            Part::Chunk(chunk) => Some(chunk),
            Part::Hole(_) => None,
        })
    }
}

impl Chunk {
    /// Cut, not hashed yet: `start` and `len` are in the slot.
    pub fn cut(start: usize, len: usize) -> Self {
        Self {
            start: u32::try_from(start).expect("a slot is smaller than 4 GiB"),
            len: u32::try_from(len).expect("a chunk is smaller than a slot"),
            id: Digest::from_bytes([0; 32]),
            crc: None,
            fate: Fate::Undecided,
        }
    }

    pub fn bytes<'a>(&self, slot: &'a Slot) -> &'a [u8] {
        &slot[self.start as usize..self.start as usize + self.len as usize]
    }
}
