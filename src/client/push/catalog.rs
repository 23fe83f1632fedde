//! Which chunks are known, and where they lie: this push's own, and those of packs whose indexes were fetched.
//!
//! Bounded: two generations of entries, the older one dropped when the younger is full; what is used moves to the younger.
//! Forgetting costs bytes sent again, never correctness. Answers are exact: whole digests are compared, and lengths too.
//!
//! Why bounded: a version may hold hundreds of millions of chunks, and memory must not follow them.

use crate::content::crc::Crc32;
use crate::content::digest::Digest;
use crate::content::pack::{PackId, PackIndex};
use foldhash::fast::RandomState;
use std::collections::{HashMap, HashSet};

/// Entries of one generation; both together stay below 14 MiB and cover 14 GiB of large files.
const GENERATION: usize = 114_688;

/// Where a known chunk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// The push's own chunk with this serial number: the n-th, from 0, that was decided to be new.
    Own(u64),
    /// A chunk of a pack that was there before: number in [`Catalog::remote`], index in the pack, and what the pack's index says of its bytes.
    Remote { pack: u32, index: u32, crc: Crc32 },
}

#[derive(Debug, Clone, Copy)]
struct Known {
    location: Location,
    raw: u32,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    young: HashMap<Digest, Known, RandomState>,
    old: HashMap<Digest, Known, RandomState>,
    /// Packs whose entries may still be in the younger, in the older generation.
    loaded: HashSet<PackId>,
    loaded_before: HashSet<PackId>,
    remote: Vec<PackId>,
    numbers: HashMap<PackId, u32>,
    gone: HashSet<PackId>,
}

impl Catalog {
    /// Where the chunk lies, when it is known. A hit keeps the entry from being forgotten soon.
    pub fn find(&mut self, id: &Digest, raw: u32) -> Option<Location> {
        if let Some(known) = self.young.get(id) {
            return (known.raw == raw).then_some(known.location);
        }
        let known = self.old.remove(id).filter(|known| known.raw == raw)?;
        self.insert(*id, known);
        Some(known.location)
    }

    /// As [`find`](Self::find), but changes nothing and does not look at the length.
    pub fn knows(&self, id: &Digest) -> bool {
        self.young.contains_key(id) || self.old.contains_key(id)
    }

    /// Notes a chunk of this push.
    pub fn add_own(&mut self, id: Digest, raw: u32, serial: u64) {
        self.insert(id, Known { location: Location::Own(serial), raw });
    }

    /// Takes over the index of a pack. What is known already stays where it is, so that runs are not scattered.
    pub fn add_pack(&mut self, index: &PackIndex) {
        if self.gone.contains(&index.id()) || !self.wants(&index.id()) {
            return;
        }
        let Some(pack) = self.number(index.id()) else { return };
        // Before the entries, so that a turn of the generations in between forgets the pack late rather than early.
        self.loaded.insert(index.id());
        for (at, entry) in (0..).zip(index.entries()) {
            if !self.knows(&entry.id) {
                let location = Location::Remote { pack, index: at, crc: entry.crc };
                self.insert(entry.id, Known { location, raw: entry.raw });
            }
        }
        self.loaded.insert(index.id());
    }

    /// Whether fetching the pack's index could tell something new.
    pub fn wants(&self, pack: &PackId) -> bool {
        !self.loaded.contains(pack) && !self.loaded_before.contains(pack) && !self.gone.contains(pack)
    }

    /// The service has lost these: they are never used, and their chunks are sent again. Holds for the whole push, later attempts included.
    pub fn lose(&mut self, packs: impl IntoIterator<Item = PackId>) {
        self.gone.extend(packs);
        let gone: HashSet<u32> = self.gone.iter().filter_map(|pack| self.numbers.get(pack)).copied().collect();
        let stays = |_: &Digest, known: &mut Known| !matches!(known.location, Location::Remote { pack, .. } if gone.contains(&pack));
        self.young.retain(stays);
        self.old.retain(stays);
    }

    pub fn is_gone(&self, pack: &PackId) -> bool {
        self.gone.contains(pack)
    }

    /// Forgets the push's own chunks: a new attempt counts them anew. Those that were sent are found again in their packs.
    pub fn forget_own(&mut self) {
        self.young.retain(|_, known| !matches!(known.location, Location::Own(_)));
        self.old.retain(|_, known| !matches!(known.location, Location::Own(_)));
    }

    /// The pack behind [`Location::Remote`].
    pub fn remote(&self, pack: u32) -> PackId {
        self.remote[pack as usize]
    }

    fn number(&mut self, pack: PackId) -> Option<u32> {
        if let Some(number) = self.numbers.get(&pack) {
            return Some(*number);
        }
        let number = u32::try_from(self.remote.len()).ok()?;
        self.remote.push(pack);
        self.numbers.insert(pack, number);
        Some(number)
    }

    fn insert(&mut self, id: Digest, known: Known) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.loaded_before = std::mem::take(&mut self.loaded);
        }
        self.young.insert(id, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::codec::Codec;
    use crate::content::digest::digest;
    use crate::content::pack::ChunkEntry;

    fn entry(n: u32) -> ChunkEntry {
        ChunkEntry { id: digest(&n.to_le_bytes()), stored: 4, raw: 4, crc: Crc32(n), codec: Codec::Raw }
    }

    #[test]
    fn finds_exactly_and_by_length_too() {
        let mut catalog = Catalog::default();
        let index = PackIndex::new((0..3).map(entry).collect()).unwrap();
        assert!(catalog.wants(&index.id()));
        catalog.add_pack(&index);
        assert!(!catalog.wants(&index.id()));
        assert_eq!(catalog.find(&entry(2).id, 4), Some(Location::Remote { pack: 0, index: 2, crc: Crc32(2) }));
        assert_eq!(catalog.find(&entry(2).id, 5), None);
        assert_eq!(catalog.find(&entry(3).id, 4), None);
        catalog.add_own(entry(3).id, 4, 17);
        assert_eq!(catalog.find(&entry(3).id, 4), Some(Location::Own(17)));
        catalog.lose([index.id()]);
        assert_eq!(catalog.find(&entry(2).id, 4), None);
        assert!(!catalog.wants(&index.id()));
    }

    #[test]
    fn stays_bounded_and_keeps_what_is_used() {
        let mut catalog = Catalog::default();
        let kept = digest(b"kept");
        catalog.add_own(kept, 4, 0);
        for n in 0..5 * u32::try_from(GENERATION).unwrap() {
            catalog.add_own(entry(n).id, 4, u64::from(n));
            if n % 50_000 == 0 {
                assert!(catalog.find(&kept, 4).is_some(), "at {n}");
            }
        }
        assert!(catalog.young.len() + catalog.old.len() <= 2 * GENERATION);
        assert!(catalog.find(&entry(0).id, 4).is_none());
    }
}
