//! The planner: a state machine that walks files segment by segment and fills windows.
//!
//! It keeps its place inside a segment, so one huge file is cut over many windows without being expanded.
//!
//! ```text
//! feed, feed_range -> files -> step -> NeedIndex: get it, step again
//!                                   -> Window:    fetch and write it, step again
//!                                   -> NeedFile:  feed, or close
//!                                   -> Done
//! ```

use super::super::layout::{FileLayout, Segment};
use super::super::pack::PackIndex;
use super::window::{Error, Filling, Hole, Limits, Place, Window};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// What the planner says next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The next window is ready.
    Window(Window),
    /// It has used up its files: feed it one, or close it.
    NeedFile,
    /// It cannot go on without the index of this pack (its place in the layout's list): get it and step again.
    NeedIndex(u32),
    /// It was closed, and everything fed is planned.
    Done,
}

/// Plans files one after another. `step` until it is done; every answer says what it waits for.
#[derive(Debug)]
pub struct Planner {
    limits: Limits,
    files: VecDeque<Walk>,
    closed: bool,
    filling: Filling,
}

/// A file and how far it is planned.
#[derive(Debug)]
struct Walk {
    file: u64,
    layout: Arc<FileLayout>,
    range: Range<u64>,
    segment: usize,
    /// Where in the file that segment begins.
    start: u64,
    /// Chunks of that segment passed already.
    chunk: u32,
    /// Where in the file the next chunk or segment begins.
    offset: u64,
}

impl Planner {
    pub fn new(limits: Limits) -> Self {
        Self { limits, files: VecDeque::new(), closed: false, filling: Filling::default() }
    }

    /// Adds a whole file under a number of the caller's. Meant to be called when asked for; what is fed early is held.
    pub fn feed(&mut self, file: u64, layout: Arc<FileLayout>) {
        let range = 0..layout.size;
        self.feed_range(file, layout, range);
    }

    /// Adds a range of a file; what lies beyond its end is left out.
    pub fn feed_range(&mut self, file: u64, layout: Arc<FileLayout>, range: Range<u64>) {
        let range = range.start..range.end.min(layout.size);
        self.files.push_back(Walk { file, layout, range, segment: 0, start: 0, chunk: 0, offset: 0 });
    }

    /// No more files come.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Goes on as far as it can. `lookup` answers the index of a pack by its place in the layout's list, `None` where it
    /// is not at hand; only the index of the segment in work is asked for.
    ///
    /// An error concerns the file in front and would come again: the plan ends there. The index must be the one of that pack's id, which the
    /// caller proves.
    pub fn step(&mut self, lookup: &dyn Fn(u32) -> Option<Arc<PackIndex>>) -> Result<Step, Error> {
        loop {
            let Some(walk) = self.files.front_mut() else {
                return Ok(match (self.closed, self.filling.is_empty()) {
                    (false, _) => Step::NeedFile,
                    (true, false) => Step::Window(self.filling.take(&self.limits)),
                    (true, true) => Step::Done,
                });
            };
            match walk.advance(&mut self.filling, &self.limits, lookup)? {
                Advance::On => {}
                Advance::Full => return Ok(Step::Window(self.filling.take(&self.limits))),
                Advance::NeedIndex(pack) => return Ok(Step::NeedIndex(pack)),
                Advance::End => {
                    self.filling.complete(walk.file);
                    self.files.pop_front();
                    // empty ranges take no place, so their numbers must not pile up either
                    if !self.filling.room_to_complete(&self.limits) {
                        return Ok(Step::Window(self.filling.take(&self.limits)));
                    }
                }
            }
        }
    }
}

/// What became of one segment.
enum Advance {
    On,
    Full,
    NeedIndex(u32),
    End,
}

impl Walk {
    /// Plans one segment, or as much of it as the window holds.
    fn advance(
        &mut self,
        filling: &mut Filling,
        limits: &Limits,
        lookup: &dyn Fn(u32) -> Option<Arc<PackIndex>>,
    ) -> Result<Advance, Error> {
        let Some(segment) = self.layout.segments.get(self.segment).copied() else { return Ok(Advance::End) };
        if self.offset >= self.range.end {
            return Ok(Advance::End);
        }
        // nothing of this segment is planned yet and nothing of it is wanted
        if self.chunk == 0 && self.offset + segment.raw <= self.range.start {
            self.leave(self.offset + segment.raw);
            return Ok(Advance::On);
        }
        let Some(pack) = segment.pack else {
            if !filling.fits(0, limits) {
                return Ok(Advance::Full);
            }
            let end = self.offset + segment.raw;
            let wanted = self.offset.max(self.range.start)..end.min(self.range.end);
            filling.hole(Hole { file: self.file, offset: wanted.start, length: wanted.end - wanted.start });
            self.leave(end);
            return Ok(Advance::On);
        };
        match lookup(pack) {
            None => Ok(Advance::NeedIndex(pack)),
            Some(index) => self.chunks(filling, limits, &segment, &index),
        }
    }

    fn chunks(
        &mut self,
        filling: &mut Filling,
        limits: &Limits,
        segment: &Segment,
        index: &PackIndex,
    ) -> Result<Advance, Error> {
        let pack = segment.pack.unwrap_or_default();
        let disagrees = Error::Disagrees { pack, first: segment.first };
        let entries = index.entries();
        let chunks = entries.len() as u32;
        let segment_end = self.start + segment.raw;
        while self.chunk < segment.count {
            let chunk = segment.first + self.chunk;
            let Some(entry) = entries.get(chunk as usize) else {
                return Err(Error::NoSuchChunk { pack, chunk, chunks });
            };
            let end = self.offset + u64::from(entry.raw);
            // never a byte beyond the segment, so never one beyond the file
            if end > segment_end {
                return Err(disagrees);
            }
            if self.offset >= self.range.end {
                return Ok(Advance::End);
            }
            let wanted = self.offset.max(self.range.start)..end.min(self.range.end);
            if wanted.start < wanted.end {
                let length = (wanted.end - wanted.start) as u32;
                if !filling.fits(u64::from(length), limits) {
                    return Ok(Advance::Full);
                }
                let skip = (wanted.start - self.offset) as u32;
                filling.chunk(pack, chunk, index, Place { file: self.file, offset: wanted.start, skip, length });
            }
            self.chunk += 1;
            self.offset = end;
        }
        if self.offset != segment_end {
            return Err(disagrees);
        }
        self.leave(segment_end);
        Ok(Advance::On)
    }

    fn leave(&mut self, offset: u64) {
        self.segment += 1;
        self.start = offset;
        self.chunk = 0;
        self.offset = offset;
    }
}
