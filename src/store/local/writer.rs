//! Writing an object of a local store.
//!
//! Bytes are kept as they come and written a MiB at a time on the blocking pool, while the next MiB fills: at most two are in
//! memory, and a copy of one, since on the way they pass through a page-aligned buffer: a write from network buffers, which lie anywhere in their pages, costs the
//! kernel several times as much.
//!
//! Whole batches go to the disk directly where that can be done: an object is synced before it is acknowledged anyway, and the cache's
//! copy of it took 0.6 of 2.0 CPU s/GiB of a push. The end, and objects smaller than a batch, go through the cache.
//!
//! An error is kept by giving up the temporary file: nothing is written after it, and `finish` fails. Writes are not
//! started again, since a file whose write or sync failed once cannot be trusted to hold what was written before.

use std::fs::File;
use std::io::{self, Write};

use bytes::Bytes;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{Step, TempFile, blocking, joined};
use crate::content::buffer::AlignedBuf;
use crate::direct;
use crate::store::keys::Key;
use crate::store::{Error, Length, PutMode, Result, Settled, Stored};

/// Bytes handed to the kernel by one task: large enough that the switch of threads costs little, small enough that two of
/// them in each of many writers do not matter.
const BATCH: usize = 1 << 20;
/// Most slices of one batch. Tiny network reads would else make a list as long as a batch has bytes; such a batch ends
/// early.
const PIECES: usize = 1000;
/// Small enough to stay in a core's cache between the copy and the write.
const ALIGNED: usize = 128 << 10;

/// One object on its way. States: filling, one batch in flight at most, failed (`temp` is none), finished.
#[derive(Debug)]
pub(in crate::store) struct LocalWriter {
    /// None once a write failed.
    temp: Option<TempFile>,
    key: Key,
    length: Length,
    /// Bytes given by the caller so far, written or not.
    taken: u64,
    /// Waits to be written: `batched` bytes, less than a [`BATCH`].
    batch: Vec<Bytes>,
    batched: usize,
    /// None while a batch is being written.
    way: Option<Way>,
    /// Only one, so that batches land in order: the file's position is the kernel's.
    in_flight: Option<JoinHandle<Result<Way>>>,
}

impl LocalWriter {
    pub(super) fn new(temp: TempFile, key: Key, length: Length) -> Self {
        Self { temp: Some(temp), key, length, taken: 0, batch: Vec::new(), batched: 0, way: None, in_flight: None }
    }

    /// Waits while a batch is being written and the next is full. Must not be dropped half way and called again: bytes may
    /// be taken in part.
    pub(in crate::store) async fn write(&mut self, bytes: Bytes) -> Result<()> {
        if self.temp.is_none() {
            return Err(broken());
        }
        let result = self.take(bytes).await;
        if result.is_err() {
            self.temp = None;
        }
        result
    }

    async fn take(&mut self, mut bytes: Bytes) -> Result<()> {
        self.taken += bytes.len() as u64;
        if let Length::Exact(expected) = self.length
            && self.taken > expected
        {
            return Err(Error::Length { key: self.key.clone(), expected, actual: self.taken });
        }
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(BATCH - self.batched));
            self.batched += piece.len();
            self.batch.push(piece);
            if self.batched == BATCH || self.batch.len() == PIECES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Hands the batch to the blocking pool, after the one before it was written.
    async fn flush(&mut self) -> Result<()> {
        self.settle().await?;
        let Some(temp) = &self.temp else { return Err(broken()) };
        let (file, local, path) = (temp.file.clone(), temp.local.clone(), temp.path.clone());
        let batch = std::mem::take(&mut self.batch);
        self.batched = 0;
        let mut way = self.way.take().unwrap_or(Way { aligned: None, is_direct: false });
        self.in_flight = Some(spawn_blocking(move || {
            let written = local.step(Step::Write).and_then(|()| way.write(&file, &batch));
            written.map_err(|error| Error::disk(format!("write {}", path.display()), error))?;
            Ok(way)
        }));
        Ok(())
    }

    /// Waits for the batch in flight and takes the buffer back. Its error is the writer's.
    async fn settle(&mut self) -> Result<()> {
        if let Some(task) = self.in_flight.take() {
            self.way = Some(joined(task).await?);
        }
        Ok(())
    }

    /// Writes the rest, then publishes: sync, name, sync of the folder, in this order.
    pub(in crate::store) async fn finish(mut self) -> Result<Stored> {
        if let Length::Exact(expected) = self.length
            && self.taken != expected
        {
            return Err(Error::Length { key: self.key.clone(), expected, actual: self.taken });
        }
        if self.batched > 0 {
            self.flush().await?;
        }
        self.settle().await?;
        let temp = self.temp.take().ok_or_else(broken)?;
        let (key, bytes) = (self.key, self.taken);
        blocking(move || temp.publish(&key, PutMode::Create)).await?;
        Ok(Stored { bytes, e_tag: None, checksum: None })
    }

    pub(in crate::store) async fn abort(mut self) -> Result<()> {
        // a write that failed is given up all the same
        let _ = self.settle().await;
        let temp = self.temp.take();
        blocking(move || {
            drop(temp);
            Ok(())
        })
        .await
    }
}

/// A call after an error. Settled: no name was given, so nothing is or will be visible.
fn broken() -> Error {
    Error::Unavailable {
        detail: "this write failed before; begin a new one".into(),
        settled: Settled::Yes,
        source: None,
    }
}

/// How an object's bytes get to the disk: decided by its first batch.
#[derive(Debug)]
struct Way {
    /// A batch where it goes directly, else [`ALIGNED`] bytes; none before the first.
    aligned: Option<AlignedBuf>,
    /// The file's position is a multiple of a page then.
    is_direct: bool,
}

impl Way {
    fn write(&mut self, file: &File, batch: &[Bytes]) -> io::Result<()> {
        let len = batch.iter().map(Bytes::len).sum::<usize>();
        if self.aligned.is_none() {
            self.is_direct = len == BATCH && direct::on(file);
        }
        let aligned = self.aligned.get_or_insert_with(|| AlignedBuf::new(if self.is_direct { BATCH } else { ALIGNED }));
        if self.is_direct {
            if len % direct::ALIGN == 0 && write_direct(file, batch, aligned)? {
                return Ok(());
            }
            direct::off(file)?;
            self.is_direct = false;
        }
        write_cached(file, batch, aligned)
    }
}

/// Writes a batch in one piece. `false` where the file system does not do it after all, and then nothing is written.
fn write_direct(mut file: &File, batch: &[Bytes], aligned: &mut AlignedBuf) -> io::Result<bool> {
    let mut filled = 0;
    for piece in batch {
        aligned[filled..filled + piece.len()].copy_from_slice(piece);
        filled += piece.len();
    }
    let written = match file.write(&aligned[..filled]) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
        written => written?,
    };
    file.write_all(&aligned[written..filled])?;
    Ok(true)
}

/// Copies the slices through the first [`ALIGNED`] bytes of the buffer and writes those whenever they are full, and what is left at the end.
fn write_cached(mut file: &File, batch: &[Bytes], aligned: &mut AlignedBuf) -> io::Result<()> {
    let mut filled = 0;
    for piece in batch {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let take = rest.len().min(ALIGNED - filled);
            aligned[filled..filled + take].copy_from_slice(&rest[..take]);
            (filled, rest) = (filled + take, &rest[take..]);
            if filled == ALIGNED {
                file.write_all(&aligned[..ALIGNED])?;
                filled = 0;
            }
        }
    }
    file.write_all(&aligned[..filled])
}
