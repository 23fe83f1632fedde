//! Writing an object into a bucket: one PUT when it is small, parts otherwise.
//!
//! At most one part is on its way while the next one fills, so two parts are in memory; `write` waits when both are full. The
//! upload is completed only by `finish`, and the completion is believed only when the store then shows the right size and
//! checksum. A writer dropped before leaves an abort behind that is tried again until it is through; what a crash leaves is
//! found by `Store::orphan_uploads`.
//!
//! ```text
//! write ... SINGLE bytes or fewer          -> finish: one PUT, conditional where the store can, else after a look
//! write ... more -> create, part 1, 2 ...  -> finish: last part, a look at the key, complete, HEAD
//! error | drop | abort                     -> the upload is aborted, the key is burnt
//! ```
//!
//! Parts go one after the other and not side by side: a writer's memory stays at two of them, and several writers share the
//! line.

use std::sync::Arc;

use bytes::Bytes;
use object_store::multipart::{MultipartStore, PartId};
use object_store::{MultipartId, PutPayload};
use tokio::task::JoinSet;

use super::judge::{Failure, Next};
use super::plan::{self, Plan, SINGLE};
use super::{Expected, Found, S3};
use crate::store::{Error, Key, Length, PutMode, Result, Settled, Stored};

/// A part is sent only when more bytes follow it, so that an object which just fits is still one PUT.
pub(in crate::store) struct S3Writer {
    s3: Arc<S3>,
    key: Key,
    length: Length,
    plan: Plan,
    taken: u64,
    /// Over all bytes in order: what the store must show in the end.
    crc64: crc_fast::Digest,
    /// The part that fills, as it came; `filled` bytes, sent without being joined.
    pieces: Vec<Bytes>,
    filled: u64,
    /// None until the first part is full.
    upload: Option<Upload>,
    /// Set by the first error; everything but `abort` then fails.
    failed: bool,
}

/// An open multipart upload. Dropped unfinished, it is aborted.
struct Upload {
    s3: Arc<S3>,
    key: Key,
    id: MultipartId,
    /// In order, as the store named them; a part's number is its place here.
    parts: Vec<PartId>,
    /// One task at most.
    sending: JoinSet<Result<PartId>>,
    /// Nothing to abort any more, or somebody else does it.
    completed: bool,
}

impl std::fmt::Debug for S3Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S3Writer({}, {} bytes taken)", self.key, self.taken)
    }
}

impl S3Writer {
    pub(super) fn new(s3: Arc<S3>, key: Key, length: Length) -> Result<Self> {
        let plan = plan::plan(length, s3.settings.max_parts).map_err(|too_large| Error::Unsupported {
            what: format!("an object of more than {} bytes", too_large.most),
        })?;
        Ok(Self {
            s3,
            key,
            length,
            plan,
            taken: 0,
            crc64: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme),
            pieces: Vec::new(),
            filled: 0,
            upload: None,
            failed: false,
        })
    }

    /// An error drops the upload, which aborts it, and frees the pieces. Must not be dropped half way and called again.
    pub(in crate::store) async fn write(&mut self, bytes: Bytes) -> Result<()> {
        if self.failed {
            return Err(broken());
        }
        let result = self.take(bytes).await;
        if result.is_err() {
            self.failed = true;
            self.upload = None;
            self.pieces.clear();
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
        self.crc64.update(&bytes);
        while !bytes.is_empty() {
            let size = match self.plan {
                Plan::Single => SINGLE,
                Plan::Parts { size, .. } | Plan::Undecided { size, .. } => size,
            };
            if self.filled == size {
                self.send_part().await?;
            }
            let room = usize::try_from(size - self.filled).unwrap_or(usize::MAX);
            let piece = bytes.split_to(bytes.len().min(room));
            self.filled += piece.len() as u64;
            self.pieces.push(piece);
        }
        Ok(())
    }

    /// Sends the full part, after the one before it arrived.
    async fn send_part(&mut self) -> Result<()> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            None => self.upload.insert(Upload::create(&self.s3, &self.key).await?),
        };
        upload.settle().await?;
        let number = upload.parts.len();
        if let Plan::Parts { most, .. } | Plan::Undecided { most, .. } = self.plan
            && number as u64 >= most
        {
            return Err(Error::Unsupported {
                what: format!("an object of more than {most} parts, its size not told beforehand"),
            });
        }
        let payload = std::mem::take(&mut self.pieces).into_iter().collect();
        self.filled = 0;
        upload.send(number, payload);
        Ok(())
    }

    /// An object of which no part was sent is one PUT, even an empty one. Otherwise nothing is visible before the completion.
    pub(in crate::store) async fn finish(mut self) -> Result<Stored> {
        if self.failed {
            return Err(broken());
        }
        if let Length::Exact(expected) = self.length
            && self.taken != expected
        {
            return Err(Error::Length { key: self.key.clone(), expected, actual: self.taken });
        }
        let expected = Expected { bytes: self.taken, crc64: self.crc64.finalize() };
        if self.upload.is_none() {
            let payload: PutPayload = self.pieces.into_iter().collect();
            return self.s3.put(&self.key, payload, PutMode::Create, expected).await;
        }
        if self.filled > 0 {
            self.send_part().await?;
        }
        let upload = self.upload.take().ok_or_else(broken)?;
        upload.complete(expected).await
    }

    pub(in crate::store) async fn abort(mut self) -> Result<()> {
        match self.upload.take() {
            Some(mut upload) => {
                upload.completed = true;
                upload.sending.shutdown().await;
                upload.s3.abort_upload(&upload.key, &upload.id).await
            }
            None => Ok(()),
        }
    }
}

impl Upload {
    /// A creation whose answer was lost leaves an upload that nobody knows: an orphan, found by its age.
    async fn create(s3: &Arc<S3>, key: &Key) -> Result<Self> {
        let path = s3.path(key);
        let mut tries = s3.tries();
        let id = loop {
            match s3.bucket.create_multipart(&path).await {
                Ok(id) => break id,
                Err(error) => s3.again(&mut tries, key, error).await?,
            }
        };
        Ok(Self {
            s3: Arc::clone(s3),
            key: key.clone(),
            id,
            parts: Vec::new(),
            sending: JoinSet::new(),
            completed: false,
        })
    }

    /// Sends one part in the background until it is taken or the tries end. It holds the payload meanwhile, which is the
    /// second part in memory.
    fn send(&mut self, number: usize, payload: PutPayload) {
        let (s3, key, id) = (Arc::clone(&self.s3), self.key.clone(), self.id.clone());
        self.sending.spawn(async move {
            let path = s3.path(&key);
            let mut tries = s3.tries();
            loop {
                // a part sent twice replaces itself, so a lost answer needs no settling
                match s3.bucket.put_part(&path, &id, number, payload.clone()).await {
                    Ok(part) => return Ok(part),
                    Err(error) => s3.again(&mut tries, &key, error).await.map_err(gone)?,
                }
            }
        });
    }

    /// Waits for the part on its way.
    async fn settle(&mut self) -> Result<()> {
        match self.sending.join_next().await {
            None => Ok(()),
            Some(Ok(part)) => {
                self.parts.push(part?);
                Ok(())
            }
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Some(Err(_)) => Err(broken()),
        }
    }

    fn corrupt(&self, detail: &str) -> Error {
        Error::Corrupt { key: self.key.clone(), detail: detail.to_owned() }
    }

    /// Looks that the key is free, completes, then looks again. "No such upload" may mean that an earlier attempt completed it, so the object decides. After
    /// the store's own yes, other bytes or none at all are [`Error::Corrupt`].
    async fn complete(mut self, expected: Expected) -> Result<Stored> {
        self.settle().await?;
        // `object_store` sends no condition with a completion, so a look is the best there is
        self.s3.vacant(&self.key).await?;
        let path = self.s3.path(&self.key);
        let mut tries = self.s3.tries();
        loop {
            let completed = self.s3.bucket.complete_multipart(&path, &self.id, self.parts.clone()).await;
            let failure = match completed {
                Ok(_) => {
                    self.completed = true;
                    // believed only when it is there
                    return match self.s3.settle(&self.key, expected).await? {
                        Found::Same(stored) => Ok(stored),
                        Found::Other => Err(self.corrupt("the store completed it with other bytes than were sent")),
                        Found::Nothing => Err(self.corrupt("the store completed it, but does not hold it")),
                    };
                }
                Err(error) => Failure::of(&self.key, error),
            };
            // "no such upload" after a lost answer: it may have been completed
            let maybe =
                tries.lost || failure.settled == Settled::Unknown || matches!(failure.error, Error::NotFound { .. });
            if maybe && let Found::Same(stored) = self.s3.settle(&self.key, expected).await? {
                self.completed = true;
                return Ok(stored);
            }
            if matches!(failure, Failure { next: Next::Fail, error: Error::NotFound { .. }, .. }) {
                return Err(gone(failure.error));
            }
            tries.again(failure, &self.s3.credentials).await?;
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.completed {
            return;
        }
        let (s3, key, id) = (Arc::clone(&self.s3), self.key.clone(), std::mem::take(&mut self.id));
        let mut sending = std::mem::take(&mut self.sending);
        let abort = async move {
            sending.shutdown().await;
            if let Err(error) = s3.abort_upload(&key, &id).await {
                tracing::warn!(%key, %error, "an unfinished upload could not be aborted; it stays until orphans are collected");
            }
        };
        // outside of a runtime nothing can be sent: an orphan, as after a crash
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.s3.aborts.spawn_on(abort, &runtime);
        }
    }
}

/// An upload the store no longer knows is not the object missing.
fn gone(error: Error) -> Error {
    match error {
        Error::NotFound { .. } => Error::Unavailable {
            detail: "it no longer knows the upload; begin a new one".to_owned(),
            settled: Settled::Yes,
            source: None,
        },
        other => other,
    }
}

fn broken() -> Error {
    Error::Unavailable {
        detail: "this write failed before; begin a new one".into(),
        settled: Settled::Yes,
        source: None,
    }
}
