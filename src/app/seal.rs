//! Taking a pack: proven and stored while it streams in, sealed by one transaction.
//!
//! ```text
//! key reserved as `writing` -> bytes through the verifier and into the store -> object whole -> [sealed + sample + pin]
//! ```
//!
//! Nothing is acknowledged before the last line. A crash between any two leaves a `writing` row: an orphan that is known. A pack
//! that the team has sealed already is pinned and its body drained; a concurrent repeat waits for the first. What the verifier
//! refuses is aborted in the store, and nothing of it remains.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::body::Body;
use super::data::RESERVED;
use super::error::{Code, Error, Kind};
use super::known::pack_document;
use super::upload::{may_add, over_quota, visible};
use super::{App, Caller};
use crate::api::datasets::PackInfo;
use crate::content::pack::{Error as PackError, HEADER_BYTES, PackId, PackIndex, PackVerifier};
use crate::db::packs::{Pack, Sealing, sample_key};
use crate::db::uploads::Holder;
use crate::db::{packs, teams, uploads};
use crate::domain::version::within_quota;
use crate::store::{Key, PackWriter};
use crate::transaction;

/// `data.chunk` names it. Memory, disk or network changed the bytes: pack the files again.
pub const CHUNK_MISMATCH: Code = Code::new(Kind::Malformed, "chunk_mismatch", "a chunk is not what its id says");
/// Header, index or lengths are wrong, or it is another pack than was announced.
pub const BAD_PACK: Code = Code::new(Kind::Malformed, "bad_pack", "the body is no pack");
/// `data.max_bytes` says what is taken. A compressed document is refused so by what comes out of it, too.
pub const BODY_TOO_LARGE: Code = Code::new(Kind::TooLarge, "body_too_large", "the body is longer than is taken");

/// Bytes that are not worth a trip to the blocking pool.
const INLINE: usize = 128 << 10;

/// Which pack is sent, by whom it is held.
#[derive(Debug, Clone, Copy)]
pub struct PutPack {
    pub upload: Uuid,
    pub epoch: u64,
    pub pack: PackId,
}

/// Whether the body was needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Stored now.
    New,
    /// The team had it.
    Known,
}

impl App {
    /// Takes a pack. Acknowledged means: proven chunk by chunk, durable in the store, sealed, pinned for the upload. Sent
    /// again, it is pinned again and nothing is stored.
    ///
    /// [`CHUNK_MISMATCH`] names the chunk, [`BAD_PACK`] says what is wrong: pack again. `body_too_large`, `quota_exceeded`,
    /// `fenced` and the like say what to do. After a retryable error the rest of the body is not read: send the same again.
    pub async fn put_pack(&self, caller: &Caller, put: PutPack, body: &mut Body) -> Result<(Arrival, PackInfo), Error> {
        let taken = self.take_pack(caller, put, body).await;
        if taken.as_ref().is_ok_and(|(arrival, _)| *arrival == Arrival::Known)
            || taken.as_ref().is_err_and(|error| !error.is_retryable())
        {
            body.drain().await;
        }
        let (arrival, pack) = taken?;
        Ok((arrival, pack_document(&pack)))
    }

    /// In the order of cost: length, standing, the wait for a concurrent repeat, whether it is known, memory, a key. Nothing
    /// of the body is read before all of these. What is stored but was not sealed is deleted only where the row surely
    /// stayed `writing`; where that is unclear, object and row are left as they are.
    async fn take_pack(&self, caller: &Caller, put: PutPack, body: &mut Body) -> Result<(Arrival, Pack), Error> {
        let hint = "send smaller packs; an upload's document says how large they may be";
        at_most(body.length, self.settings.limits.max_pack_bytes.0, hint)?;
        if body.length < HEADER_BYTES as u64 {
            let detail = format!("{} bytes are too few: a pack's header alone has {HEADER_BYTES}", body.length);
            return Err(Error::new(BAD_PACK, detail, "send a whole pack"));
        }
        let room = self.room_for(caller, put).await?;
        let _arrival = self.data.arrival(caller.team, put.pack).await;
        if let Some(pack) = self.repin(caller, put).await? {
            return Ok((Arrival::Known, pack));
        }
        let memory = self.data.body_room(caller.team, body.length).await;
        let _memory = memory.map_err(|_| Error::internal("the body semaphore was closed"))?;
        let (number, key) = self.reserved_key(caller.team).await?;
        let index = self.store_pack(put.pack, &key, room, body).await?;
        let sealing = sealing(number, caller.team, put, &index);
        match self.seal_pack(caller, put, &sealing).await {
            Ok(Arrival::New) => {
                let pack = sealed_as(&sealing, key);
                self.data.indexes.put(number, Arc::new(index));
                Ok((Arrival::New, pack))
            }
            Ok(Arrival::Known) => {
                // another replica was faster
                self.discard(&key).await;
                let pack = self.repin(caller, put).await?;
                let gone = || Error::internal(format!("pack `{}` was sealed and is gone", put.pack));
                Ok((Arrival::Known, pack.ok_or_else(gone)?))
            }
            Err(error) => {
                // fenced or ended meanwhile; after any other failure the row may be sealed after all, and the object stays
                if error.kind() == Kind::Conflict {
                    self.discard(&key).await;
                }
                Err(error)
            }
        }
    }

    /// Deletes an object whose row was surely not sealed. Where that fails, its `writing` row remembers it.
    async fn discard(&self, key: &Key) {
        if let Err(error) = self.store.delete(key).await {
            tracing::warn!(%key, %error, "an object nobody refers to could not be deleted; its key stays written down");
        }
    }

    /// Refuses a stale or ended upload before any byte is read; answers what counts against the quota. Not locked: a first
    /// judgement, the commit's is the last.
    async fn room_for(&self, caller: &Caller, put: PutPack) -> Result<Room, Error> {
        let mut session = self.db.read().await?;
        let upload = visible(uploads::get(&mut session, put.upload).await?, caller, put.upload)?;
        may_add(&upload, put.epoch, self.clock.now())?;
        let team = teams::by_id(&mut session, caller.team).await?;
        let team = team.ok_or_else(|| Error::internal("a caller's team has no row"))?;
        Ok(Room { quota: team.quota_bytes, used: team.used_bytes.saturating_add(upload.sent) })
    }

    /// Pins a pack that the team has sealed already; a sign of life, too. `None` when it has none, or had one that was
    /// quarantined since: then it is to be sent.
    async fn repin(&self, caller: &Caller, put: PutPack) -> Result<Option<Pack>, Error> {
        if packs::sealed(&mut self.db.read().await?, caller.team, &put.pack).await?.is_none() {
            return Ok(None);
        }
        let holder = holder(caller, put);
        transaction!(self.db, |tx| {
            if !uploads::extend(tx, holder, self.upload_life(), 0).await? {
                return Err(self.why_not(tx, caller, holder).await);
            }
            let Some(pack) = packs::sealed_shared(tx, caller.team, &put.pack).await? else { return Ok(None) };
            packs::pin(tx, put.upload, &[pack.number]).await?;
            Ok::<_, Error>(Some(pack))
        })
    }

    /// A key that is written down as `writing`. One transaction reserves a block of them; the rest is kept for later packs
    /// of the team.
    async fn reserved_key(&self, team: Uuid) -> Result<(u64, Key), Error> {
        if let Some(reserved) = self.data.take_key(team) {
            return Ok(reserved);
        }
        let keys: Vec<Key> = (0..RESERVED).map(|_| Key::pack(team, self.ids.uuid())).collect();
        let names: Vec<String> = keys.iter().map(Key::to_string).collect();
        let first = transaction!(self.db, |tx| {
            packs::reserve(tx, team, &names, self.clock.now()).await.map_err(Error::from)
        })?;
        let mut numbered = (first..).zip(keys);
        let taken = numbered.next().ok_or_else(|| Error::internal("a block of keys is empty"))?;
        self.data.keep_keys(team, numbered);
        Ok(taken)
    }

    /// Streams the body into the store, proving it on the way. Whatever is refused, nothing stays under the key. Only
    /// [`PackWriter::finish`] makes the object visible, after the last chunk was right.
    async fn store_pack(&self, pack: PackId, key: &Key, room: Room, body: &mut Body) -> Result<PackIndex, Error> {
        let mut writer = self.store.writer(key, body.length).await?;
        match prove_and_write(pack, &mut writer, room, body).await {
            Ok(index) => {
                writer.finish().await?;
                Ok(index)
            }
            Err(error) => {
                if let Err(left) = writer.abort().await {
                    tracing::warn!(%key, error = %left, "an aborted pack could not be cleaned up; its key stays written down");
                }
                Err(error)
            }
        }
    }

    /// One transaction: the fence, the row, its sample, its pin. [`Arrival::Known`] when another replica sealed an equal one
    /// first, and then nothing was changed. A quarantined equal of it is replaced in all layouts: sending a lost pack again
    /// heals the versions that lack it.
    async fn seal_pack(&self, caller: &Caller, put: PutPack, sealing: &Sealing) -> Result<Arrival, Error> {
        let holder = holder(caller, put);
        let sealed = transaction!(self.db, |tx| {
            let life = self.upload_life();
            if !uploads::extend(tx, holder, life, sealing.raw_bytes).await? {
                return Err(Sealed::Refused(self.why_not(tx, caller, holder).await));
            }
            match packs::seal(tx, sealing, life.now).await {
                Ok(true) => {}
                Ok(false) => return Err(Sealed::Refused(Error::internal("a reserved pack row is gone"))),
                Err(error) if error.is_taken() => return Err(Sealed::Taken),
                Err(error) => return Err(error.into()),
            }
            packs::replace_lost(tx, caller.team, &sealing.id, sealing.number, life.now).await?;
            packs::pin(tx, put.upload, &[sealing.number]).await?;
            Ok::<_, Sealed>(())
        });
        match sealed {
            Ok(()) => Ok(Arrival::New),
            Err(Sealed::Taken) => Ok(Arrival::Known),
            Err(Sealed::Refused(error)) => Err(error),
        }
    }
}

/// How the sealing transaction ended when it did not seal. An equal pack is no error, yet must roll back.
enum Sealed {
    Taken,
    Refused(Error),
}

impl From<crate::db::Error> for Sealed {
    fn from(error: crate::db::Error) -> Self {
        Self::Refused(error.into())
    }
}

impl crate::db::Contended for Sealed {
    fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(error) if error.is_busy())
    }
}

/// What the quota leaves to a pack: against it count the logical bytes of live versions and the raw bytes that the upload
/// has sent.
#[derive(Debug, Clone, Copy)]
struct Room {
    quota: Option<u64>,
    used: u64,
}

fn holder(caller: &Caller, put: PutPack) -> Holder {
    Holder { upload: put.upload, team: caller.team, epoch: put.epoch }
}

/// By `Content-Length`, before anything is read.
pub(super) fn at_most(length: u64, most: u64, hint: &str) -> Result<(), Error> {
    if length <= most {
        return Ok(());
    }
    let detail = format!("the body has {length} bytes, and {most} are taken at most");
    Err(Error::new(BODY_TOO_LARGE, detail, hint).with_data(serde_json::json!({ "max_bytes": most })))
}

/// Written before proven: what the verifier refuses is aborted, and is never seen. The quota is judged as soon as the index
/// has come, which is first.
async fn prove_and_write(
    pack: PackId,
    writer: &mut PackWriter,
    room: Room,
    body: &mut Body,
) -> Result<PackIndex, Error> {
    let mut verifier = PackVerifier::new(pack);
    let mut judged = false;
    loop {
        let batch = body.batch().await?;
        if batch.is_empty() {
            return verifier.finish().map_err(bad_pack);
        }
        for piece in &batch {
            writer.write(piece.clone()).await?;
        }
        verifier = prove(verifier, batch).await?;
        if !judged && let Some(index) = verifier.index() {
            within_quota(room.quota, room.used, index.raw_bytes()).map_err(over_quota)?;
            judged = true;
        }
    }
}

/// Pushes a batch through the verifier, off the async threads when it is worth it. The verifier hashes and decodes every
/// chunk once.
async fn prove(mut verifier: PackVerifier, batch: Vec<Bytes>) -> Result<PackVerifier, Error> {
    let bytes: usize = batch.iter().map(Bytes::len).sum();
    let push = move || {
        batch.iter().try_for_each(|piece| verifier.push(piece))?;
        Ok::<_, PackError>(verifier)
    };
    if bytes <= INLINE {
        return push().map_err(bad_pack);
    }
    let pushed =
        spawn_blocking(push).await.map_err(|error| Error::internal("a pack's proof was cut off").with_source(error))?;
    pushed.map_err(bad_pack)
}

fn bad_pack(error: PackError) -> Error {
    let code = if matches!(error, PackError::Chunk { .. }) { CHUNK_MISMATCH } else { BAD_PACK };
    let hint = "pack the files again: memory, disk or network changed the bytes";
    let refusal = Error::new(code, error.to_string(), hint);
    match &error {
        PackError::Chunk { id, .. } => refusal.with_data(serde_json::json!({ "chunk": id.to_string() })),
        _ => refusal,
    }
    .with_source(error)
}

/// All from the proven index, nothing from what the client said but the upload.
fn sealing(number: u64, team: Uuid, put: PutPack, index: &PackIndex) -> Sealing {
    let sampled = index.entries().iter().filter(|entry| entry.id.is_sample());
    let mut sample: Vec<_> = sampled.map(|entry| sample_key(team, &entry.id)).collect();
    sample.sort_unstable();
    sample.dedup(); // one statement may not touch a row twice
    Sealing {
        number,
        team,
        upload: put.upload,
        id: index.id(),
        bytes: index.pack_bytes(),
        index_bytes: index.index_bytes(),
        chunks: u32::try_from(index.entries().len()).unwrap_or(u32::MAX),
        raw_bytes: index.raw_bytes(),
        sample,
    }
}

fn sealed_as(sealing: &Sealing, key: Key) -> Pack {
    Pack {
        number: sealing.number,
        id: sealing.id,
        key: key.to_string(),
        bytes: sealing.bytes,
        index_bytes: sealing.index_bytes,
        chunks: sealing.chunks,
        raw_bytes: sealing.raw_bytes,
        upload: sealing.upload,
    }
}
