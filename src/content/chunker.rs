//! Where files are cut: MinCDC hash-4, 32 to 96 KiB, around holes.
//!
//! The cuts are a function of the file's bytes alone: the same on every machine, however the bytes arrive, for ever. They are part of the
//! format (golden file `tests/golden/chunker-v1.txt`, scalar oracle in the tests), so the crate that decides them is pinned exactly.
//! A hole is a whole 64 KiB block, aligned by file offset, of zeros; each run of bytes between holes is cut as if it were a file of its
//! own, so no chunk reaches into a hole.

use mincdc::{MinCdcHash4, SliceChunker};

/// No chunk is shorter, save the last before a hole or the end.
pub const MIN_CHUNK: usize = 32 * 1024;
/// What chunks of random data come to on average.
pub const AVG_CHUNK: usize = 64 * 1024;
/// No chunk is longer.
pub const MAX_CHUNK: usize = 96 * 1024;
/// Holes are whole blocks of this size, aligned to it by file offset.
pub const HOLE_BLOCK: usize = 64 * 1024;
/// With this many unread bytes [`Splitter::next`] always answers: a longest chunk, and the blocks that must be seen whole to know where it
/// ends.
pub const ENOUGH: usize = 256 * 1024;

const BLOCK: u64 = HOLE_BLOCK as u64;
static ZEROS: [u8; 4096] = [0; 4096];

/// What the front of the unread bytes is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// One chunk of this many bytes.
    Chunk(usize),
    /// So many zero bytes, whole blocks. A long hole may come as several pieces: join neighbours.
    Hole(u64),
}

/// Whether bytes follow the unread ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The file ends here, or a hole begins that [`Splitter::skip_hole`] will skip.
    Yes,
    No,
}

/// Cuts one file, from its start, in bounded memory.
///
/// The caller holds the bytes: it shows the unread ones, consumes what the answer says, and shows the rest again with more behind it.
#[derive(Debug, Clone, Default)]
pub struct Splitter {
    /// File offset of the first unread byte.
    at: u64,
    /// Every block that starts before this offset, and at or after `at`, is known not to be a hole; `hole` aside.
    judged: u64,
    /// The first block at or after `at` that is known to be a hole.
    hole: Option<u64>,
}

impl Splitter {
    pub fn new() -> Self {
        Self::default()
    }

    /// File offset of the first unread byte: the sum of all pieces given and holes skipped.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// What to consume from the front of `unread`. `None` asks for more bytes; never where `unread` holds [`ENOUGH`], nor at the end
    /// while anything is unread.
    ///
    /// Few unread bytes cost time, not other cuts: what could not be decided is looked at again. Show [`ENOUGH`] where you can.
    pub fn next(&mut self, unread: &[u8], end: End) -> Option<Piece> {
        if unread.is_empty() || self.find_hole(unread, end) == Found::NeedsMore {
            return None;
        }
        let until_hole = self.hole.map(|start| usize::try_from(start - self.at).unwrap_or(usize::MAX));
        let piece = match until_hole {
            Some(0) => self.take_hole(unread),
            Some(data) => Piece::Chunk(first_cut(&unread[..data.min(MAX_CHUNK)])),
            None if end == End::No && unread.len() < MAX_CHUNK => return None,
            None => Piece::Chunk(first_cut(&unread[..unread.len().min(MAX_CHUNK)])),
        };
        self.at += match piece {
            Piece::Chunk(len) => len as u64,
            Piece::Hole(len) => len,
        };
        Some(piece)
    }

    /// Passes over `len` bytes that the file system says are a hole, as if they had been shown. All before them must have been shown with
    /// [`End::Yes`] and consumed.
    ///
    /// # Panics
    /// Where the offset or the length is not a multiple of [`HOLE_BLOCK`]: shrink the range with [`whole_blocks`] first.
    pub fn skip_hole(&mut self, len: u64) {
        assert!(
            self.at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK),
            "hole at {} of {len} bytes is not aligned",
            self.at
        );
        self.at += len;
        self.judged = self.at;
        self.hole = None;
    }

    /// Finds the first hole that could end the next chunk, judging each block once.
    fn find_hole(&mut self, unread: &[u8], end: End) -> Found {
        if self.hole.is_some() {
            return Found::Decided;
        }
        let mut start = self.judged.max(self.at.next_multiple_of(BLOCK));
        while start < self.at + MAX_CHUNK as u64 {
            let Some(rest) = usize::try_from(start - self.at).ok().and_then(|skip| unread.get(skip..)) else {
                break;
            };
            let block = &rest[..rest.len().min(HOLE_BLOCK)];
            if is_zero(block) {
                if block.len() == HOLE_BLOCK {
                    self.hole = Some(start);
                    break;
                }
                if end == End::No {
                    return Found::NeedsMore;
                }
            }
            start += BLOCK;
            self.judged = start;
        }
        Found::Decided
    }

    fn take_hole(&mut self, unread: &[u8]) -> Piece {
        let blocks = unread.chunks_exact(HOLE_BLOCK).take_while(|block| is_zero(block)).count() as u64;
        self.hole = None;
        Piece::Hole(blocks * BLOCK)
    }
}

#[derive(PartialEq, Eq)]
enum Found {
    Decided,
    NeedsMore,
}

/// The largest run of whole hole blocks within `start..end`; empty where there is none.
pub fn whole_blocks(range: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let end = range.end - range.end % BLOCK;
    match range.start.checked_next_multiple_of(BLOCK) {
        Some(start) if start < end => start..end,
        _ => end..end,
    }
}

/// The length of the first chunk of a run of data that is at least `data` long, and longer only if `data` is [`MAX_CHUNK`].
fn first_cut(data: &[u8]) -> usize {
    SliceChunker::new(data, MIN_CHUNK, MAX_CHUNK, MinCdcHash4::new()).next().map_or(0, |chunk| chunk.len())
}

/// Stops at the first difference, so that it costs nothing on data.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()])
}

#[cfg(test)]
mod tests;
