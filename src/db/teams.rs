//! Teams: the tenants.
//!
//! `used_bytes` is kept by the transactions that make and delete versions, through [`add_used`], which takes the row's lock.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Tx};
use crate::params;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    pub id: Uuid,
    pub name: String,
    /// Of logical bytes; `None` for no limit.
    pub quota_bytes: Option<u64>,
    /// Logical bytes of live versions, each counted whole: what deduplication saves is not the team's to spend.
    pub used_bytes: u64,
}

/// Makes a team; [`Error::Taken`] when the name is in use.
pub async fn insert(tx: &mut Tx, id: Uuid, name: &str, quota: Option<u64>, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::INSERT, params![id, name, quota, at]).await.map(drop)
}

/// Makes a team unless one of that name exists.
pub async fn ensure(tx: &mut Tx, id: Uuid, name: &str, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::ENSURE, params![id, name, at]).await.map(drop)
}

pub async fn by_id(tx: &mut Tx, id: Uuid) -> Result<Option<Team>, Error> {
    tx.optional(q::BY_ID, params![id]).await?.map(team).transpose()
}

/// [`by_id`], holding the row's lock until the transaction ends: quota checks and their changes go through here, or two of
/// them would both fit where one does.
pub async fn lock(tx: &mut Tx, id: Uuid) -> Result<Option<Team>, Error> {
    tx.optional(q::LOCK, params![id]).await?.map(team).transpose()
}

pub async fn by_name(tx: &mut Tx, name: &str) -> Result<Option<Team>, Error> {
    tx.optional(q::BY_NAME, params![name]).await?.map(team).transpose()
}

/// Teams by name, those after `after`.
pub async fn page(tx: &mut Tx, after: &str, limit: u32) -> Result<Vec<Team>, Error> {
    tx.all(q::PAGE, params![after, limit]).await?.into_iter().map(team).collect()
}

/// Adds to (or, negative, takes from) the logical bytes of live versions, in the transaction that makes or deletes one.
pub async fn add_used(tx: &mut Tx, id: Uuid, bytes: i64) -> Result<(), Error> {
    tx.execute(q::ADD_USED, params![id, bytes]).await.map(drop)
}

fn team(row: Row) -> Result<Team, Error> {
    Ok(Team { id: row.get(0)?, name: row.get(1)?, quota_bytes: row.get(2)?, used_bytes: row.get(3)? })
}

pub(super) mod q {
    crate::statements! {
        INSERT = "INSERT INTO teams (id, name, quota_bytes, created_at) VALUES ($1, $2, $3, $4)";
        ENSURE = "INSERT INTO teams (id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING";
        BY_ID = "SELECT id, name, quota_bytes, used_bytes FROM teams WHERE id = $1";
        LOCK = lock "SELECT id, name, quota_bytes, used_bytes FROM teams WHERE id = $1";
        BY_NAME = "SELECT id, name, quota_bytes, used_bytes FROM teams WHERE name = $1";
        PAGE = "SELECT id, name, quota_bytes, used_bytes FROM teams WHERE name > $1 ORDER BY name LIMIT $2";
        ADD_USED = "UPDATE teams SET used_bytes = used_bytes + $2 WHERE id = $1";
    }
}
