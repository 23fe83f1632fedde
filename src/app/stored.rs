//! Stored trees, layouts and pack indexes, read as streams.
//!
//! Trees and layouts are one zstd frame each, of a window of 8 MiB at most; whatever else an object holds is refused, and no
//! length in it is believed before its bytes came. Readers made here block: they are for the blocking pool.

use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::runtime::Handle;

use super::App;
use super::error::{Code, Error, Kind};
use crate::content::codec::MAX_WINDOW;
use crate::content::pack::{HEADER_BYTES, PackIndex};
use crate::db::packs::{self, Pack};
use crate::store::{self, Key};
use crate::transaction;

/// Not passing: push the files again, which seals an equal pack or another layout. `data.packs` names them.
pub const PACK_QUARANTINED: Code = Code::new(Kind::Corrupt, "pack_quarantined", "a pack is damaged and is not served");

/// A stream of bytes as a blocking reader. Never call it on an async thread: it would block the runtime that has to feed it.
/// Holds one piece.
pub(super) struct Blocking<S> {
    handle: Handle,
    stream: S,
    current: Bytes,
}

impl<S, E> Blocking<S>
where
    S: futures::Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(super) fn new(handle: Handle, stream: S) -> Self {
        Self { handle, stream, current: Bytes::new() }
    }
}

impl<S, E> BufRead for Blocking<S>
where
    S: futures::Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty() {
            match self.handle.block_on(self.stream.next()) {
                Some(Ok(piece)) => self.current = piece,
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => break,
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, amount: usize) {
        let _ = self.current.split_to(amount.min(self.current.len()));
    }
}

impl<S, E> Read for Blocking<S>
where
    S: futures::Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let count = from.len().min(out.len());
        out[..count].copy_from_slice(&from[..count]);
        self.consume(count);
        Ok(count)
    }
}

/// The content of one zstd frame with nothing after it. A frame that ends early, asks for a larger window than the format's,
/// or is followed by bytes is an error of reading; the last is found only by reading to the end.
pub(super) struct OneFrame<R: BufRead> {
    decoder: zstd::stream::read::Decoder<'static, R>,
    over: bool,
}

impl<R: BufRead> OneFrame<R> {
    pub(super) fn open(inner: R) -> io::Result<Self> {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(inner)?.single_frame();
        decoder.window_log_max(MAX_WINDOW.ilog2())?;
        Ok(Self { decoder, over: false })
    }
}

impl<R: BufRead> Read for OneFrame<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.over || out.is_empty() {
            return Ok(0);
        }
        let count = self.decoder.read(out)?;
        if count == 0 {
            self.over = true;
            if !self.decoder.get_mut().fill_buf()?.is_empty() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes follow the zstd frame"));
            }
        }
        Ok(count)
    }
}

/// A stored document, ready to be streamed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    pub key: Key,
    pub bytes: u64,
    /// Names these very bytes: for a tree its digest, for a layout its id.
    pub tag: String,
}

/// Bytes on their way out.
pub type OutStream = BoxStream<'static, Result<Bytes, Error>>;

/// A stored tree or layout, decompressed. Memory: a window of 8 MiB at most, a buffer of 256 KiB, a piece. Who reads it by a
/// `TreeReader` or the like is told of every byte that is not as it should be; the digest is theirs to compare.
pub(super) type Document = BufReader<OneFrame<Blocking<store::Stream<Bytes>>>>;

impl App {
    /// Opens a stored tree or layout for reading on the blocking pool, from where this must be called. An error of the store
    /// while reading comes out inside an `io::Error` (see [`super::check::refused`]).
    pub(super) fn open_document(&self, handle: &Handle, key: &str) -> Result<Document, Error> {
        let key = parse_key(key)?;
        let (_, stream) = handle.block_on(self.store.get(&key, None))?;
        let frame = OneFrame::open(Blocking::new(handle.clone(), stream));
        let frame = frame.map_err(|error| Error::internal("no zstd decoder could be made").with_source(error))?;
        Ok(BufReader::with_capacity(256 << 10, frame))
    }

    /// A range of a stored tree or layout, as it lies in the store, compressed. Exactly these bytes, or an error at the end.
    pub async fn stream_part(&self, part: &StoredPart, range: Range<u64>) -> Result<OutStream, Error> {
        let (_, stream) = self.store.get(&part.key, Some(range)).await?;
        Ok(stream.map_err(Error::from).boxed())
    }

    /// A range of a sealed pack's object, not decoded: the reader proves the chunks. A read that shows damage takes the pack
    /// out of service.
    pub async fn stream_pack(self: &Arc<Self>, pack: Pack, range: Range<u64>) -> Result<OutStream, Error> {
        match self.store.get(&parse_key(&pack.key)?, Some(range)).await {
            Ok((_, stream)) => {
                let app = self.clone();
                let judged = stream.then(move |piece| {
                    let (app, pack) = (app.clone(), pack.clone());
                    async move {
                        match piece {
                            Ok(piece) => Ok(piece),
                            Err(error) => Err(app.unreadable(&pack, error).await),
                        }
                    }
                });
                Ok(judged.boxed())
            }
            Err(error) => Err(self.unreadable(&pack, error).await),
        }
    }

    /// The index of a sealed pack, proven against its id; from the cache if it is there. A damaged one is quarantined. Two
    /// that miss the cache together both fetch it.
    pub(super) async fn pack_index(&self, pack: &Pack) -> Result<Arc<PackIndex>, Error> {
        if let Some(index) = self.data.indexes.get(pack.number) {
            return Ok(index);
        }
        let head = HEADER_BYTES as u64 + pack.index_bytes;
        let (_, mut stream) = match self.store.get(&parse_key(&pack.key)?, Some(0..head)).await {
            Ok(found) => found,
            Err(error) => return Err(self.unreadable(pack, error).await),
        };
        let mut bytes = Vec::with_capacity(usize::try_from(head).unwrap_or_default());
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(piece) => bytes.extend_from_slice(&piece),
                Err(error) => return Err(self.unreadable(pack, error).await),
            }
        }
        match PackIndex::decode(&bytes) {
            Ok(index) if index.id() == pack.id => {
                let index = Arc::new(index);
                self.data.indexes.put(pack.number, index.clone());
                Ok(index)
            }
            Ok(index) => Err(self.quarantine(pack, format!("its index is that of `{}`", index.id())).await),
            Err(error) => Err(self.quarantine(pack, error.to_string()).await),
        }
    }

    /// Whether the pack's object is there, in its length. One that is not is quarantined. Read, not asked for by HEAD: an answer
    /// without a body cannot tell an absent object from an absent bucket.
    pub(super) async fn find_pack(&self, pack: &Pack) -> Result<(), Error> {
        match self.store.get(&parse_key(&pack.key)?, Some(0..1)).await.map(|(found, _)| found) {
            Ok(found) if found.size == pack.bytes => Ok(()),
            Ok(found) => Err(self.quarantine(pack, format!("its object has {} bytes", found.size)).await),
            Err(error) => Err(self.unreadable(pack, error).await),
        }
    }

    /// What a failed read of a pack's object means: damage that is there to stay (absent, corrupt, another length) takes the
    /// pack out of service; what may pass does not.
    pub(super) async fn unreadable(&self, pack: &Pack, error: store::Error) -> Error {
        match error {
            store::Error::NotFound { .. }
            | store::Error::Corrupt { .. }
            | store::Error::Range { .. }
            | store::Error::Length { .. } => self.quarantine(pack, error.to_string()).await,
            _ => error.into(),
        }
    }

    /// Takes a damaged pack out of service and answers the error that says so, also when that could not be written: then the
    /// next reader finds it again. Logged for a person to look at each time. Never call it on a doubt: every version that
    /// refers to the pack is unreadable in part from then on.
    pub(super) async fn quarantine(&self, pack: &Pack, why: String) -> Error {
        self.data.indexes.forget(pack.number);
        let done = transaction!(self.db, |tx| {
            packs::quarantine(tx, pack.number, self.clock.now()).await.map_err(Error::from)
        });
        match done {
            Ok(_) => {
                tracing::error!(pack = %pack.id, key = pack.key, why, "a stored pack is damaged; it is quarantined")
            }
            Err(error) => {
                tracing::error!(pack = %pack.id, key = pack.key, why, %error, "a damaged pack could not be quarantined")
            }
        }
        quarantined(&[pack.id.to_string()])
    }
}

/// The answer to whoever wants bytes of damaged packs.
pub(super) fn quarantined(packs: &[String]) -> Error {
    let detail = format!("the stored bytes of {} are damaged; nothing of it is served", packs.join(", "));
    let hint = "push the files again from where they are whole: that replaces what is damaged";
    Error::new(PACK_QUARANTINED, detail, hint).with_data(serde_json::json!({ "packs": packs }))
}

/// Keys in rows were made by us: one that does not parse is our bug or a changed row.
pub(super) fn parse_key(key: &str) -> Result<Key, Error> {
    key.parse().map_err(|error| Error::internal("a row holds a key that is none").with_source(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        OneFrame::open(bytes)?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn exactly_one_frame_is_read() {
        let frame = zstd::bulk::compress(b"a tree", 3).unwrap();
        assert_eq!(read(&frame).unwrap(), b"a tree");
        assert!(read(&[&frame[..], b"x"].concat()).is_err(), "trailing bytes");
        assert!(read(&[&frame[..], &frame[..]].concat()).is_err(), "a second frame");
        assert!(read(&frame[..frame.len() - 1]).is_err(), "cut off");
        assert!(read(b"").is_err() || read(b"").unwrap().is_empty());
    }

    #[test]
    fn a_window_beyond_the_limit_is_refused() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        encoder.include_contentsize(false).unwrap();
        io::Write::write_all(&mut encoder, &vec![7; 20 << 20]).unwrap();
        assert!(read(&encoder.finish().unwrap()).is_err());
    }

    #[test]
    fn a_skippable_frame_is_not_content() {
        // magic, length 2^31 - 1: refused or taken for the one frame, but never waited for
        let bytes = [0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0x7f];
        assert!(read(&bytes).map_or(true, |out| out.is_empty()));
    }
}
