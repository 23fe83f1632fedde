//! Keys: the service's own (sealed) and the nodes' public ones.
//!
//! A key is never deleted: what it signed must stay verifiable. Retiring sets `valid_until`; at most one key of a purpose,
//! and one of a node, has none (unique indexes), so two replicas that both make the first key end with one.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Tx};
use crate::params;

/// A key of the service, as it is kept: without the secret key file nothing of it can be used but the public half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceKey {
    pub key_id: String,
    /// `receipt`, `url` or `seal`; a newer release may have others.
    pub purpose: String,
    /// Opens with the secret key file only.
    pub sealed: Vec<u8>,
    /// For signing keys only.
    pub public_key: Option<[u8; 32]>,
    pub valid_from: Timestamp,
    /// When it was retired; `None` for the purpose's current one.
    pub valid_until: Option<Timestamp>,
}

/// What anybody may know of a signing key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    pub key_id: String,
    /// None for the service's.
    pub node: Option<Uuid>,
    pub public_key: [u8; 32],
    pub valid_from: Timestamp,
    pub valid_until: Option<Timestamp>,
}

/// Adds a key of the service unless its purpose has a current one; `false` when it has. Atomic by a unique index: of two
/// replicas that call it together one gets `true`.
pub async fn insert_service(tx: &mut Tx, key: &ServiceKey) -> Result<bool, Error> {
    let public = key.public_key.map(|key| key.to_vec());
    let values = params![&key.key_id, &key.purpose, key.sealed.as_slice(), public, key.valid_from];
    Ok(tx.execute(q::INSERT_SERVICE, values).await? > 0)
}

/// All keys of the service, retired ones too; within a purpose the current one last, the retired by the end of their
/// validity.
pub async fn all_service(tx: &mut Tx) -> Result<Vec<ServiceKey>, Error> {
    tx.all(q::ALL_SERVICE, vec![]).await?.into_iter().map(service).collect()
}

fn service(row: Row) -> Result<ServiceKey, Error> {
    Ok(ServiceKey {
        key_id: row.get(0)?,
        purpose: row.get(1)?,
        sealed: row.get(2)?,
        public_key: row.get(3)?,
        valid_from: row.get(4)?,
        valid_until: row.get(5)?,
    })
}

/// Retires the current key of a purpose; nothing happens when there is none. Follow it by [`insert_service`] in the same
/// transaction, or the purpose is left without a key.
pub async fn retire_service(tx: &mut Tx, purpose: &str, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::RETIRE_SERVICE, params![purpose, at]).await.map(drop)
}

/// Public signing keys by their ids, those after `after`. Ids are hashes, so the order says nothing about age, but it is the
/// same each time.
pub async fn public_page(tx: &mut Tx, after: &str, limit: u32) -> Result<Vec<PublicKey>, Error> {
    tx.all(q::PUBLIC_PAGE, params![after, limit]).await?.into_iter().map(public).collect()
}

fn public(row: Row) -> Result<PublicKey, Error> {
    Ok(PublicKey {
        key_id: row.get(0)?,
        node: row.get(1)?,
        public_key: row.get(2)?,
        valid_from: row.get(3)?,
        valid_until: row.get(4)?,
    })
}

/// The current key of a node.
pub async fn of_node(tx: &mut Tx, node: Uuid) -> Result<Option<PublicKey>, Error> {
    tx.optional(q::OF_NODE, params![node]).await?.map(public).transpose()
}

/// A node's public key to enrol.
#[derive(Debug, Clone)]
pub struct NodeKey<'a> {
    pub key_id: &'a str,
    pub team: Uuid,
    pub node: Uuid,
    pub public_key: [u8; 32],
}

/// Enrols the first key of a node; `false`, and nothing changed, when the node has a current key (ask [`of_node`] which).
/// [`Error::Taken`] when another node, or this one earlier, used the same key.
pub async fn enrol_node(tx: &mut Tx, key: &NodeKey<'_>, at: Timestamp) -> Result<bool, Error> {
    if of_node(tx, key.node).await?.is_some() {
        return Ok(false);
    }
    let values = params![key.key_id, key.team, key.node, key.public_key, at];
    tx.execute(q::ENROL_NODE, values).await.map(|_| true)
}

/// Retires the current key of a node that is removed.
pub async fn retire_node(tx: &mut Tx, node: Uuid, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::RETIRE_NODE, params![node, at]).await.map(drop)
}

pub(super) mod q {
    crate::statements! {
        INSERT_SERVICE = "INSERT INTO keys (key_id, purpose, sealed, public_key, valid_from) VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT DO NOTHING";
        ALL_SERVICE = "SELECT key_id, purpose, sealed, public_key, valid_from, valid_until FROM keys
            WHERE node IS NULL ORDER BY purpose, valid_until IS NULL, valid_until, key_id";
        RETIRE_SERVICE = "UPDATE keys SET valid_until = $2 WHERE purpose = $1 AND node IS NULL AND valid_until IS NULL";
        PUBLIC_PAGE = "SELECT key_id, node, public_key, valid_from, valid_until FROM keys
            WHERE public_key IS NOT NULL AND key_id > $1 ORDER BY key_id LIMIT $2";
        OF_NODE = "SELECT key_id, node, public_key, valid_from, valid_until FROM keys
            WHERE node = $1 AND valid_until IS NULL";
        ENROL_NODE = "INSERT INTO keys (key_id, purpose, team, node, public_key, valid_from)
            VALUES ($1, 'node', $2, $3, $4, $5)";
        RETIRE_NODE = "UPDATE keys SET valid_until = $2 WHERE node = $1 AND valid_until IS NULL";
    }
}
