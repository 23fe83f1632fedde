//! What a push writes down as it goes, in tree order: the tree, the layout's lines, the next stat cache, and the lists for the
//! report.
//!
//! The tree is written finished. A layout begins with its packs, which are known only at the end, so its lines are spooled and
//! copied behind the list at last. Both go to unlinked temporary files as streams.
//!
//! What is written here may be thrown away whole (another attempt begins with a new record), so nothing is seen outside before the commit.
//! Both documents are compressed as one frame each, as the service takes them.

use super::batch::FileFacts;
use super::{Item, PushReport};
use crate::client::context::TransferError;
use crate::client::download::{Fetched, place, temporary};
use crate::client::progress::Meter;
use crate::client::report::list;
use crate::client::stat_cache;
use crate::content::digest::Digest;
use crate::content::layout::{FileLayout, LayoutWriter, Line, Segment};
use crate::content::pack::PackId;
use crate::content::path::{Profile, RelPath};
use crate::content::tree::{Counts, Entry, Kind, Time, TreeWriter};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;

use super::spool::{Lines, Spool};

/// Compression of tree and layout: half of them are digests in hex, of which a higher level makes little less.
const LEVEL: i32 = 1;

/// A document that is compressed while it is written.
/// Unbuffered above: the writers of tree and layout hand it 64 KiB at a time.
struct Packed(zstd::Encoder<'static, BufWriter<File>>);

impl Write for Packed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packed").finish_non_exhaustive()
    }
}

/// The documents of one attempt, finished; digests are of their uncompressed bytes.
#[derive(Debug)]
pub(super) struct Documents {
    pub files: Fetched,
    /// Where the files lie, for messages: they have no names.
    pub place: PathBuf,
    pub tree: Digest,
    pub layout: Digest,
    pub counts: Counts,
    pub chunks: u64,
}

/// A pack's number before it is known whether, and at which place, the layout names it. A number is given when a pack is begun or first
/// used, its id comes when it is sealed, its place when a file's line names it. One row a pack of this push or used by it.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Id once known, place in the layout once a line names it.
    packs: Vec<(Option<PackId>, Option<u32>)>,
    /// Sealed or remote packs.
    by_id: HashMap<PackId, u32>,
    /// In the order of the layout.
    used: Vec<u32>,
}

impl Numbers {
    /// A pack of this push, whose id is not known yet.
    pub fn open(&mut self) -> u32 {
        self.packs.push((None, None));
        u32::try_from(self.packs.len() - 1).expect("a layout names at most a million packs")
    }

    /// The pack was sealed: the number has its id. Two numbers may have one id, where a pack of this push is one that was there before.
    pub fn close(&mut self, number: u32, id: PackId) {
        self.packs[number as usize].0 = Some(id);
        self.by_id.entry(id).or_insert(number);
    }

    /// The number of a pack that is known by its id.
    pub fn of(&mut self, id: PackId) -> u32 {
        if let Some(number) = self.by_id.get(&id) {
            return *number;
        }
        let number = self.open();
        self.close(number, id);
        number
    }

    /// The pack's place in the layout.
    /// Given in the order in which lines name packs, so packs that nothing names do not stand in the layout.
    fn place(&mut self, number: u32) -> u32 {
        let (_, place) = &mut self.packs[number as usize];
        *place.get_or_insert_with(|| {
            self.used.push(number);
            u32::try_from(self.used.len() - 1).expect("no more places than packs")
        })
    }

    /// The layout's packs, each once, and which of them every place means. `None` while a pack that is named has no id.
    fn list(&self) -> Option<(Vec<PackId>, Vec<u32>)> {
        let (mut list, mut seen) = (Vec::new(), HashMap::new());
        let mut places = Vec::with_capacity(self.used.len());
        for number in &self.used {
            let id = self.packs[*number as usize].0?;
            let place = *seen.entry(id).or_insert_with(|| {
                list.push(id);
                u32::try_from(list.len() - 1).unwrap_or(u32::MAX)
            });
            places.push(place);
        }
        Some((list, places))
    }
}

/// The facts of a file that further names may repeat.
#[derive(Debug, Clone, Copy)]
struct Leader {
    size: u64,
    mode: u32,
    mtime: Time,
    digest: Digest,
}

/// Everything that is written down. All calls in tree order. A file that failed is in the report and nowhere else.
#[derive(Debug)]
pub(super) struct Record {
    tree: TreeWriter<Packed>,
    lines: Spool,
    cache: Option<stat_cache::Writer>,
    /// First files of hard-link groups that are open; bounded as the walk's table is.
    leaders: HashMap<RelPath, Leader>,
    pub numbers: Numbers,
    pub report: PushReport,
    chunks: u64,
    temp: Option<PathBuf>,
}

impl Record {
    /// `cache` must have been begun before the first file is read.
    pub fn create(temp: Option<PathBuf>, cache: Option<stat_cache::Writer>) -> Result<Self, TransferError> {
        let tree = packed(temporary(temp.as_deref())?).map_err(TransferError::local(place(temp.as_deref())))?;
        Ok(Self {
            tree: TreeWriter::new(tree, Profile::Posix).map_err(bad_tree)?,
            lines: Spool::new(temporary(temp.as_deref())?),
            cache,
            leaders: HashMap::new(),
            numbers: Numbers::default(),
            report: PushReport::default(),
            chunks: 0,
            temp,
        })
    }

    /// Also where it could not be read: then what is below is missing, and the failed item says so.
    pub fn dir(&mut self, path: RelPath, mode: u32, mtime: Time) -> Result<(), TransferError> {
        self.entry(Entry { path, kind: Kind::Dir { mode } })?;
        self.line(&Line::Dir { mtime })
    }

    pub fn symlink(&mut self, path: RelPath, mtime: Time, target: Vec<u8>) -> Result<(), TransferError> {
        self.entry(Entry { path, kind: Kind::Symlink { mtime, target } })
    }

    /// A file with all its bytes in their places; `layout` is absent for an empty one. Written to tree, layout and stat cache, and counted, in
    /// one step: what stands in the tree has its line.
    pub fn file(
        &mut self,
        meter: &Meter,
        facts: &FileFacts,
        digest: Digest,
        layout: Option<FileLayout>,
    ) -> Result<(), TransferError> {
        let (size, mode, mtime) = (facts.stamp.size, facts.mode, facts.stamp.mtime.clamped());
        self.entry(Entry { path: facts.path.clone(), kind: Kind::File { size, mode, mtime, digest, hardlink: None } })?;
        if facts.leads {
            self.leaders.insert(facts.path.clone(), Leader { size, mode, mtime, digest });
        }
        if let Some(mut layout) = layout {
            for segment in &mut layout.segments {
                self.chunks += u64::from(segment.count);
                segment.pack = segment.pack.map(|number| self.numbers.place(number));
            }
            self.line(&Line::File(layout))?;
        }
        if let Some(cache) = &mut self.cache
            && let Err(error) = cache.add(&facts.path, &facts.stamp, &digest)
        {
            tracing::warn!(%error, "the stat cache cannot be written");
            self.cache = None;
        }
        Meter::add(&meter.files, 1);
        Meter::add(&meter.bytes, size);
        Ok(())
    }

    /// A further name of a file. It fails with the file.
    pub fn hard_link(&mut self, meter: &Meter, path: RelPath, first: RelPath, last: bool) -> Result<(), TransferError> {
        let leader = match last {
            true => self.leaders.remove(&first),
            false => self.leaders.get(&first).copied(),
        };
        let Some(Leader { size, mode, mtime, digest }) = leader else {
            self.failed(meter, Item::new(path.as_bytes(), "hard_link_of_failed"));
            return Ok(());
        };
        Meter::add(&meter.files, 1);
        self.entry(Entry { path, kind: Kind::File { size, mode, mtime, digest, hardlink: Some(first) } })
    }

    pub fn skipped(&mut self, item: Item) {
        list(&mut self.report.skipped, &mut self.report.skipped_count, item);
    }

    pub fn failed(&mut self, meter: &Meter, item: Item) {
        Meter::add(&meter.failed, 1);
        list(&mut self.report.failed, &mut self.report.failed_count, item);
    }

    /// Ends the documents. The stat cache is handed out, to be put in place when the version is committed. All packs must be sealed. Blocks.
    pub fn finish(self) -> Result<(Documents, PushReport, Option<stat_cache::Writer>), TransferError> {
        let here = place(self.temp.as_deref());
        let (tree, counts, packed_tree) = self.tree.finish().map_err(bad_tree)?;
        let tree_file = ended(packed_tree).map_err(TransferError::local(here.clone()))?;
        let (packs, places) =
            self.numbers.list().ok_or(TransferError::Broken { what: "a pack was named and never sealed" })?;
        let layout = packed(temporary(self.temp.as_deref())?).map_err(TransferError::local(here.clone()))?;
        let mut writer = LayoutWriter::new(layout, &packs).map_err(bad_layout)?;
        let mut lines = self.lines.read().map_err(TransferError::local(here.clone()))?;
        while let Some(line) = next_line(&mut lines, &places).map_err(TransferError::local(here.clone()))? {
            writer.write(&line).map_err(bad_layout)?;
        }
        let (layout, packed_layout) = writer.finish().map_err(bad_layout)?;
        let layout_file = ended(packed_layout).map_err(TransferError::local(here.clone()))?;
        let files = Fetched { tree: Arc::new(tree_file), layout: Arc::new(layout_file) };
        let documents = Documents { files, place: here, tree, layout, counts, chunks: self.chunks };
        Ok((documents, self.report, self.cache))
    }

    fn entry(&mut self, entry: Entry) -> Result<(), TransferError> {
        self.tree.write(&entry).map_err(bad_tree)
    }

    fn line(&mut self, line: &Line) -> Result<(), TransferError> {
        self.lines.write(line).map_err(TransferError::local(place(self.temp.as_deref())))
    }
}

/// The next spooled line, with the layout's own pack numbers.
fn next_line(lines: &mut Lines, places: &[u32]) -> io::Result<Option<Line>> {
    let Some(line) = lines.next()? else { return Ok(None) };
    let Line::File(spooled) = line else { return Ok(Some(line)) };
    let mut layout = FileLayout { segments: Vec::with_capacity(spooled.segments.len()), ..spooled };
    for segment in spooled.segments {
        // Two numbers may have turned out to be one pack: neighbours are joined again.
        layout.push(Segment { pack: segment.pack.map(|pack| places[pack as usize]), ..segment });
    }
    Ok(Some(Line::File(layout)))
}

fn packed(file: File) -> io::Result<Packed> {
    zstd::Encoder::new(BufWriter::with_capacity(128 << 10, file), LEVEL).map(Packed)
}

/// The frame is ended and the file rewound; not synced, since nobody else ever opens it.
fn ended(packed: Packed) -> io::Result<File> {
    let mut file = packed.0.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// The walk gives paths in order and values in range, so this is a bug or a full temporary directory.
fn bad_tree(error: crate::content::tree::Error) -> TransferError {
    TransferError::BadVersion { reference: "the new version".to_owned(), what: "tree", why: error.to_string() }
}

fn bad_layout(error: crate::content::layout::Error) -> TransferError {
    TransferError::BadVersion { reference: "the new version".to_owned(), what: "layout", why: error.to_string() }
}
