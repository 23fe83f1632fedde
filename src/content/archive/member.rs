//! What both formats share: the source of entries, one member, and what can go wrong.
//!
//! A `Member` is an entry that already has its bytes' place and crc, hard links resolved where the format wants copies.

use super::super::crc::Crc32;
use super::super::layout::{FileLayout, Line};
use super::super::merge::{self, Leaders, Pair};
use super::super::path::RelPath;
use super::super::tree::{Entry, Kind, Time};
use std::sync::Arc;

/// Which archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    Zip,
    Tar,
}

/// Entries in tree order that can be walked several times, the same each time.
///
/// Every closure that opens such a walk is one.
pub trait Source {
    type Pairs: Iterator<Item = Result<Pair, merge::Error>>;

    /// Starts a walk from the beginning.
    fn open(&self) -> Result<Self::Pairs, merge::Error>;
}

impl<F, I> Source for F
where
    F: Fn() -> Result<I, merge::Error>,
    I: Iterator<Item = Result<Pair, merge::Error>>,
{
    type Pairs = I;

    fn open(&self) -> Result<I, merge::Error> {
        self()
    }
}

/// Why an archive cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Source(#[from] merge::Error),
    #[error("`{path}` has no line in the layout, or not the one it needs")]
    NoLine { path: RelPath },
    #[error("`{path}` is a hard link to `{target}`, which is not in the archive before it")]
    NoTarget { path: RelPath, target: RelPath },
    #[error("the range {start} to {end} lies outside the archive's {length} bytes")]
    Range { start: u64, end: u64, length: u64 },
    #[error("the archive would be longer than any file may be")]
    TooLong,
    #[error("the entries are not those that were measured")]
    Changed,
}

/// What kind of member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    Dir,
    Empty,
    File(Arc<FileLayout>),
    Symlink(Vec<u8>),
    /// Only in a tar.
    HardLink(RelPath),
}

/// One member, ready to be described in either format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) path: RelPath,
    pub(super) mode: u32,
    pub(super) mtime: Time,
    pub(super) body: Body,
}

impl Member {
    /// Bytes of the content; in a zip a link's target is its content.
    pub(super) fn size(&self) -> u64 {
        match &self.body {
            Body::File(layout) => layout.size,
            Body::Symlink(target) => target.len() as u64,
            Body::Dir | Body::Empty | Body::HardLink(_) => 0,
        }
    }

    pub(super) fn crc(&self) -> Crc32 {
        match &self.body {
            Body::File(layout) => layout.crc,
            Body::Symlink(target) => Crc32::of(target),
            Body::Dir | Body::Empty | Body::HardLink(_) => Crc32::default(),
        }
    }
}

/// Members of one walk.
#[derive(Debug)]
pub(super) struct Members<I> {
    pairs: I,
    format: Format,
    leaders: Leaders,
}

impl<I: Iterator<Item = Result<Pair, merge::Error>>> Members<I> {
    pub(super) fn new(pairs: I, format: Format, leaders: &Leaders) -> Self {
        Self { pairs, format, leaders: leaders.afresh() }
    }

    pub(super) fn next(&mut self) -> Result<Option<Member>, Error> {
        match self.pairs.next().transpose()? {
            Some((entry, line)) => self.member(entry, line).map(Some),
            None => Ok(None),
        }
    }

    fn member(&mut self, entry: Entry, line: Option<Line>) -> Result<Member, Error> {
        let path = entry.path;
        match (entry.kind, line) {
            (Kind::Dir { mode }, Some(Line::Dir { mtime })) => Ok(Member { path, mode, mtime, body: Body::Dir }),
            (Kind::Symlink { mtime, target }, _) => {
                Ok(Member { path, mode: 0o777, mtime, body: Body::Symlink(target) })
            }
            (Kind::File { mode, mtime, hardlink: Some(first), .. }, _) if self.format == Format::Tar => {
                Ok(Member { path, mode, mtime, body: Body::HardLink(first) })
            }
            (Kind::File { size: 0, mode, mtime, .. }, _) => Ok(Member { path, mode, mtime, body: Body::Empty }),
            (Kind::File { mode, mtime, hardlink: Some(first), .. }, _) => match self.leaders.get(&first) {
                Some(layout) => Ok(Member { path, mode, mtime, body: Body::File(Arc::clone(layout)) }),
                None => Err(Error::NoTarget { path, target: first }),
            },
            (Kind::File { mode, mtime, .. }, Some(Line::File(layout))) => {
                let layout = Arc::new(layout);
                self.leaders.pass(&path, &layout)?;
                Ok(Member { path, mode, mtime, body: Body::File(layout) })
            }
            (Kind::Dir { .. } | Kind::File { .. }, _) => Err(Error::NoLine { path }),
        }
    }
}

/// Which files a zip must keep for later copies: one walk, and nothing for trees without hard links.
pub(super) fn survey<S: Source>(source: &S, format: Format) -> Result<Leaders, Error> {
    let mut leaders = Leaders::default();
    if format == Format::Zip {
        for pair in source.open()? {
            if let Kind::File { hardlink: Some(first), size, .. } = pair?.0.kind
                && size > 0
            {
                leaders.want(&first)?;
            }
        }
    }
    Ok(leaders)
}
