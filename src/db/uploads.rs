//! Uploads, and the trees and layouts they have sent.
//!
//! Every change says the standing it expects (`state`, `epoch`) in its `WHERE`, so that a fenced or ended upload changes nothing
//! whatever a request believed. Rows are never deleted: an old id keeps its answer.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Sql, Tx};
use crate::content::digest::Digest;
use crate::domain::version::{Standing, UploadState};
use crate::params;

/// One upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub id: Uuid,
    pub team: Uuid,
    pub dataset: Uuid,
    pub standing: Standing,
    /// Logical bytes announced when it was opened: what counts against the quota until it is over.
    pub bytes: u64,
    /// Raw bytes of the packs it has sealed; packs the team had already are not counted.
    pub sent: u64,
    pub output: Option<OutputOf>,
    /// The node whose token opened it; no other node may use it.
    pub node: Option<Uuid>,
    /// The newest commit's operation.
    pub operation: Option<Uuid>,
    /// Put off by every sign of life. The state stays `open` beyond it until the sweeper comes.
    pub expires_at: Timestamp,
}

/// The declared output an upload is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputOf {
    pub job: Uuid,
    /// The lease under which the output was asked for, not the job's present one.
    pub lease_epoch: u64,
    pub name: String,
}

/// What an upload sends besides packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    Tree,
    Layout,
}

impl ObjectKind {
    fn word(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Layout => "layout",
        }
    }
}

/// A stored tree or layout of an upload, whole and of its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub key: String,
    pub bytes: u64,
}

macro_rules! columns {
    () => {
        "SELECT id, team, dataset, state, epoch, bytes, output_job, output_epoch, output_name, node, operation, expires_at, sent
         FROM uploads"
    };
}

pub(super) mod q {
    use super::Sql;

    pub const INSERT: Sql = Sql::new(
        "INSERT INTO uploads (id, team, dataset, state, epoch, bytes, sent, output_job, output_epoch, output_name, node,
         created_at, expires_at) VALUES ($1, $2, $3, 'open', $4, $5, 0, $6, $7, $8, $9, $10, $11)",
    );
    pub const GET: Sql = Sql::new(concat!(columns!(), " WHERE id = $1"));
    pub const LOCK: Sql = crate::for_update!(
        "SELECT id, team, dataset, state, epoch, bytes, output_job, output_epoch, output_name, node, operation, expires_at, sent
         FROM uploads WHERE id = $1"
    );
    pub const EXTEND: Sql = Sql::new(
        "UPDATE uploads SET expires_at = $4, sent = sent + $6
         WHERE id = $1 AND team = $2 AND epoch = $3 AND state = 'open' AND expires_at > $5",
    );
    pub const MOVE: Sql = Sql::new(
        "UPDATE uploads SET state = $4, epoch = $5, expires_at = $6 WHERE id = $1 AND state = $2 AND epoch = $3",
    );
    pub const OPERATION: Sql = Sql::new("UPDATE uploads SET operation = $2 WHERE id = $1");
    pub const LIVE: Sql = Sql::new(
        "SELECT count(*), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM uploads
         WHERE team = $1 AND state IN ('open', 'committing') AND expires_at > $2",
    );
    pub const OVERDUE: Sql = Sql::split(
        concat!(columns!(), " WHERE state = 'open' AND expires_at <= $1 ORDER BY expires_at LIMIT $2"),
        concat!(
            columns!(),
            " WHERE state = 'open' AND expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
    );
    pub const ADD_OBJECT: Sql =
        Sql::new("INSERT INTO upload_objects (key, upload, kind, digest, created_at) VALUES ($1, $2, $3, $4, $5)");
    pub const OBJECT_STORED: Sql = Sql::new("UPDATE upload_objects SET bytes = $2 WHERE key = $1 AND bytes IS NULL");
    pub const OBJECT_DAMAGED: Sql = Sql::new("UPDATE upload_objects SET bytes = NULL WHERE key = $1");
    pub const OBJECT: Sql = Sql::new(
        "SELECT key, bytes FROM upload_objects WHERE upload = $1 AND kind = $2 AND digest = $3 AND bytes IS NOT NULL
         ORDER BY created_at LIMIT 1",
    );
    pub const OBJECTS: Sql = Sql::new("SELECT count(*) FROM upload_objects WHERE upload = $1");
    pub const TAKE_OBJECT: Sql = Sql::new("DELETE FROM upload_objects WHERE key = $1");
    crate::statement_list!(
        INSERT,
        GET,
        LOCK,
        EXTEND,
        MOVE,
        OPERATION,
        LIVE,
        OVERDUE,
        ADD_OBJECT,
        OBJECT_STORED,
        OBJECT_DAMAGED,
        OBJECT,
        OBJECTS,
        TAKE_OBJECT
    );
}

fn word(state: UploadState) -> &'static str {
    match state {
        UploadState::Open => "open",
        UploadState::Committing => "committing",
        UploadState::Committed => "committed",
        UploadState::Aborted => "aborted",
        UploadState::Expired => "expired",
    }
}

fn state(row: &Row, column: usize) -> Result<UploadState, Error> {
    Ok(match row.get::<String>(column)?.as_str() {
        "open" => UploadState::Open,
        "committing" => UploadState::Committing,
        "committed" => UploadState::Committed,
        "aborted" => UploadState::Aborted,
        "expired" => UploadState::Expired,
        _ => return Err(Error::Column { column, expected: "an upload's state" }),
    })
}

fn upload(row: &Row) -> Result<Upload, Error> {
    let output = match (row.get(6)?, row.get(7)?, row.get(8)?) {
        (Some(job), Some(lease_epoch), Some(name)) => Some(OutputOf { job, lease_epoch, name }),
        _ => None,
    };
    Ok(Upload {
        id: row.get(0)?,
        team: row.get(1)?,
        dataset: row.get(2)?,
        standing: Standing { state: state(row, 3)?, epoch: row.get(4)? },
        bytes: row.get(5)?,
        output,
        node: row.get(9)?,
        operation: row.get(10)?,
        expires_at: row.get(11)?,
        sent: row.get(12)?,
    })
}

/// Adds a fresh, open upload.
pub async fn insert(tx: &mut Tx, upload: &Upload, now: Timestamp) -> Result<(), Error> {
    let output = upload.output.as_ref();
    let values = params![
        upload.id,
        upload.team,
        upload.dataset,
        upload.standing.epoch,
        upload.bytes,
        output.map(|output| output.job),
        output.map(|output| output.lease_epoch),
        output.map(|output| output.name.clone()),
        upload.node,
        now,
        upload.expires_at
    ];
    tx.execute(q::INSERT, values).await.map(drop)
}

/// Of any team: the caller judges who may see it.
pub async fn get(tx: &mut Tx, id: Uuid) -> Result<Option<Upload>, Error> {
    tx.optional(q::GET, params![id]).await?.as_ref().map(upload).transpose()
}

/// The upload, locked until the transaction ends.
pub async fn lock(tx: &mut Tx, id: Uuid) -> Result<Option<Upload>, Error> {
    tx.optional(q::LOCK, params![id]).await?.as_ref().map(upload).transpose()
}

/// Who touches which upload, by which epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub upload: Uuid,
    pub team: Uuid,
    pub epoch: u64,
}

/// When something happens to an upload, and when it would end after it. Both by the service's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    pub now: Timestamp,
    pub until: Timestamp,
}

/// Locks an open upload that this holder may add to, counts `sent` raw bytes and puts its end off. `false` when it is not
/// open, not the holder's, expired or fenced; then nothing was changed. It comes first in a transaction that adds to an
/// upload: from here to the commit nobody can fence, end or commit it.
pub async fn extend(tx: &mut Tx, holder: Holder, life: Lifetime, sent: u64) -> Result<bool, Error> {
    let values = params![holder.upload, holder.team, holder.epoch, life.until, life.now, sent];
    Ok(tx.execute(q::EXTEND, values).await? == 1)
}

/// Moves an upload from one standing to the next. `false` when it does not stand there any more. What may follow what is
/// [`Standing::after`]'s to say; this only sees to it that the step is taken from where it was judged.
pub async fn advance(
    tx: &mut Tx,
    id: Uuid,
    from: Standing,
    to: Standing,
    expires_at: Timestamp,
) -> Result<bool, Error> {
    let values = params![id, word(from.state), from.epoch, word(to.state), to.epoch, expires_at];
    Ok(tx.execute(q::MOVE, values).await? == 1)
}

/// Notes the operation of the newest commit.
pub async fn set_operation(tx: &mut Tx, id: Uuid, operation: Uuid) -> Result<(), Error> {
    tx.execute(q::OPERATION, params![id, operation]).await.map(drop)
}

/// How many live uploads the team has, and the bytes they announced. Under the team's lock, where a limit is judged by it.
pub async fn live(tx: &mut Tx, team: Uuid, now: Timestamp) -> Result<(u64, u64), Error> {
    let row = tx.one(q::LIVE, params![team, now]).await?;
    Ok((row.get(0)?, row.get(1)?))
}

/// Open uploads whose time is over, locked; those that somebody else works on are passed over.
pub async fn overdue(tx: &mut Tx, now: Timestamp, most: u32) -> Result<Vec<Upload>, Error> {
    tx.all(q::OVERDUE, params![now, most]).await?.iter().map(upload).collect()
}

/// Writes a tree or layout down before its object is, so that a crash leaves a known orphan. The key is fresh; the same
/// digest may be sent again under another.
pub async fn add_object(
    tx: &mut Tx,
    upload: Uuid,
    kind: ObjectKind,
    (key, digest): (&str, &Digest),
    now: Timestamp,
) -> Result<(), Error> {
    tx.execute(q::ADD_OBJECT, params![key, upload, kind.word(), digest.as_bytes(), now]).await.map(drop)
}

/// Notes that the object is stored, whole and of the digest it was announced with. `false` when that is noted already or the
/// row is gone.
pub async fn object_stored(tx: &mut Tx, key: &str, bytes: u64) -> Result<bool, Error> {
    Ok(tx.execute(q::OBJECT_STORED, params![key, bytes]).await? == 1)
}

/// Notes that the object is not what was stored: it counts as one whose bytes never came whole. Its key stays known.
pub async fn object_damaged(tx: &mut Tx, key: &str) -> Result<(), Error> {
    tx.execute(q::OBJECT_DAMAGED, params![key]).await.map(drop)
}

/// The upload's stored tree or layout of this digest, the oldest if it was sent twice.
pub async fn object(tx: &mut Tx, upload: Uuid, kind: ObjectKind, digest: &Digest) -> Result<Option<Object>, Error> {
    let row = tx.optional(q::OBJECT, params![upload, kind.word(), digest.as_bytes()]).await?;
    row.map(|row| Ok(Object { key: row.get(0)?, bytes: row.get(1)? })).transpose()
}

/// How many trees and layouts the upload has begun to send.
pub async fn objects(tx: &mut Tx, upload: Uuid) -> Result<u64, Error> {
    tx.one(q::OBJECTS, params![upload]).await?.get(0)
}

/// A commit has taken the object over, in the transaction that writes its key into a version or a layout. `false` when there
/// is no such row.
pub async fn take_object(tx: &mut Tx, key: &str) -> Result<bool, Error> {
    Ok(tx.execute(q::TAKE_OBJECT, params![key]).await? == 1)
}
