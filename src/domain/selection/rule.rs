//! What a choice of globs and a shard means, path by path: one rule for stagings and pulls.
//!
//! Paths are relative to what is chosen from. A pattern picks an entry when it matches the entry's path or that of a directory above it; `exclude` wins over
//! `include`. A shard chooses among the files and symlinks that are picked ([`crate::domain::shard`]), and has to have seen them all before.

use crate::content::select::Directories;
use crate::content::tree::Kind;
use crate::domain::job::{BadGlob, glob_set};
use crate::domain::shard::{Part, Shard, Weights};
use globset::GlobSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A choice, compiled.
#[derive(Debug, Clone)]
pub struct Rule {
    include: Option<GlobSet>,
    exclude: GlobSet,
    shard: Option<Part>,
}

impl Rule {
    /// Everything when there are no patterns.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self, BadGlob> {
        let include = if include.is_empty() { None } else { Some(glob_set(include)?) };
        Ok(Self { include, exclude: glob_set(exclude)?, shard: None })
    }

    /// Chooses a shard of what is picked. `files` are at least all files and symlinks with their paths and sizes, in any order.
    /// Those that the patterns do not pick may be among them and are passed over, so that shards are equal parts of what is
    /// picked, not of all. The first error of `files` ends it.
    pub fn sharded<E>(
        self,
        shard: Shard,
        files: impl IntoIterator<Item = Result<(Vec<u8>, u64), E>>,
    ) -> Result<Self, E> {
        let mut weights = Weights::default();
        for file in files {
            let (path, bytes) = file?;
            if self.picks(&path) {
                weights.add(&path, bytes);
            }
        }
        Ok(Self { shard: Some(weights.part(shard)), ..self })
    }

    pub fn is_all(&self) -> bool {
        self.include.is_none() && self.exclude.is_empty() && self.shard.is_none()
    }

    pub fn directories(&self) -> Directories {
        match self.include.is_some() || self.shard.is_some() {
            true => Directories::OnTheWay,
            false => Directories::Picked,
        }
    }

    /// Whether the patterns pick this path.
    pub fn picks(&self, path: &[u8]) -> bool {
        let hits = |set: &GlobSet| {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
            ends.chain([path.len()]).any(|end| set.is_match(OsStr::from_bytes(path.get(..end).unwrap_or_default())))
        };
        self.include.as_ref().is_none_or(hits) && (self.exclude.is_empty() || !hits(&self.exclude))
    }

    /// Whether a file or symlink at this path is chosen.
    pub fn takes(&self, path: &[u8]) -> bool {
        self.picks(path) && self.shard.is_none_or(|part| part.has(path))
    }
}

/// What an entry weighs when shards are dealt; `None` for what is not dealt.
pub fn weight(kind: &Kind) -> Option<u64> {
    match kind {
        Kind::File { size, .. } => Some(*size),
        Kind::Symlink { .. } => Some(0),
        Kind::Dir { .. } => None,
    }
}
