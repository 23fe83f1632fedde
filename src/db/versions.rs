//! Datasets, their versions and the layouts that say where a version's bytes lie.
//!
//! A version's row is written once; later only its current layout and its deletion change. Deleting drops the references to
//! packs in the same transaction and leaves the objects to collection. Numbers rise for ever, also past deletions.
//!
//! What is deleted keeps its row, for the number and for whoever asks by id; whatever gives out a version gives live ones
//! only.

use jiff::Timestamp;
use uuid::Uuid;

use super::packs::{self, BATCH, Pack};
use super::{Error, Row, Sql, Tx, list, placeholders, teams};
use crate::content::digest::Digest;
use crate::content::tree::Counts;
use crate::domain::id::{DatasetName, Selector, VersionNumber};
use crate::domain::version::Candidate;
use crate::params;

/// A dataset as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRow {
    pub name: String,
    /// The newest complete version's number.
    pub latest: Option<u64>,
    /// Live ones, incomplete ones too; so are the `bytes`, which are logical.
    pub versions: u64,
    pub bytes: u64,
    pub created_at: Timestamp,
}

/// A live version with its current layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub id: Uuid,
    pub team: Uuid,
    pub dataset: Uuid,
    /// The dataset's name.
    pub name: String,
    pub number: VersionNumber,
    /// Of its tree: the version's identity. The same tree may be pushed again later under a new number.
    pub digest: Digest,
    /// The tree's; `bytes` are what counts against the quota.
    pub counts: Counts,
    pub chunks: u64,
    pub incomplete: bool,
    /// It came from an output after a newer lease of the job had begun.
    pub late: bool,
    pub tree_key: String,
    /// Of the object as stored, compressed.
    pub tree_bytes: u64,
    pub created_at: Timestamp,
    pub layout: Layout,
}

/// One generation of a version's layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub id: Uuid,
    /// 0 for a version's first, one more for each that replaced it; never used again.
    pub generation: u32,
    pub digest: Digest,
    pub key: String,
    /// Of the object as stored, compressed.
    pub bytes: u64,
    /// How many it refers to.
    pub packs: u64,
    /// The end of the last grant given to a reader of this layout, and a little beyond.
    pub read_until: Timestamp,
}

impl Version {
    pub fn candidate(&self) -> Candidate {
        Candidate { number: self.number, digest: self.digest, incomplete: self.incomplete }
    }

    /// `warehouse/aisle-cams@v3`.
    pub fn reference(&self) -> String {
        format!("{}@{}", self.name, self.number)
    }
}

macro_rules! columns {
    () => {
        "SELECT v.id, v.team, v.dataset, d.name, v.number, v.digest, v.files, v.dirs, v.symlinks, v.bytes, v.chunks, v.incomplete,
         v.late, v.tree_key, v.tree_bytes, v.created_at, l.id, l.generation, l.digest, l.key, l.bytes, l.packs, l.read_until
         FROM versions v JOIN datasets d ON d.id = v.dataset JOIN layouts l ON l.id = v.layout
         WHERE v.deleted_at IS NULL AND "
    };
}

pub(super) mod q {
    use super::Sql;

    pub const ADD_DATASET: Sql = Sql::new(
        "INSERT INTO datasets (id, team, name, next_number, created_at) VALUES ($1, $2, $3, 1, $4) ON CONFLICT (team, name) DO NOTHING",
    );
    pub const DATASET: Sql = Sql::new("SELECT id FROM datasets WHERE team = $1 AND name = $2");
    pub const DATASET_NAME: Sql = Sql::new("SELECT name FROM datasets WHERE id = $1");
    pub const PROFILE: Sql = Sql::new("SELECT profile FROM teams WHERE id = $1");
    pub const NUMBER: Sql =
        Sql::new("UPDATE datasets SET next_number = next_number + 1 WHERE id = $1 RETURNING next_number - 1");
    pub const LOCK_DATASET: Sql = crate::for_update!("SELECT next_number FROM datasets WHERE id = $1");
    pub const LIST: Sql = Sql::new(
        "SELECT d.name, MAX(CASE WHEN v.incomplete = 0 THEN v.number END), count(*), CAST(SUM(v.bytes) AS BIGINT), d.created_at
         FROM datasets d JOIN versions v ON v.dataset = d.id AND v.deleted_at IS NULL
         WHERE d.team = $1 AND substr(d.name, 1, length($2)) = $2 AND d.name > $3
         GROUP BY d.id, d.name, d.created_at ORDER BY d.name LIMIT $4",
    );
    pub const INSERT: Sql = Sql::new(
        "INSERT INTO versions (id, team, dataset, number, digest, files, dirs, symlinks, bytes, chunks, incomplete, late, tree_key,
         tree_bytes, layout, next_generation, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 1, $16)",
    );
    pub const GET: Sql = Sql::new(concat!(columns!(), "v.id = $1"));
    pub const BY_NUMBER: Sql = Sql::new(concat!(columns!(), "v.dataset = $1 AND v.number = $2"));
    pub const COMPLETE: Sql =
        Sql::new(concat!(columns!(), "v.dataset = $1 AND v.incomplete = 0 ORDER BY v.number DESC LIMIT 1"));
    pub const NEWEST: Sql = Sql::new(concat!(columns!(), "v.dataset = $1 ORDER BY v.number DESC LIMIT 1"));
    /// The newest of the lowest and of the highest digest in the range tell whether there are two.
    pub const LOWEST: Sql = Sql::new(concat!(
        columns!(),
        "v.dataset = $1 AND v.digest >= $2 AND v.digest <= $3 ORDER BY v.digest, v.number DESC LIMIT 1"
    ));
    pub const HIGHEST: Sql = Sql::new(concat!(
        columns!(),
        "v.dataset = $1 AND v.digest >= $2 AND v.digest <= $3 ORDER BY v.digest DESC, v.number DESC LIMIT 1"
    ));
    pub const PAGE: Sql =
        Sql::new(concat!(columns!(), "v.dataset = $1 AND v.number < $2 ORDER BY v.number DESC LIMIT $3"));
    pub const DELETE: Sql =
        Sql::new("UPDATE versions SET deleted_at = $2 WHERE id = $1 AND deleted_at IS NULL RETURNING team, bytes");
    pub const SET_LAYOUT: Sql = Sql::new("UPDATE versions SET layout = $2 WHERE id = $1 AND deleted_at IS NULL");
    pub const GENERATION: Sql = Sql::new(
        "UPDATE versions SET next_generation = next_generation + 1 WHERE id = $1 RETURNING next_generation - 1",
    );
    pub const IDS: Sql =
        Sql::new("SELECT id FROM versions WHERE dataset = $1 AND deleted_at IS NULL ORDER BY number LIMIT 200");

    pub const ADD_LAYOUT: Sql = Sql::new(
        "INSERT INTO layouts (id, version, generation, digest, key, bytes, packs, read_until) VALUES ($1, $2, $3, $4, $5, $6, $7, 0)",
    );
    pub const LAYOUT: Sql = Sql::new(
        "SELECT id, generation, digest, key, bytes, packs, read_until FROM layouts WHERE id = $1 AND version = $2 AND dropped_at IS NULL",
    );
    pub const READ_UNTIL: Sql =
        Sql::new("UPDATE layouts SET read_until = $2 WHERE id = $1 AND read_until < $2 AND dropped_at IS NULL");
    pub const DROP_LAYOUTS: Sql =
        Sql::new("UPDATE layouts SET dropped_at = $2 WHERE version = $1 AND dropped_at IS NULL");
    pub const UNREFER: Sql =
        Sql::new("DELETE FROM layout_packs WHERE layout IN (SELECT id FROM layouts WHERE version = $1)");
    /// Packs of the layout that are not there any more.
    pub const DEAD: Sql = Sql::new(
        "SELECT p.digest FROM layout_packs r JOIN packs p ON p.number = r.pack WHERE r.layout = $1 AND p.state <> 'sealed' LIMIT $2",
    );
    pub const REFERENCES: Sql = Sql::new("SELECT count(*) FROM layout_packs WHERE layout = $1");
    crate::statement_list!(
        ADD_DATASET,
        DATASET,
        DATASET_NAME,
        PROFILE,
        NUMBER,
        LOCK_DATASET,
        LIST,
        INSERT,
        GET,
        BY_NUMBER,
        COMPLETE,
        NEWEST,
        LOWEST,
        HIGHEST,
        PAGE,
        DELETE,
        SET_LAYOUT,
        GENERATION,
        IDS,
        ADD_LAYOUT,
        LAYOUT,
        READ_UNTIL,
        DROP_LAYOUTS,
        UNREFER,
        DEAD,
        REFERENCES
    );
}

fn version(row: &Row) -> Result<Version, Error> {
    let number = VersionNumber::new(row.get(4)?).ok_or(Error::Column { column: 4, expected: "a version's number" })?;
    Ok(Version {
        id: row.get(0)?,
        team: row.get(1)?,
        dataset: row.get(2)?,
        name: row.get(3)?,
        number,
        digest: Digest::from_bytes(row.get(5)?),
        counts: Counts { files: row.get(6)?, dirs: row.get(7)?, symlinks: row.get(8)?, bytes: row.get(9)? },
        chunks: row.get(10)?,
        incomplete: row.get(11)?,
        late: row.get(12)?,
        tree_key: row.get(13)?,
        tree_bytes: row.get(14)?,
        created_at: row.get(15)?,
        layout: layout(row, 16)?,
    })
}

fn layout(row: &Row, at: usize) -> Result<Layout, Error> {
    Ok(Layout {
        id: row.get(at)?,
        generation: row.get(at + 1)?,
        digest: Digest::from_bytes(row.get(at + 2)?),
        key: row.get(at + 3)?,
        bytes: row.get(at + 4)?,
        packs: row.get(at + 5)?,
        read_until: row.get(at + 6)?,
    })
}

/// The dataset's id, made as `fresh` on its first mention; concurrent callers get the same. Nothing shows a dataset that has
/// no version.
pub async fn ensure_dataset(
    tx: &mut Tx,
    team: Uuid,
    name: &DatasetName,
    fresh: Uuid,
    now: Timestamp,
) -> Result<Uuid, Error> {
    if let Some(id) = dataset(tx, team, name).await? {
        return Ok(id);
    }
    tx.execute(q::ADD_DATASET, params![fresh, team, name.as_str(), now]).await?;
    tx.one(q::DATASET, params![team, name.as_str()]).await?.get(0)
}

pub async fn dataset(tx: &mut Tx, team: Uuid, name: &DatasetName) -> Result<Option<Uuid>, Error> {
    tx.optional(q::DATASET, params![team, name.as_str()]).await?.map(|row| row.get(0)).transpose()
}

pub async fn dataset_name(tx: &mut Tx, dataset: Uuid) -> Result<String, Error> {
    tx.one(q::DATASET_NAME, params![dataset]).await?.get(0)
}

/// Whether the team wants names that every system can hold: then trees of another profile are refused at commit.
pub async fn is_portable(tx: &mut Tx, team: Uuid) -> Result<bool, Error> {
    Ok(tx.one(q::PROFILE, params![team]).await?.get::<String>(0)? == "portable")
}

/// Datasets with at least one live version whose name begins with `prefix`, by name, after `after`.
pub async fn list_datasets(
    tx: &mut Tx,
    team: Uuid,
    prefix: &str,
    after: &str,
    most: u32,
) -> Result<Vec<DatasetRow>, Error> {
    let rows = tx.all(q::LIST, params![team, prefix, after, most]).await?;
    let dataset = |row: &Row| {
        Ok(DatasetRow {
            name: row.get(0)?,
            latest: row.get(1)?,
            versions: row.get(2)?,
            bytes: row.get(3)?,
            created_at: row.get(4)?,
        })
    };
    rows.iter().map(dataset).collect()
}

/// Live versions for [`crate::domain::version::resolve`], newest first: enough of them to decide, two at most. For a digest
/// the newest of the lowest and of the highest that begin so: if these differ it is ambiguous, whatever lies between.
pub async fn candidates(tx: &mut Tx, dataset: Uuid, selector: &Selector) -> Result<Vec<Version>, Error> {
    let mut rows = Vec::new();
    match selector {
        Selector::Latest => {
            rows.extend(tx.optional(q::COMPLETE, params![dataset]).await?);
            if rows.is_empty() {
                rows.extend(tx.optional(q::NEWEST, params![dataset]).await?);
            }
        }
        Selector::Number(number) => rows.extend(tx.optional(q::BY_NUMBER, params![dataset, number.get()]).await?),
        Selector::Digest(prefix) => {
            let (low, high) = prefix.range();
            for sql in [q::LOWEST, q::HIGHEST] {
                rows.extend(tx.optional(sql, params![dataset, &low, &high]).await?);
            }
        }
    }
    let mut found: Vec<Version> = rows.iter().map(version).collect::<Result<_, _>>()?;
    found.sort_unstable_by_key(|version| std::cmp::Reverse(version.number));
    found.dedup_by_key(|version| version.id);
    Ok(found)
}

/// The newest live version, complete or not.
pub async fn newest(tx: &mut Tx, dataset: Uuid) -> Result<Option<Version>, Error> {
    tx.optional(q::NEWEST, params![dataset]).await?.as_ref().map(version).transpose()
}

/// A live version of any team: the caller judges who may see it.
pub async fn get(tx: &mut Tx, id: Uuid) -> Result<Option<Version>, Error> {
    tx.optional(q::GET, params![id]).await?.as_ref().map(version).transpose()
}

/// Live versions below a number, newest first.
pub async fn list_versions(tx: &mut Tx, dataset: Uuid, below: u64, most: u32) -> Result<Vec<Version>, Error> {
    tx.all(q::PAGE, params![dataset, below, most]).await?.iter().map(version).collect()
}

/// Locks a dataset, so that no other commit makes its newest version until the transaction ends. It does not keep versions
/// from being deleted.
pub async fn lock_dataset(tx: &mut Tx, dataset: Uuid) -> Result<(), Error> {
    tx.one(q::LOCK_DATASET, params![dataset]).await.map(drop)
}

/// The number of the dataset's next version; taken, whatever becomes of it, once the transaction commits.
pub async fn take_number(tx: &mut Tx, dataset: Uuid) -> Result<VersionNumber, Error> {
    let row = tx.one(q::NUMBER, params![dataset]).await?;
    VersionNumber::new(row.get(0)?).ok_or(Error::Column { column: 0, expected: "a version's number" })
}

/// Adds a version and its first layout, refers to `packs` (whose locks the caller holds). From the commit on it is seen,
/// whole; the objects it names are in the store before.
pub async fn insert(tx: &mut Tx, version: &Version, packs: &[u64]) -> Result<(), Error> {
    let counts = &version.counts;
    let mut values =
        params![version.id, version.team, version.dataset, version.number.get(), version.digest.as_bytes()];
    values.extend(params![counts.files, counts.dirs, counts.symlinks, counts.bytes, version.chunks]);
    values.extend(params![version.incomplete, version.late, &version.tree_key, version.tree_bytes]);
    values.extend(params![version.layout.id, version.created_at]);
    tx.execute(q::INSERT, values).await?;
    add_layout(tx, version.id, &version.layout, packs).await
}

/// Adds a layout of a version and its references.
async fn add_layout(tx: &mut Tx, version: Uuid, layout: &Layout, packs: &[u64]) -> Result<(), Error> {
    let Layout { id, generation, digest, key, bytes, packs: count, .. } = layout;
    tx.execute(q::ADD_LAYOUT, params![*id, version, *generation, digest.as_bytes(), key, *bytes, *count]).await?;
    for batch in packs.chunks(BATCH) {
        let values = batch.iter().flat_map(|pack| params![*id, *pack]).collect();
        let sql = format!("INSERT INTO layout_packs (layout, pack) VALUES {}", placeholders(batch.len(), 2));
        tx.execute(Sql::built(sql), values).await?;
    }
    Ok(())
}

/// The number of the version's next layout; taken, whatever becomes of it, once the transaction commits.
pub async fn take_generation(tx: &mut Tx, version: Uuid) -> Result<u32, Error> {
    tx.one(q::GENERATION, params![version]).await?.get(0)
}

/// Lets a newer generation take the place of a version's layout. The old one's references are dropped with it, so readers by
/// the old one are told to read the version again. `false` when the version is deleted.
pub async fn replace_layout(
    tx: &mut Tx,
    version: Uuid,
    layout: &Layout,
    packs: &[u64],
    now: Timestamp,
) -> Result<bool, Error> {
    tx.execute(q::UNREFER, params![version]).await?;
    tx.execute(q::DROP_LAYOUTS, params![version, now]).await?;
    add_layout(tx, version, layout, packs).await?;
    Ok(tx.execute(q::SET_LAYOUT, params![version, layout.id]).await? == 1)
}

/// Marks a version deleted, drops its references and gives its bytes back to the team. Answers its bytes, `None` when it was
/// not there. The row is locked by it, so a check of who holds on to the version belongs after it, in the same transaction.
pub async fn delete(tx: &mut Tx, id: Uuid, now: Timestamp) -> Result<Option<u64>, Error> {
    let Some(row) = tx.optional(q::DELETE, params![id, now]).await? else { return Ok(None) };
    let (team, bytes): (Uuid, u64) = (row.get(0)?, row.get(1)?);
    tx.execute(q::UNREFER, params![id]).await?;
    tx.execute(q::DROP_LAYOUTS, params![id, now]).await?;
    teams::add_used(tx, team, 0_i64.saturating_sub_unsigned(bytes)).await?;
    Ok(Some(bytes))
}

/// Some of the live versions of a dataset; none left when it answers none.
pub async fn some_ids(tx: &mut Tx, dataset: Uuid) -> Result<Vec<Uuid>, Error> {
    tx.all(q::IDS, params![dataset]).await?.iter().map(|row| row.get(0)).collect()
}

/// A layout of this version that is still there. A replaced one is gone, although its object may still be.
pub async fn get_layout(tx: &mut Tx, version: Uuid, id: Uuid) -> Result<Option<Layout>, Error> {
    tx.optional(q::LAYOUT, params![id, version]).await?.map(|row| layout(&row, 0)).transpose()
}

/// Says that somebody may read by this layout until then; the mark only rises. `false` when that is known already or the
/// layout is gone.
pub async fn read_until(tx: &mut Tx, id: Uuid, until: Timestamp) -> Result<bool, Error> {
    Ok(tx.execute(q::READ_UNTIL, params![id, until]).await? == 1)
}

/// Ids of packs the layout refers to that cannot be read any more; some of them, if any. Empty is "sound as far as is
/// known": damage is found by reading.
pub async fn dead_packs(tx: &mut Tx, layout: Uuid, most: u32) -> Result<Vec<Digest>, Error> {
    let rows = tx.all(q::DEAD, params![layout, most]).await?;
    rows.iter().map(|row| Ok(Digest::from_bytes(row.get(0)?))).collect()
}

/// The packs of these ids that the layout refers to, each with whether it is sealed, in no order. At most [`BATCH`] ids.
pub async fn referred(tx: &mut Tx, layout: Uuid, ids: &[Digest]) -> Result<Vec<(Pack, bool)>, Error> {
    let mut values = params![layout];
    values.extend(ids.iter().flat_map(|id| params![id.as_bytes()]));
    let sql = format!(
        "SELECT p.number, p.digest, p.key, p.bytes, p.index_bytes, p.chunks, p.raw_bytes, p.upload, p.state FROM layout_packs r
         JOIN packs p ON p.number = r.pack WHERE r.layout = $1 AND p.digest IN ({})",
        list(2, ids.len())
    );
    let rows = tx.all(Sql::built(sql), values).await?;
    rows.iter().map(|row| Ok((packs::pack(row)?, row.get::<String>(8)? == "sealed"))).collect()
}

/// How many packs the layout refers to.
pub async fn references(tx: &mut Tx, layout: Uuid) -> Result<u64, Error> {
    tx.one(q::REFERENCES, params![layout]).await?.get(0)
}
