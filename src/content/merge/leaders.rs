//! The places of files that later entries are hard links to.
//!
//! A follower has no line of its own. Who must give it bytes all the same (a zip, a part of a tree without the first
//! file) learns in a first walk which files will be wanted, and keeps only their lines in the second.

use super::super::digest::digest;
use super::super::layout::{FileLayout, Segment};
use super::super::path::RelPath;
use super::error::{Error, MAX_GROUPS, MAX_HELD_BYTES};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// BLAKE3 of a path, cut: two of a million paths meet with a chance of about 2^-89.
type Key = [u8; 16];

/// Which first files are wanted, and the lines of those that came by.
///
/// Memory: 16 bytes a wanted file, [`MAX_GROUPS`] at most, and the lines, [`MAX_HELD_BYTES`] at most.
#[derive(Debug, Clone, Default)]
pub struct Leaders {
    wanted: Arc<HashSet<Key>>,
    /// Shared with whoever was given one; counted as if it were not.
    held: HashMap<Key, Arc<FileLayout>>,
    bytes: usize,
}

impl Leaders {
    /// First walk: `path` will be wanted.
    pub fn want(&mut self, path: &RelPath) -> Result<(), Error> {
        if self.wanted.len() >= MAX_GROUPS {
            return Err(Error::TooManyGroups);
        }
        Arc::make_mut(&mut self.wanted).insert(key(path));
        Ok(())
    }

    /// The same wishes, and no lines yet: for one more walk.
    pub fn afresh(&self) -> Self {
        Self { wanted: Arc::clone(&self.wanted), held: HashMap::new(), bytes: 0 }
    }

    /// Whether no file is wanted.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Second walk: a regular file of its own comes by. Answers whether it was wanted and is now kept.
    pub fn pass(&mut self, path: &RelPath, layout: &Arc<FileLayout>) -> Result<bool, Error> {
        // hashing every path is for nothing in nearly every tree
        if self.wanted.is_empty() {
            return Ok(false);
        }
        let key = key(path);
        if !self.wanted.contains(&key) {
            return Ok(false);
        }
        self.bytes += size_of::<FileLayout>() + 64 + layout.segments.len() * size_of::<Segment>();
        if self.bytes > MAX_HELD_BYTES {
            return Err(Error::TooManyHeld);
        }
        self.held.insert(key, Arc::clone(layout));
        Ok(true)
    }

    /// The line of a file that was kept.
    pub fn get(&self, path: &RelPath) -> Option<&Arc<FileLayout>> {
        self.held.get(&key(path))
    }
}

fn key(path: &RelPath) -> Key {
    let mut key = [0; 16];
    key.copy_from_slice(&digest(path.as_bytes()).as_bytes()[..16]);
    key
}
