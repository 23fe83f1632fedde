//! Hard links, proven in a second walk.
//!
//! A follower says which earlier file it is a link to, and repeats that file's values. To remember every file for that
//! would take memory by the count, so the first walk gathers only what followers claim (16 bytes a group, bounded), and
//! a second walk over the tree crosses off each claim as the file that keeps it comes by. Trees without hard links,
//! nearly all, are walked once.

use super::super::digest::{Digest, Hasher};
use super::super::path::RelPath;
use super::super::tree::{Entry, Kind, TreeReader};
use super::error::{Error, MAX_GROUPS};
use std::collections::HashSet;
use std::io::BufRead;

/// What followers claim about the first files of their groups.
#[derive(Debug, Default)]
#[must_use = "claims are only claims until `prove` has gone over the tree again"]
pub struct HardLinks {
    claims: HashSet<[u8; 16]>,
}

impl HardLinks {
    /// Whether nothing was claimed: there is nothing to prove.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Notes what `entry` claims, if it is a follower.
    pub fn claim(&mut self, entry: &Entry) -> Result<(), Error> {
        let Kind::File { hardlink: Some(first), .. } = &entry.kind else { return Ok(()) };
        if self.claims.len() >= MAX_GROUPS {
            return Err(Error::TooManyGroups);
        }
        self.claims.insert(fingerprint(first, &entry.kind));
        Ok(())
    }

    /// Goes over the same tree again and proves every claim: the target of each hard link is an earlier regular file,
    /// itself no follower, of equal size, mode, time and digest. `expected` is the digest of the first walk.
    pub fn prove<R: BufRead>(mut self, mut tree: TreeReader<R>, expected: Digest) -> Result<(), Error> {
        for entry in &mut tree {
            let entry = entry?;
            match &entry.kind {
                Kind::File { hardlink: None, .. } => {
                    self.claims.remove(&fingerprint(&entry.path, &entry.kind));
                }
                // the target comes earlier, so a claim not crossed off by now never will be
                Kind::File { hardlink: Some(first), .. } if self.claims.contains(&fingerprint(first, &entry.kind)) => {
                    return Err(Error::HardLink { target: first.clone(), path: entry.path });
                }
                _ => {}
            }
        }
        match tree.digest() {
            Some(actual) if actual != expected => Err(Error::Changed { expected, actual }),
            _ => Ok(()),
        }
    }
}

/// Of a path with the values that a follower must repeat; 16 bytes, so a wrong claim passes by chance about once in 2^128.
fn fingerprint(path: &RelPath, kind: &Kind) -> [u8; 16] {
    let mut hasher = Hasher::new();
    if let Kind::File { size, mode, mtime, digest, hardlink: _ } = kind {
        let mut values = [0; 56];
        values[..8].copy_from_slice(&size.to_le_bytes());
        values[8..12].copy_from_slice(&mode.to_le_bytes());
        values[12..20].copy_from_slice(&mtime.seconds.to_le_bytes());
        values[20..24].copy_from_slice(&mtime.nanos.to_le_bytes());
        values[24..].copy_from_slice(digest.as_bytes());
        hasher.update(&values);
    }
    hasher.update(path.as_bytes());
    let mut short = [0; 16];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    short
}
