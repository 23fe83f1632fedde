//! What both formats share: the source of entries, one member, and what can go wrong.
//!
//! A `Member` is an entry that already has its bytes' place and crc, hard links resolved where the format wants copies.

use super::super::crc::Crc32;
use super::super::layout::{FileLayout, Line};
use super::super::merge::{self, Leaders, Pair};
use super::super::path::RelPath;
use super::super::tree::{Entry, Kind, Time};
use std::sync::Arc;

/// Which archive. Zip for people's desktops; tar where hard links and times to the nanosecond are to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    Zip,
    Tar,
}

/// Entries in tree order that can be walked several times, the same each time.
///
/// Every closure that opens such a walk is one. A source that gives other entries later is found out by [`Error::Changed`] where lengths
/// differ, and not at all where they do not: it must be bound to one version and one selection.
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
    /// The pairs were not joined by [`Merged`](merge::Merged), which refuses them earlier.
    #[error("`{path}` has no line in the layout, or not the one it needs")]
    NoLine { path: RelPath },
    #[error("`{path}` is a hard link to `{target}`, which is not in the archive before it with the same size")]
    NoTarget { path: RelPath, target: RelPath },
    #[error("the range {start} to {end} lies outside the archive's {length} bytes")]
    Range { start: u64, end: u64, length: u64 },
    /// Beyond `MAX_FILE_SIZE`.
    #[error("the archive would be longer than any file may be")]
    TooLong,
    /// The source is at fault; what was handed out of the archive so far is not to be used.
    #[error("the entries are not those that were measured")]
    Changed,
}

/// What kind of member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    Dir,
    Empty,
    File(Arc<FileLayout>),
    /// While a zip is measured: a hard link that will be a copy of this many bytes. Its crc is not known yet, and no
    /// length depends on it.
    Copy {
        size: u64,
        first: RelPath,
    },
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
            Body::Copy { size, .. } => *size,
            Body::Symlink(target) => target.len() as u64,
            Body::Dir | Body::Empty | Body::HardLink(_) => 0,
        }
    }

    /// 0 where there are no bytes, and for a copy that is not resolved yet.
    pub(super) fn crc(&self) -> Crc32 {
        match &self.body {
            Body::File(layout) => layout.crc,
            Body::Symlink(target) => Crc32::of(target),
            Body::Dir | Body::Empty | Body::Copy { .. } | Body::HardLink(_) => Crc32::default(),
        }
    }
}

/// Members of one walk.
#[derive(Debug)]
pub(super) struct Members<I> {
    pairs: I,
    format: Format,
    leaders: Leaders,
    links: Links,
}

/// What a walk does about hard links in a zip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Notes which files will be copied.
    Note,
    /// Gives each copy the place of its first file.
    Copy,
}

impl<I: Iterator<Item = Result<Pair, merge::Error>>> Members<I> {
    /// The walk that measures: hard links that will be copies stay [`Body::Copy`].
    pub(super) fn to_measure(pairs: I, format: Format) -> Self {
        Self { pairs, format, leaders: Leaders::default(), links: Links::Note }
    }

    /// The walk that makes parts.
    pub(super) fn new(pairs: I, format: Format, leaders: &Leaders) -> Self {
        Self { pairs, format, leaders: leaders.afresh(), links: Links::Copy }
    }

    /// Which files later walks must keep for their copies.
    pub(super) fn into_leaders(self) -> Leaders {
        self.leaders
    }

    /// In the order of the source, which is that of the archive.
    pub(super) fn next(&mut self) -> Result<Option<Member>, Error> {
        match self.pairs.next().transpose()? {
            Some((entry, line)) => self.member(entry, line).map(Some),
            None => Ok(None),
        }
    }

    fn member(&mut self, entry: Entry, line: Option<Line>) -> Result<Member, Error> {
        let path = entry.path;
        let (mode, mtime, body) = match (entry.kind, line) {
            (Kind::Dir { mode }, Some(Line::Dir { mtime })) => (mode, mtime, Body::Dir),
            (Kind::Symlink { mtime, target }, _) => (0o777, mtime, Body::Symlink(target)),
            (Kind::File { mode, mtime, hardlink: Some(first), .. }, _) if self.format == Format::Tar => {
                (mode, mtime, Body::HardLink(first))
            }
            (Kind::File { size: 0, mode, mtime, .. }, _) => (mode, mtime, Body::Empty),
            (Kind::File { size, mode, mtime, hardlink: Some(first), .. }, _) => {
                (mode, mtime, self.copy(&path, size, first)?)
            }
            (Kind::File { mode, mtime, .. }, Some(Line::File(layout))) => {
                let layout = Arc::new(layout);
                if self.links == Links::Copy {
                    self.leaders.pass(&path, &layout)?;
                }
                (mode, mtime, Body::File(layout))
            }
            (Kind::Dir { .. } | Kind::File { .. }, _) => return Err(Error::NoLine { path }),
        };
        Ok(Member { path, mode, mtime, body })
    }

    /// A link without bytes never comes here: it is an empty member.
    fn copy(&mut self, path: &RelPath, size: u64, first: RelPath) -> Result<Body, Error> {
        match (self.links, self.leaders.get(&first)) {
            (Links::Note, _) => {
                self.leaders.want(&first)?;
                Ok(Body::Copy { size, first })
            }
            (Links::Copy, Some(layout)) if layout.size == size => Ok(Body::File(Arc::clone(layout))),
            (Links::Copy, _) => Err(Error::NoTarget { path: path.clone(), target: first }),
        }
    }
}
