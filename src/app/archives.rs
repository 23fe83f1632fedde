//! A version, or a subtree of one, as an archive that is computed and never stored.
//!
//! Memory does not grow with files: entries are walked from the stored tree and layout each time, in steps on the blocking pool, and only as far as
//! whoever downloads has read. A subtree whose hard links lead out of it holds copies instead.
//!
//! ```text
//! App::archive:          survey (pack list, leaders) -> measure (length, tag)            walks the tree, reads no pack
//! VersionArchive::read:  entries -> parts of the range -> chunks from the packs          walks it again, each time
//! ```
//!
//! The length is known before the first byte is sent, so `Content-Length` and `Range` hold. The archive's bytes are a
//! function of the version, the subtree and the format (`content::archive`).

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::App;
use super::check::refused;
use super::error::{Code, Error, Kind};
use super::read::{Plain, Source};
use super::stored::Document;
use crate::content::archive::{self, Archive, Format, Part, Parts};
use crate::content::layout::Line;
use crate::content::merge::{self, Leaders, Merged, Pair};
use crate::content::path::RelPath;
use crate::content::tree::{self, Kind as EntryKind};
use crate::db::versions::Version;

/// A name or size that the format cannot hold, or too much to keep in memory for hard links.
pub const ARCHIVE_REFUSED: Code = Code::new(Kind::Invalid, "archive_refused", "the version cannot be made an archive");

/// Parts made ahead of whoever reads: bounded by bytes of headers and by number. Enough that a tree of small files is not a
/// trip to the blocking pool for each, little enough to keep.
const AHEAD_BYTES: u64 = 256 << 10;
const AHEAD_PARTS: usize = 64;

/// An archive that is measured, and where its files' bytes come from. Cheap to clone and to keep; nothing is open in it. It
/// reads by one layout generation: once that was replaced, reading ends with `layout_gone` at the next pack.
#[derive(Debug, Clone)]
pub struct VersionArchive {
    archive: Archive<Entries>,
    source: Source,
}

/// The entries that go into an archive, to be walked any number of times.
#[derive(Debug)]
struct Entries {
    app: Arc<App>,
    handle: Handle,
    tree_key: String,
    layout_key: String,
    subtree: Option<RelPath>,
    /// Files outside the subtree that links inside it need.
    leaders: Leaders,
}

impl VersionArchive {
    pub fn length(&self) -> u64 {
        self.archive.length()
    }

    /// Equal tags are equal bytes: an `ETag`, by which a download may be resumed.
    pub fn tag(&self) -> String {
        self.archive.etag().to_string()
    }

    /// The bytes `range` of the archive. The stream yields exactly these, or ends with an error. It is made as it is read:
    /// dropping it stops the work, and a slow reader holds a bounded number of parts. Every chunk is proven before it
    /// leaves.
    pub fn read(&self, app: &Arc<App>, range: Range<u64>) -> Plain {
        let opened = self.archive.parts(range).map_err(unmade);
        let (app, source) = (app.clone(), self.source.clone());
        let steps = stream::try_unfold(Some(opened), |state| async move {
            let Some(parts) = state else { return Ok(None) };
            let parts = parts?;
            let stepped = spawn_blocking(move || ahead(parts)).await;
            let (made, rest) =
                stepped.map_err(|error| Error::internal("an archive's walk was cut off").with_source(error))??;
            Ok::<_, Error>(Some((made, rest.map(Ok))))
        });
        steps
            .flat_map(move |made| match made {
                Err(error) => stream::iter([Err(error)]).boxed(),
                Ok(parts) => {
                    let (app, source) = (app.clone(), source.clone());
                    stream::iter(parts).flat_map(move |part| part_bytes(&app, &source, part)).boxed()
                }
            })
            .boxed()
    }
}

fn part_bytes(app: &Arc<App>, source: &Source, part: Part) -> BoxStream<'static, Result<Bytes, Error>> {
    match part {
        Part::Bytes(bytes) => stream::iter([Ok(Bytes::from(bytes))]).boxed(),
        Part::File { layout, range } => app.read_file(source, (*layout).clone(), range),
    }
}

type Ahead = (Vec<Part>, Option<Parts<Entries>>);

/// Makes a bounded number of parts; gives the rest back unless it has ended.
fn ahead(mut parts: Parts<Entries>) -> Result<Ahead, Error> {
    let (mut made, mut bytes) = (Vec::new(), 0);
    while made.len() < AHEAD_PARTS && bytes < AHEAD_BYTES {
        let Some(part) = parts.next() else { return Ok((made, None)) };
        let part = part.map_err(unmade)?;
        if let Part::Bytes(head) = &part {
            bytes += head.len() as u64;
        }
        made.push(part);
    }
    Ok((made, Some(parts)))
}

impl App {
    /// Measures the archive of a version or a subtree of it; walks the whole tree on the blocking pool and reads no pack.
    /// `subtree` is a directory, to which the names in the archive are relative.
    pub(super) async fn archive(
        self: &Arc<Self>,
        version: &Version,
        subtree: Option<RelPath>,
        format: Format,
    ) -> Result<VersionArchive, Error> {
        let layout = version.layout.id;
        let mut entries = Entries {
            app: self.clone(),
            handle: Handle::current(),
            tree_key: version.tree_key.clone(),
            layout_key: version.layout.key.clone(),
            subtree,
            leaders: Leaders::default(),
        };
        let turn = self.data.look_up().await.map_err(|error| Error::internal("no more walks").with_source(error))?;
        let measured = spawn_blocking(move || {
            let _turn = turn;
            let packs = entries.survey().map_err(refused)?;
            let archive = Archive::measure(format, entries).map_err(unmade)?;
            Ok::<_, Error>(VersionArchive { archive, source: Source { layout, packs } })
        });
        measured.await.map_err(|error| Error::internal("an archive's measuring was cut off").with_source(error))?
    }
}

impl Entries {
    fn pairs(&self) -> Result<Merged<Document, Document>, merge::Error> {
        let open = |key: &str| {
            let opened = self.app.open_document(&self.handle, key);
            opened.map_err(|error| merge::Error::Tree(tree::Error::Io(io::Error::other(error))))
        };
        Merged::open(open(&self.tree_key)?, open(&self.layout_key)?)
    }

    /// Reads the pack list, and learns which files outside the subtree are needed. Without a subtree no link leads out, and
    /// nothing is walked.
    fn survey(&mut self) -> Result<Arc<[crate::content::pack::PackId]>, merge::Error> {
        let pairs = self.pairs()?;
        let packs = pairs.packs().into();
        let Some(subtree) = self.subtree.clone() else { return Ok(packs) };
        for pair in pairs {
            let (entry, _) = pair?;
            if let EntryKind::File { hardlink: Some(first), .. } = &entry.kind
                && entry.path.is_below(&subtree)
                && !first.is_below(&subtree)
            {
                self.leaders.want(first)?;
            }
        }
        Ok(packs)
    }
}

impl archive::Source for Entries {
    type Pairs = Walk;

    fn open(&self) -> Result<Walk, merge::Error> {
        Ok(Walk { pairs: self.pairs()?, subtree: self.subtree.clone(), leaders: self.leaders.afresh() })
    }
}

/// One walk over the entries of an archive.
struct Walk {
    pairs: Merged<Document, Document>,
    subtree: Option<RelPath>,
    leaders: Leaders,
}

impl Iterator for Walk {
    type Item = Result<Pair, merge::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let pair = match self.pairs.next()? {
                Ok(pair) => pair,
                Err(error) => return Some(Err(error)),
            };
            match self.within(pair) {
                Ok(None) => {}
                Ok(Some(pair)) => return Some(Ok(pair)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Walk {
    /// The entry as it stands in the archive, if it does.
    /// Outside the subtree nothing is given out, but files that links inside need are remembered as they pass: they come
    /// first in the tree's order. Such a link becomes a file of its own with that file's bytes.
    fn within(&mut self, (mut entry, line): Pair) -> Result<Option<Pair>, merge::Error> {
        let Some(subtree) = &self.subtree else { return Ok(Some((entry, line))) };
        let Some(path) = entry.path.strip(subtree) else {
            if let Some(Line::File(file)) = &line
                && !self.leaders.is_empty()
            {
                self.leaders.pass(&entry.path, &Arc::new(file.clone()))?;
            }
            return Ok(None);
        };
        let mut line = line;
        if let EntryKind::File { hardlink, .. } = &mut entry.kind
            && let Some(first) = hardlink.take()
        {
            match first.strip(subtree) {
                Some(inside) => *hardlink = Some(inside),
                None => line = self.leaders.get(&first).map(|file| Line::File((**file).clone())),
            }
        }
        entry.path = path;
        Ok(Some((entry, line)))
    }
}

fn unmade(error: archive::Error) -> Error {
    match error {
        archive::Error::Source(error) => refused(error),
        other => {
            Error::new(ARCHIVE_REFUSED, other.to_string(), "choose the other format, or a smaller part of the version")
        }
    }
}
