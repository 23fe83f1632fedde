//! Answers of calls that created something, by team and Idempotency-Key.
//!
//! Of concurrent duplicates one goes first; the others wait in [`find`] until it has committed and then find its answer: by an
//! advisory lock on Postgres, by the one writer on SQLite.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Tx};
use crate::params;

/// One remembered answer, as its call left it. A row is written once and forgotten by age ([`forget`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// Method and path: the same key on another route is another request, and refused by `app`.
    pub route: String,
    /// BLAKE3 of the request's body.
    pub digest: [u8; 32],
    /// JSON, sealed: an answer may show a secret once. This room cannot open it.
    pub answer: Vec<u8>,
}

/// The answer to an earlier call, if there was one. Until this transaction ends, no other call with the key gets past here,
/// so make this its first statement: it is a lock, and whoever holds others already may wait in a circle. On Postgres two
/// keys of the same hash wait for each other too, which costs time and nothing else.
pub async fn find(tx: &mut Tx, team: Uuid, key: &str) -> Result<Option<Answered>, Error> {
    tx.optional(q::HOLD, params![format!("{team} {key}")]).await?;
    let row = tx.optional(q::FIND, params![team, key]).await?;
    row.map(|row| Ok(Answered { route: row.get(0)?, digest: row.get(1)?, answer: row.get(2)? })).transpose()
}

/// Remembers an answer, in the transaction that [`find`] was called in. [`Error::Taken`] when the key has one, which cannot
/// be when that found none in the same transaction.
pub async fn insert(tx: &mut Tx, team: Uuid, key: &str, row: &Answered, at: Timestamp) -> Result<(), Error> {
    let values = params![team, key, &row.route, row.digest, row.answer.as_slice(), at];
    tx.execute(q::INSERT, values).await.map(drop)
}

/// Forgets answers older than `before`, `limit` at a time; answers how many.
pub async fn forget(tx: &mut Tx, before: Timestamp, limit: u32) -> Result<u64, Error> {
    tx.execute(q::FORGET, params![before, limit]).await
}

pub(super) mod q {
    crate::statements! {
        HOLD = split "SELECT $1", "SELECT 1 FROM (SELECT pg_advisory_xact_lock(hashtextextended($1, 0))) AS held";
        FIND = "SELECT route, digest, answer FROM idempotency WHERE team = $1 AND idem_key = $2";
        INSERT = "INSERT INTO idempotency (team, idem_key, route, digest, answer, created_at) VALUES ($1, $2, $3, $4, $5, $6)";
        FORGET = "DELETE FROM idempotency WHERE (team, idem_key) IN
        (SELECT team, idem_key FROM idempotency WHERE created_at < $1 ORDER BY created_at LIMIT $2)";
    }
}
