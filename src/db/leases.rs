//! Leases: which node a job holds, until when, with which epoch.
//!
//! A unique index allows one unreleased lease per job and another one lease per epoch, so that no race can make two. Changes happen under the job's
//! lock ([`super::jobs::lock`]).

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Tx};
use crate::domain::lease::{Lease as Tenure, Reason};
use crate::params;

/// A job's tenure of one node. Rows are never deleted; at most one of a job is unreleased.
#[derive(Debug, Clone)]
pub struct Lease {
    pub id: Uuid,
    pub team: Uuid,
    pub job: Uuid,
    /// The node's id.
    pub node: Uuid,
    /// The node's name.
    pub node_name: String,
    pub tenure: Tenure,
}

/// Adds the job's next lease, under the job's lock. [`Error::Taken`] when another unreleased one or one of the same epoch
/// exists. `gpus` is kept for people and decides nothing here.
pub async fn insert(tx: &mut Tx, lease: &Lease, gpus: Option<u32>, now: Timestamp) -> Result<(), Error> {
    let values =
        params![lease.id, lease.team, lease.job, lease.node, lease.tenure.epoch, gpus, lease.tenure.until, now];
    tx.execute(q::INSERT, values).await.map(drop)
}

pub async fn get(tx: &mut Tx, team: Uuid, id: Uuid) -> Result<Option<Lease>, Error> {
    tx.optional(q::GET, params![team, id]).await?.map(|row| lease(&row)).transpose()
}

/// The job's lease with the highest epoch, live or not.
pub async fn newest(tx: &mut Tx, job: Uuid) -> Result<Option<Lease>, Error> {
    tx.optional(q::NEWEST, params![job]).await?.map(|row| lease(&row)).transpose()
}

/// The lease of a job with this epoch, live or long over: late outputs are judged by it.
pub async fn of_epoch(tx: &mut Tx, job: Uuid, epoch: u64) -> Result<Option<Lease>, Error> {
    tx.optional(q::OF_EPOCH, params![job, epoch]).await?.map(|row| lease(&row)).transpose()
}

/// The job's leases with epochs below this one, newest first.
pub async fn of_job(tx: &mut Tx, job: Uuid, below: u64, limit: u32) -> Result<Vec<Lease>, Error> {
    tx.all(q::OF_JOB, params![job, below, limit]).await?.iter().map(lease).collect()
}

/// Writes what may change in a lease: its end and its release.
pub async fn update(tx: &mut Tx, lease: &Lease, now: Timestamp) -> Result<(), Error> {
    let values = params![lease.id, lease.tenure.until, lease.tenure.released.map(Reason::word), now];
    tx.execute(q::UPDATE, values).await.map(drop)
}

/// An unreleased lease whose time has run out.
#[derive(Debug, Clone, Copy)]
pub struct Due {
    pub id: Uuid,
    pub team: Uuid,
    pub job: Uuid,
}

/// Leases that are due, by their ids, those after `after`. Not locked: whoever ends one locks the job and judges again.
pub async fn due(tx: &mut Tx, now: Timestamp, after: Uuid, limit: u32) -> Result<Vec<Due>, Error> {
    let rows = tx.all(q::DUE, params![now, after, limit]).await?;
    rows.iter().map(|row| Ok(Due { id: row.get(0)?, team: row.get(1)?, job: row.get(2)? })).collect()
}

fn lease(row: &Row) -> Result<Lease, Error> {
    let tenure = Tenure { epoch: row.get(5)?, until: row.get(6)?, released: row.get(7)? };
    Ok(Lease {
        id: row.get(0)?,
        team: row.get(1)?,
        job: row.get(2)?,
        node: row.get(3)?,
        node_name: row.get(4)?,
        tenure,
    })
}

pub(super) mod q {
    crate::statements! {
        INSERT = "INSERT INTO leases (id, team, job, node, epoch, gpus, until, created_at, changed_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)";
        GET = "SELECT l.id, l.team, l.job, l.node, n.name, l.epoch, l.until, l.released
        FROM leases l JOIN nodes n ON n.id = l.node WHERE l.team = $1 AND l.id = $2";
        NEWEST = "SELECT l.id, l.team, l.job, l.node, n.name, l.epoch, l.until, l.released
        FROM leases l JOIN nodes n ON n.id = l.node WHERE l.job = $1 ORDER BY l.epoch DESC LIMIT 1";
        OF_EPOCH = "SELECT l.id, l.team, l.job, l.node, n.name, l.epoch, l.until, l.released
        FROM leases l JOIN nodes n ON n.id = l.node WHERE l.job = $1 AND l.epoch = $2";
        OF_JOB = "SELECT l.id, l.team, l.job, l.node, n.name, l.epoch, l.until, l.released
        FROM leases l JOIN nodes n ON n.id = l.node WHERE l.job = $1 AND l.epoch < $2 ORDER BY l.epoch DESC LIMIT $3";
        UPDATE = "UPDATE leases SET until = $2, released = $3, changed_at = $4 WHERE id = $1";
        DUE = "SELECT id, team, job FROM leases WHERE released IS NULL AND until <= $1 AND id > $2 ORDER BY id LIMIT $3";
    }
}
