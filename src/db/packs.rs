//! Packs: one row each, a sparse sample of their chunks, and the pins of uploads on them.
//!
//! Whoever adds or drops a reference, answers "known", or deletes, takes the rows' locks in the order of their numbers:
//! shared to refer, exclusive to take away. A sealed pack's digest, key and sizes never change. Statements name at most
//! [`BATCH`] rows.
//!
//! ```text
//! writing -seal-> sealed -quarantine-> quarantined -replace_lost-> condemned
//! ```
//!
//! `writing`: the key is written down and the object may or may not be there. Only `sealed` packs are found, offered, pinned
//! or served. A quarantined one is still referred to, so that it is known what its layouts lack; the first equal pack that
//! is sealed takes its place in them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Sql, Tx, list, placeholders};
use crate::content::digest::{Digest, digest};
use crate::params;

/// Rows a statement names at most: within the parameters of either engine, few enough that a statement is brief.
pub const BATCH: usize = 200;

/// A sealed pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    /// The row's, rising in the order of reservation: the order of locking, and what makes packs neighbours. Means nothing
    /// outside the database.
    pub number: u64,
    pub id: Digest,
    /// The object's key in the store.
    pub key: String,
    /// The whole object.
    pub bytes: u64,
    /// Of its index, without the header before it.
    pub index_bytes: u64,
    pub chunks: u32,
    /// Sum of its chunks before compression.
    pub raw_bytes: u64,
    /// The upload that brought it.
    pub upload: Uuid,
}

/// What verification found out about a pack; what sealing writes down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealing {
    pub number: u64,
    pub team: Uuid,
    pub upload: Uuid,
    pub id: Digest,
    pub bytes: u64,
    pub index_bytes: u64,
    pub chunks: u32,
    pub raw_bytes: u64,
    /// The sampled ones of its chunks, [`sample_key`]s.
    pub sample: Vec<SampleKey>,
}

/// First 16 bytes of BLAKE3(team, chunk id). 128 bits: two that are equal by chance do not happen, and a hit is proven
/// against the pack's index before anything relies on it.
pub type SampleKey = [u8; 16];

/// The key of a team's chunk in the sample. Another team's is another key, so nobody can ask for it.
pub fn sample_key(team: Uuid, chunk: &Digest) -> SampleKey {
    let mut input = [0; 48];
    input[..16].copy_from_slice(team.as_bytes());
    input[16..].copy_from_slice(chunk.as_bytes());
    let mut key = [0; 16];
    key.copy_from_slice(&digest(&input).as_bytes()[..16]);
    key
}

macro_rules! columns {
    () => {
        "SELECT number, digest, key, bytes, index_bytes, chunks, raw_bytes, upload FROM packs"
    };
}

pub(super) mod q {
    use super::Sql;

    pub const NUMBERS: Sql = Sql::new("UPDATE pack_numbers SET next = next + $1 WHERE one = 1 RETURNING next - $1");
    pub const SEALED: Sql = Sql::new(concat!(columns!(), " WHERE team = $1 AND digest = $2 AND state = 'sealed'"));
    pub const SEALED_SHARED: Sql = Sql::split(
        concat!(columns!(), " WHERE team = $1 AND digest = $2 AND state = 'sealed'"),
        concat!(columns!(), " WHERE team = $1 AND digest = $2 AND state = 'sealed' FOR SHARE"),
    );
    pub const SEAL: Sql = Sql::new(
        "UPDATE packs SET state = 'sealed', digest = $3, upload = $4, bytes = $5, index_bytes = $6, chunks = $7, raw_bytes = $8,
         changed_at = $9 WHERE number = $1 AND team = $2 AND state = 'writing'",
    );
    pub const AFTER: Sql = Sql::new(concat!(
        columns!(),
        " WHERE team = $1 AND upload = $2 AND number > $3 AND state = 'sealed' ORDER BY number LIMIT $4"
    ));
    pub const BEFORE: Sql = Sql::new(concat!(
        columns!(),
        " WHERE team = $1 AND upload = $2 AND number < $3 AND state = 'sealed' ORDER BY number DESC LIMIT $4"
    ));
    pub const PIN: Sql = Sql::new("INSERT INTO pins (owner, pack) VALUES ($1, $2) ON CONFLICT DO NOTHING");
    /// What other open uploads of the dataset hold is held by this one too.
    pub const PIN_OFFERED: Sql = Sql::split(
        "INSERT INTO pins (owner, pack) SELECT $1, number FROM packs WHERE state = 'sealed' AND number IN (SELECT pins.pack FROM
         pins JOIN uploads ON uploads.id = pins.owner WHERE uploads.dataset = $2 AND uploads.id <> $1 AND uploads.expires_at > $3
         AND uploads.state IN ('open', 'committing')) ON CONFLICT DO NOTHING",
        "INSERT INTO pins (owner, pack) SELECT $1, number FROM (SELECT number FROM packs WHERE state = 'sealed' AND number IN
         (SELECT pins.pack FROM pins JOIN uploads ON uploads.id = pins.owner WHERE uploads.dataset = $2 AND uploads.id <> $1 AND
         uploads.expires_at > $3 AND uploads.state IN ('open', 'committing')) ORDER BY number FOR SHARE) AS offered
         ON CONFLICT DO NOTHING",
    );
    pub const PINNED: Sql = Sql::new("SELECT count(*) FROM pins WHERE owner = $1");
    pub const PINNED_BY_NODE: Sql = Sql::new(
        "SELECT 1 FROM pins JOIN uploads ON uploads.id = pins.owner WHERE pins.pack = $1 AND uploads.node = $2 LIMIT 1",
    );
    /// A node that pushes an output may look into the packs of the versions that its dataset holds.
    pub const BESIDE_NODE: Sql = Sql::new(
        "SELECT 1 FROM layout_packs r JOIN versions v ON v.layout = r.layout JOIN uploads u ON u.dataset = v.dataset
         WHERE r.pack = $1 AND v.deleted_at IS NULL AND u.node = $2 AND u.state = 'open' LIMIT 1",
    );
    pub const UNPIN: Sql = Sql::new("DELETE FROM pins WHERE owner = $1");
    pub const LOCK_ONE: Sql = crate::for_update!("SELECT state FROM packs WHERE number = $1");
    pub const LOST: Sql = crate::for_update!(
        "SELECT number FROM packs WHERE team = $1 AND digest = $2 AND state = 'quarantined' ORDER BY number"
    );
    pub const STATE: Sql = Sql::new("UPDATE packs SET state = $2, changed_at = $3 WHERE number = $1");
    pub const UNSAMPLE: Sql = Sql::new("DELETE FROM pack_sample WHERE pack = $1");
    /// A layout that refers to the lost pack refers to its equal instead.
    pub const MOVE_REFERENCES: Sql = Sql::new(
        "INSERT INTO layout_packs (layout, pack) SELECT layout, CAST($2 AS BIGINT) FROM layout_packs WHERE pack = $1 ON CONFLICT DO NOTHING",
    );
    pub const DROP_REFERENCES: Sql = Sql::new("DELETE FROM layout_packs WHERE pack = $1");
    crate::statement_list!(
        NUMBERS,
        SEALED,
        SEALED_SHARED,
        SEAL,
        AFTER,
        BEFORE,
        PIN,
        PIN_OFFERED,
        PINNED,
        PINNED_BY_NODE,
        BESIDE_NODE,
        UNPIN,
        LOCK_ONE,
        LOST,
        STATE,
        UNSAMPLE,
        MOVE_REFERENCES,
        DROP_REFERENCES
    );
}

pub(super) fn pack(row: &Row) -> Result<Pack, Error> {
    Ok(Pack {
        number: row.get(0)?,
        id: Digest::from_bytes(row.get(1)?),
        key: row.get(2)?,
        bytes: row.get(3)?,
        index_bytes: row.get(4)?,
        chunks: row.get(5)?,
        raw_bytes: row.get(6)?,
        upload: row.get(7)?,
    })
}

fn packs(rows: &[Row]) -> Result<Vec<Pack>, Error> {
    rows.iter().map(pack).collect()
}

/// Writes `keys` down as objects that may come to be, before any of them does, so that a crash leaves orphans that are
/// known. Answers the first number; they are consecutive. The counter's row is locked until the transaction ends: nothing
/// else belongs in it.
pub async fn reserve(tx: &mut Tx, team: Uuid, keys: &[String], now: Timestamp) -> Result<u64, Error> {
    let count = u64::try_from(keys.len()).unwrap_or(u64::MAX);
    let first: u64 = tx.one(q::NUMBERS, params![count]).await?.get(0)?;
    for (batch, numbers) in keys.chunks(BATCH).zip((first..).step_by(BATCH)) {
        let mut values = Vec::with_capacity(batch.len() * 5);
        for (key, number) in batch.iter().zip(numbers..) {
            values.extend(params![number, team, key, "writing", now]);
        }
        let rows = placeholders(batch.len(), 5);
        let sql = format!("INSERT INTO packs (number, team, key, state, changed_at) VALUES {rows}");
        tx.execute(Sql::built(sql), values).await?;
    }
    Ok(first)
}

/// The team's sealed pack of this id; a unique index allows one. Not locked: it may be quarantined the next moment.
pub async fn sealed(tx: &mut Tx, team: Uuid, id: &Digest) -> Result<Option<Pack>, Error> {
    tx.optional(q::SEALED, params![team, id.as_bytes()]).await?.as_ref().map(pack).transpose()
}

/// The same, locked so that nobody takes it away before this transaction ends.
pub async fn sealed_shared(tx: &mut Tx, team: Uuid, id: &Digest) -> Result<Option<Pack>, Error> {
    tx.optional(q::SEALED_SHARED, params![team, id.as_bytes()]).await?.as_ref().map(pack).transpose()
}

/// Those of `ids` that are sealed packs of the team, in no order.
pub async fn sealed_among(tx: &mut Tx, team: Uuid, ids: &[Digest]) -> Result<Vec<Pack>, Error> {
    let mut found = Vec::with_capacity(ids.len());
    for batch in ids.chunks(BATCH) {
        let mut values = params![team];
        values.extend(batch.iter().flat_map(|id| params![id.as_bytes()]));
        let ids = list(2, batch.len());
        let sql = format!(concat!(columns!(), " WHERE team = $1 AND state = 'sealed' AND digest IN ({})"), ids);
        found.extend(packs(&tx.all(Sql::built(sql), values).await?)?);
    }
    Ok(found)
}

/// Ids and row numbers of those of `ids` that are sealed packs of the team, in no order. At most [`BATCH`].
pub async fn numbers_among(tx: &mut Tx, team: Uuid, ids: &[Digest]) -> Result<Vec<(Digest, u64)>, Error> {
    let mut values = params![team];
    values.extend(ids.iter().flat_map(|id| params![id.as_bytes()]));
    let ids = list(2, ids.len());
    let sql = format!("SELECT digest, number FROM packs WHERE team = $1 AND state = 'sealed' AND digest IN ({ids})");
    let rows = tx.all(Sql::built(sql), values).await?;
    rows.iter().map(|row| Ok((Digest::from_bytes(row.get(0)?), row.get(1)?))).collect()
}

/// Locks packs as [`lock_shared`] does and answers the ids of those that are *not* sealed any more. Numbers without a row
/// are passed over.
pub async fn lock_all(tx: &mut Tx, numbers: &[u64]) -> Result<Vec<Digest>, Error> {
    debug_assert!(numbers.is_sorted());
    let mut gone = Vec::new();
    for batch in numbers.chunks(BATCH) {
        let values = batch.iter().flat_map(|number| params![*number]).collect();
        let text =
            format!("SELECT state, digest FROM packs WHERE number IN ({}) ORDER BY number", list(1, batch.len()));
        let locked = format!("{text} FOR SHARE");
        for row in tx.all(Sql::built_split(text, locked), values).await? {
            if row.get::<String>(0)? != "sealed" {
                gone.push(Digest::from_bytes(row.get(1)?));
            }
        }
    }
    Ok(gone)
}

/// Locks packs against being taken away until the transaction ends, in the order of their numbers (`numbers` must rise), and
/// answers those that are sealed. Shared, so that many commits may refer to the same packs at once.
pub async fn lock_shared(tx: &mut Tx, numbers: &[u64]) -> Result<Vec<Pack>, Error> {
    debug_assert!(numbers.is_sorted());
    let mut found = Vec::with_capacity(numbers.len());
    for batch in numbers.chunks(BATCH) {
        let values = batch.iter().flat_map(|number| params![*number]).collect();
        let text = format!(
            concat!(columns!(), " WHERE state = 'sealed' AND number IN ({}) ORDER BY number"),
            list(1, batch.len())
        );
        let locked = format!("{text} FOR SHARE");
        found.extend(packs(&tx.all(Sql::built_split(text, locked), values).await?)?);
    }
    Ok(found)
}

/// Seals a pack whose object is stored: from now on it is found, offered and referred to. `false` when its row is not
/// waiting for that any more. `Error::Taken` when the team has an equal pack already; on Postgres the transaction is spoilt
/// by that and must be rolled back. A chunk of the sample that another pack holds too leads to this one from now on.
/// `pack.sample` sorted and without repeats.
pub async fn seal(tx: &mut Tx, pack: &Sealing, now: Timestamp) -> Result<bool, Error> {
    let sizes = params![pack.bytes, pack.index_bytes, pack.chunks, pack.raw_bytes, now];
    let mut values = params![pack.number, pack.team, pack.id.as_bytes(), pack.upload];
    values.extend(sizes);
    if tx.execute(q::SEAL, values).await? == 0 {
        return Ok(false);
    }
    for batch in pack.sample.chunks(BATCH) {
        let values = batch.iter().flat_map(|chunk| params![&chunk[..], pack.number]).collect();
        let rows = placeholders(batch.len(), 2);
        let sql = format!(
            "INSERT INTO pack_sample (chunk, pack) VALUES {rows} ON CONFLICT (chunk) DO UPDATE SET pack = excluded.pack"
        );
        tx.execute(Sql::built(sql), values).await?;
    }
    Ok(true)
}

/// Numbers of the packs that hold these chunks, and how many of them each holds. Not locked, and the packs may have been
/// quarantined since: a candidate, no answer.
pub async fn sampled(tx: &mut Tx, keys: &[SampleKey]) -> Result<BTreeMap<u64, u64>, Error> {
    let mut hits = BTreeMap::new();
    for batch in keys.chunks(BATCH) {
        let values = batch.iter().flat_map(|key| params![&key[..]]).collect();
        let sql =
            format!("SELECT pack, count(*) FROM pack_sample WHERE chunk IN ({}) GROUP BY pack", list(1, batch.len()));
        for row in tx.all(Sql::built(sql), values).await? {
            *hits.entry(row.get(0)?).or_default() += row.get::<u64>(1)?;
        }
    }
    Ok(hits)
}

/// Sealed packs of these numbers, in no order. Not locked.
pub async fn by_numbers(tx: &mut Tx, numbers: &[u64]) -> Result<Vec<Pack>, Error> {
    let mut found = Vec::with_capacity(numbers.len());
    for batch in numbers.chunks(BATCH) {
        let values = batch.iter().flat_map(|number| params![*number]).collect();
        let sql = format!(concat!(columns!(), " WHERE state = 'sealed' AND number IN ({})"), list(1, batch.len()));
        found.extend(packs(&tx.all(Sql::built(sql), values).await?)?);
    }
    Ok(found)
}

/// Which neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Before,
    After,
}

/// Sealed packs that the same upload brought just before or after this one, nearest first. Not locked.
pub async fn neighbours(tx: &mut Tx, team: Uuid, of: &Pack, side: Side, most: usize) -> Result<Vec<Pack>, Error> {
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let sql = match side {
        Side::Before => q::BEFORE,
        Side::After => q::AFTER,
    };
    packs(&tx.all(sql, params![team, of.upload, of.number, most]).await?)
}

/// Pins packs for an upload; pinning twice is pinning once. The caller holds their locks, or one could be taken away in
/// between. A pin lives as long as its upload is open or committing.
pub async fn pin(tx: &mut Tx, owner: Uuid, numbers: &[u64]) -> Result<(), Error> {
    if let [number] = numbers {
        tx.execute(q::PIN, params![owner, *number]).await?;
        return Ok(());
    }
    for batch in numbers.chunks(BATCH) {
        let values = batch.iter().flat_map(|number| params![owner, *number]).collect();
        let sql =
            format!("INSERT INTO pins (owner, pack) VALUES {} ON CONFLICT DO NOTHING", placeholders(batch.len(), 2));
        tx.execute(Sql::built(sql), values).await?;
    }
    Ok(())
}

/// Pins for `owner` what the other live uploads of the dataset have pinned; answers how many packs that were, without those
/// it had pinned itself. Locks them in the order of their numbers.
pub async fn pin_offered(tx: &mut Tx, owner: Uuid, dataset: Uuid, now: Timestamp) -> Result<u64, Error> {
    tx.execute(q::PIN_OFFERED, params![owner, dataset, now]).await
}

/// How many packs the upload has pinned.
pub async fn pinned(tx: &mut Tx, owner: Uuid) -> Result<u64, Error> {
    tx.one(q::PINNED, params![owner]).await?.get(0)
}

/// Whether an upload of this node has pinned the pack, or an open one goes to a dataset whose live versions refer to it.
pub async fn is_open_to_node(tx: &mut Tx, number: u64, node: Uuid) -> Result<bool, Error> {
    Ok(tx.optional(q::PINNED_BY_NODE, params![number, node]).await?.is_some()
        || tx.optional(q::BESIDE_NODE, params![number, node]).await?.is_some())
}

/// Drops every pin of an upload, in the transaction that ends it.
pub async fn unpin(tx: &mut Tx, owner: Uuid) -> Result<(), Error> {
    tx.execute(q::UNPIN, params![owner]).await.map(drop)
}

/// Takes a sealed pack whose bytes are damaged out of service: not in the sample, never served, still referred to. `false`
/// when it was not sealed any more; so any number of readers may find the same damage. Versions that refer to it stay
/// listed, and reading them fails in words.
pub async fn quarantine(tx: &mut Tx, number: u64, now: Timestamp) -> Result<bool, Error> {
    let state: Option<String> = tx.optional(q::LOCK_ONE, params![number]).await?.map(|row| row.get(0)).transpose()?;
    if state.as_deref() != Some("sealed") {
        return Ok(false);
    }
    tx.execute(q::STATE, params![number, "quarantined", now]).await?;
    tx.execute(q::UNSAMPLE, params![number]).await?;
    Ok(true)
}

/// Lets layouts that refer to a damaged pack refer to its equal `by`, just sealed in this transaction, and gives the damaged
/// ones up for collection. Answers how many were replaced. Equal id is equal index and equal chunks, so the layouts need no
/// rewriting.
pub async fn replace_lost(tx: &mut Tx, team: Uuid, id: &Digest, by: u64, now: Timestamp) -> Result<u64, Error> {
    let lost = tx.all(q::LOST, params![team, id.as_bytes()]).await?;
    for row in &lost {
        let number: u64 = row.get(0)?;
        tx.execute(q::MOVE_REFERENCES, params![number, by]).await?;
        tx.execute(q::DROP_REFERENCES, params![number]).await?;
        tx.execute(q::STATE, params![number, "condemned", now]).await?;
    }
    Ok(u64::try_from(lost.len()).unwrap_or(u64::MAX))
}
