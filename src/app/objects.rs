//! Taking a tree or a layout: stored as it comes, its digest checked while it streams.
//!
//! What lies inside is judged at commit; here only that it is one zstd frame within the limits and that its uncompressed bytes
//! have the digest they were announced with. The row is written before the object, so a crash leaves a known orphan.
//!
//! ```text
//! body --pieces--> store, as they came
//!       \--------> blocking pool: one zstd frame -> BLAKE3 of what comes out, counted against the format's limit
//! ```

use bytes::Bytes;
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use std::io::Read;

use super::body::Body;
use super::error::{Code, Error, Kind};
use super::seal::at_most;
use super::stored::{Blocking, OneFrame};
use super::upload::{may_add, visible};
use super::{App, Caller};
use crate::content::digest::{Digest, Hasher};
use crate::content::layout::MAX_LAYOUT_BYTES;
use crate::content::tree::MAX_TREE_BYTES;
use crate::db::uploads::{self, Holder, ObjectKind};
use crate::store::{Key, PackWriter};
use crate::transaction;

/// The bytes changed on the way, or another document was sent than was announced. The object is not kept.
pub const DIGEST_MISMATCH: Code =
    Code::new(Kind::Malformed, "digest_mismatch", "the bytes have another digest than announced");
/// The object is not kept; compress it as one frame, with a window of 8 MiB at most.
pub const BAD_COMPRESSION: Code =
    Code::new(Kind::Malformed, "bad_compression", "the body is not one zstd frame within the limits");
/// Such a client mends and commits in a circle. Counts what was begun, so it does not pass by waiting.
pub const TOO_MANY_OBJECTS: Code =
    Code::new(Kind::TooMany, "too_many_objects", "the upload has sent too many trees and layouts");

/// Trees and layouts one upload may send: a commit needs two, a mended one two more.
const MAX_OBJECTS: u64 = 64;
/// Pieces of the body on their way to the hasher, which holds up the body when it is slower.
const QUEUED: usize = 2;

/// Which tree or layout is sent, by whom it is held.
#[derive(Debug, Clone, Copy)]
pub struct PutObject {
    pub upload: Uuid,
    pub epoch: u64,
    pub kind: ObjectKind,
    /// BLAKE3 of the uncompressed bytes.
    pub digest: Digest,
}

impl App {
    /// Takes a tree or layout; one that the upload has sent already is drained and nothing changes. Acknowledged means:
    /// durable in the store, of the digest announced, noted as the upload's. Refused bodies are drained too, unless the same
    /// may be sent again at once.
    ///
    /// [`DIGEST_MISMATCH`] and [`BAD_COMPRESSION`]: send the right bytes; [`TOO_MANY_OBJECTS`]: open another upload;
    /// `body_too_large` compressed or uncompressed; and whatever an upload refuses.
    pub async fn put_object(&self, caller: &Caller, put: PutObject, body: &mut Body) -> Result<(), Error> {
        let taken = self.take_object(caller, put, body).await;
        if taken.as_ref().map_or_else(|error| !error.is_retryable(), |()| true) {
            body.drain().await;
        }
        taken
    }

    /// Three steps: the row, the object, the mark that it is whole. Only after the last can a commit use it; what is left by
    /// a crash before is a row without a length, and perhaps its object.
    async fn take_object(&self, caller: &Caller, put: PutObject, body: &mut Body) -> Result<(), Error> {
        at_most(body.length, self.settings.limits.metadata_body.0, "split the dataset")?;
        if body.length == 0 {
            return Err(Error::new(BAD_COMPRESSION, "the body is empty", "send the document as one zstd frame"));
        }
        let room = self.data.body_room(caller.team, body.length).await;
        let _room = room.map_err(|_| Error::internal("the body semaphore was closed"))?;
        let key = match put.kind {
            ObjectKind::Tree => Key::tree(caller.team, self.ids.uuid()),
            ObjectKind::Layout => Key::layout(caller.team, self.ids.uuid()),
        };
        let fresh = transaction!(self.db, |tx| {
            let upload = visible(uploads::lock(tx, put.upload).await?, caller, put.upload)?;
            may_add(&upload, put.epoch, self.clock.now())?;
            if uploads::object(tx, put.upload, put.kind, &put.digest).await?.is_some() {
                return Ok(false);
            }
            if uploads::objects(tx, put.upload).await? >= MAX_OBJECTS {
                let detail = format!("the upload has begun to send {MAX_OBJECTS} trees and layouts");
                return Err(Error::new(
                    TOO_MANY_OBJECTS,
                    detail,
                    "open a new upload; it is offered the packs that were sent",
                ));
            }
            uploads::add_object(tx, put.upload, put.kind, (key.as_str(), &put.digest), self.clock.now()).await?;
            Ok::<_, Error>(true)
        })?;
        if !fresh {
            return Ok(());
        }
        let bytes = self.store_object(put, &key, body).await?;
        let holder = Holder { upload: put.upload, team: caller.team, epoch: put.epoch };
        transaction!(self.db, |tx| {
            if !uploads::extend(tx, holder, self.upload_life(), 0).await? {
                return Err(self.why_not(tx, caller, holder).await);
            }
            uploads::object_stored(tx, key.as_str(), bytes).await?;
            Ok::<_, Error>(())
        })
    }

    /// Streams the body into the store and, decompressed, through the hasher. Answers the stored length. What was refused is
    /// aborted, and nothing is seen under the key.
    async fn store_object(&self, put: PutObject, key: &Key, body: &mut Body) -> Result<u64, Error> {
        let mut writer = self.store.writer(key, body.length).await?;
        match hash_and_write(put, &mut writer, body).await {
            Ok(()) => Ok(writer.finish().await?.bytes),
            Err(error) => {
                if let Err(left) = writer.abort().await {
                    tracing::warn!(%key, error = %left, "an aborted object could not be cleaned up; its key stays written down");
                }
                Err(error)
            }
        }
    }
}

/// What reached the store before the hasher refused is the caller's to abort.
async fn hash_and_write(put: PutObject, writer: &mut PackWriter, body: &mut Body) -> Result<(), Error> {
    let (sender, receiver) = mpsc::channel::<Bytes>(QUEUED);
    let handle = Handle::current();
    let limit = match put.kind {
        ObjectKind::Tree => MAX_TREE_BYTES,
        ObjectKind::Layout => MAX_LAYOUT_BYTES,
    };
    let hashing = spawn_blocking(move || hash(handle, receiver, limit));
    let mut whole = true;
    loop {
        let batch = body.batch().await?;
        if batch.is_empty() {
            break;
        }
        for piece in batch {
            writer.write(piece.clone()).await?;
            // a closed channel means that the hasher has refused: its verdict follows
            whole = whole && sender.send(piece).await.is_ok();
        }
        if !whole {
            break;
        }
    }
    drop(sender);
    let actual = hashing.await.map_err(|error| Error::internal("hashing was cut off").with_source(error))??;
    if actual == put.digest {
        return Ok(());
    }
    let detail = format!("the bytes hash to `{actual}`, and `{}` was announced", put.digest);
    Err(Error::new(DIGEST_MISMATCH, detail, "send the bytes that were announced"))
}

/// Decompresses what comes through the channel and hashes it, up to a limit on what comes out: a few bytes may decompress to
/// any number. Blocks.
fn hash(handle: Handle, receiver: mpsc::Receiver<Bytes>, limit: u64) -> Result<Digest, Error> {
    let pieces = futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let pieces = pieces.map(Ok::<_, std::io::Error>).boxed();
    let refused = |error: std::io::Error| {
        Error::new(
            BAD_COMPRESSION,
            "the body cannot be decompressed",
            "send one zstd frame with a window of 8 MiB at most",
        )
        .with_source(error)
    };
    let mut frame = OneFrame::open(Blocking::new(handle, pieces)).map_err(refused)?;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 128 << 10];
    let mut total = 0;
    loop {
        let count = frame.read(&mut buffer).map_err(refused)?;
        if count == 0 {
            return Ok(hasher.finalize());
        }
        total += count as u64;
        if total > limit {
            let detail = format!("the body decompresses to more than {limit} bytes");
            return Err(Error::new(super::seal::BODY_TOO_LARGE, detail, "split the dataset"));
        }
        hasher.update(&buffer[..count]);
    }
}
