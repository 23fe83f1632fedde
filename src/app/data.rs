//! What the push and read roads keep in one process: all of it bounded, all of it dispensable.
//!
//! Nothing here is a fact; after a crash it starts empty. Bounds: request bodies that hold [`BODIES_MIB`] together,
//! [`INDEX_CACHE_BYTES`] of pack indexes, [`RESERVED`] keys of each team that pushed (for about [`RESERVED_TEAMS`] teams),
//! one lock for each pack that is arriving.
//!
//! Permits are taken in one order, the pack's lock, then the team's memory, then everybody's, and none is waited for while
//! holding a later one, so that waiters cannot block each other in a circle.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{AcquireError, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::content::pack::{PackId, PackIndex};
use crate::store::{Key, Store};

/// Memory of pack, tree and layout bodies that are being taken, in MiB; the others wait unread.
pub const BODIES_MIB: usize = 128;
/// What one team's bodies may hold of it, so that a team that trickles does not stop the others.
pub const TEAM_BODIES_MIB: usize = 91;
/// What a long body holds with a local store: a batch being proven, two being written and one's copy, an index. One of many tiny chunks
/// holds up to twice that.
const LOCAL_BODY_MIB: u64 = 7;
/// The same with a bucket, where two parts are held.
const BUCKET_BODY_MIB: u64 = 20;
/// Stagings' inputs, and plans of them, that have whole trees walked at a time; the others wait. Each tree that is open holds
/// a zstd window of up to 8 MiB, and a walk has one tree open, or one with its layout.
pub const WALKS: usize = 4;
/// The same for requests that look for a path or measure an archive. Apart from the others, so that whoever has a link holds
/// up no staging.
pub const LOOK_UPS: usize = 8;
/// Memory of cached pack indexes, as they are counted by [`index_cost`].
pub const INDEX_CACHE_BYTES: usize = 24 << 20;
/// Keys reserved by one transaction: one trip to the counter's row for so many packs, against as many orphans when the
/// process ends.
pub const RESERVED: usize = 16;
/// Teams whose reserved keys are kept; when one more comes, all are dropped and their keys left as known orphans.
pub const RESERVED_TEAMS: usize = 1024;

/// One lock for each pack that is arriving, by team and pack id; gone with its last holder.
type Arriving = HashMap<(Uuid, PackId), Weak<tokio::sync::Mutex<()>>>;

/// State of the push and read roads in this process.
#[derive(Debug)]
pub struct Data {
    body_mib: u64,
    bodies: Arc<Semaphore>,
    walks: Arc<Semaphore>,
    look_ups: Arc<Semaphore>,
    team_bodies: Mutex<HashMap<Uuid, Weak<Semaphore>>>,
    pub(super) indexes: IndexCache,
    arriving: Mutex<Arriving>,
    reserved: Mutex<HashMap<Uuid, VecDeque<(u64, Key)>>>,
}

impl Data {
    /// Fresh state, bounded for this kind of store.
    pub fn for_store(store: &Store) -> Self {
        Self {
            body_mib: if store.is_local() { LOCAL_BODY_MIB } else { BUCKET_BODY_MIB },
            bodies: Arc::new(Semaphore::new(BODIES_MIB)),
            walks: Arc::new(Semaphore::new(WALKS)),
            look_ups: Arc::new(Semaphore::new(LOOK_UPS)),
            team_bodies: Mutex::default(),
            indexes: IndexCache::new(INDEX_CACHE_BYTES),
            arriving: Mutex::default(),
            reserved: Mutex::default(),
        }
    }

    /// Waits for a turn to have whole trees walked; held until dropped, so by the walk itself and not only by who asked for
    /// it. The error says that the semaphore was closed, which nobody does.
    pub(super) async fn walk(&self) -> Result<Arc<OwnedSemaphorePermit>, AcquireError> {
        self.walks.clone().acquire_owned().await.map(Arc::new)
    }

    /// Waits for a turn to walk one version's documents for a request. As [`Data::walk`]; whoever holds the one does not wait
    /// for the other.
    pub(super) async fn look_up(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.look_ups.clone().acquire_owned().await
    }

    /// Waits until there is memory for a body of `length` bytes of this team; holds that until dropped. First come, first
    /// served, among the team's own first and then among all. Nothing of the body is read meanwhile, so the sender is held
    /// up by its own connection.
    pub(super) async fn body_room(&self, team: Uuid, length: u64) -> Result<BodyRoom, AcquireError> {
        // a short body is held whole, once as it came and once as it goes
        let mib = u32::try_from((length.div_ceil(1 << 20) * 2).clamp(1, self.body_mib)).unwrap_or(1);
        let of_team = {
            let mut teams = locked(&self.team_bodies);
            teams.retain(|_, bodies| bodies.strong_count() > 0);
            let known = teams.get(&team).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let fresh = Arc::new(Semaphore::new(TEAM_BODIES_MIB));
                teams.insert(team, Arc::downgrade(&fresh));
                fresh
            })
        };
        let of_team = of_team.acquire_many_owned(mib).await?;
        let of_all = self.bodies.clone().acquire_many_owned(mib).await?;
        Ok(BodyRoom { _permits: (of_team, of_all) })
    }

    /// Waits until no other request of this process brings the same pack of the same team; holds that until dropped. Spares
    /// storing it twice; another replica may still do so, which the sealing transaction sorts out.
    pub(super) async fn arrival(&self, team: Uuid, pack: PackId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut arriving = locked(&self.arriving);
            arriving.retain(|_, lock| lock.strong_count() > 0);
            let known = arriving.get(&(team, pack)).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let fresh = Arc::new(tokio::sync::Mutex::new(()));
                arriving.insert((team, pack), Arc::downgrade(&fresh));
                fresh
            })
        };
        lock.lock_owned().await
    }

    /// A reserved number and key of the team, if one is left. Taken is used up, whatever becomes of it: a key is written
    /// once.
    pub(super) fn take_key(&self, team: Uuid) -> Option<(u64, Key)> {
        locked(&self.reserved).get_mut(&team)?.pop_front()
    }

    /// Keeps reserved keys for later. Their rows are in SQL already.
    pub(super) fn keep_keys(&self, team: Uuid, keys: impl IntoIterator<Item = (u64, Key)>) {
        let mut reserved = locked(&self.reserved);
        reserved.retain(|_, keys| !keys.is_empty());
        if reserved.len() >= RESERVED_TEAMS {
            reserved.clear();
        }
        reserved.entry(team).or_default().extend(keys);
    }
}

/// Memory set aside for a body.
#[derive(Debug)]
pub(super) struct BodyRoom {
    _permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

/// Bytes that a cached index is counted with.
fn index_cost(index: &PackIndex) -> usize {
    // an entry of 48 bytes and its end offset of 8
    256 + index.entries().len() * 56
}

/// The pack indexes used last, within a budget of bytes.
#[derive(Debug)]
pub(super) struct IndexCache {
    budget: usize,
    inner: Mutex<Cached>,
}

#[derive(Debug, Default)]
struct Cached {
    /// By row number: a pack's row never changes its content. With the tick of its last use.
    indexes: HashMap<u64, (Arc<PackIndex>, u64)>,
    used: usize,
    clock: u64,
}

impl IndexCache {
    fn new(budget: usize) -> Self {
        Self { budget, inner: Mutex::default() }
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<PackIndex>> {
        let mut cached = locked(&self.inner);
        cached.clock += 1;
        let clock = cached.clock;
        let (index, last) = cached.indexes.get_mut(&number)?;
        *last = clock;
        Some(index.clone())
    }

    /// May push out any entry, this one too when it is the largest. Evicting looks at every entry: there are a few hundred
    /// of usual size.
    pub(super) fn put(&self, number: u64, index: Arc<PackIndex>) {
        let cost = index_cost(&index);
        let mut cached = locked(&self.inner);
        cached.clock += 1;
        let clock = cached.clock;
        if cached.indexes.insert(number, (index, clock)).is_none() {
            cached.used += cost;
        }
        while cached.used > self.budget {
            let oldest = cached.indexes.iter().min_by_key(|(_, (_, last))| *last).map(|(number, _)| *number);
            let Some((index, _)) = oldest.and_then(|oldest| cached.indexes.remove(&oldest)) else { break };
            cached.used -= index_cost(&index);
        }
    }

    /// For a pack that was found damaged: its index must be read and proven again.
    pub(super) fn forget(&self, number: u64) {
        let mut cached = locked(&self.inner);
        if let Some((index, _)) = cached.indexes.remove(&number) {
            cached.used -= index_cost(&index);
        }
    }
}

/// A poisoned lock guards nothing but caches: go on with it.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::codec::Codec;
    use crate::content::crc::Crc32;
    use crate::content::digest::digest;
    use crate::content::pack::ChunkEntry;

    fn index(chunks: u32) -> Arc<PackIndex> {
        let entry = |i: u32| ChunkEntry {
            id: digest(&i.to_le_bytes()),
            stored: 4,
            raw: 4,
            crc: Crc32::of(&i.to_le_bytes()),
            codec: Codec::Raw,
        };
        Arc::new(PackIndex::new((0..chunks).map(entry).collect()).unwrap())
    }

    #[test]
    fn the_cache_keeps_what_was_used_last_within_its_budget() {
        let one = index(100);
        let cache = IndexCache::new(3 * index_cost(&one));
        for number in 1..=3 {
            cache.put(number, one.clone());
        }
        assert!(cache.get(1).is_some());
        cache.put(4, one.clone());
        cache.put(4, one.clone());
        assert!(cache.get(2).is_none(), "the one not used for longest went");
        assert!([1, 3, 4].iter().all(|number| cache.get(*number).is_some()));
        cache.put(5, index(10_000));
        assert!(cache.get(5).is_none(), "what is larger than the budget is not kept");
        assert_eq!(locked(&cache.inner).used, 0);
    }

    async fn data() -> Data {
        let directory = tempfile::tempdir().unwrap();
        let url = directory.path().display().to_string();
        let settings = crate::config::StoreSettings { url, ..Default::default() };
        let clock = Arc::new(crate::clock::SystemClock);
        Data::for_store(&Store::open(&settings, clock).await.unwrap())
    }

    #[tokio::test]
    async fn bodies_hold_bounded_memory_and_one_team_leaves_room_for_others() {
        let data = data().await;
        let (busy, calm) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut held = Vec::new();
        for _ in 0..TEAM_BODIES_MIB as u64 / LOCAL_BODY_MIB {
            held.push(data.body_room(busy, 64 << 20).await.unwrap());
        }
        let one_more = data.body_room(busy, 1);
        tokio::pin!(one_more);
        assert!(futures::poll!(&mut one_more).is_pending(), "the team has its share");
        let small: Vec<_> = futures::future::join_all((0..16).map(|_| data.body_room(calm, 1 << 20))).await;
        assert!(small.iter().all(Result::is_ok), "another team goes on");
        let full = data.body_room(Uuid::from_u128(3), 64 << 20);
        tokio::pin!(full);
        assert!(futures::poll!(&mut full).is_pending(), "all memory is taken");
        drop((held, small));
        one_more.await.unwrap();
        full.await.unwrap();
        let _fresh = data.body_room(calm, 0).await.unwrap();
        assert_eq!(locked(&data.team_bodies).len(), 1, "idle teams are forgotten");
    }

    #[tokio::test]
    async fn one_pack_arrives_once_at_a_time_and_its_lock_goes_away() {
        let data = data().await;
        let (team, pack) = (Uuid::nil(), digest(b"pack"));
        let first = data.arrival(team, pack).await;
        let second = data.arrival(team, pack);
        tokio::pin!(second);
        assert!(futures::poll!(&mut second).is_pending());
        let _other = data.arrival(Uuid::max(), pack).await;
        drop(first);
        drop(second.await);
        let _fresh = data.arrival(team, digest(b"other")).await;
        assert_eq!(locked(&data.arriving).len(), 2, "only those held are remembered");
    }
}
