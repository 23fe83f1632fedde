//! Stagings: how a job's inputs come near, and onto the leased node.
//!
//! A unique index allows one live staging per (job, lease). An agent's report is written with the epoch it was said under in the WHERE clause: a report of
//! an older lease changes no row. Changes happen under the job's lock ([`super::jobs::lock`]).

use jiff::Timestamp;
use uuid::Uuid;

use super::{Column, Error, Row, Tx};
use crate::domain::staging::State;
use crate::params;

/// A staging's row. Identity, lease, node and epoch are fixed at [`insert`]; [`update`] writes the rest.
#[derive(Debug, Clone)]
pub struct Staging {
    pub id: Uuid,
    pub team: Uuid,
    pub job: Uuid,
    /// `None` for one that only brings data near.
    pub lease: Option<Uuid>,
    /// Id and name.
    pub node: Option<(Uuid, String)>,
    pub state: State,
    /// 1 at first, one more for each change of `state`; with the epoch the fence of [`update`].
    pub state_seq: u64,
    /// How often it has been `ready`; numbers its receipts.
    pub ready_seq: u64,
    /// The lease's, 0 without one.
    pub epoch: u64,
    pub bytes: Bytes,
    /// The job's directory on the node, as its agent names it.
    pub path: Option<String>,
    /// The newest receipt, as JSON; `None` again when the node reports that it is ready no longer.
    pub receipt: Option<String>,
    pub error: Option<(String, String)>,
    /// What its receipt must say; `None` until the service has looked into the inputs.
    pub expected: Option<Expected>,
    pub ready_by: Option<Timestamp>,
    pub created_at: Timestamp,
    /// When bytes were first reported in this pull, and how many there were.
    pub pulled: Option<(Timestamp, u64)>,
    pub changed_at: Timestamp,
    pub ready_at: Option<Timestamp>,
    /// When the node had removed the directory; only then does it leave the node's list.
    pub cleaned_at: Option<Timestamp>,
}

/// Progress, as the node counts it, in raw bytes: for people and estimates. Nothing is decided by it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    pub total: u64,
    pub done: u64,
    pub reused: u64,
    pub cache: u64,
    pub peer: u64,
    pub store: u64,
}

/// What a readiness receipt must say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    pub tree: [u8; 32],
    pub files: u64,
    pub bytes: u64,
}

/// From when, and until when, somebody claims to look into a staging's inputs. No token: looking twice is harmless.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    pub now: Timestamp,
    pub until: Timestamp,
}

impl Column for State {
    fn of(row: &Row, column: usize) -> Result<Self, Error> {
        Self::from_word(&row.get::<String>(column)?).ok_or(Error::Column { column, expected: "a staging's state" })
    }
}

/// Inserts an `accepted` staging. [`Error::Taken`] when (job, lease) has a live one.
pub async fn insert(tx: &mut Tx, staging: &Staging) -> Result<(), Error> {
    let lease = staging.lease.map_or(String::new(), |id| id.to_string());
    let node = staging.node.as_ref().map(|(id, _)| *id);
    let values = params![
        staging.id,
        staging.team,
        staging.job,
        lease,
        node,
        staging.epoch,
        staging.bytes.total,
        staging.ready_by,
        staging.created_at
    ];
    tx.execute(q::INSERT, values).await.map(drop)
}

pub async fn get(tx: &mut Tx, team: Uuid, id: Uuid) -> Result<Option<Staging>, Error> {
    tx.optional(q::GET, params![team, id]).await?.map(|row| staging(&row)).transpose()
}

/// The live staging of (job, lease); `near` and `ready` are live too. `None` for the lease is the one without a node.
pub async fn live(tx: &mut Tx, job: Uuid, lease: Option<Uuid>) -> Result<Option<Staging>, Error> {
    let lease = lease.map_or(String::new(), |id| id.to_string());
    tx.optional(q::LIVE, params![job, lease]).await?.map(|row| staging(&row)).transpose()
}

/// All live stagings of a job.
pub async fn live_of_job(tx: &mut Tx, job: Uuid) -> Result<Vec<Staging>, Error> {
    tx.all(q::LIVE_OF_JOB, params![job]).await?.iter().map(staging).collect()
}

/// Whether any staging of this lease was ever given to its node.
pub async fn any_of_lease(tx: &mut Tx, lease: Uuid) -> Result<bool, Error> {
    Ok(tx.optional(q::ANY_OF_LEASE, params![lease]).await?.is_some())
}

/// Stagings of a job, newest first, those made before `before`; all when it is empty.
pub async fn page(tx: &mut Tx, job: Uuid, before: &str, limit: u32) -> Result<Vec<Staging>, Error> {
    let before = if before.is_empty() { "g" } else { before };
    tx.all(q::PAGE, params![job, before, limit]).await?.iter().map(staging).collect()
}

/// What a node should be busy with: live stagings, and ended ones it has not cleaned up after. 1,000 at most, oldest first.
pub async fn of_node(tx: &mut Tx, node: Uuid) -> Result<Vec<Staging>, Error> {
    tx.all(q::OF_NODE, params![node]).await?.iter().map(staging).collect()
}

/// Stagings that nodes removed from their team have not cleaned up after: (team, job, id), oldest first, those after `after`.
pub async fn of_removed_nodes(tx: &mut Tx, after: Uuid, limit: u32) -> Result<Vec<(Uuid, Uuid, Uuid)>, Error> {
    let rows = tx.all(q::OF_REMOVED, params![after, limit]).await?;
    rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).collect()
}

/// Whether one of the node's stagings that it has not cleaned up after needs this version.
pub async fn node_stages(tx: &mut Tx, node: Uuid, version: Uuid) -> Result<bool, Error> {
    Ok(tx.optional(q::NODE_STAGES, params![node, version]).await?.is_some())
}

/// Whether the node has an open upload into the version's dataset.
pub async fn node_pushes_to(tx: &mut Tx, node: Uuid, version: Uuid) -> Result<bool, Error> {
    Ok(tx.optional(q::NODE_PUSHES, params![node, version]).await?.is_some())
}

/// Writes all that may change; `false`, and nothing changed, when the row's epoch or `state_seq` is not what the caller
/// read. Under the job's lock that cannot be, so the caller treats it as a bug.
pub async fn update(tx: &mut Tx, staging: &Staging, was_seq: u64) -> Result<bool, Error> {
    let (code, detail) = staging.error.clone().unzip();
    let (pulled_at, pulled_bytes) = staging.pulled.unzip();
    let bytes = &staging.bytes;
    let values = params![
        staging.id,
        staging.epoch,
        was_seq,
        staging.state.word(),
        staging.state_seq,
        staging.ready_seq,
        bytes.total,
        bytes.done,
        bytes.reused,
        bytes.cache,
        bytes.peer,
        bytes.store,
        staging.path.as_deref(),
        staging.receipt.as_deref(),
        code,
        detail,
        pulled_at,
        pulled_bytes,
        staging.changed_at,
        staging.ready_at,
        staging.cleaned_at
    ];
    Ok(tx.execute(q::UPDATE, values).await? > 0)
}

/// Written apart from [`update`], and not undone by it.
pub async fn set_expected(tx: &mut Tx, id: Uuid, expected: &Expected) -> Result<(), Error> {
    tx.execute(q::EXPECT, params![id, expected.tree, expected.files, expected.bytes]).await.map(drop)
}

/// Claims live stagings, except those that are `near`, whose tree is not known and whose inputs nobody is looking into:
/// (team, id), the longest waiting first.
pub async fn claim_unchecked(tx: &mut Tx, claim: Claim, limit: u32) -> Result<Vec<(Uuid, Uuid)>, Error> {
    let rows = tx.all(q::CLAIM, params![claim.now, claim.until, limit]).await?;
    rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
}

/// Gives a claim back, so that another attempt begins at `at`.
pub async fn unclaim(tx: &mut Tx, id: Uuid, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::UNCLAIM, params![id, at]).await.map(drop)
}

/// Keeps a countersigned receipt for ever, as number `ready_seq` of the staging. [`Error::Taken`] when there is one of that
/// number: no receipt is ever replaced.
pub async fn add_receipt(tx: &mut Tx, staging: &Staging, envelope: &str, now: Timestamp) -> Result<(), Error> {
    tx.execute(q::ADD_RECEIPT, params![staging.id, staging.ready_seq, envelope, now]).await.map(drop)
}

/// A pack that a layout refers to, as the store should have it.
#[derive(Debug, Clone)]
pub struct StoredPack {
    pub number: u64,
    /// The object's key.
    pub key: String,
    /// Length of the whole object; none when it was never sealed.
    pub bytes: Option<u64>,
    /// As `bytes`: none when it was never sealed.
    pub id: Option<[u8; 32]>,
    pub is_sealed: bool,
}

/// Packs of a layout by number, those after `after`, whatever their state: a page at a time, since a layout may refer to
/// very many.
pub async fn layout_packs(tx: &mut Tx, layout: Uuid, after: u64, limit: u32) -> Result<Vec<StoredPack>, Error> {
    let rows = tx.all(q::LAYOUT_PACKS, params![layout, after, limit]).await?;
    let pack = |row: &Row| {
        Ok(StoredPack {
            number: row.get(0)?,
            key: row.get(1)?,
            bytes: row.get(2)?,
            id: row.get(3)?,
            is_sealed: row.get::<String>(4)? == "sealed",
        })
    };
    rows.iter().map(pack).collect()
}

fn staging(row: &Row) -> Result<Staging, Error> {
    let lease: String = row.get(3)?;
    let lease = if lease.is_empty() { None } else { Some(row.get(3)?) };
    let bytes = Bytes {
        total: row.get(10)?,
        done: row.get(11)?,
        reused: row.get(12)?,
        cache: row.get(13)?,
        peer: row.get(14)?,
        store: row.get(15)?,
    };
    let expected = match row.get::<Option<[u8; 32]>>(20)? {
        Some(tree) => Some(Expected { tree, files: row.get(21)?, bytes: row.get(22)? }),
        None => None,
    };
    Ok(Staging {
        id: row.get(0)?,
        team: row.get(1)?,
        job: row.get(2)?,
        lease,
        node: row.get::<Option<Uuid>>(4)?.zip(row.get::<Option<String>>(5)?),
        state: row.get(6)?,
        state_seq: row.get(7)?,
        ready_seq: row.get(8)?,
        epoch: row.get(9)?,
        bytes,
        path: row.get(16)?,
        receipt: row.get(17)?,
        error: row.get::<Option<String>>(18)?.zip(row.get::<Option<String>>(19)?),
        expected,
        ready_by: row.get(23)?,
        created_at: row.get(24)?,
        pulled: row.get::<Option<Timestamp>>(25)?.zip(row.get::<Option<u64>>(26)?),
        changed_at: row.get(27)?,
        ready_at: row.get(28)?,
        cleaned_at: row.get(29)?,
    })
}

macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "SELECT s.id, s.team, s.job, s.lease, s.node, n.name, s.state, s.state_seq, s.ready_seq, s.epoch, s.bytes_total, s.bytes_done,
            s.bytes_reused, s.from_cache, s.from_peer, s.from_store, s.path, s.receipt, s.error_code, s.error_detail, s.tree, s.tree_files,
            s.tree_bytes, s.ready_by, s.created_at, s.pulled_at, s.pulled_bytes, s.changed_at, s.ready_at, s.cleaned_at
            FROM stagings s LEFT JOIN nodes n ON n.id = s.node WHERE ",
            $rest
        )
    };
}

pub(super) mod q {
    use crate::db::Sql;

    pub const GET: Sql = Sql::new(columns!("s.team = $1 AND s.id = $2"));
    pub const LIVE: Sql =
        Sql::new(columns!("s.job = $1 AND s.lease = $2 AND s.state NOT IN ('failed', 'cancelled', 'released')"));
    pub const LIVE_OF_JOB: Sql =
        Sql::new(columns!("s.job = $1 AND s.state NOT IN ('failed', 'cancelled', 'released') ORDER BY s.id"));
    pub const PAGE: Sql = Sql::new(columns!("s.job = $1 AND s.id < $2 ORDER BY s.id DESC LIMIT $3"));
    pub const OF_NODE: Sql = Sql::new(columns!("s.node = $1 AND s.cleaned_at IS NULL ORDER BY s.id LIMIT 1000"));
    pub const OF_REMOVED: Sql = Sql::new(
        "SELECT s.team, s.job, s.id FROM stagings s JOIN nodes n ON n.id = s.node
        WHERE n.removed_at IS NOT NULL AND s.cleaned_at IS NULL AND s.id > $1 ORDER BY s.id LIMIT $2",
    );
    pub const INSERT: Sql = Sql::new(
        "INSERT INTO stagings (id, team, job, lease, node, state, state_seq, ready_seq, epoch, bytes_total, bytes_done,
        bytes_reused, from_cache, from_peer, from_store, ready_by, created_at, changed_at, claimed_until)
        VALUES ($1, $2, $3, $4, $5, 'accepted', 1, 0, $6, $7, 0, 0, 0, 0, 0, $8, $9, $9, 0)",
    );
    pub const ANY_OF_LEASE: Sql = Sql::new("SELECT 1 FROM stagings WHERE lease = $1 AND node IS NOT NULL LIMIT 1");
    pub const NODE_STAGES: Sql = Sql::new(
        "SELECT 1 FROM stagings s JOIN job_inputs i ON i.job = s.job
        WHERE s.node = $1 AND i.version = $2 AND s.cleaned_at IS NULL AND s.state NOT IN ('cancelled', 'released') LIMIT 1",
    );
    pub const NODE_PUSHES: Sql = Sql::new(
        "SELECT 1 FROM uploads u JOIN versions v ON v.dataset = u.dataset WHERE v.id = $2 AND u.node = $1
        AND u.state IN ('open', 'committing') LIMIT 1",
    );
    pub const UPDATE: Sql = Sql::new(
        "UPDATE stagings SET state = $4, state_seq = $5, ready_seq = $6, bytes_total = $7, bytes_done = $8, bytes_reused = $9,
        from_cache = $10, from_peer = $11, from_store = $12, path = $13, receipt = $14, error_code = $15, error_detail = $16,
        pulled_at = $17, pulled_bytes = $18, changed_at = $19, ready_at = $20, cleaned_at = $21
        WHERE id = $1 AND epoch = $2 AND state_seq = $3",
    );
    pub const EXPECT: Sql = Sql::new("UPDATE stagings SET tree = $2, tree_files = $3, tree_bytes = $4 WHERE id = $1");
    pub const CLAIM: Sql = Sql::split(
        "UPDATE stagings SET claimed_until = $2 WHERE id IN (SELECT id FROM stagings WHERE state NOT IN ('near', 'failed', 'cancelled', 'released')
        AND tree IS NULL AND claimed_until <= $1 ORDER BY claimed_until LIMIT $3) RETURNING team, id",
        "UPDATE stagings SET claimed_until = $2 WHERE id IN (SELECT id FROM stagings WHERE state NOT IN ('near', 'failed', 'cancelled', 'released')
        AND tree IS NULL AND claimed_until <= $1 ORDER BY claimed_until LIMIT $3 FOR UPDATE SKIP LOCKED) RETURNING team, id",
    );
    pub const LAYOUT_PACKS: Sql = Sql::new(
        "SELECT p.number, p.key, p.bytes, p.digest, p.state FROM layout_packs r JOIN packs p ON p.number = r.pack
        WHERE r.layout = $1 AND p.number > $2 ORDER BY p.number LIMIT $3",
    );
    pub const UNCLAIM: Sql = Sql::new("UPDATE stagings SET claimed_until = $2 WHERE id = $1");
    pub const ADD_RECEIPT: Sql =
        Sql::new("INSERT INTO receipts (staging, ready_seq, envelope, created_at) VALUES ($1, $2, $3, $4)");
    crate::statement_list!(
        GET,
        LIVE,
        LIVE_OF_JOB,
        PAGE,
        OF_NODE,
        OF_REMOVED,
        INSERT,
        ANY_OF_LEASE,
        NODE_STAGES,
        NODE_PUSHES,
        UPDATE,
        EXPECT,
        CLAIM,
        LAYOUT_PACKS,
        UNCLAIM,
        ADD_RECEIPT
    );
}
