//! Deciding which chunks are sent: groups of batches, asked about as wholes, answered in order.
//!
//! For a group with chunks that are not known, first the packs that the parent names are looked into, then the service is asked
//! with the sampled ids that are still unknown, then the packs it answers are looked into. A parent that fits into the catalog
//! is loaded whole at the first miss: dedup against it is exact then.
//!
//! ```text
//! Hints --load the parent's packs--> Asked --known--> Answers --load the answered packs--> Ready
//!                                      `-- no sampled id is unknown ------------------------^
//! ```
//!
//! Decisions fall in tree order, whatever the order of the answers, so serial numbers are placed in the order in which they were given
//! out. An answer that is missing or wrong costs bytes sent again, never a wrong version: the service proves what it is sent.

use super::batch::{Batch, Fate, Stored, Unit};
use super::catalog::{Catalog, Location};
use super::messages::Command;
use super::parent::Parent;
use crate::api::datasets::PackInfo;
use crate::content::codec::Codec;
use crate::content::digest::Digest;
use crate::content::layout::FileLayout;
use crate::content::pack::{PackId, PackIndex};
use std::collections::{HashSet, VecDeque};

/// Batches of one group: a question to the service for 16 MiB rather than for each 4.
const GROUP: usize = 4;
/// A parent with at most this many chunks and packs is loaded whole.
const WHOLE_CHUNKS: u64 = 100_000;
const WHOLE_PACKS: usize = 512;
/// Around the place of a region in the parent's file, so many bytes of it are looked into.
const AROUND: u64 = 32 << 20;
/// Packs of the parent looked into for one group.
const HINTS: usize = 64;
/// So many times one file may go from one run of known chunks to another before it is sent anew: so its segments stay
/// below the format's limit.
const MAX_JUMPS: u32 = 100_000;

/// How far a group has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The parent's packs are looked into.
    Hints,
    /// The service is asked.
    Asked,
    /// The packs it answered are looked into.
    Answers,
    Ready,
}

#[derive(Debug)]
struct Group {
    number: u64,
    batches: VecDeque<Batch>,
    stage: Stage,
    /// A command is under way for it.
    waiting: bool,
    /// Packs to look into next.
    packs: Vec<PackId>,
}

/// All groups, the catalog, and what the parent says.
#[derive(Debug)]
pub(super) struct Decisions<'a> {
    catalog: Catalog,
    parent: Option<&'a Parent>,
    /// The parent was loaded whole.
    /// Asked for once, even where some index could not be had.
    whole: bool,
    gathering: VecDeque<Batch>,
    groups: VecDeque<Group>,
    next_group: u64,
    /// Index fetches under way.
    fetching: HashSet<PackId>,
    /// Serial number of the next new chunk.
    serial: u64,
    /// Of the large file that is under way: its parent's line, and its jumps between known runs.
    large: Option<Box<FileLayout>>,
    jumps: u32,
}

impl<'a> Decisions<'a> {
    pub fn new(catalog: Catalog, parent: Option<&'a Parent>) -> Self {
        Self {
            catalog,
            parent,
            whole: false,
            gathering: VecDeque::new(),
            groups: VecDeque::new(),
            next_group: 0,
            fetching: HashSet::new(),
            serial: 0,
            large: None,
            jumps: 0,
        }
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub fn into_catalog(self) -> Catalog {
        self.catalog
    }

    /// Takes a hashed batch; they come in order.
    pub fn add(&mut self, batch: Batch) {
        self.gathering.push_back(batch);
        if self.gathering.len() >= GROUP {
            self.close();
        }
    }

    /// Closes the group that is being gathered.
    pub fn close(&mut self) {
        if self.gathering.is_empty() {
            return;
        }
        let batches = std::mem::take(&mut self.gathering);
        let packs = self.hints(&batches);
        let number = self.next_group;
        self.next_group += 1;
        self.groups.push_back(Group { number, batches, stage: Stage::Hints, waiting: false, packs });
    }

    /// The service's answer to [`Command::Ask`]. One for a group that is gone is ignored.
    pub fn known(&mut self, group: u64, packs: &[PackInfo]) {
        let Some(group) = self.groups.iter_mut().find(|it| it.number == group) else { return };
        group.waiting = false;
        group.packs = packs.iter().filter_map(|pack| pack.id.parse().ok()).collect();
        group.stage = Stage::Answers;
    }

    /// The answer to [`Command::Load`]; what is not among the indexes could not be had.
    pub fn loaded(&mut self, group: u64, indexes: &[PackIndex]) {
        for index in indexes {
            self.catalog.add_pack(index);
        }
        if let Some(group) = self.groups.iter_mut().find(|it| it.number == group) {
            group.waiting = false;
            // What could not be had is not asked for again.
            for pack in group.packs.drain(..) {
                self.fetching.remove(&pack);
            }
        }
    }

    /// What is to be asked and fetched now. Each group has one command under way at most, so their number is bounded.
    pub fn commands(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        let mut groups = std::mem::take(&mut self.groups);
        for group in &mut groups {
            while !group.waiting && group.stage != Stage::Ready {
                if let Some(command) = self.step(group) {
                    group.waiting = true;
                    commands.push(command);
                }
            }
        }
        self.groups = groups;
        commands
    }

    /// The next batch that can be decided, decided; and whether a worker is to work on it before it is placed.
    pub fn next(&mut self) -> Option<(Batch, bool)> {
        loop {
            let group = self.groups.front_mut().filter(|group| group.stage == Stage::Ready)?;
            if let Some(mut batch) = group.batches.pop_front() {
                let has_work = self.decide(&mut batch);
                return Some((batch, has_work));
            }
            self.groups.pop_front();
        }
    }

    /// One step of a group: a command, or nothing and a later stage.
    fn step(&mut self, group: &mut Group) -> Option<Command> {
        match group.stage {
            Stage::Hints | Stage::Answers => {
                group.packs.retain(|pack| self.catalog.wants(pack) && self.fetching.insert(*pack));
                if !group.packs.is_empty() {
                    return Some(Command::Load { group: group.number, packs: group.packs.clone() });
                }
                group.stage = if group.stage == Stage::Hints { Stage::Asked } else { Stage::Ready };
                None
            }
            Stage::Asked => {
                let unknown = |id: &Digest| id.is_sample() && !self.catalog.knows(id);
                let mut chunks: Vec<Digest> = undecided(&group.batches).filter(unknown).collect();
                chunks.sort_unstable();
                chunks.dedup();
                if chunks.is_empty() {
                    group.stage = Stage::Ready;
                    return None;
                }
                Some(Command::Ask { group: group.number, chunks })
            }
            Stage::Ready => None,
        }
    }

    /// Packs of the parent that may hold the group's chunks.
    /// Empty where all is known already, where the parent was loaded whole, or without a parent. Also keeps the large file at hand, so it is to be
    /// called once a group, in order.
    fn hints(&mut self, batches: &VecDeque<Batch>) -> Vec<PackId> {
        let Some(parent) = self.parent.filter(|_| !self.whole) else {
            return Vec::new();
        };
        if undecided(batches).all(|id| self.catalog.knows(&id)) {
            let mut starts = batches.iter().flat_map(|batch| &batch.units).filter_map(|unit| match unit {
                Unit::LargeStart(facts) => Some(&facts.parent),
                _ => None,
            });
            if let Some(parent) = starts.next_back() {
                self.large.clone_from(parent);
            }
            return Vec::new();
        }
        if parent.chunks <= WHOLE_CHUNKS && parent.packs.len() <= WHOLE_PACKS {
            self.whole = true;
            return parent.packs.to_vec();
        }
        let mut hints = Vec::new();
        let mut note = |layout: &FileLayout, from: u64, to: u64| {
            let mut at = 0;
            for segment in &layout.segments {
                if let Some(id) = segment.pack.and_then(|pack| parent.packs.get(pack as usize))
                    && at < to
                    && at + segment.raw > from
                    && hints.len() < HINTS
                    && !hints.contains(id)
                {
                    hints.push(*id);
                }
                at += segment.raw;
            }
        };
        for unit in batches.iter().flat_map(|batch| &batch.units) {
            match unit {
                Unit::Small(file) if !is_same(unit, parent, &self.catalog) => {
                    if let Some(layout) = &file.facts.parent {
                        note(layout, 0, u64::MAX);
                    }
                }
                Unit::LargeStart(facts) => self.large.clone_from(&facts.parent),
                Unit::LargeParts { offset, .. } => {
                    if let Some(layout) = &self.large {
                        note(layout, offset.saturating_sub(AROUND), offset.saturating_add(AROUND));
                    }
                }
                _ => {}
            }
        }
        hints
    }

    /// Fixes the fate of every chunk of the batch.
    /// Answers whether a worker is to work on it: on chunks that are new, or that no pack's index has told the crc32 of. A file that is the parent's as
    /// a whole is left undecided: it is placed by its layout.
    fn decide(&mut self, batch: &mut Batch) -> bool {
        let mut has_work = false;
        for unit in &mut batch.units {
            if let Some(parent) = self.parent
                && is_same(unit, parent, &self.catalog)
            {
                continue;
            }
            if matches!(unit, Unit::LargeStart(_)) {
                self.jumps = 0;
            }
            let is_large = matches!(unit, Unit::LargeParts { .. });
            let mut last = None;
            for part in unit.parts_mut() {
                let super::batch::Part::Chunk(chunk) = part else { continue };
                let found = self.catalog.find(&chunk.id, chunk.len).filter(|_| self.jumps < MAX_JUMPS);
                if is_large && found.is_some_and(|now| !continues(last, now)) {
                    self.jumps += 1;
                }
                last = found;
                has_work |= match found {
                    None => true,
                    Some(Location::Own(_)) => chunk.crc.is_none(),
                    Some(Location::Remote { .. }) => false,
                };
                chunk.fate = match found {
                    Some(location) => Fate::Known(location),
                    None => {
                        self.catalog.add_own(chunk.id, chunk.len, self.serial);
                        self.serial += 1;
                        Fate::New(Stored { codec: Codec::Raw, start: chunk.start, len: chunk.len })
                    }
                };
            }
        }
        has_work
    }
}

/// Whether this is a small file whose content is that of the parent's file of the same path, in packs that are there. Asked when deciding
/// and again when placing: both must answer alike, so it looks at nothing that changes in between.
pub(super) fn is_same(unit: &Unit, parent: &Parent, catalog: &Catalog) -> bool {
    let Unit::Small(file) = unit else { return false };
    let (Some(layout), Ok(digest)) = (&file.facts.parent, &file.outcome) else { return false };
    layout.digest == *digest
        && layout
            .segments
            .iter()
            .filter_map(|segment| segment.pack)
            .all(|pack| parent.packs.get(pack as usize).is_some_and(|id| !catalog.is_gone(id)))
}

/// Whether a chunk lies right behind the one before it.
fn continues(last: Option<Location>, now: Location) -> bool {
    match (last, now) {
        (Some(Location::Own(last)), Location::Own(now)) => now == last + 1,
        (Some(Location::Remote { pack, index, .. }), Location::Remote { pack: next, index: at, .. }) => {
            pack == next && at == index + 1
        }
        _ => false,
    }
}

/// Ids of chunks that a decision is needed for. Files equal to the parent's may be among them: asking about them does no harm.
fn undecided(batches: &VecDeque<Batch>) -> impl Iterator<Item = Digest> {
    batches.iter().flat_map(|batch| &batch.units).filter(|unit| !is_equal_by_digest(unit)).flat_map(|unit| {
        unit.parts().iter().filter_map(|part| match part {
            super::batch::Part::Chunk(chunk) => Some(chunk.id),
            super::batch::Part::Hole(_) => None,
        })
    })
}

fn is_equal_by_digest(unit: &Unit) -> bool {
    let Unit::Small(file) = unit else { return false };
    matches!((&file.facts.parent, &file.outcome), (Some(layout), Ok(digest)) if layout.digest == *digest)
}
