//! Reading a version's bytes inside the service: verified plaintext of a file, or of any range of it.
//!
//! For links and archives. Every chunk is proven against its id before a byte of it leaves; a chunk that is not what it should
//! be ends the stream with an error and takes its pack out of service. Memory: one run, at most [`RUN_BYTES`] as stored and
//! [`RUN_RAW_BYTES`] decoded, each and a chunk more: a layout may name chunks that are a few bytes in the store.
//!
//! ```text
//! find_file: one walk of tree and layout up to the path (again for a hard link's first name)
//! read_file: range -> steps (hole | run of chunks) -> GET of up to 2 MiB of frames -> decode, prove -> the bytes asked for
//! ```

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::App;
use super::check::refused;
use super::error::Error;
use super::stored::{parse_key, quarantined};
use crate::content::codec::Decoder;
use crate::content::layout::{FileLayout, Line};
use crate::content::merge::Merged;
use crate::content::pack::{ChunkEntry, PackId, PackIndex, verify_chunk};
use crate::content::path::RelPath;
use crate::content::tree::{Entry, Kind as EntryKind};
use crate::db::packs::Pack;
use crate::db::versions::{self, Version};

/// Stored bytes fetched at a time; the chunk that reaches the limit is taken whole.
const RUN_BYTES: u64 = 2 << 20;
/// Bytes decoded at a time, likewise: the bound that holds when frames are tiny.
const RUN_RAW_BYTES: u64 = 8 << 20;
/// A hole is written in pieces of this.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A version's bytes, read by one layout generation. `packs` is the layout's list, in its order: lines name packs by their
/// place in it.
#[derive(Debug, Clone)]
pub struct Source {
    pub layout: Uuid,
    pub packs: Arc<[PackId]>,
}

/// A file of a version: what it is and where its bytes lie.
#[derive(Debug, Clone)]
pub struct FoundFile {
    pub entry: Entry,
    /// `None` for a file without bytes.
    pub place: Option<FileLayout>,
    pub source: Source,
}

/// Bytes on their way out.
pub type Plain = BoxStream<'static, Result<Bytes, Error>>;

impl App {
    /// Finds a regular file in a version, following a hard link to the file that has the bytes. `not_found` when there is
    /// nothing at the path, `invalid` when it is no regular file.
    pub async fn find_file(self: &Arc<Self>, version: &Version, path: &RelPath) -> Result<FoundFile, Error> {
        let mut wanted = path.clone();
        loop {
            let (app, version, sought) = (self.clone(), version.clone(), wanted.clone());
            let handle = Handle::current();
            let turn =
                self.data.look_up().await.map_err(|error| Error::internal("no more walks").with_source(error))?;
            let search = move || {
                let _turn = turn;
                search(&app, &handle, &version, &sought)
            };
            let found = spawn_blocking(search)
                .await
                .map_err(|error| Error::internal("a search was cut off").with_source(error))??;
            let Some(found) = found else {
                return Err(Error::not_found("file", path, "`dray ls` lists what a version holds"));
            };
            match &found.entry.kind {
                // a first member of a group is never a follower, so this ends
                EntryKind::File { hardlink: Some(first), .. } if *first < wanted => wanted = first.clone(),
                EntryKind::File { .. } => return Ok(found),
                _ => return Err(Error::invalid("path", format!("`{path}` is no regular file"), "name a file")),
            }
        }
    }

    /// The bytes `range` of a file, proven. The stream yields exactly these, or ends with an error. Nothing is read before
    /// it is asked for; dropping it stops. `place` is of the layout that `source` names; a range beyond the file's end
    /// yields only what there is.
    pub fn read_file(self: &Arc<Self>, source: &Source, place: FileLayout, range: Range<u64>) -> Plain {
        let steps = steps(&place, &range);
        let reader = Reader { app: self.clone(), source: source.clone(), pack: None, decoder: None };
        stream::try_unfold((reader, steps, 0), |(mut reader, steps, at)| async move {
            let Some(step) = steps.get(at).cloned() else { return Ok(None) };
            match reader.step(step).await? {
                (pieces, Some(rest)) => {
                    let mut steps = steps;
                    if let Some(slot) = steps.get_mut(at) {
                        *slot = rest;
                    }
                    Ok(Some((pieces, (reader, steps, at))))
                }
                (pieces, None) => Ok(Some((pieces, (reader, steps, at + 1)))),
            }
        })
        .map(|pieces: Result<Vec<Bytes>, Error>| match pieces {
            Ok(pieces) => stream::iter(pieces.into_iter().map(Ok)).boxed(),
            Err(error) => stream::iter([Err(error)]).boxed(),
        })
        .flatten()
        .boxed()
    }
}

/// Stops at the path, or behind where it would stand: trees are in order.
fn search(app: &App, handle: &Handle, version: &Version, path: &RelPath) -> Result<Option<FoundFile>, Error> {
    let tree = app.open_document(handle, &version.tree_key)?;
    let layout = app.open_document(handle, &version.layout.key)?;
    let mut pairs = Merged::open(tree, layout).map_err(refused)?;
    let source = Source { layout: version.layout.id, packs: pairs.packs().into() };
    for pair in &mut pairs {
        let (entry, line) = pair.map_err(refused)?;
        if entry.path > *path {
            break;
        }
        if entry.path == *path {
            let place = if let Some(Line::File(file)) = line { Some(file) } else { None };
            return Ok(Some(FoundFile { entry, place, source }));
        }
    }
    Ok(None)
}

/// A part of a file that lies in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Hole(u64),
    /// Of the run of chunks beginning with `first`, the bytes `range` (of the run).
    Run {
        pack: u32,
        first: u32,
        count: u32,
        range: Range<u64>,
    },
}

/// Cuts a range of a file into the places where it lies.
fn steps(place: &FileLayout, range: &Range<u64>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut offset = 0;
    for segment in &place.segments {
        let (start, end) = (range.start.max(offset), range.end.min(offset + segment.raw));
        if start < end {
            let within = start - offset..end - offset;
            steps.push(match segment.pack {
                None => Step::Hole(end - start),
                Some(pack) => Step::Run { pack, first: segment.first, count: segment.count, range: within },
            });
        }
        offset += segment.raw;
    }
    steps
}

/// What is fetched of a run at a time.
#[derive(Debug, PartialEq, Eq)]
struct Taken {
    chunks: Range<u32>,
    /// Raw bytes of the run before `chunks`, and up to their end.
    skipped: u64,
    raw: u64,
}

/// Passes over what lies before `range` (of the run), and takes chunks until the range ends or enough is taken, as stored or
/// decoded. `None` when the run leads beyond its pack or ends before the range begins.
fn take(entries: &[ChunkEntry], run: Range<u32>, range: &Range<u64>) -> Option<Taken> {
    let (mut at, mut raw, mut stored) = (run.start, 0_u64, 0_u64);
    let mut from = None;
    let is_enough =
        |from: Option<(u32, u64)>, raw: u64| from.is_some_and(|(_, skipped)| raw - skipped >= RUN_RAW_BYTES);
    while at < run.end && raw < range.end && stored < RUN_BYTES && !is_enough(from, raw) {
        let entry = entries.get(at as usize)?;
        if raw + u64::from(entry.raw) > range.start {
            from.get_or_insert((at, raw));
            stored += u64::from(entry.stored);
        }
        raw += u64::from(entry.raw);
        at += 1;
    }
    from.map(|(from, skipped)| Taken { chunks: from..at, skipped, raw })
}

struct Reader {
    app: Arc<App>,
    source: Source,
    /// The pack read last, with its index.
    pack: Option<(u32, Pack, Arc<PackIndex>)>,
    decoder: Option<Decoder>,
}

impl Reader {
    /// Does a bounded part of a step; answers its bytes and what is left of it.
    async fn step(&mut self, step: Step) -> Result<(Vec<Bytes>, Option<Step>), Error> {
        match step {
            Step::Hole(left) => {
                let piece = left.min(ZEROS.len() as u64);
                let zeros = ZEROS.get(..usize::try_from(piece).unwrap_or_default()).unwrap_or_default();
                Ok((vec![Bytes::from_static(zeros)], (left > piece).then(|| Step::Hole(left - piece))))
            }
            Step::Run { pack, first, count, range } => self.run(pack, first, count, range).await,
        }
    }

    async fn run(
        &mut self,
        pack: u32,
        first: u32,
        count: u32,
        range: Range<u64>,
    ) -> Result<(Vec<Bytes>, Option<Step>), Error> {
        let (row, index) = self.open(pack).await?;
        let outside = || Error::internal(format!("a layout names chunks beyond pack `{}`", row.id));
        let end = first.checked_add(count).ok_or_else(outside)?;
        let Taken { chunks, skipped, raw } = take(index.entries(), first..end, &range).ok_or_else(outside)?;
        let (at, wanted) = (chunks.end, range.start - skipped..range.end.min(raw) - skipped);
        let pieces = self.fetch(&row, &index, chunks, wanted).await?;
        let rest = (raw < range.end).then(|| Step::Run { pack, first: at, count: end - at, range: 0..range.end - raw });
        Ok((pieces, rest))
    }

    /// Fetches a run of chunks, proves each, answers the bytes `wanted` of what they decode to. Damage takes the pack out of
    /// service; a store that does not answer does not.
    async fn fetch(
        &mut self,
        pack: &Pack,
        index: &Arc<PackIndex>,
        chunks: Range<u32>,
        wanted: Range<u64>,
    ) -> Result<Vec<Bytes>, Error> {
        let (first, last) = (chunks.start as usize, chunks.end as usize - 1);
        let bytes = index.frame(first).start..index.frame(last).end;
        let mut stored = Vec::with_capacity(usize::try_from(bytes.end - bytes.start).unwrap_or_default());
        let mut stream = match self.app.store.get(&parse_key(&pack.key)?, Some(bytes.clone())).await {
            Ok((_, stream)) => stream,
            Err(error) => return Err(self.app.unreadable(pack, error).await),
        };
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(piece) => stored.extend_from_slice(&piece),
                Err(error) => return Err(self.app.unreadable(pack, error).await),
            }
        }
        let (index, mut decoder) = (index.clone(), self.decoder.take().unwrap_or_default());
        let decode = move || (decode(&mut decoder, &index, chunks, (&stored, bytes.start), &wanted), decoder);
        let decoded =
            spawn_blocking(decode).await.map_err(|error| Error::internal("decoding was cut off").with_source(error))?;
        self.decoder = Some(decoded.1);
        match decoded.0 {
            Ok(pieces) => Ok(pieces),
            Err(why) => Err(self.app.quarantine(pack, why).await),
        }
    }

    /// The pack's row and index, if the layout still refers to it and its bytes are sound. Looked up for every pack that the
    /// reading comes to, so a pack that is quarantined or a layout that is replaced ends a long download there.
    async fn open(&mut self, ordinal: u32) -> Result<(Pack, Arc<PackIndex>), Error> {
        if let Some((last, pack, index)) = &self.pack
            && *last == ordinal
        {
            return Ok((pack.clone(), index.clone()));
        }
        let id = self.source.packs.get(ordinal as usize).copied();
        let id = id.ok_or_else(|| Error::internal("a layout line names a pack beyond its list"))?;
        let referred = versions::referred(&mut self.app.db.read().await?, self.source.layout, &[id]).await?;
        let pack = match referred.into_iter().next() {
            Some((pack, true)) => pack,
            Some((_, false)) => return Err(quarantined(&[id.to_string()])),
            None => {
                let hint = "resolve the version again and read by its present layout";
                return Err(Error::new(super::grants::LAYOUT_GONE, "the layout is not there any more", hint));
            }
        };
        let index = self.app.pack_index(&pack).await?;
        self.pack = Some((ordinal, pack.clone(), index.clone()));
        Ok((pack, index))
    }
}

/// Decodes and proves chunks whose frames lie in `stored`, which begins at `base` of the pack. Blocks. The error says what
/// is wrong with the pack.
fn decode(
    decoder: &mut Decoder,
    index: &PackIndex,
    chunks: Range<u32>,
    (stored, base): (&[u8], u64),
    wanted: &Range<u64>,
) -> Result<Vec<Bytes>, String> {
    let mut pieces = Vec::with_capacity(chunks.len());
    let mut offset = 0_u64;
    for i in chunks {
        let i = i as usize;
        let entry = index.entries().get(i).ok_or("a chunk lies beyond the index")?;
        let frame = index.frame(i);
        let frame = usize::try_from(frame.start - base).ok().zip(usize::try_from(frame.end - base).ok());
        let frame = frame.and_then(|(start, end)| stored.get(start..end)).ok_or("the pack ends early")?;
        let raw =
            decoder.decode(entry.codec, frame, entry.raw).map_err(|error| format!("chunk `{}`: {error}", entry.id))?;
        verify_chunk(entry, raw).map_err(|error| error.to_string())?;
        let (start, end) = (wanted.start.max(offset), wanted.end.min(offset + raw.len() as u64));
        if start < end {
            let part = usize::try_from(start - offset).ok().zip(usize::try_from(end - offset).ok());
            let part =
                part.and_then(|(start, end)| raw.get(start..end)).ok_or("a chunk is shorter than its index says")?;
            pieces.push(Bytes::copy_from_slice(part));
        }
        offset += raw.len() as u64;
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::codec::Codec;
    use crate::content::crc::Crc32;
    use crate::content::digest::digest;
    use crate::content::layout::Segment;

    fn place(segments: &[(Option<u32>, u32, u32, u64)]) -> FileLayout {
        let segments: Vec<Segment> =
            segments.iter().map(|&(pack, first, count, raw)| Segment { pack, first, count, raw }).collect();
        FileLayout {
            digest: digest(b""),
            size: segments.iter().map(|segment| segment.raw).sum(),
            crc: Crc32(0),
            profile: 1,
            segments,
            sha256: None,
        }
    }

    #[test]
    fn a_range_is_cut_where_the_file_is() {
        let file = place(&[(Some(0), 3, 2, 100), (None, 0, 0, 50), (Some(1), 0, 1, 10)]);
        assert_eq!(
            steps(&file, &(90..155)),
            [
                Step::Run { pack: 0, first: 3, count: 2, range: 90..100 },
                Step::Hole(50),
                Step::Run { pack: 1, first: 0, count: 1, range: 0..5 },
            ]
        );
        assert_eq!(steps(&file, &(100..101)), [Step::Hole(1)]);
        assert_eq!(steps(&file, &(0..0)), []);
        assert_eq!(steps(&file, &(160..999)), []);
    }

    #[test]
    fn a_run_is_bounded_as_stored_and_as_decoded() {
        let chunk = |stored, raw| ChunkEntry { id: digest(b""), stored, raw, crc: Crc32(0), codec: Codec::Zstd };
        let tiny = vec![chunk(20, 96 << 10); 65_536];
        let whole = 0..65_536 * (96_u64 << 10);
        let taken = take(&tiny, 0..65_536, &whole).unwrap();
        assert!((RUN_RAW_BYTES..RUN_RAW_BYTES + (96 << 10)).contains(&taken.raw), "{taken:?}");
        let later = take(&tiny, 0..65_536, &(96_000_000..whole.end)).unwrap();
        assert!(later.skipped <= 96_000_000 && later.raw - later.skipped < RUN_RAW_BYTES + (96 << 10), "{later:?}");
        let large = vec![chunk(64 << 10, 64 << 10); 100];
        assert_eq!(take(&large, 2..100, &(0..1 << 30)), Some(Taken { chunks: 2..34, skipped: 0, raw: 2 << 20 }));
        assert_eq!(
            take(&large, 2..100, &(65_536..65_537)),
            Some(Taken { chunks: 3..4, skipped: 65_536, raw: 131_072 })
        );
        assert_eq!(take(&large, 98..102, &(0..1 << 20)), None, "beyond the pack");
        assert_eq!(take(&large, 0..1, &(65_536..65_537)), None, "before the range");
    }
}
