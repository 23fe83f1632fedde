//! Links for people without an account. A link's row outlives its end, so that its holder is told what happened to it.
//!
//! The row of a direct link is written before its export object, so that a crash between the two leaves a key that is known,
//! and names the key until the object was deleted. Whoever writes the object says its name again when it is there
//! ([`name_export`]): the link may have ended meanwhile.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Tx};
use crate::params;

/// Written once; later only `revoked_at` is set and `export` cleared.
#[derive(Debug, Clone)]
pub struct Link {
    pub id: Uuid,
    pub team: Uuid,
    pub version: Uuid,
    /// File or subtree; empty for the whole version.
    pub path: Vec<u8>,
    /// `zip` or `tar`; `None` for one file.
    pub archive: Option<String>,
    /// What the download is called.
    pub name: String,
    /// `service` or `direct`.
    pub kind: String,
    /// Length of what is downloaded: of the file, or of the archive as measured when the link was made.
    pub bytes: u64,
    /// With `direct`: the object's key. `None` again once the object was deleted.
    pub export: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

pub async fn insert(tx: &mut Tx, link: &Link) -> Result<(), Error> {
    let (path, archive) = (link.path.as_slice(), link.archive.as_deref());
    let values = params![
        link.id,
        link.team,
        link.version,
        path,
        archive,
        &link.name,
        &link.kind,
        link.bytes,
        link.export.as_deref(),
        link.created_at,
        link.expires_at
    ];
    tx.execute(q::INSERT, values).await.map(drop)
}

/// A link of any team: whoever holds its signed URL may ask.
pub async fn get(tx: &mut Tx, id: Uuid) -> Result<Option<Link>, Error> {
    tx.optional(q::GET, params![id]).await?.map(|row| link(&row)).transpose()
}

/// Revokes a team's link; `None` when there is none, else its export object if it has one that is still there. Said twice,
/// the first time stays. The caller deletes the object and then says [`export_gone`]; what it leaves undone is found by
/// [`ended_exports`].
pub async fn revoke(tx: &mut Tx, team: Uuid, id: Uuid, now: Timestamp) -> Result<Option<Option<String>>, Error> {
    tx.optional(q::REVOKE, params![team, id, now]).await?.map(|row| row.get(0)).transpose()
}

/// Links to this version that have neither ended nor been revoked, newest first, 100 at most.
pub async fn live_of_version(tx: &mut Tx, version: Uuid, now: Timestamp) -> Result<Vec<Link>, Error> {
    tx.all(q::LIVE, params![version, now]).await?.iter().map(link).collect()
}

/// Says that the object under `key` is the link's and may be there, also where [`export_gone`] was said of it. `false` when
/// the link has ended: then the object is to be deleted.
pub async fn name_export(tx: &mut Tx, id: Uuid, key: &str, now: Timestamp) -> Result<bool, Error> {
    let row = tx.one(q::NAME, params![id, key]).await?;
    let (until, revoked): (Timestamp, Option<Timestamp>) = (row.get(0)?, row.get(1)?);
    Ok(until > now && revoked.is_none())
}

/// Ends the direct links to a version that is deleted: their objects are copies of it. Links of ours need none of this, as
/// they are looked up at every use.
pub async fn end_direct(tx: &mut Tx, version: Uuid, now: Timestamp) -> Result<u64, Error> {
    tx.execute(q::END_DIRECT, params![version, now]).await
}

/// Export objects nobody may read any more: (link, key), by the links' ids, those after `after`. Found until [`export_gone`]
/// was said, so deleting one may be tried any number of times.
pub async fn ended_exports(tx: &mut Tx, now: Timestamp, after: Uuid, limit: u32) -> Result<Vec<(Uuid, String)>, Error> {
    let rows = tx.all(q::ENDED, params![now, after, limit]).await?;
    rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
}

/// The link's export object is gone from the store.
pub async fn export_gone(tx: &mut Tx, id: Uuid) -> Result<(), Error> {
    tx.execute(q::GONE, params![id]).await.map(drop)
}

fn link(row: &Row) -> Result<Link, Error> {
    Ok(Link {
        id: row.get(0)?,
        team: row.get(1)?,
        version: row.get(2)?,
        path: row.get(3)?,
        archive: row.get(4)?,
        name: row.get(5)?,
        kind: row.get(6)?,
        bytes: row.get(7)?,
        export: row.get(8)?,
        created_at: row.get(9)?,
        expires_at: row.get(10)?,
        revoked_at: row.get(11)?,
    })
}

pub(super) mod q {
    crate::statements! {
        INSERT = "INSERT INTO links (id, team, version, path, archive, name, kind, bytes, export, created_at, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        GET = "SELECT id, team, version, path, archive, name, kind, bytes, export, created_at, expires_at, revoked_at
        FROM links WHERE id = $1";
        REVOKE = "UPDATE links SET revoked_at = COALESCE(revoked_at, $3) WHERE team = $1 AND id = $2 RETURNING export";
        LIVE = "SELECT id, team, version, path, archive, name, kind, bytes, export, created_at, expires_at, revoked_at
        FROM links WHERE version = $1 AND expires_at > $2 AND revoked_at IS NULL ORDER BY id DESC LIMIT 100";
        NAME = "UPDATE links SET export = $2 WHERE id = $1 RETURNING expires_at, revoked_at";
        END_DIRECT = "UPDATE links SET revoked_at = $2 WHERE version = $1 AND kind = 'direct' AND revoked_at IS NULL";
        ENDED = "SELECT id, export FROM links WHERE export IS NOT NULL AND (expires_at <= $1 OR revoked_at IS NOT NULL) AND id > $2
        ORDER BY id LIMIT $3";
        GONE = "UPDATE links SET export = NULL WHERE id = $1";
    }
}
