//! Operations: commits that outlive their request, worked on by whichever replica claims them.
//!
//! A claim is a token and an end; whoever holds the token may finish the operation, and nobody else. A claim that ran out is
//! taken over, so a crash only delays. A finished operation never changes.
//!
//! ```text
//! running, free      claimed_until <= now         any replica may claim it
//! running, claimed   claimed_until >  now         whoever holds the token works on it and renews
//! done | failed      for ever
//! ```
//!
//! A failed run that may be tried again is one whose claim is renewed to the moment of the next attempt.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Sql, Tx};
use crate::content::digest::Digest;
use crate::params;

/// One commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub id: Uuid,
    pub team: Uuid,
    pub upload: Uuid,
    pub tree: Digest,
    pub layout: Digest,
    pub incomplete: bool,
    pub state: State,
    /// Set together with the version's own row, before the operation is done.
    pub version: Option<Uuid>,
    /// A problem document, once failed.
    pub error: Option<String>,
    /// Runs begun so far.
    pub attempts: u64,
}

/// In SQL `running`, `done`, `failed`; the last two are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Running,
    Done,
    Failed,
}

macro_rules! columns {
    () => {
        "SELECT id, team, upload, tree, layout, incomplete, state, version, error, attempts FROM operations"
    };
}

pub(super) mod q {
    use super::Sql;

    pub const INSERT: Sql = Sql::new(
        "INSERT INTO operations (id, team, upload, tree, layout, incomplete, state, claimed_until, attempts, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, 'running', 0, 0, $7)",
    );
    pub const GET: Sql = Sql::new(concat!(columns!(), " WHERE id = $1"));
    pub const FREE: Sql = Sql::split(
        concat!(columns!(), " WHERE state = 'running' AND claimed_until <= $1 ORDER BY claimed_until LIMIT 1"),
        concat!(
            columns!(),
            " WHERE state = 'running' AND claimed_until <= $1 ORDER BY claimed_until LIMIT 1 FOR UPDATE SKIP LOCKED"
        ),
    );
    pub const CLAIM: Sql =
        Sql::new("UPDATE operations SET claim = $2, claimed_until = $3, attempts = attempts + 1 WHERE id = $1");
    pub const RELEASE: Sql = Sql::new("UPDATE operations SET claimed_until = 0 WHERE state = 'running'");
    pub const RENEW: Sql =
        Sql::new("UPDATE operations SET claimed_until = $3 WHERE id = $1 AND claim = $2 AND state = 'running'");
    pub const MADE: Sql =
        Sql::new("UPDATE operations SET version = $3 WHERE id = $1 AND claim = $2 AND state = 'running'");
    pub const FINISH: Sql = Sql::new(
        "UPDATE operations SET state = $3, error = $4, finished_at = $5 WHERE id = $1 AND claim = $2 AND state = 'running'",
    );
    crate::statement_list!(INSERT, GET, FREE, CLAIM, RELEASE, RENEW, MADE, FINISH);
}

fn operation(row: &Row) -> Result<Operation, Error> {
    let state = match row.get::<String>(6)?.as_str() {
        "running" => State::Running,
        "done" => State::Done,
        "failed" => State::Failed,
        _ => return Err(Error::Column { column: 6, expected: "an operation's state" }),
    };
    Ok(Operation {
        id: row.get(0)?,
        team: row.get(1)?,
        upload: row.get(2)?,
        tree: Digest::from_bytes(row.get(3)?),
        layout: Digest::from_bytes(row.get(4)?),
        incomplete: row.get(5)?,
        state,
        version: row.get(7)?,
        error: row.get(8)?,
        attempts: row.get(9)?,
    })
}

/// Adds a running operation that nobody has claimed.
pub async fn insert(tx: &mut Tx, operation: &Operation, now: Timestamp) -> Result<(), Error> {
    let Operation { id, team, upload, tree, layout, incomplete, .. } = operation;
    tx.execute(q::INSERT, params![*id, *team, *upload, tree.as_bytes(), layout.as_bytes(), *incomplete, now])
        .await
        .map(drop)
}

pub async fn get(tx: &mut Tx, id: Uuid) -> Result<Option<Operation>, Error> {
    tx.optional(q::GET, params![id]).await?.as_ref().map(operation).transpose()
}

/// The right to work on an operation until its end. It fences by its token, not by the clock: a worker whose claim ran out
/// still holds it until another one claims, and then every call here answers `false`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub operation: Uuid,
    pub token: Uuid,
}

/// Claims the longest waiting operation that nobody works on, until `until`. Rows that another replica is claiming at this
/// moment are passed over, not waited for. The run counts in `attempts` even if the process dies at once.
pub async fn claim(tx: &mut Tx, token: Uuid, until: Timestamp, now: Timestamp) -> Result<Option<Operation>, Error> {
    let Some(row) = tx.optional(q::FREE, params![now]).await? else { return Ok(None) };
    let mut operation = operation(&row)?;
    tx.execute(q::CLAIM, params![operation.id, token, until]).await?;
    operation.attempts += 1;
    Ok(Some(operation))
}

/// Voids every claim: for the start of a process that has the database to itself, when nobody can be holding one.
pub async fn release_all(tx: &mut Tx) -> Result<(), Error> {
    tx.execute(q::RELEASE, Vec::new()).await.map(drop)
}

/// Keeps a claim, until `until` from now on, which may be nearer than before: that gives it back. `false` when it is lost:
/// stop working.
pub async fn renew(tx: &mut Tx, claim: Claim, until: Timestamp) -> Result<bool, Error> {
    Ok(tx.execute(q::RENEW, params![claim.operation, claim.token, until]).await? == 1)
}

/// Notes the version, in the transaction that makes it. `false` when the claim is lost: roll back.
pub async fn made(tx: &mut Tx, claim: Claim, version: Uuid) -> Result<bool, Error> {
    Ok(tx.execute(q::MADE, params![claim.operation, claim.token, version]).await? == 1)
}

/// Ends an operation, well or with a problem document. `false` when the claim is lost or it has ended; then nothing was
/// changed, and nothing else of the transaction should be.
pub async fn finish(tx: &mut Tx, claim: Claim, error: Option<&str>, now: Timestamp) -> Result<bool, Error> {
    let state = if error.is_some() { "failed" } else { "done" };
    Ok(tx.execute(q::FINISH, params![claim.operation, claim.token, state, error, now]).await? == 1)
}
