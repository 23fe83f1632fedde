//! Facts about this service as a whole, and the replicas that serve it.
//!
//! Who lives is a hint by clocks: for people, and to notice a set-up that cannot work, never to decide who may act.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Tx};
use crate::params;

/// Sets a fact unless it is set; answers what holds, which for whoever came second is another's value.
pub async fn ensure(tx: &mut Tx, name: &str, value: &str) -> Result<String, Error> {
    tx.execute(q::ENSURE, params![name, value]).await?;
    tx.one(q::GET, params![name]).await?.get(0)
}

/// A replica is alive. `origin` and `version` are for people.
pub async fn replica_seen(tx: &mut Tx, id: Uuid, origin: &str, version: &str, at: Timestamp) -> Result<(), Error> {
    tx.execute(q::REPLICA_SEEN, params![id, origin, version, at]).await.map(drop)
}

/// A replica has ended, or those not heard since `before` are forgotten; both in one statement, and neither is an error when
/// there is none.
pub async fn replica_gone(tx: &mut Tx, id: Option<Uuid>, before: Timestamp) -> Result<(), Error> {
    tx.execute(q::REPLICA_GONE, params![id, before]).await.map(drop)
}

/// Origins of replicas other than `id` heard since `since`; 100 at most.
pub async fn other_replicas(tx: &mut Tx, id: Uuid, since: Timestamp) -> Result<Vec<String>, Error> {
    tx.all(q::OTHER_REPLICAS, params![id, since]).await?.iter().map(|row| row.get(0)).collect()
}

pub(super) mod q {
    crate::statements! {
        ENSURE = "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
        GET = "SELECT value FROM meta WHERE name = $1";
        REPLICA_SEEN = "INSERT INTO replicas (id, origin, version, started_at, seen_at) VALUES ($1, $2, $3, $4, $4)
            ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at";
        REPLICA_GONE = "DELETE FROM replicas WHERE id = $1 OR seen_at < $2";
        OTHER_REPLICAS = "SELECT origin FROM replicas WHERE id <> $1 AND seen_at >= $2 ORDER BY id LIMIT 100";
    }
}
