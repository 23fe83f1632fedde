//! Judging a tree and its layout before they become a version: one joined walk, in bounded memory.
//!
//! Checked here: structure, names, that both agree, that every pack named is the team's own and sealed, that every run of chunks
//! lies in its pack, adds up to its bytes and to the file's crc32. A line that says the same as the parent's needs no second
//! look. Not checked: the whole-file digest, which is the client's claim until somebody reads. Blocks: it runs on the blocking
//! pool.
//!
//! ```text
//! tree + layout, joined --each file's line--> same place as in the parent?  yes: counted
//!                                             no: its runs are looked up in the packs' indexes (cached) and summed
//! ```
//!
//! Memory: the pack list with a number and a flag each, one index beside the cache, and what the joined walk holds for hard
//! links. It decides nothing for good: packs may be lost and versions made meanwhile, so the transaction that makes the
//! version looks again at what can change.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use tokio::runtime::Handle;
use uuid::Uuid;

use super::App;
use super::error::{CORRUPT, Code, Error, Kind};
use super::stored::Document;
use crate::content::digest::Digest;
use crate::content::layout::{self, Fault, FileLayout, Line, Sums, same_place};
use crate::content::merge::{self, Merged, ParentCursor};
use crate::content::pack::{PackId, PackIndex};
use crate::content::path::{Profile, RelPath};
use crate::content::tree::{self, Counts, TreeReader};
use crate::db::packs;
use crate::db::versions::Version;
use crate::store;

/// The packs to send again stand in `data.packs`; the layout is written anew with what takes their place.
pub const CHUNKS_GONE: Code = Code::new(Kind::Conflict, "chunks_gone", "packs that the layout names are not there");
/// The client's to mend: it writes the layout anew. Packs are not sent again.
const BAD_LAYOUT: Code = Code::new(Kind::Invalid, "bad_layout", "the layout does not fit the packs it names");
/// The tree's header names another profile than the team's. Names themselves are judged by the reader of the tree.
const NOT_PORTABLE: Code = Code::new(Kind::Invalid, "not_portable", "the team takes portable trees only");

/// Packs listed in a refusal.
const LISTED: usize = 4096;

/// What is to be judged. Digests are what the commit said; keys are where the upload's objects lie.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    pub team: Uuid,
    pub tree: Digest,
    pub tree_key: String,
    pub layout: Digest,
    pub layout_key: String,
    /// The team takes only trees whose header says the portable profile.
    pub portable: bool,
    /// The dataset's newest version, to spare work by; none for a first one.
    pub parent: Option<Version>,
}

/// What a sound pair was found to hold.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    /// As the tree's lines add up, not as anybody claimed.
    pub counts: Counts,
    pub chunks: u64,
    /// Row numbers of the packs that are used, rising.
    pub packs: Vec<u64>,
}

/// Walks tree and layout once, the tree a second time where it has hard links. Call it on the blocking pool. Answers
/// [`CHUNKS_GONE`] with the packs to send again, `bad_layout` with the path, `not_portable`, the code of what is wrong with
/// the tree or layout, or `corrupt` when the stored objects are not what was sent; a store that cannot be reached is passed
/// on as such and judges nothing.
pub(super) fn check(app: &App, handle: &Handle, claimed: &Claimed) -> Result<Checked, Error> {
    let tree = app.open_document(handle, &claimed.tree_key)?;
    let layout = app.open_document(handle, &claimed.layout_key)?;
    let mut pairs = Merged::open(tree, layout).map_err(refused)?;
    if claimed.portable && pairs.profile() != Profile::Portable {
        let hint = "push with this release of dray, which asks for the team's profile";
        return Err(Error::new(NOT_PORTABLE, "the tree was written with the posix profile", hint));
    }
    let ids: Arc<[PackId]> = pairs.packs().into();
    let numbers = handle.block_on(row_numbers(app, claimed.team, &ids))?;
    let mut places = Places { app, handle, ids, numbers, used: Vec::new(), last: None, chunks: 0 };
    places.used.resize(places.ids.len(), false);
    let mut parent = claimed.parent.as_ref().and_then(|parent| open_parent(app, handle, parent));
    for pair in &mut pairs {
        let (entry, line) = pair.map_err(refused)?;
        let Some(Line::File(file)) = line else { continue };
        if parent.as_mut().is_some_and(|parent| parent.says_the_same(&entry.path, &file, &places.ids)) {
            places.take(&file);
        } else {
            places.check(&entry.path, &file)?;
        }
    }
    let summary = pairs.finish().map_err(refused)?;
    if (summary.tree, summary.layout) != (claimed.tree, claimed.layout) {
        return Err(Error::new(CORRUPT, "the stored tree or layout has changed", "send it again, then commit again"));
    }
    if !summary.links.is_empty() {
        let again =
            TreeReader::open(app.open_document(handle, &claimed.tree_key)?).map_err(|error| refused(error.into()))?;
        summary.links.prove(again, summary.tree).map_err(refused)?;
    }
    Ok(places.end(summary.counts))
}

/// The row number of each pack, in the order given. Packs that are not the team's own sealed ones are listed in the error.
/// Read batch by batch, not at one moment: what is lost in between is found by the transaction that makes the version.
async fn row_numbers(app: &App, team: Uuid, ids: &[PackId]) -> Result<Vec<u64>, Error> {
    let mut session = app.db.read().await?;
    let mut numbers = Vec::with_capacity(ids.len());
    let mut gone = Vec::new();
    for batch in ids.chunks(packs::BATCH) {
        let found: HashMap<PackId, u64> = packs::numbers_among(&mut session, team, batch).await?.into_iter().collect();
        for id in batch {
            match found.get(id) {
                Some(number) => numbers.push(*number),
                None => gone.push(*id),
            }
        }
    }
    if gone.is_empty() { Ok(numbers) } else { Err(chunks_gone(&gone)) }
}

/// The refusal that says which packs to send again, [`LISTED`] of them at most and how many there are. The same whether a
/// pack never was, is gone, or is another team's.
pub(super) fn chunks_gone(packs: &[PackId]) -> Error {
    let listed: Vec<String> = packs.iter().take(LISTED).map(ToString::to_string).collect();
    let detail = format!("{} of the packs that the layout names are not there", packs.len());
    let hint =
        "send the chunks of these packs again, write the layout anew, then commit again; `dray push` does so by itself";
    Error::new(CHUNKS_GONE, detail, hint).with_data(json!({ "packs": listed, "count": packs.len() }))
}

/// Looks up runs of chunks in the indexes of their packs. Ordinals are places in the layout's pack list; numbers are rows.
struct Places<'a> {
    app: &'a App,
    handle: &'a Handle,
    ids: Arc<[PackId]>,
    numbers: Vec<u64>,
    used: Vec<bool>,
    /// The index looked into last: files in tree order lie mostly in the same pack.
    last: Option<(usize, Arc<PackIndex>)>,
    chunks: u64,
}

impl Places<'_> {
    /// Counts a line that is known to be right.
    fn take(&mut self, file: &FileLayout) {
        for segment in &file.segments {
            self.chunks += u64::from(segment.count);
            if let Some(used) = segment.pack.and_then(|pack| self.used.get_mut(pack as usize)) {
                *used = true;
            }
        }
    }

    /// Every run must lie within its pack; lengths must add up to the file's and the chunks' crc32s to the file's.
    fn check(&mut self, path: &RelPath, file: &FileLayout) -> Result<(), Error> {
        let mut sums = Sums::new();
        for segment in &file.segments {
            let index = segment.pack.map(|pack| self.index(pack as usize)).transpose()?;
            sums.add(segment, index.as_deref()).map_err(|fault| bad_layout(path, fault))?;
        }
        sums.check(file).map_err(|fault| bad_layout(path, fault))?;
        self.take(file);
        Ok(())
    }

    fn index(&mut self, pack: usize) -> Result<Arc<PackIndex>, Error> {
        if let Some((last, index)) = &self.last
            && *last == pack
        {
            return Ok(index.clone());
        }
        let (number, id) = match (self.numbers.get(pack), self.ids.get(pack)) {
            (Some(number), Some(id)) => (*number, *id),
            _ => return Err(Error::internal("a layout line names a pack beyond its list")),
        };
        let index = match self.app.data.indexes.get(number) {
            Some(index) => index,
            None => self.handle.block_on(self.load(number, id))?,
        };
        self.last = Some((pack, index.clone()));
        Ok(index)
    }

    async fn load(&self, number: u64, id: PackId) -> Result<Arc<PackIndex>, Error> {
        let found = packs::by_numbers(&mut self.app.db.read().await?, &[number]).await?;
        let Some(pack) = found.first() else { return Err(chunks_gone(&[id])) };
        match self.app.pack_index(pack).await {
            // a pack found damaged now is as good as gone: its chunks are to be sent again
            Err(error) if error.kind() == Kind::Corrupt => Err(chunks_gone(&[id]).with_source(error)),
            loaded => loaded,
        }
    }

    /// Only packs that a line uses are referred to, whatever the list names.
    fn end(self, counts: Counts) -> Checked {
        let used = self.numbers.iter().zip(&self.used).filter(|(_, used)| **used);
        let mut packs: Vec<u64> = used.map(|(number, _)| *number).collect();
        packs.sort_unstable();
        packs.dedup();
        Checked { counts, chunks: self.chunks, packs }
    }
}

/// A walk over the parent version beside the new one.
struct Parent {
    packs: Arc<[PackId]>,
    cursor: ParentCursor<Merged<Document, Document>>,
}

/// The parent spares work; where it cannot be read, the work is done. No error of it is told.
fn open_parent(app: &App, handle: &Handle, parent: &Version) -> Option<Parent> {
    let tree = app.open_document(handle, &parent.tree_key).ok()?;
    let layout = app.open_document(handle, &parent.layout.key).ok()?;
    let pairs = Merged::open(tree, layout).ok()?;
    Some(Parent { packs: pairs.packs().into(), cursor: ParentCursor::new(pairs) })
}

impl Parent {
    fn says_the_same(&mut self, path: &RelPath, file: &FileLayout, packs: &[PackId]) -> bool {
        match self.cursor.find(path) {
            Ok(Some((_, Some(Line::File(earlier))))) => same_place(earlier, &self.packs, file, packs),
            Ok(_) | Err(_) => false,
        }
    }
}

fn bad_layout(path: &RelPath, why: Fault) -> Error {
    Error::new(BAD_LAYOUT, format!("the layout's line of `{path}` does not hold: {why}"), "push the files again")
        .with_data(json!({ "path": path.to_string() }))
}

/// A refused pair as an answer, with the whole chain of causes in `detail`, since it is the client's to mend. Failing to
/// read is the store's matter, not the pair's.
pub(super) fn refused(error: merge::Error) -> Error {
    let error = match error {
        merge::Error::Tree(tree::Error::Io(source)) | merge::Error::Layout(layout::Error::Io(source)) => {
            return unread(source);
        }
        other => other,
    };
    let kind = match error.code() {
        "tree_too_large" | "layout_too_large" => Kind::TooLarge,
        _ => Kind::Invalid,
    };
    let mut detail = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(deeper) = cause {
        detail = format!("{detail}: {deeper}");
        cause = deeper.source();
    }
    let code = Code::new(kind, error.code(), "the tree or its layout is refused");
    Error::new(code, detail, "correct what is named and push again").with_source(error)
}

/// An error of the store travels through the readers inside an `io::Error` and is taken out again here; all else is bytes
/// that do not decompress.
fn unread(source: std::io::Error) -> Error {
    match source.downcast::<store::Error>() {
        Ok(error) => error.into(),
        Err(source) => {
            Error::new(CORRUPT, "a stored tree or layout cannot be decompressed", "send it again, then commit again")
                .with_source(source)
        }
    }
}
