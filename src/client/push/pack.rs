//! Filling packs, and how large they should be.
//!
//! The bytes of a pack lie in slabs that go round, so that a pack costs no fresh memory and what it may hold is bounded. The
//! size is shaped by the measured link: a dropped line must cost seconds, and a small part of what was sent.

use crate::content::pack::{ChunkEntry, PackId, PackIndex, front_bytes};
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of one slab.
const SLAB: usize = 1 << 20;
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

/// Slabs that go round. Grows to what the packs in memory need, and keeps it until the attempt ends.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Vec<Vec<u8>>>);

impl Pool {
    fn take(self: &Arc<Self>) -> Slab {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Slab { bytes: spare.unwrap_or_else(|| Vec::with_capacity(SLAB)), pool: Arc::clone(self) }
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
        self.pool.0.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
    }
}

/// A pack that is being filled. Chunks stand in it in the order of [`append`](Self::append), and that order is their index.
#[derive(Debug)]
pub(super) struct Filling {
    pool: Arc<Pool>,
    full: Vec<Bytes>,
    slab: Option<Slab>,
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
        Self { pool, full: Vec::new(), slab: None, entries: Vec::new(), stored: 0 }
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
        while !frame.is_empty() {
            let slab = self.slab.get_or_insert_with(|| self.pool.take());
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

    /// Ends the pack and begins a new one. Its bytes never change again, and its id is known from here.
    ///
    /// # Panics
    /// Where the pack is empty.
    pub fn seal(&mut self) -> Sealed {
        let index = PackIndex::new(std::mem::take(&mut self.entries))
            .expect("not empty, below the format's count, and made of chunks that the splitter cut");
        let mut body = vec![Bytes::from(index.encode())];
        body.append(&mut self.full);
        body.extend(self.slab.take().map(Bytes::from_owner));
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
        assert_eq!(pool.0.lock().unwrap().len(), 3);
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
