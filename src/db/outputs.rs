//! What comes back: one row per (job, lease epoch, output), epoch 0 for what was declared.
//!
//! A row is fenced by its own key, so that outputs may arrive after their lease has ended. Changes happen under the job's lock ([`super::jobs::lock`]).

use jiff::Timestamp;
use uuid::Uuid;

use super::{Column, Error, Row, Tx};
use crate::domain::output::State;
use crate::params;

/// One output of one lease; `app` judges what may follow what ([`crate::domain::output`]).
#[derive(Debug, Clone)]
pub struct Output {
    pub job: Uuid,
    /// Of its lease; 0 for the declaration, which never moves.
    pub epoch: u64,
    pub name: String,
    /// Place in the job file.
    pub position: u64,
    pub state: State,
    /// The lease's end asked for it; only then are reports about it taken.
    pub due: bool,
    /// What it became; set with `stored`.
    pub version: Option<Uuid>,
    pub files: u64,
    pub bytes: u64,
    /// JSON list of what was refused.
    pub skipped: String,
    /// Code and detail, as the node or the service said.
    pub error: Option<(String, String)>,
}

impl Column for State {
    fn of(row: &Row, column: usize) -> Result<Self, Error> {
        Self::from_word(&row.get::<String>(column)?).ok_or(Error::Column { column, expected: "an output's state" })
    }
}

/// Declares a job's outputs under an epoch; what is there already stays, so it may be said again.
pub async fn declare(tx: &mut Tx, job: Uuid, epoch: u64, names: &[&str], now: Timestamp) -> Result<(), Error> {
    for (position, name) in (0_i64..).zip(names) {
        tx.execute(q::DECLARE, params![job, epoch, *name, position, now]).await?;
    }
    Ok(())
}

/// The outputs of one lease in declared order.
pub async fn of_epoch(tx: &mut Tx, job: Uuid, epoch: u64) -> Result<Vec<Output>, Error> {
    tx.all(q::OF_EPOCH, params![job, epoch]).await?.iter().map(output).collect()
}

/// For every declared output the row of the newest lease that has anything to tell; else the declaration.
pub async fn newest(tx: &mut Tx, job: Uuid) -> Result<Vec<Output>, Error> {
    tx.all(q::NEWEST, params![job]).await?.iter().map(output).collect()
}

pub async fn get(tx: &mut Tx, job: Uuid, epoch: u64, name: &str) -> Result<Option<Output>, Error> {
    tx.optional(q::GET, params![job, epoch, name]).await?.map(|row| output(&row)).transpose()
}

/// Writes all that may change, by (job, epoch, name). Under the job's lock.
pub async fn update(tx: &mut Tx, output: &Output, now: Timestamp) -> Result<(), Error> {
    let (code, detail) = output.error.clone().unzip();
    let values = params![
        output.job,
        output.epoch,
        &output.name,
        output.state.word(),
        output.due,
        output.version,
        output.files,
        output.bytes,
        &output.skipped,
        code,
        detail,
        now
    ];
    tx.execute(q::UPDATE, values).await.map(drop)
}

/// Says of a version that it came after a newer lease of its job had begun. It stays a version like any other; readers see
/// the mark.
pub async fn mark_late(tx: &mut Tx, version: Uuid) -> Result<(), Error> {
    tx.execute(q::MARK_LATE, params![version]).await.map(drop)
}

fn output(row: &Row) -> Result<Output, Error> {
    Ok(Output {
        job: row.get(0)?,
        epoch: row.get(1)?,
        name: row.get(2)?,
        position: row.get(3)?,
        state: row.get(4)?,
        due: row.get(5)?,
        version: row.get(6)?,
        files: row.get(7)?,
        bytes: row.get(8)?,
        skipped: row.get(9)?,
        error: row.get::<Option<String>>(10)?.zip(row.get::<Option<String>>(11)?),
    })
}

pub(super) mod q {
    crate::statements! {
        DECLARE = "INSERT INTO outputs (job, epoch, name, position, state, due, files, bytes, skipped, changed_at)
        VALUES ($1, $2, $3, $4, 'declared', 0, 0, 0, '[]', $5) ON CONFLICT (job, epoch, name) DO NOTHING";
        OF_EPOCH = "SELECT job, epoch, name, position, state, due, version, files, bytes, skipped, error_code, error_detail
        FROM outputs WHERE job = $1 AND epoch = $2 ORDER BY position";
        NEWEST = "SELECT job, epoch, name, position, state, due, version, files, bytes, skipped, error_code, error_detail
        FROM outputs o WHERE job = $1 AND epoch = (SELECT COALESCE(MAX(p.epoch), 0) FROM outputs p
        WHERE p.job = o.job AND p.name = o.name AND p.state <> 'declared') ORDER BY position";
        GET = "SELECT job, epoch, name, position, state, due, version, files, bytes, skipped, error_code, error_detail
        FROM outputs WHERE job = $1 AND epoch = $2 AND name = $3";
        MARK_LATE = "UPDATE versions SET late = 1 WHERE id = $1";
        UPDATE = "UPDATE outputs SET state = $4, due = $5, version = $6, files = $7, bytes = $8, skipped = $9, error_code = $10,
        error_detail = $11, changed_at = $12 WHERE job = $1 AND epoch = $2 AND name = $3";
    }
}
