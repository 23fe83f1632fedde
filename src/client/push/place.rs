//! Placing: chunks get their places in packs, files their lines, all in tree order.
//!
//! Chunks that were decided to be new are appended in the order of the decisions, so the serial number of a chunk tells its
//! pack. A pack is sealed when it is full and waits here until it may be sent.
//!
//! One thread calls, batch by batch in tree order, however the workers ran.
//!
//! ```text
//! new chunk    serial n      -> appended to the pack being filled: (its number, index n - serial of its first chunk)
//! own chunk    serial m < n  -> the row of `packs` that begins at or before m
//! remote       pack, index   -> the number of that pack, the same index
//! hole                       -> a segment without a pack
//! ```

use super::Item;
use super::batch::{Batch, Chunk, Fate, FileFacts, Part, Slot, SmallFile, Unit};
use super::catalog::{Catalog, Location};
use super::decide::is_same;
use super::pack::{Filling, LEND_FROM, Pool, Sealed, Shape};
use super::parent::Parent;
use super::record::Record;
use super::source::cached_digest;
use crate::client::context::TransferError;
use crate::client::progress::Meter;
use crate::content::codec::Codec;
use crate::content::crc::Crc32;
use crate::content::digest::Digest;
use crate::content::layout::{FileLayout, PROFILE, Segment};
use crate::content::pack::ChunkEntry;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What was placed, for the report: bytes of sealed packs, and logical bytes that were known already.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    pub stored_bytes: u64,
    pub reused_bytes: u64,
}

/// A file whose parts come one after the other.
/// Its layout names packs by this push's numbers; the layout's own places come in `record`.
#[derive(Debug)]
struct OpenFile {
    facts: FileFacts,
    layout: FileLayout,
}

/// The bytes of the batch being placed.
#[derive(Debug)]
enum Held<'b> {
    /// To be copied.
    Here { slot: &'b Slot, frames: &'b [u8] },
    /// To be referred to.
    Lent { slot: &'b Bytes, frames: &'b Bytes },
}

/// The placing end of the ordering thread.
#[derive(Debug)]
pub(super) struct Placing<'a> {
    pub record: Record,
    pub sums: Sums,
    meter: &'a Meter,
    parent: Option<&'a Parent>,
    pool: Arc<Pool>,
    filling: Filling,
    /// Asked before each new chunk, so a pack that is being filled follows what the line has just shown.
    shape: Shape,
    /// Full packs that were not handed out yet.
    sealed: VecDeque<Sealed>,
    /// Number of the pack being filled, and the serial number of its first chunk: one row a pack of this push.
    /// Sorted by serial number, so a chunk's pack is found by halving.
    packs: Vec<(u64, u32)>,
    /// Of the next new chunk to be placed.
    serial: u64,
    /// Between its start and its end.
    large: Option<OpenFile>,
}

impl<'a> Placing<'a> {
    pub fn new(record: Record, meter: &'a Meter, parent: Option<&'a Parent>, shape: Shape) -> Self {
        let pool = Arc::new(Pool::default());
        Self {
            record,
            sums: Sums::default(),
            meter,
            parent,
            filling: Filling::new(Arc::clone(&pool)),
            pool,
            shape,
            sealed: VecDeque::new(),
            packs: Vec::new(),
            serial: 0,
            large: None,
        }
    }

    /// A sealed pack waits to be sent: placing more would hold more memory.
    pub fn is_waiting(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.filling.is_empty()
    }

    /// To be sent now; the caller counts it as in flight.
    pub fn next_sealed(&mut self) -> Option<Sealed> {
        self.sealed.pop_front()
    }

    /// Seals what is left; `false` when nothing is.
    /// To be called once the last batch is placed.
    pub fn seal_last(&mut self) -> bool {
        if self.filling.is_empty() {
            return false;
        }
        self.seal();
        true
    }

    /// To be told once a pack, in any order.
    pub fn acknowledged(&mut self, bytes: u64, took: Duration) {
        self.shape.learn(bytes, took);
    }

    /// Places a decided batch and gives its buffer back, or another where it is lent to packs. Batches must come in the order of their
    /// numbers. An error is a fault of the machinery or of the temporary files; what is wrong with a file is in the record.
    pub fn place(&mut self, batch: Batch, catalog: &Catalog) -> Result<Slot, TransferError> {
        let Batch { slot, units, frames, .. } = batch;
        let new = units.iter().flat_map(Unit::parts).map(|part| match part {
            Part::Chunk(Chunk { fate: Fate::New(stored), .. }) => stored.len as usize,
            _ => 0,
        });
        if new.sum::<usize>() >= LEND_FROM && frames.len() <= LEND_FROM / 16 {
            let (slot, other) = self.pool.lend(slot);
            self.units(units, &Held::Lent { slot: &slot, frames: &frames.into() }, catalog)?;
            return Ok(other);
        }
        self.units(units, &Held::Here { slot: &slot, frames: &frames }, catalog)?;
        Ok(slot)
    }

    fn units(&mut self, units: Vec<Unit>, held: &Held<'_>, catalog: &Catalog) -> Result<(), TransferError> {
        units.into_iter().try_for_each(|unit| self.unit(unit, held, catalog))
    }

    /// What is dropped leaves its chunks in the packs, where the next push finds them.
    fn unit(&mut self, unit: Unit, held: &Held<'_>, catalog: &Catalog) -> Result<(), TransferError> {
        let same = self.parent.is_some_and(|parent| is_same(&unit, parent, catalog));
        match unit {
            Unit::Dir { path, mode, mtime } => self.record.dir(path, mode, mtime),
            Unit::Symlink { path, mtime, target } => self.record.symlink(path, mtime, target),
            Unit::HardLink { path, first, last } => self.record.hard_link(self.meter, path, first, last),
            Unit::Skipped(item) => {
                self.record.skipped(item);
                Ok(())
            }
            Unit::Failed(item) => {
                self.record.failed(self.meter, item);
                Ok(())
            }
            Unit::Cached(facts) => self.reuse(*facts),
            Unit::Small(file) => match &file.outcome {
                Err(reason) => {
                    self.record.failed(self.meter, Item::new(file.facts.path.as_bytes(), reason));
                    Ok(())
                }
                Ok(_) if same => self.reuse(file.facts),
                Ok(digest) => {
                    let digest = *digest;
                    let SmallFile { facts, parts, .. } = *file;
                    let mut layout = empty_layout();
                    self.parts(&mut layout, &parts, held, catalog)?;
                    self.finish(facts, layout, digest)
                }
            },
            Unit::LargeStart(facts) => {
                self.large = Some(OpenFile { facts: *facts, layout: empty_layout() });
                Ok(())
            }
            Unit::LargeParts { parts, .. } => {
                // Taken out and put back, since `self` is borrowed in between.
                let began = self.large.take();
                let mut file = began.ok_or(TransferError::Broken { what: "a part came before its file" })?;
                self.parts(&mut file.layout, &parts, held, catalog)?;
                self.large = Some(file);
                Ok(())
            }
            Unit::LargeDropped => {
                self.large = None;
                Ok(())
            }
            Unit::LargeEnd { digest, .. } => match (self.large.take(), digest) {
                (Some(file), Some(digest)) => self.finish(file.facts, file.layout, digest),
                _ => Err(TransferError::Broken { what: "a large file ended that had not begun" }),
            },
        }
    }

    /// A file whose bytes are all where the parent's layout says: its segments are taken over, with this push's numbers for the packs. An
    /// empty file comes here too, without a layout.
    fn reuse(&mut self, facts: FileFacts) -> Result<(), TransferError> {
        let digest = cached_digest(&facts);
        let layout = match (&facts.parent, self.parent) {
            (Some(layout), Some(parent)) => {
                let mut layout = FileLayout::clone(layout);
                for segment in &mut layout.segments {
                    segment.pack = match segment.pack {
                        Some(pack) => {
                            let id = parent.packs.get(pack as usize);
                            let id = id.ok_or(TransferError::Broken { what: "a pack number without a pack" })?;
                            Some(self.record.numbers.of(*id))
                        }
                        None => None,
                    };
                }
                self.reused(
                    layout.segments.iter().filter(|segment| segment.pack.is_some()).map(|segment| segment.raw).sum(),
                );
                Some(layout)
            }
            _ => None,
        };
        self.record.file(self.meter, &facts, digest, layout)
    }

    /// The last look before a file stands in the tree: its parts add up to its size.
    fn finish(&mut self, facts: FileFacts, mut layout: FileLayout, digest: Digest) -> Result<(), TransferError> {
        layout.digest = digest;
        if layout.size != facts.stamp.size {
            return Err(TransferError::Broken { what: "a file's parts do not add up to its size" });
        }
        let layout = (layout.size > 0).then_some(layout);
        self.record.file(self.meter, &facts, digest, layout)
    }

    /// Appends parts to a file's layout, and new chunks to the pack.
    fn parts(
        &mut self,
        layout: &mut FileLayout,
        parts: &[Part],
        held: &Held<'_>,
        catalog: &Catalog,
    ) -> Result<(), TransferError> {
        for part in parts {
            let (crc, segment) = match part {
                Part::Hole(len) => (Crc32::zeros(*len), Segment { pack: None, first: 0, count: 0, raw: *len }),
                Part::Chunk(chunk) => {
                    let (pack, first) = self.chunk(chunk, held, catalog)?;
                    let crc = match chunk.fate {
                        Fate::Known(Location::Remote { crc, .. }) => crc,
                        _ => own_crc(chunk)?,
                    };
                    (crc, Segment { pack: Some(pack), first, count: 1, raw: u64::from(chunk.len) })
                }
            };
            layout.crc = layout.crc.combine(crc, segment.raw);
            layout.size += segment.raw;
            layout.push(segment);
        }
        Ok(())
    }

    /// The chunk's pack and index in it.
    /// A known chunk costs no byte here, only its place. `Broken` means that the order of decisions was not kept.
    fn chunk(&mut self, chunk: &Chunk, held: &Held<'_>, catalog: &Catalog) -> Result<(u32, u32), TransferError> {
        match chunk.fate {
            Fate::Undecided => Err(TransferError::Broken { what: "a chunk was placed before it was decided about" }),
            Fate::Known(Location::Remote { pack, index, .. }) => {
                self.reused(u64::from(chunk.len));
                Ok((self.record.numbers.of(catalog.remote(pack)), index))
            }
            Fate::Known(Location::Own(serial)) => {
                self.reused(u64::from(chunk.len));
                let at = self.packs.partition_point(|(first, _)| *first <= serial).checked_sub(1);
                let (first, number) = at
                    .map(|at| self.packs[at])
                    .filter(|_| serial < self.serial)
                    .ok_or(TransferError::Broken { what: "a chunk was used before it was placed" })?;
                let index = u32::try_from(serial - first).expect("a pack holds fewer than 4 billion chunks");
                Ok((number, index))
            }
            Fate::New(stored) => {
                if self.filling.is_full(u64::from(stored.len), self.shape.target()) {
                    self.seal();
                }
                if self.filling.is_empty() {
                    let number = self.record.numbers.open();
                    self.packs.push((self.serial, number));
                }
                let (_, number) = *self.packs.last().expect("pushed above when the pack began");
                let index = self.filling.chunks();
                let entry = ChunkEntry {
                    id: chunk.id,
                    stored: stored.len,
                    raw: chunk.len,
                    crc: own_crc(chunk)?,
                    codec: stored.codec,
                };
                let frame = stored.start as usize..stored.start as usize + stored.len as usize;
                match (held, stored.codec) {
                    (Held::Here { slot, .. }, Codec::Raw) => self.filling.append(entry, &slot[frame]),
                    (Held::Here { frames, .. }, Codec::Zstd) => self.filling.append(entry, &frames[frame]),
                    (Held::Lent { slot, .. }, Codec::Raw) => self.filling.share(entry, slot, frame),
                    (Held::Lent { frames, .. }, Codec::Zstd) => self.filling.share(entry, frames, frame),
                }
                self.serial += 1;
                Ok((number, index))
            }
        }
    }

    /// Only a pack that holds something. Its number has an id from here on.
    fn seal(&mut self) {
        let pack = self.filling.seal();
        let (_, number) = *self.packs.last().expect("a pack that is not empty was begun");
        self.record.numbers.close(number, pack.id);
        self.sums.stored_bytes += pack.bytes;
        self.sealed.push_back(pack);
    }

    fn reused(&mut self, bytes: u64) {
        self.sums.reused_bytes += bytes;
        Meter::add(&self.meter.reused_bytes, bytes);
    }
}

fn own_crc(chunk: &Chunk) -> Result<Crc32, TransferError> {
    chunk.crc.ok_or(TransferError::Broken { what: "a chunk was placed without its crc32" })
}

/// To be filled by parts; digest and crc32 are set at its end.
fn empty_layout() -> FileLayout {
    FileLayout {
        digest: Digest::from_bytes([0; 32]),
        size: 0,
        crc: Crc32(0),
        profile: PROFILE,
        segments: Vec::new(),
        sha256: None,
    }
}
