//! The source of the pipeline: walks, asks the stat cache and the parent, and hands out batches in tree order.
//!
//! One thread. Small files are only named here, workers read them; large files are read and cut here (see `large`), since a cut
//! depends on the bytes before it. Blocks when all buffers are under way, so it never runs ahead of the network.
//!
//! What is unchanged by the stat cache *and* lies in the parent's packs is not opened. Either alone is not enough: a digest without places
//! has nothing to send, and places without a fresh digest prove nothing about the file.

use super::batch::{FileFacts, SMALL, Unit};
use super::feed::{Feed, Stop};
use super::parent::{Cursor, ParentFile};
use super::worker::EMPTY;
use crate::client::stat_cache;
use crate::client::walk::{Found, Stamp, Step, Walk, What};

/// Everything the source reads from.
#[derive(Debug)]
pub(super) struct Source {
    pub walk: Walk,
    pub cache: stat_cache::Reader,
    pub parent: Cursor,
    pub feed: Feed,
}

impl Source {
    /// Runs to the end of the walk. Gives the number of batches and the walk's remarks. [`Stop`] says that nobody wants them any more.
    pub fn run(mut self) -> Result<(u64, Vec<String>), Stop> {
        while let Some(step) = self.walk.next() {
            match step {
                Step::Found(found) => self.found(found)?,
                Step::Skipped(item) => self.feed.unit(Unit::Skipped(item))?,
                Step::Failed(item) => self.feed.unit(Unit::Failed(item))?,
            }
        }
        self.feed.flush()?;
        let mut warnings = self.walk.warnings();
        warnings.extend(self.cache.warning());
        Ok((self.feed.batches(), warnings))
    }

    fn found(&mut self, found: Found) -> Result<(), Stop> {
        let mtime = found.stamp.mtime.clamped();
        match found.what.clone() {
            What::Dir => self.feed.unit(Unit::Dir { path: found.path, mode: found.mode, mtime }),
            What::Symlink(target) => self.feed.unit(Unit::Symlink { path: found.path, mtime, target }),
            What::HardLink { first, last } => self.feed.unit(Unit::HardLink { path: found.path, first, last }),
            What::File { leads } => self.file(found, leads),
        }
    }

    fn file(&mut self, found: Found, leads: bool) -> Result<(), Stop> {
        let parent = self.parent.file(&found.path);
        let cached = self.cache.find(&found.path, &found.stamp);
        if found.stamp.size == 0 {
            // Nothing to read: an empty file needs no open.
            return self.feed.unit(Unit::Cached(Box::new(FileFacts::new(&found, leads, None))));
        }
        let unchanged = matches!((&parent, cached), (Some(ParentFile { digest, layout: Some(layout), is_whole: true }), Some(cached))
            if *digest == cached && layout.size == found.stamp.size);
        let facts = FileFacts::new(&found, leads, parent.and_then(|parent| parent.layout));
        if unchanged {
            return self.feed.unit(Unit::Cached(Box::new(facts)));
        }
        if found.stamp.size <= SMALL {
            return self.feed.small(facts, found);
        }
        super::large::read(&mut self.feed, facts, &found.place, leads)
    }
}

/// The digest that a file unchanged by the cache has: the parent's, which the cache has just confirmed; without one that of no bytes.
pub(super) fn cached_digest(facts: &FileFacts) -> crate::content::digest::Digest {
    facts.parent.as_ref().map_or(*EMPTY, |layout| layout.digest)
}

impl FileFacts {
    /// The same file, looked at again. The parent's line is dropped: what it was compared for is no longer there.
    pub fn again(&self, stamp: Stamp, mode: u32) -> Self {
        Self { path: self.path.clone(), stamp, mode, leads: self.leads, parent: None }
    }
}
