//! Reads stored versions without touching the disk: the entries of a tree, the bytes of one file.
//!
//! Trees and layouts are read as streams and proven by their digests at the end; a file's chunks are proven one by one before
//! they are given out, and the whole file when its last byte is. Memory: a window of zstd, one index, one chunk.
//!
//! For what is shown or compared (`ls`, `cat`, `diff`) rather than put at DEST; a pull has a pipeline of its own. Reads go one after the
//! other, since nobody waits for gigabytes here.

use super::api::{Api, route};
use super::context::TransferError;
use super::error::Error;
use super::index;
use super::transfer::{BlockingRead, Target};
use crate::api::datasets::{Grant, GrantRequest, Grants, Version};
use crate::content::codec::{Decoder, MAX_WINDOW};
use crate::content::digest::Hasher;
use crate::content::layout::{FileLayout, Line, Segment};
use crate::content::merge::{self, Merged};
use crate::content::pack::{PackId, PackIndex, verify_chunk};
use crate::content::path::RelPath;
use crate::content::tree::{self, Entry, Kind, TreeReader};
use std::collections::HashMap;
use std::io::{self, BufReader};
use std::ops::ControlFlow;

/// Uncompressed text of a tree or layout, read from the network as it is asked for. Blocks; for `spawn_blocking`.
pub type Text = BufReader<zstd::stream::read::Decoder<'static, BufReader<BlockingRead>>>;

/// Zeros for holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Resolves `DATASET[@V]`: `v3`, `latest` (also where no version is said) or a prefix of the digest.
pub async fn resolve(api: &Api, reference: &str) -> Result<Version, Error> {
    api.get(&route(&["v1", "resolve"], &[("ref", reference)])).await
}

async fn open(api: &Api, version: &Version, what: &str) -> Result<BlockingRead, Error> {
    let path = route(&["v1", "versions", &version.id, what], &[]);
    Ok(api.get_stream(Target::Service(&path), None).await?.into_read())
}

/// A frame that asks for a larger window than the format allows is refused, so a stranger's document cannot take memory.
fn text(stream: BlockingRead) -> io::Result<Text> {
    let mut decoder = zstd::stream::read::Decoder::new(stream)?;
    decoder.window_log_max(MAX_WINDOW.ilog2())?;
    Ok(BufReader::with_capacity(128 << 10, decoder))
}

/// A tree whose stream is open, for a thread that may block.
#[derive(Debug)]
pub struct TreeSource {
    reference: String,
    digest: String,
    stream: BlockingRead,
}

impl TreeSource {
    /// Must be called inside a runtime; the stream drives it from the blocking thread.
    pub async fn open(api: &Api, version: &Version) -> Result<Self, Error> {
        let stream = open(api, version, "tree").await?;
        Ok(Self { reference: version.reference.clone(), digest: version.digest.clone(), stream })
    }

    /// Blocks: call it in `spawn_blocking`, and use what it gives there.
    pub fn entries(self) -> Result<Entries, TransferError> {
        let Self { reference, digest, stream } = self;
        let opened = text(stream).map_err(tree::Error::Io).and_then(TreeReader::open);
        match opened {
            Ok(reader) => Ok(Entries { reference, digest, reader, ended: false }),
            Err(error) => Err(bad_tree(&reference, error)),
        }
    }
}

/// Entries in tree order; after the last one the tree's digest is compared with the version's.
///
/// What was given out before that is not yet proven: a damaged tree ends with [`TransferError::BadVersion`] after entries that looked
/// well. Yields nothing after an error.
pub struct Entries {
    reference: String,
    digest: String,
    reader: TreeReader<Text>,
    ended: bool,
}

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entries").field("reference", &self.reference).finish_non_exhaustive()
    }
}

impl Iterator for Entries {
    type Item = Result<Entry, TransferError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.reader.next() {
            Some(Ok(entry)) => Some(Ok(entry)),
            Some(Err(error)) => {
                self.ended = true;
                Some(Err(bad_tree(&self.reference, error)))
            }
            None => {
                self.ended = true;
                let found = self.reader.digest().map(|digest| digest.to_string());
                (found.as_deref() != Some(&self.digest)).then(|| Err(wrong_tree(&self.reference, found)))
            }
        }
    }
}

/// The text is that of another tree, though each of its lines is well-formed.
fn wrong_tree(reference: &str, found: Option<String>) -> TransferError {
    let why = format!("its digest is {}", found.as_deref().unwrap_or("unknown"));
    TransferError::BadVersion { reference: reference.to_owned(), what: "tree", why }
}

fn bad_tree(reference: &str, error: tree::Error) -> TransferError {
    match error {
        tree::Error::Io(source) => network(reference, "tree", source),
        error => TransferError::BadVersion { reference: reference.to_owned(), what: "tree", why: error.to_string() },
    }
}

/// An I/O fault of a stream: the network's where it is one, else damage.
fn network(reference: &str, what: &'static str, source: io::Error) -> TransferError {
    match source.downcast::<Error>() {
        Ok(error) => error.into(),
        Err(source) => TransferError::BadVersion { reference: reference.to_owned(), what, why: source.to_string() },
    }
}

/// One entry, with where its bytes lie.
#[derive(Debug)]
pub struct Found {
    pub entry: Entry,
    /// The packs that `segments` speak of.
    /// Only those, so that a layout of a million packs is not kept for one file.
    packs: HashMap<u32, PackId>,
    segments: Vec<Segment>,
}

/// Looks an entry up. Reads tree and layout to their ends, so that the digest proves what is said; once more for a hard link, which is
/// answered by the first file of its group. [`TransferError::NoPath`] where there is none.
pub async fn find(api: &Api, version: &Version, path: &RelPath) -> Result<Found, TransferError> {
    let mut wanted = path.clone();
    loop {
        let found = look(api, version, wanted).await?;
        match &found.entry.kind {
            Kind::File { hardlink: Some(first), .. } => wanted = first.clone(),
            _ => return Ok(found),
        }
    }
}

async fn look(api: &Api, version: &Version, path: RelPath) -> Result<Found, TransferError> {
    let (tree, layout) = futures::future::try_join(open(api, version, "tree"), open(api, version, "layout")).await?;
    let (reference, digest) = (version.reference.clone(), version.digest.clone());
    let walk = move || {
        let bad = |error| bad_pair(&reference, error);
        let tree = text(tree).map_err(|source| network(&reference, "tree", source))?;
        let layout = text(layout).map_err(|source| network(&reference, "layout", source))?;
        let mut merged = Merged::open(tree, layout).map_err(bad)?;
        let mut found = None;
        while let Some(pair) = merged.next() {
            let (entry, line) = pair.map_err(bad)?;
            if entry.path == path {
                found = Some(locate(entry, line, merged.packs()));
                break;
            }
        }
        let proven = merged.finish().map_err(bad)?;
        if proven.tree.to_string() != digest {
            return Err(wrong_tree(&reference, Some(proven.tree.to_string())));
        }
        found.ok_or_else(|| TransferError::NoPath { reference: reference.clone(), path: path.to_string() })
    };
    tokio::task::spawn_blocking(walk).await.map_err(|_| TransferError::Broken { what: "tree reader" })?
}

fn bad_pair(reference: &str, error: merge::Error) -> TransferError {
    use crate::content::layout;
    match error {
        merge::Error::Tree(error) => bad_tree(reference, error),
        merge::Error::Layout(layout::Error::Io(source)) => network(reference, "layout", source),
        error => TransferError::BadVersion { reference: reference.to_owned(), what: "layout", why: error.to_string() },
    }
}

fn locate(entry: Entry, line: Option<Line>, packs: &[PackId]) -> Found {
    let segments = match line {
        Some(Line::File(FileLayout { segments, .. })) => segments,
        _ => Vec::new(),
    };
    let named = segments.iter().filter_map(|segment| segment.pack);
    let packs = named.filter_map(|pack| Some((pack, *packs.get(pack as usize)?))).collect();
    Found { entry, packs, segments }
}

/// Streams the bytes of a regular file to `out`, each chunk proven first. `Break` from `out` ends it early and well; the whole file is
/// proven only where it was read to its end. `found` must come from [`find`] for the same version; what is no regular file is
/// [`TransferError::Broken`]. `out` blocks the task while it runs.
pub async fn read_file(
    api: &Api,
    version: &Version,
    found: &Found,
    mut out: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<(), TransferError> {
    let Kind::File { digest: expected, .. } = &found.entry.kind else {
        return Err(TransferError::Broken { what: "only regular files have bytes" });
    };
    let mut packs = Packs { api, version, open: None };
    let mut hasher = Hasher::new();
    let mut decoder = Decoder::new();
    for segment in &found.segments {
        let mut give = |raw: &[u8]| {
            hasher.update(raw);
            out(raw)
        };
        let flow = match segment.pack {
            None => zeros(segment.raw, &mut give),
            Some(number) => {
                let pack = found.packs.get(&number).copied().ok_or_else(|| TransferError::BadVersion {
                    reference: version.reference.clone(),
                    what: "layout",
                    why: format!("it names pack {number}, which it does not list"),
                })?;
                packs.read(pack, segment, &mut decoder, &mut give).await?
            }
        };
        if flow.is_break() {
            return Ok(());
        }
    }
    let actual = hasher.finalize();
    if actual != *expected {
        let path = found.entry.path.to_string();
        return Err(TransferError::DigestMismatch { path, expected: *expected, actual, pack: None });
    }
    Ok(())
}

fn zeros(mut left: u64, give: &mut impl FnMut(&[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
    while left > 0 {
        let step = usize::try_from(left).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        give(&ZEROS[..step])?;
        left -= step as u64;
    }
    ControlFlow::Continue(())
}

/// The pack at hand: files mostly lie in few packs, one after the other.
/// One index and one grant are held; a file that goes to and fro between packs fetches them again.
struct Packs<'a> {
    api: &'a Api,
    version: &'a Version,
    open: Option<(PackId, PackIndex, Grant)>,
}

impl Packs<'_> {
    /// Gives the chunks of one segment.
    /// One range request a segment. A chunk is given out only once its length, id and crc32 were right.
    async fn read(
        &mut self,
        pack: PackId,
        segment: &Segment,
        decoder: &mut Decoder,
        give: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TransferError> {
        let bad = |why: String| TransferError::BadPack { pack, why };
        if self.open.as_ref().is_none_or(|(open, ..)| *open != pack) {
            self.open = Some((pack, index::fetch(self.api, pack).await?, self.grant(pack, &[]).await?));
        }
        let (_, index, grant) = self.open.as_ref().expect("just opened");
        let chunks = segment.first as usize..(segment.first as usize).saturating_add(segment.count as usize);
        let Some(entries) = index.entries().get(chunks.clone()).filter(|entries| !entries.is_empty()) else {
            return Err(bad(format!("it has no chunks {} to {}", chunks.start, chunks.end)));
        };
        let range = index.frame(chunks.start).start..index.frame(chunks.end - 1).end;
        let mut stream = match self.api.get_stream(Target::Signed(&grant.url), Some(range.clone())).await {
            // A grant lives for a while only; a pipe that was held up may have outlived it.
            Err(error @ (Error::UrlRefused { .. } | Error::Refused(_))) => {
                let is_missing = matches!(error, Error::UrlRefused { status: 404, .. });
                let fresh = self.grant(pack, if is_missing { std::slice::from_ref(&pack) } else { &[] }).await?;
                self.api.get_stream(Target::Signed(&fresh.url), Some(range)).await?
            }
            opened => opened?,
        };
        let mut held: Vec<u8> = Vec::new();
        for entry in entries {
            while held.len() < entry.stored as usize {
                let Some(part) = stream.next().await? else { return Err(bad("it is cut off".to_owned())) };
                held.extend_from_slice(&part);
            }
            let raw = decoder
                .decode(entry.codec, &held[..entry.stored as usize], entry.raw)
                .map_err(|error| bad(error.to_string()))?;
            verify_chunk(entry, raw).map_err(|error| bad(error.to_string()))?;
            if give(raw).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            held.drain(..entry.stored as usize);
        }
        Ok(ControlFlow::Continue(()))
    }

    /// `missing` tells the service that the store answered 404 for it, so that it looks for itself.
    async fn grant(&self, pack: PackId, missing: &[PackId]) -> Result<Grant, TransferError> {
        let request = GrantRequest {
            version: self.version.id.clone(),
            layout: self.version.layout.id.clone(),
            packs: vec![pack.to_string()],
            missing: missing.iter().map(PackId::to_string).collect(),
        };
        let grants: Grants = self.api.post("/v1/grants", &request).await?;
        grants.grants.into_iter().next().ok_or(TransferError::BadPack { pack, why: "no grant was given".to_owned() })
    }
}
