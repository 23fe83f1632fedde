//! Nodes of a team. A removed node keeps its row, since leases and receipts name it; its name may be used again.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Tx};
use crate::params;

/// A node that has not been removed; a removed one is seen through leases and receipts only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub id: Uuid,
    pub name: String,
    pub zone: Option<String>,
    /// When its agent was last heard, by the service's clock; `None` before the first time.
    pub seen_at: Option<Timestamp>,
    /// The running agent's random id. Whoever says another one is fenced (`app::agents`).
    pub instance: Option<String>,
    /// `api::nodes::Inventory` as JSON.
    pub inventory: Option<String>,
}

/// A node to be made.
#[derive(Debug, Clone)]
pub struct NewNode<'a> {
    pub id: Uuid,
    pub team: Uuid,
    pub name: &'a str,
    pub zone: Option<&'a str>,
}

/// [`Error::Taken`] when a live node of the team has the name.
pub async fn insert(tx: &mut Tx, node: &NewNode<'_>, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::INSERT, params![node.id, node.team, node.name, node.zone, at]).await.map(drop)
}

/// The live node of that name in the team.
pub async fn by_name(tx: &mut Tx, team: Uuid, name: &str) -> Result<Option<Node>, Error> {
    tx.optional(q::BY_NAME, params![team, name]).await?.map(node).transpose()
}

/// A live node, its row locked until the transaction ends: who speaks for it is decided under this lock.
pub async fn lock(tx: &mut Tx, team: Uuid, id: Uuid) -> Result<Option<Node>, Error> {
    tx.optional(q::LOCK, params![team, id]).await?.map(node).transpose()
}

/// Live nodes by name, those after `after`.
pub async fn page(tx: &mut Tx, team: Uuid, after: &str, limit: u32) -> Result<Vec<Node>, Error> {
    tx.all(q::PAGE, params![team, after, limit]).await?.into_iter().map(node).collect()
}

/// Its agent was heard, as this `instance`, which takes the place of any other: the caller has judged that it may, under
/// [`lock`]. `inventory` stays as it is when none is given.
pub async fn seen(tx: &mut Tx, id: Uuid, instance: &str, inventory: Option<&str>, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::SEEN, params![id, instance, inventory, at]).await.map(drop)
}

/// Its tokens and its key are the caller's to end in the same transaction; the name is free when it commits.
pub async fn remove(tx: &mut Tx, id: Uuid, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::REMOVE, params![id, at]).await.map(drop)
}

fn node(row: Row) -> Result<Node, Error> {
    Ok(Node {
        id: row.get(0)?,
        name: row.get(1)?,
        zone: row.get(2)?,
        seen_at: row.get(3)?,
        instance: row.get(4)?,
        inventory: row.get(5)?,
    })
}

pub(super) mod q {
    crate::statements! {
        INSERT = "INSERT INTO nodes (id, team, name, zone, created_at) VALUES ($1, $2, $3, $4, $5)";
        BY_NAME = "SELECT id, name, zone, seen_at, instance, inventory FROM nodes
            WHERE team = $1 AND name = $2 AND removed_at IS NULL";
        LOCK = lock "SELECT id, name, zone, seen_at, instance, inventory FROM nodes
            WHERE team = $1 AND id = $2 AND removed_at IS NULL";
        PAGE = "SELECT id, name, zone, seen_at, instance, inventory FROM nodes
            WHERE team = $1 AND name > $2 AND removed_at IS NULL ORDER BY name LIMIT $3";
        SEEN = "UPDATE nodes SET instance = $2, inventory = COALESCE($3, inventory), seen_at = $4 WHERE id = $1";
        REMOVE = "UPDATE nodes SET removed_at = $2 WHERE id = $1 AND removed_at IS NULL";
    }
}
