//! Tokens: who may speak for a team. Only a hash of the secret is kept.
//!
//! A token that is revoked or expired, or whose node was removed, is found by [`by_hash`] like any other: it says so, and
//! the use case answers the same as for an unknown one.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Tx};
use crate::params;

/// What a bearer's hash leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    pub id: Uuid,
    pub team: Uuid,
    pub team_name: String,
    /// A word of `app::tokens`; so in the others.
    pub role: String,
    /// Id and name, with role `node`.
    pub node: Option<(Uuid, String)>,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

/// A token's row, without the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub id: Uuid,
    pub role: String,
    pub label: Option<String>,
    pub node: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

/// A token to be made.
#[derive(Debug, Clone)]
pub struct NewToken<'a> {
    pub id: Uuid,
    /// BLAKE3 of the whole token. A fast hash is enough for 256 random bits.
    pub hash: [u8; 32],
    pub team: Uuid,
    pub role: &'a str,
    pub node: Option<Uuid>,
    pub label: Option<&'a str>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

pub async fn insert(tx: &mut Tx, token: &NewToken<'_>) -> Result<(), Error> {
    let values = params![
        token.id,
        token.hash,
        token.team,
        token.role,
        token.node,
        token.label,
        token.created_at,
        token.expires_at
    ];
    tx.execute(q::INSERT, values).await.map(drop)
}

pub async fn by_hash(tx: &mut Tx, hash: [u8; 32]) -> Result<Option<Bearer>, Error> {
    tx.optional(q::BY_HASH, params![hash]).await?.map(bearer).transpose()
}

fn bearer(row: Row) -> Result<Bearer, Error> {
    let node = row.get::<Option<Uuid>>(4)?.zip(row.get::<Option<String>>(5)?);
    Ok(Bearer {
        id: row.get(0)?,
        team: row.get(1)?,
        team_name: row.get(2)?,
        role: row.get(3)?,
        node,
        expires_at: row.get(6)?,
        revoked_at: row.get(7)?,
    })
}

/// Tokens of a team in the order they were made, those after `after`; revoked and expired ones too.
pub async fn page(tx: &mut Tx, team: Uuid, after: Option<Uuid>, limit: u32) -> Result<Vec<Token>, Error> {
    let after = after.map_or(String::new(), |id| id.to_string());
    tx.all(q::PAGE, params![team, after, limit]).await?.into_iter().map(token).collect()
}

fn token(row: Row) -> Result<Token, Error> {
    Ok(Token {
        id: row.get(0)?,
        role: row.get(1)?,
        label: row.get(2)?,
        node: row.get(3)?,
        created_at: row.get(4)?,
        expires_at: row.get(5)?,
        revoked_at: row.get(6)?,
    })
}

/// Revokes one; `false` when the team has no such token. Once revoked, the time of the first revocation stays.
pub async fn revoke(tx: &mut Tx, team: Uuid, id: Uuid, at: Timestamp) -> Result<bool, Error> {
    Ok(tx.execute(q::REVOKE, params![team, id, at]).await? > 0)
}

/// Revokes whatever speaks for a node; for its removal.
pub async fn revoke_of_node(tx: &mut Tx, node: Uuid, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::REVOKE_OF_NODE, params![node, at]).await.map(drop)
}

pub(super) mod q {
    crate::statements! {
        INSERT = "INSERT INTO tokens (id, hash, team, role, node, label, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        BY_HASH = "SELECT t.id, t.team, m.name, t.role, n.id, n.name, t.expires_at, t.revoked_at
        FROM tokens t JOIN teams m ON m.id = t.team LEFT JOIN nodes n ON n.id = t.node WHERE t.hash = $1";
        PAGE = "SELECT t.id, t.role, t.label, n.name, t.created_at, t.expires_at, t.revoked_at
        FROM tokens t LEFT JOIN nodes n ON n.id = t.node WHERE t.team = $1 AND t.id > $2 ORDER BY t.id LIMIT $3";
        REVOKE = "UPDATE tokens SET revoked_at = COALESCE(revoked_at, $3) WHERE team = $1 AND id = $2";
        REVOKE_OF_NODE = "UPDATE tokens SET revoked_at = COALESCE(revoked_at, $2) WHERE node = $1";
    }
}
