//! Reading an object of a local store: a piece at a time, the next one read while the last is used.
//!
//! At most two pieces of a stream are in memory, besides what its reader keeps. A file that ends early is an error.
//!
//! Why ahead: with one piece on its way while the last is sent, disk and network work at the same time. The first piece is
//! read before the stream is handed out, so that a missing file or a bad disk is an error of the call and not of the body.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use tokio::task::{JoinHandle, spawn_blocking};

use super::buffers::{Buffers, PIECE};
use super::{is_missing, joined, meta};
use crate::store::keys::Key;
use crate::store::{Error, Meta, Result, Stream};

/// Opens the file and reads the first piece. Blocks.
///
/// The stream reads the file that was opened: a key that is deleted or replaced meanwhile changes nothing for it.
pub(super) fn open(
    path: &Path,
    key: &Key,
    range: Option<Range<u64>>,
    buffers: Arc<Buffers>,
) -> Result<(Meta, Stream<Bytes>)> {
    let not_found = || Error::NotFound { key: key.clone() };
    let file = File::open(path).map_err(|error| match is_missing(&error) {
        true => not_found(),
        false => Error::disk(format!("open {}", path.display()), error),
    })?;
    let found = file.metadata().map_err(|error| Error::disk(format!("open {}", path.display()), error))?;
    if !found.is_file() {
        return Err(not_found());
    }
    let meta = meta(&found);
    let range = match range {
        None => 0..meta.size,
        Some(range) if range.start < range.end && range.end <= meta.size => range,
        Some(Range { start, end }) => return Err(Error::Range { key: key.clone(), start, end, size: meta.size }),
    };
    let mut reading = Reading { file: Arc::new(file), buffers, key: key.clone(), left: range };
    let first = reading.next()?;
    let ahead = reading.ahead();
    let rest = stream::unfold(ahead, |ahead| async {
        match joined(ahead?).await {
            Ok((None, _)) => None,
            Ok((Some(piece), mut reading)) => Some((Ok(piece), reading.ahead())),
            Err(error) => Some((Err(error), None)),
        }
    });
    let first = stream::iter(first.map(Ok));
    Ok((meta, Box::pin(futures::StreamExt::chain(first, rest))))
}

/// The piece being read, and the state to go on with. Dropping the handle does not stop it: it ends by itself after one
/// piece.
type Ahead = JoinHandle<Result<(Option<Bytes>, Reading)>>;

/// What a stream of one range needs; cheap to clone.
#[derive(Debug, Clone)]
struct Reading {
    file: Arc<File>,
    buffers: Arc<Buffers>,
    key: Key,
    /// What is still to be read, in bytes of the file. Empty: the end.
    left: Range<u64>,
}

impl Reading {
    /// Begins to read the next piece; none when all was read.
    fn ahead(&mut self) -> Option<Ahead> {
        if self.left.is_empty() {
            return None;
        }
        let mut reading = self.clone();
        Some(spawn_blocking(move || Ok((reading.next()?, reading))))
    }

    /// Reads the next piece. Blocks.
    ///
    /// Fails with [`Error::Corrupt`] where the file ends before the range does. At most [`PIECE`] bytes.
    fn next(&mut self) -> Result<Option<Bytes>> {
        let left = self.left.end - self.left.start;
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
        if len == 0 {
            return Ok(None);
        }
        let piece = self.buffers.read(&self.file, self.left.start, len).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                Error::Corrupt { key: self.key.clone(), detail: "its file ends early".into() }
            }
            _ => Error::disk(format!("read {}", self.key), error),
        })?;
        self.left.start += len as u64;
        Ok(Some(piece))
    }
}
