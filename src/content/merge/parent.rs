//! Looking things up in a parent version while walking a new one, both in tree order.
//!
//! O(1) memory: the cursor only moves forward. Push asks it which packs to look into for a path; commit asks it whether
//! a line is the parent's and so needs no check.

use super::super::path::RelPath;
use super::error::Error;
use super::walk::Pair;

/// A walk over the parent's pairs, such as [`Merged`](super::walk::Merged), that follows the paths it is asked for.
#[derive(Debug)]
pub struct ParentCursor<I> {
    pairs: I,
    current: Option<Pair>,
}

impl<I: Iterator<Item = Result<Pair, Error>>> ParentCursor<I> {
    pub fn new(pairs: I) -> Self {
        Self { pairs, current: None }
    }

    /// The parent's pair for `path`, if it has one. Paths must be asked for in tree order; one that lies before the
    /// last is answered `None`. The same path may be asked for again.
    pub fn find(&mut self, path: &RelPath) -> Result<Option<&Pair>, Error> {
        while self.current.as_ref().is_none_or(|(entry, _)| entry.path < *path) {
            match self.pairs.next().transpose()? {
                Some(pair) => self.current = Some(pair),
                None => return Ok(None),
            }
        }
        Ok(self.current.as_ref().filter(|(entry, _)| entry.path == *path))
    }
}
