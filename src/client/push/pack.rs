//! Filling packs, and how large they should be.
//!
//! A batch that goes into packs nearly whole lends its buffer: its bytes are sent from where they were read. What is new in other
//! batches is copied into slabs. Both go round, so that a pack costs no fresh memory and what it may hold is bounded. The size is shaped by
//! the measured link: a dropped line must cost seconds, and a small part of what was sent.

use super::batch::{MARGIN, REGION, Slot};
use crate::content::pack::{ChunkEntry, PackId, PackIndex, front_bytes};
use bytes::Bytes;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of one slab. What a lent buffer follows stays short, so that little is lost where the two take turns.
const SLAB: usize = 256 << 10;
/// A batch lends its buffer from so many new bytes on: then packs hold little memory beyond what they send.
pub(super) const LEND_FROM: usize = REGION / 16 * 15;
/// First target.
const FIRST: u64 = 4 << 20;
/// Smallest target.
const FLOOR: u64 = 1 << 20;
/// Largest target.
const CEILING: u64 = 64 << 20;
/// Chunks in one pack, so that an index stays well below the format's limit.
const MAX_CHUNKS: usize = 60_000;
/// A pack is at most this part of what was acknowledged, beyond [`FIRST`]: two are under way at once, so that a cut line costs a
/// twentieth at most.
const PART_OF_SENT: u64 = 40;

/// Slabs and lent buffers that go round. Grows to what the packs in memory need, and keeps it until the attempt ends; one kind makes room
/// for the other.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Spare>);

#[derive(Debug, Default)]
struct Spare {
    slabs: Vec<Vec<u8>>,
    slots: Vec<Slot>,
    /// Slabs made since a slot last made room for them.
    made: usize,
}

/// Slabs that take a slot's room.
const SLABS_OF_SLOT: usize = (MARGIN + REGION).div_ceil(SLAB);

impl Pool {
    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slab(self: &Arc<Self>) -> Slab {
        let mut spare = self.spare();
        let bytes = spare.slabs.pop().unwrap_or_else(|| {
            spare.made += 1;
            if spare.made >= SLABS_OF_SLOT {
                spare.made = 0;
                spare.slots.pop();
            }
            Vec::with_capacity(SLAB)
        });
        Slab { bytes, pool: Arc::clone(self) }
    }

    /// Takes a buffer whose bytes packs are to refer to, and gives another for it.
    pub fn lend(self: &Arc<Self>, slot: Slot) -> (Bytes, Slot) {
        let mut spare = self.spare();
        let other = spare.slots.pop().unwrap_or_else(|| {
            let left = spare.slabs.len().saturating_sub(SLABS_OF_SLOT);
            spare.slabs.truncate(left);
            Slot::new(MARGIN + REGION)
        });
        (Bytes::from_owner(Lent { slot, pool: Arc::clone(self) }), other)
    }
}

#[derive(Debug)]
struct Slab {
    bytes: Vec<u8>,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Slab {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        self.pool.spare().slabs.push(bytes);
    }
}

/// A batch's buffer, until the last pack that refers to it is gone.
#[derive(Debug)]
struct Lent {
    slot: Slot,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.slot
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let slot = std::mem::replace(&mut self.slot, Slot::new(0));
        self.pool.spare().slots.push(slot);
    }
}

/// A pack that is being filled. Chunks stand in it in the order of [`append`](Self::append), and that order is their index.
#[derive(Debug)]
pub(super) struct Filling {
    pool: Arc<Pool>,
    full: Vec<Bytes>,
    slab: Option<Slab>,
    /// A run of lent bytes that may grow yet. Never beside a slab with bytes in it.
    run: Option<(Bytes, Range<usize>)>,
    entries: Vec<ChunkEntry>,
    stored: u64,
}

/// A pack ready to be sent.
#[derive(Debug)]
pub(super) struct Sealed {
    pub id: PackId,
    /// Header and index, then the frames.
    pub body: Vec<Bytes>,
    pub bytes: u64,
}

impl Filling {
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool, full: Vec::new(), slab: None, run: None, entries: Vec::new(), stored: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Chunks held, so the index of the next one.
    pub fn chunks(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("bounded by `MAX_CHUNKS`")
    }

    /// Whether the pack, its index included, would go over `target` with a further frame of `stored` bytes. An empty pack takes any
    /// frame.
    pub fn is_full(&self, stored: u64, target: u64) -> bool {
        let bytes = front_bytes(self.entries.len() as u64 + 1) + self.stored + stored;
        !self.is_empty() && (bytes > target || self.entries.len() >= MAX_CHUNKS)
    }

    /// `frame` is the chunk's stored form, `entry.stored` bytes long. Copied: it may be given back at once.
    pub fn append(&mut self, entry: ChunkEntry, mut frame: &[u8]) {
        self.stored += frame.len() as u64;
        self.entries.push(entry);
        if self.run.is_some() {
            self.close();
        }
        while !frame.is_empty() {
            let slab = self.slab.get_or_insert_with(|| self.pool.slab());
            let (now, rest) = frame.split_at(frame.len().min(SLAB - slab.bytes.len()));
            slab.bytes.extend_from_slice(now);
            frame = rest;
            if slab.bytes.len() == SLAB
                && let Some(slab) = self.slab.take()
            {
                self.full.push(Bytes::from_owner(slab));
            }
        }
    }

    /// As [`append`](Self::append), of bytes that are lent: they are referred to and not copied.
    pub fn share(&mut self, entry: ChunkEntry, lent: &Bytes, frame: Range<usize>) {
        self.stored += frame.len() as u64;
        self.entries.push(entry);
        match &mut self.run {
            Some((bytes, run)) if bytes.as_ptr() == lent.as_ptr() && run.end == frame.start => run.end = frame.end,
            _ => {
                self.close();
                self.run = Some((lent.clone(), frame));
            }
        }
    }

    /// Ends the segment that is being filled.
    fn close(&mut self) {
        self.full.extend(self.slab.take().map(Bytes::from_owner));
        self.full.extend(self.run.take().map(|(bytes, run)| bytes.slice(run)));
    }

    /// Ends the pack and begins a new one. Its bytes never change again, and its id is known from here.
    ///
    /// # Panics
    /// Where the pack is empty.
    pub fn seal(&mut self) -> Sealed {
        let index = PackIndex::new(std::mem::take(&mut self.entries))
            .expect("not empty, below the format's count, and made of chunks that the splitter cut");
        self.close();
        let mut body = vec![Bytes::from(index.encode())];
        body.append(&mut self.full);
        self.stored = 0;
        Sealed { id: index.id(), body, bytes: index.pack_bytes() }
    }
}

/// The target size of packs: doubled while a pack takes under 10 s, halved where it takes over 20. Only packs of at least half the target
/// teach to grow, since small ones say little of the line.
#[derive(Debug)]
pub(super) struct Shape {
    target: u64,
    most: u64,
    acknowledged: u64,
}

impl Shape {
    /// `memory` is the push's whole allowance, `service` the largest pack that the service takes.
    pub fn new(memory: u64, service: u64) -> Self {
        let most = (memory.saturating_sub(96 << 20) / 4).clamp(FLOOR, CEILING).min(service.max(FLOOR / 4));
        Self { target: FIRST.min(most), most, acknowledged: 0 }
    }

    /// Bytes the next pack should have, at most.
    pub fn target(&self) -> u64 {
        self.target.min((self.acknowledged / PART_OF_SENT).max(FIRST)).min(self.most)
    }

    /// A pack was acknowledged after this time on the way; retries count into it.
    pub fn learn(&mut self, bytes: u64, took: Duration) {
        self.acknowledged += bytes;
        if took > Duration::from_secs(20) {
            self.target = (self.target / 2).max(FLOOR.min(self.most));
        } else if took < Duration::from_secs(10) && bytes * 2 >= self.target() {
            self.target = (self.target * 2).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::codec::Codec;
    use crate::content::crc::Crc32;
    use crate::content::digest::digest;
    use crate::content::pack::PackVerifier;

    #[test]
    fn a_filled_pack_verifies_and_its_slabs_come_back() {
        let pool = Arc::new(Pool::default());
        let mut filling = Filling::new(Arc::clone(&pool));
        let chunks: Vec<Vec<u8>> = (0..30u8).map(|n| vec![n; 90_000]).collect();
        for raw in &chunks {
            let length = u32::try_from(raw.len()).unwrap();
            let entry =
                ChunkEntry { id: digest(raw), stored: length, raw: length, crc: Crc32::of(raw), codec: Codec::Raw };
            assert!(!filling.is_full(90_000, 3 << 20));
            filling.append(entry, raw);
        }
        assert!(filling.is_full(90_000 * 10, 3 << 20));
        let sealed = filling.seal();
        assert!(filling.is_empty());
        let mut verifier = PackVerifier::new(sealed.id);
        for part in &sealed.body {
            verifier.push(part).unwrap();
        }
        verifier.finish().unwrap();
        assert_eq!(sealed.bytes, sealed.body.iter().map(|part| part.len() as u64).sum::<u64>());
        drop(sealed);
        assert_eq!(pool.spare().slabs.len(), 11, "2.7 MB in slabs");
    }

    #[test]
    fn lent_bytes_are_not_copied_and_their_buffer_comes_back() {
        let pool = Arc::new(Pool::default());
        let mut filling = Filling::new(Arc::clone(&pool));
        let mut slot = Slot::new(MARGIN + REGION);
        slot.iter_mut().zip(0..).for_each(|(byte, n): (&mut u8, u32)| *byte = (n % 251) as u8);
        let (lent, other) = pool.lend(slot);
        assert_eq!((other.len(), other[0]), (MARGIN + REGION, 0));
        let entry = |raw: &[u8]| {
            let length = u32::try_from(raw.len()).unwrap();
            ChunkEntry { id: digest(raw), stored: length, raw: length, crc: Crc32::of(raw), codec: Codec::Raw }
        };
        let frame = [9; 1000];
        for range in [100..70_000, 70_000..90_000] {
            filling.share(entry(&lent[range.clone()]), &lent, range);
        }
        filling.append(entry(&frame), &frame);
        filling.share(entry(&lent[100_000..100_010]), &lent, 100_000..100_010);
        let sealed = filling.seal();
        assert_eq!(sealed.body.iter().skip(1).map(Bytes::len).collect::<Vec<_>>(), [89_900, 1000, 10]);
        assert_eq!(sealed.body[1].as_ptr(), lent[100..].as_ptr());
        let mut verifier = PackVerifier::new(sealed.id);
        for part in &sealed.body {
            verifier.push(part).unwrap();
        }
        verifier.finish().unwrap();
        drop(lent);
        assert!(pool.spare().slots.is_empty(), "the pack still refers to it");
        drop(sealed);
        let (_, again) = pool.lend(other);
        assert_eq!(again[101], 101, "the same buffer, as it was");
    }

    #[test]
    fn a_pack_is_never_larger_than_its_target() {
        // Small chunks, whose rows of the index count for much.
        let target = 1 << 20;
        let mut filling = Filling::new(Arc::default());
        for number in 0_u32.. {
            let raw = [&number.to_le_bytes()[..], &[7; 96]].concat();
            if filling.is_full(100, target) {
                break;
            }
            let entry = ChunkEntry { id: digest(&raw), stored: 100, raw: 100, crc: Crc32::of(&raw), codec: Codec::Raw };
            filling.append(entry, &raw);
        }
        let sealed = filling.seal();
        assert!((target - 300..=target).contains(&sealed.bytes), "{}", sealed.bytes);
    }

    #[test]
    fn the_size_follows_the_link_and_what_was_sent() {
        let mut shape = Shape::new(512 << 20, u64::MAX);
        assert_eq!(shape.target(), FIRST);
        for _ in 0..120 {
            shape.learn(shape.target(), Duration::from_secs(1));
            assert!(2 * shape.target() <= (2 * FIRST).max(shape.acknowledged / 20));
        }
        assert!(shape.target() > 2 * FIRST);
        for _ in 0..10 {
            shape.learn(shape.target(), Duration::from_secs(30));
        }
        assert_eq!(shape.target(), FLOOR);
        assert_eq!(Shape::new(0, u64::MAX).target(), FLOOR);
        assert_eq!(Shape::new(256 << 20, 2 << 20).target(), 2 << 20);
    }
}
