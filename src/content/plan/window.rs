//! One window of the plan, while it fills and when it is done.
//!
//! Memory: about 150 bytes a place, [`Limits::places`] at most.

use super::super::pack::{ChunkEntry, PackIndex};
use std::collections::HashMap;
use std::ops::Range;

/// What bounds a window and its reads.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most raw bytes of one window, repeats counted; a single chunk may pass it.
    pub window: u64,
    /// Most bytes of one read; a single chunk may pass it.
    pub read: u64,
    /// Most bytes not wanted that are read along to join two reads.
    pub gap: u64,
    /// Most places and holes of one window, so that tiny chunks do not make it large.
    pub places: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { window: 32 << 20, read: 16 << 20, gap: 256 << 10, places: 16_384 }
    }
}

/// Why a layout cannot be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the layout names chunk {chunk} of pack {pack} in its list, which has only {chunks}")]
    NoSuchChunk { pack: u32, chunk: u32, chunks: u32 },
    #[error("the chunks of pack {pack} in its list, from {first}, do not add up to what the layout says")]
    Disagrees { pack: u32, first: u32 },
}

/// Where (a part of) a chunk's raw bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number the file was fed under.
    pub file: u64,
    /// Where in the file.
    pub offset: u64,
    /// Raw bytes of the chunk to leave out at its start; not 0 only where a range of the file is wanted.
    pub skip: u32,
    /// Raw bytes of the chunk to write.
    pub length: u32,
}

/// One chunk of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its index in the pack.
    pub chunk: u32,
    /// Its id, lengths and codec, by which it is decoded and proven.
    pub entry: ChunkEntry,
    /// Where its stored form lies in the bytes read.
    pub at: Range<usize>,
    /// At least one.
    pub places: Vec<Place>,
}

/// One byte range of one pack's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Index in the layout's pack list.
    pub pack: u32,
    pub range: Range<u64>,
    /// In the order they lie there.
    pub chunks: Vec<Wanted>,
}

/// Zeros: nothing to fetch, the file may stay sparse there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    pub file: u64,
    pub offset: u64,
    pub length: u64,
}

/// What to fetch and write at one go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Window {
    /// By pack and position.
    pub reads: Vec<Read>,
    pub holes: Vec<Hole>,
    /// Raw bytes of all places.
    pub raw: u64,
    /// The files whose last byte is in this window: once all windows up to this one are written, these are whole.
    pub completed: Vec<u64>,
}

/// A window that fills.
#[derive(Debug, Default)]
pub(super) struct Filling {
    chunks: Vec<(u32, Range<u64>, Wanted)>,
    known: HashMap<(u32, u32), usize>,
    window: Window,
    places: usize,
}

impl Filling {
    pub(super) fn is_empty(&self) -> bool {
        self.places == 0 && self.window.completed.is_empty()
    }

    /// Whether `more` raw bytes in one more place fit.
    pub(super) fn fits(&self, more: u64, limits: &Limits) -> bool {
        self.places == 0 || (self.places < limits.places && self.window.raw.saturating_add(more) <= limits.window)
    }

    pub(super) fn chunk(&mut self, pack: u32, chunk: u32, index: &PackIndex, place: Place) {
        self.places += 1;
        self.window.raw += u64::from(place.length);
        let at = *self.known.entry((pack, chunk)).or_insert(self.chunks.len());
        if at == self.chunks.len() {
            let entry = index.entries()[chunk as usize];
            let wanted = Wanted { chunk, entry, at: 0..0, places: Vec::with_capacity(1) };
            self.chunks.push((pack, index.frame(chunk as usize), wanted));
        }
        self.chunks[at].2.places.push(place);
    }

    pub(super) fn hole(&mut self, hole: Hole) {
        self.places += 1;
        self.window.holes.push(hole);
    }

    /// Whether one more file's number fits.
    pub(super) fn room_to_complete(&self, limits: &Limits) -> bool {
        self.window.completed.len() < limits.places
    }

    pub(super) fn complete(&mut self, file: u64) {
        self.window.completed.push(file);
    }

    /// Ends the window and starts the next one. Sorts the chunks by pack and position, and joins what lies near.
    pub(super) fn take(&mut self, limits: &Limits) -> Window {
        let mut filled = std::mem::take(self);
        filled.chunks.sort_unstable_by_key(|(pack, frame, _)| (*pack, frame.start));
        for (pack, frame, mut wanted) in filled.chunks {
            let joins = filled.window.reads.last().is_some_and(|last| {
                last.pack == pack
                    && frame.start - last.range.end <= limits.gap
                    && frame.end - last.range.start <= limits.read
            });
            if !joins {
                filled.window.reads.push(Read { pack, range: frame.start..frame.start, chunks: Vec::new() });
            }
            let Some(read) = filled.window.reads.last_mut() else { continue };
            read.range.end = frame.end;
            wanted.at = (frame.start - read.range.start) as usize..(frame.end - read.range.start) as usize;
            read.chunks.push(wanted);
        }
        filled.window
    }
}
