//! Jobs and the versions they hold on to.
//!
//! The job's row is the lock of everything that belongs to it: [`lock`] comes first in every transaction that changes a job, its leases, stagings or
//! outputs. A job's inputs keep their versions from being deleted until the job is over.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Column, Error, Row, Tx};
use crate::domain::job::State;
use crate::domain::lease::Reason;
use crate::params;

/// A job's row. Written by [`insert`]; afterwards only state, reason, epoch and the callback's switch change.
#[derive(Debug, Clone)]
pub struct Job {
    pub id: Uuid,
    pub team: Uuid,
    /// Joined in; no column of the row.
    pub team_name: String,
    pub name: String,
    pub state: State,
    /// Why the newest lease ended; `None` while one is held or before the first.
    pub reason: Option<Reason>,
    /// The job file as JSON.
    pub spec: String,
    /// Epoch of the newest lease, 0 before the first.
    pub epoch: u64,
    pub callback_url: Option<String>,
    /// Sealed by `app`, `None` without a callback. The raw secret is never in SQL.
    pub callback_secret: Option<Vec<u8>>,
    /// The receiver answered 410: later events of the job get no delivery.
    pub callback_disabled: bool,
    pub created_at: Timestamp,
}

/// One input, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    pub version: Uuid,
    /// Subtree or file in the version, empty for all of it.
    pub path: String,
    /// The version's document as it was at submit, for the time after its deletion.
    pub snapshot: String,
}

impl Column for State {
    fn of(row: &Row, column: usize) -> Result<Self, Error> {
        Self::from_word(&row.get::<String>(column)?).ok_or(Error::Column { column, expected: "a job's state" })
    }
}

impl Column for Option<Reason> {
    fn of(row: &Row, column: usize) -> Result<Self, Error> {
        let Some(word) = row.get::<Option<String>>(column)? else { return Ok(None) };
        Reason::from_word(&word).map(Some).ok_or(Error::Column { column, expected: "a release's reason" })
    }
}

/// Adds a job and its inputs in the order given. The caller has locked the inputs' versions ([`lock_version`]), or one of
/// them could be deleted before this commits.
pub async fn insert(tx: &mut Tx, job: &Job, inputs: &[Input]) -> Result<(), Error> {
    let (url, secret) = (job.callback_url.as_deref(), job.callback_secret.as_deref());
    let values = params![
        job.id,
        job.team,
        &job.name,
        job.state.word(),
        &job.spec,
        job.epoch,
        url,
        secret,
        false,
        job.created_at
    ];
    tx.execute(q::INSERT, values).await?;
    for (position, input) in (0_i64..).zip(inputs) {
        tx.execute(q::INSERT_INPUT, params![job.id, position, input.version, &input.path, &input.snapshot]).await?;
    }
    Ok(())
}

/// Unlocked: for showing. Whoever will change anything of the job takes [`lock`].
pub async fn get(tx: &mut Tx, team: Uuid, id: Uuid) -> Result<Option<Job>, Error> {
    tx.optional(q::GET, params![team, id]).await?.map(|row| job(&row)).transpose()
}

/// The job, locked until the transaction ends. First lock of any transaction that changes what belongs to a job; the team's
/// count of events ([`super::outbox::append`]) is the last.
pub async fn lock(tx: &mut Tx, team: Uuid, id: Uuid) -> Result<Option<Job>, Error> {
    tx.optional(q::LOCK, params![team, id]).await?.map(|row| job(&row)).transpose()
}

/// A team's jobs, newest first, those made before `before`; all when it is empty.
pub async fn page(tx: &mut Tx, team: Uuid, before: &str, limit: u32) -> Result<Vec<Job>, Error> {
    // `g` sorts above every hex digit
    let before = if before.is_empty() { "g" } else { before };
    tx.all(q::PAGE, params![team, before, limit]).await?.iter().map(job).collect()
}

/// `work` first when declared, then `data` in order.
pub async fn inputs(tx: &mut Tx, id: Uuid) -> Result<Vec<Input>, Error> {
    let rows = tx.all(q::INPUTS, params![id]).await?;
    rows.iter().map(|row| Ok(Input { version: row.get(0)?, path: row.get(1)?, snapshot: row.get(2)? })).collect()
}

/// Writes what may change in a job: state, reason of the last release, epoch. Under [`lock`], or a concurrent change is
/// lost.
pub async fn update(tx: &mut Tx, job: &Job, now: Timestamp) -> Result<(), Error> {
    let values = params![job.id, job.state.word(), job.reason.map(Reason::word), job.epoch, now];
    tx.execute(q::UPDATE, values).await.map(drop)
}

/// The receiver wants nothing more of this job. For good; deliveries that wait are ended by [`super::outbox::bury`].
pub async fn disable_callback(tx: &mut Tx, id: Uuid) -> Result<(), Error> {
    tx.execute(q::DISABLE, params![id]).await.map(drop)
}

/// Locks a version against deletion until the transaction ends; `false` when it is deleted already. Lock several in the
/// order of their ids.
pub async fn lock_version(tx: &mut Tx, version: Uuid) -> Result<bool, Error> {
    Ok(tx.optional(q::LOCK_VERSION, params![version]).await?.is_some())
}

/// Jobs that are not over and stage this version, ten at most: while there are any, it may not be deleted.
pub async fn holding(tx: &mut Tx, version: Uuid) -> Result<Vec<(Uuid, String)>, Error> {
    let rows = tx.all(q::HOLDING, params![version]).await?;
    rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
}

fn job(row: &Row) -> Result<Job, Error> {
    Ok(Job {
        id: row.get(0)?,
        team: row.get(1)?,
        name: row.get(2)?,
        state: row.get(3)?,
        reason: row.get(4)?,
        spec: row.get(5)?,
        epoch: row.get(6)?,
        callback_url: row.get(7)?,
        callback_secret: row.get(8)?,
        callback_disabled: row.get(9)?,
        created_at: row.get(10)?,
        team_name: row.get(11)?,
    })
}

pub(super) mod q {
    crate::statements! {
        INSERT = "INSERT INTO jobs (id, team, name, state, spec, epoch, callback_url, callback_secret, callback_disabled, created_at,
        changed_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)";
        INSERT_INPUT = "INSERT INTO job_inputs (job, position, version, path, snapshot) VALUES ($1, $2, $3, $4, $5)";
        GET = "SELECT id, team, name, state, reason, spec, epoch, callback_url, callback_secret, callback_disabled, created_at,
        (SELECT t.name FROM teams t WHERE t.id = jobs.team) FROM jobs WHERE team = $1 AND id = $2";
        LOCK = lock "SELECT id, team, name, state, reason, spec, epoch, callback_url, callback_secret, callback_disabled, created_at,
        (SELECT t.name FROM teams t WHERE t.id = jobs.team) FROM jobs WHERE team = $1 AND id = $2";
        PAGE = "SELECT id, team, name, state, reason, spec, epoch, callback_url, callback_secret, callback_disabled, created_at,
        (SELECT t.name FROM teams t WHERE t.id = jobs.team) FROM jobs WHERE team = $1 AND id < $2 ORDER BY id DESC LIMIT $3";
        INPUTS = "SELECT version, path, snapshot FROM job_inputs WHERE job = $1 ORDER BY position";
        UPDATE = "UPDATE jobs SET state = $2, reason = $3, epoch = $4, changed_at = $5 WHERE id = $1";
        DISABLE = "UPDATE jobs SET callback_disabled = 1 WHERE id = $1";
        LOCK_VERSION = lock "SELECT id FROM versions WHERE id = $1 AND deleted_at IS NULL";
        HOLDING = "SELECT DISTINCT j.id, j.name FROM job_inputs i JOIN jobs j ON j.id = i.job
        WHERE i.version = $1 AND j.state NOT IN ('finished', 'failed', 'cancelled') ORDER BY j.id LIMIT 10";
    }
}
