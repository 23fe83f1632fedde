//! A version's tree and layout, fetched to unlinked temporary files and read back as streams.
//!
//! The documents stay compressed on disk. Their digests are checked when they were read to their ends, by who reads them; sizes
//! are checked against the format's limits on the way, so that neither the disk nor the memory follows a lie.
//!
//! Why files and not memory: a tree may take 8 GiB of text, and a push or pull walks it several times (to prove it, to select, to plan).
//! Unlinked at once, so that a killed process leaves nothing behind.

use super::Context;
use super::context::TransferError;
use super::transfer::Target;
use crate::api::datasets::Version;
use crate::client::api::route;
use crate::content::codec::MAX_WINDOW;
use crate::content::digest::Hasher;
use crate::content::layout::MAX_LAYOUT_BYTES;
use crate::content::merge::{Error, Merged};
use crate::content::tree::MAX_TREE_BYTES;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An uncompressed document, read from its temporary file.
/// Memory: two buffers and a window of zstd, which is bounded by the format; a frame that asks for more is an error.
pub(super) struct Text(BufReader<zstd::Decoder<'static, BufReader<Cursor>>>);

impl Read for Text {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl BufRead for Text {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").finish_non_exhaustive()
    }
}

/// Both documents of one version, compressed. Cheap to clone: the files are shared, and every reader has a position of its own.
#[derive(Debug, Clone)]
pub(super) struct Fetched {
    pub tree: Arc<File>,
    pub layout: Arc<File>,
}

/// Reads a shared file from its beginning, without moving its cursor.
#[derive(Debug)]
pub(super) struct Cursor {
    file: Arc<File>,
    at: u64,
}

impl Read for Cursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Opens a compressed document.
pub(super) fn text(file: &Arc<File>) -> io::Result<Text> {
    let raw = BufReader::with_capacity(64 << 10, Cursor { file: Arc::clone(file), at: 0 });
    let mut decoder = zstd::Decoder::with_buffer(raw)?;
    decoder.window_log_max(MAX_WINDOW.ilog2())?;
    Ok(Text(BufReader::with_capacity(128 << 10, decoder)))
}

impl Fetched {
    /// Both streams from their beginnings, joined.
    /// May be called any number of times, at once too. What comes out is proven only when it was walked to its end, see [`Merged`].
    pub fn open(&self) -> Result<Merged<Text, Text>, Error> {
        let tree = text(&self.tree).map_err(|error| Error::Tree(crate::content::tree::Error::Io(error)))?;
        let layout = text(&self.layout).map_err(|error| Error::Layout(crate::content::layout::Error::Io(error)))?;
        Merged::open(tree, layout)
    }

    /// Proves that the tree is the version's, before anything in it is followed.
    /// One pass over the text; blocks. The layout has no such proof here: each of its lines is held against the
    /// tree's entry by [`Merged`], and the bytes that it leads to against the tree's digests.
    pub fn prove_tree(&self, version: &Version) -> Result<(), TransferError> {
        let bad = |why: String| TransferError::BadVersion { reference: version.reference.clone(), what: "tree", why };
        let mut hasher = Hasher::new();
        let mut tree = text(&self.tree).map_err(|error| bad(error.to_string()))?;
        loop {
            let part = tree.fill_buf().map_err(|error| bad(error.to_string()))?;
            if part.is_empty() {
                break;
            }
            hasher.update(part);
            let length = part.len();
            tree.consume(length);
        }
        let actual = hasher.finalize().to_string();
        if actual == version.digest {
            Ok(())
        } else {
            Err(bad(format!("its digest is `{actual}`, not `{}`", version.digest)))
        }
    }
}

/// An unlinked temporary file.
/// In `dir`, else in the system's place for temporary files. It has no name, so it is gone with its last handle.
pub(super) fn temporary(dir: Option<&Path>) -> Result<File, TransferError> {
    let made = match dir {
        Some(dir) => tempfile::tempfile_in(dir),
        None => tempfile::tempfile(),
    };
    made.map_err(TransferError::local(place(dir)))
}

/// Where [`temporary`] files of `dir` lie: what an error of theirs names, since they have no name themselves.
pub(super) fn place(dir: Option<&Path>) -> PathBuf {
    dir.map_or_else(std::env::temp_dir, Path::to_owned)
}

/// Fetches both documents.
/// At the same time. [`TransferError::BadVersion`] where one is longer, compressed, than the format allows
/// uncompressed.
pub(super) async fn fetch_tree_and_layout(
    context: &Context,
    version: &Version,
    temp: Option<&Path>,
) -> Result<Fetched, TransferError> {
    let get = async |what: &'static str, limit: u64| {
        let path = route(&["v1", "versions", &version.id, what], &[]);
        let mut download = context.api.get_stream(Target::Service(&path), None).await?;
        let mut file = temporary(temp)?;
        while let Some(part) = download.next().await? {
            if download.position() > limit {
                let why = format!("it is longer than {limit} bytes");
                return Err(TransferError::BadVersion { reference: version.reference.clone(), what, why });
            }
            file.write_all(&part).map_err(TransferError::local(place(temp)))?;
        }
        file.rewind().map_err(TransferError::local(place(temp)))?;
        Ok::<_, TransferError>(Arc::new(file))
    };
    let (tree, layout) =
        futures::future::try_join(get("tree", MAX_TREE_BYTES), get("layout", MAX_LAYOUT_BYTES)).await?;
    Ok(Fetched { tree, layout })
}
