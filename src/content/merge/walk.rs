//! The walk itself.
//!
//! Reads one entry and, where it needs one, one line; holds nothing else but the claims of hard links.

use super::super::digest::Digest;
use super::super::layout::{LayoutReader, Line};
use super::super::pack::PackId;
use super::super::path::Profile;
use super::super::tree::{Counts, Entry, Kind, TreeReader};
use super::error::Error;
use super::links::HardLinks;
use std::io::BufRead;

/// An entry and its line of the layout, where it has one.
pub type Pair = (Entry, Option<Line>);

/// What a whole walk found.
#[derive(Debug)]
pub struct Summary {
    pub tree: Digest,
    pub layout: Digest,
    pub counts: Counts,
    /// Claims still to be proven by a second walk over the tree; empty for a tree without hard links.
    pub links: HardLinks,
}

/// The entries of a tree, each with its line of the layout, in tree order. After an error it yields nothing more.
///
/// What it yields fits together so far; that it is the right tree is known only from the digests at the end, see [`finish`](Self::finish).
#[derive(Debug)]
pub struct Merged<R1, R2> {
    tree: TreeReader<R1>,
    layout: LayoutReader<R2>,
    links: HardLinks,
    ended: bool,
    failed: bool,
}

impl<R1: BufRead, R2: BufRead> Merged<R1, R2> {
    /// Reads both headers and the pack list.
    pub fn open(tree: R1, layout: R2) -> Result<Self, Error> {
        Ok(Self::new(TreeReader::open(tree)?, LayoutReader::open(layout)?))
    }

    /// Joins two readers that were just opened.
    pub fn new(tree: TreeReader<R1>, layout: LayoutReader<R2>) -> Self {
        Self { tree, layout, links: HardLinks::default(), ended: false, failed: false }
    }

    pub fn profile(&self) -> Profile {
        self.tree.profile()
    }

    /// At hand from the start.
    pub fn packs(&self) -> &[PackId] {
        self.layout.packs()
    }

    /// What was read so far.
    pub fn counts(&self) -> Counts {
        self.tree.counts()
    }

    /// Walks what is left, and answers what the whole was.
    ///
    /// Where `links` is not empty in the answer, the pair is proven only after [`HardLinks::prove`] has gone over the
    /// same tree once more.
    pub fn finish(mut self) -> Result<Summary, Error> {
        for pair in self.by_ref() {
            pair?;
        }
        // an error yielded before this call has left the walk without an end
        match (self.tree.digest(), self.layout.digest()) {
            (Some(tree), Some(layout)) if !self.failed => {
                Ok(Summary { tree, layout, counts: self.tree.counts(), links: self.links })
            }
            _ => Err(Error::Broken),
        }
    }

    fn read(&mut self) -> Result<Option<Pair>, Error> {
        let Some(entry) = self.tree.next().transpose()? else {
            return match self.layout.next().transpose()? {
                None => Ok(None),
                Some(_) => Err(Error::TooManyLines { line: self.layout.line_number() }),
            };
        };
        if !entry.has_bytes() && !matches!(entry.kind, Kind::Dir { .. }) {
            self.links.claim(&entry)?;
            return Ok(Some((entry, None)));
        }
        let Some(line) = self.layout.next().transpose()? else {
            return Err(Error::MissingLine { path: entry.path });
        };
        match (&entry.kind, &line) {
            (Kind::Dir { .. }, Line::Dir { .. }) => {}
            (Kind::File { size, digest, .. }, Line::File(file)) => {
                if (*size, *digest) != (file.size, file.digest) {
                    return Err(Error::Disagree {
                        path: entry.path,
                        tree: *digest,
                        tree_size: *size,
                        layout: file.digest,
                        layout_size: file.size,
                    });
                }
            }
            _ => return Err(Error::WrongLine { path: entry.path, line: self.layout.line_number() }),
        }
        Ok(Some((entry, Some(line))))
    }
}

impl<R1: BufRead, R2: BufRead> Iterator for Merged<R1, R2> {
    type Item = Result<Pair, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}
