//! Grants: time-limited URLs for the bytes of packs, by which a reader needs no token and the service no bandwidth.
//!
//! A grant names a layout generation and only packs that it refers to; giving one notes on the layout how long somebody may
//! read by it. Where the store cannot sign, the URL is the service's own, signed by its key: it says team, pack and end, and
//! nothing else opens it. A grant cannot be taken back: what it opens ends with its time, or when the pack is taken out of
//! service in the case of our own URLs.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::known::pack_document;
use super::stored::{parse_key, quarantined};
use super::{App, Caller};
use crate::api::datasets::{Grant, GrantRequest, Grants};
use crate::content::pack::PackId;
use crate::db::packs::{self, Pack};
use crate::db::versions;
use crate::transaction;

/// Read the version again and go on by its present layout: what was read so far is good.
pub const LAYOUT_GONE: Code = Code::new(Kind::Conflict, "layout_gone", "the layout was replaced");
/// Of a grant's URL: ask for a new grant. Not told apart from a forged one.
pub const LINK_DEAD: Code = Code::new(Kind::Denied, "link_dead", "the URL is not valid");

/// Packs in one request.
pub const MAX_GRANTED: usize = 256;
/// A layout's mark is moved this far beyond what is needed, so that not every request writes.
const SLACK: Duration = Duration::from_secs(15 * 60);

impl App {
    /// URLs for packs of a version that the caller may read, in the order asked for. Packs that are said to be missing are
    /// looked at first, so that what the store has lost is known here too, although readers ask the store itself. All or
    /// nothing: one pack that is damaged ([`super::stored::PACK_QUARANTINED`]) or not the layout's refuses the whole
    /// request. [`LAYOUT_GONE`] when the version has another layout by now.
    pub async fn grant(&self, caller: &Caller, request: &GrantRequest) -> Result<Grants, Error> {
        if request.packs.len() > MAX_GRANTED {
            let what = format!("names {} packs", request.packs.len());
            return Err(Error::invalid("packs", what, format!("ask for {MAX_GRANTED} at most, then again")));
        }
        let (version, layout) = (id("version", &request.version)?, id("layout", &request.layout)?);
        let ids = request.packs.iter().map(|pack| pack_id(pack)).collect::<Result<Vec<_>, _>>()?;
        let missing = request.missing.iter().map(|pack| pack_id(pack)).collect::<Result<Vec<_>, _>>()?;
        let now = self.clock.now();
        let ttl = self.settings.limits.grant_ttl.0;
        let until = now.saturating_add(ttl).unwrap_or(Timestamp::MAX);
        let found = self.granted_packs(caller, (version, layout), &ids, until).await?;
        let mut grants = Vec::with_capacity(ids.len());
        for id in &ids {
            let Some((pack, sealed)) = found.get(id) else {
                return Err(Error::not_found("pack", id, "ask for packs that the version's layout lists"));
            };
            if !sealed {
                return Err(quarantined(&[id.to_string()]));
            }
            if missing.contains(id) {
                self.find_pack(pack).await?;
            }
            let (url, expires_at) = self.pack_url(caller.team, pack, ttl, until).await?;
            grants.push(Grant { pack: pack_document(pack), url, expires_at: expires_at.to_string() });
        }
        Ok(Grants { grants })
    }

    /// The packs by id, each with whether it is sealed, once the layout's mark is beyond `until`. The layout is looked at
    /// again in the transaction that moves the mark, since it may have been replaced in between.
    async fn granted_packs(
        &self,
        caller: &Caller,
        (version, layout): (Uuid, Uuid),
        ids: &[PackId],
        until: Timestamp,
    ) -> Result<HashMap<PackId, (Pack, bool)>, Error> {
        let mut session = self.db.read().await?;
        let version = self.version(&mut session, caller, version).await?;
        let gone = || {
            let detail = format!("layout `{layout}` of `{}` is not there any more", version.reference());
            Error::new(LAYOUT_GONE, detail, "read the version again and go on by its present layout")
        };
        let found = versions::get_layout(&mut session, version.id, layout).await?.ok_or_else(gone)?;
        let mut packs = HashMap::with_capacity(ids.len());
        for batch in ids.chunks(packs::BATCH) {
            let referred = versions::referred(&mut session, layout, batch).await?;
            packs.extend(referred.into_iter().map(|(pack, sealed)| (pack.id, (pack, sealed))));
        }
        drop(session);
        if found.read_until < until {
            let mark = until.saturating_add(SLACK).unwrap_or(until);
            let kept = transaction!(self.db, |tx| {
                versions::read_until(tx, layout, mark).await?;
                Ok::<_, Error>(versions::get_layout(tx, version.id, layout).await?.is_some())
            })?;
            if !kept {
                return Err(gone());
            }
        }
        Ok(packs)
    }

    /// A URL for one pack and when it ends. Ours ends on a whole second, as the URL carries it.
    async fn pack_url(
        &self,
        team: Uuid,
        pack: &Pack,
        ttl: Duration,
        until: Timestamp,
    ) -> Result<(String, Timestamp), Error> {
        if let Some(signed) = self.store.sign_get(&parse_key(&pack.key)?, ttl, None).await? {
            return Ok((signed.url.to_string(), signed.expires_at));
        }
        let end = Timestamp::from_second(until.as_second()).unwrap_or(until);
        let (team, exp, id) = (team.to_string(), end.as_second().to_string(), pack.id.to_string());
        let signature = self.keys.sign_url(&["pack", &team, &id, &exp]);
        Ok((format!("/v1/packs/{id}?team={team}&exp={exp}&sig={signature}"), end))
    }

    /// The pack behind a URL of ours, if its signature is right and its time is not over. One answer for everything else, so
    /// that it cannot be used to ask which packs there are.
    pub async fn signed_pack(&self, pack: &str, team: &str, exp: i64, signature: &str) -> Result<Pack, Error> {
        let dead = || Error::new(LINK_DEAD, "its signature is wrong or its time is over", "ask for a new grant");
        let (Ok(id), Ok(team)) = (pack.parse::<PackId>(), Uuid::parse_str(team)) else { return Err(dead()) };
        let right = self.keys.verify_url(&["pack", &team.to_string(), &id.to_string(), &exp.to_string()], signature);
        if !right || exp <= self.clock.now().as_second() {
            return Err(dead());
        }
        let found = packs::sealed(&mut self.db.read().await?, team, &id).await?;
        found.ok_or_else(|| quarantined(&[id.to_string()]))
    }

    /// Header and index of a sealed pack of the caller's team, proven against its id. A node sees those that its own uploads
    /// have pinned or may build on; others do not exist for it.
    pub async fn sealed_index(&self, caller: &Caller, pack: &str) -> Result<Vec<u8>, Error> {
        let id = pack_id(pack)?;
        let mut session = self.db.read().await?;
        let missing = || Error::not_found("pack", id, "it was never sealed, or was damaged and taken out of service");
        let pack = packs::sealed(&mut session, caller.team, &id).await?.ok_or_else(missing)?;
        if let Some(node) = &caller.node
            && !packs::is_open_to_node(&mut session, pack.number, node.id).await?
        {
            return Err(missing());
        }
        drop(session);
        Ok(self.pack_index(&pack).await?.encode())
    }
}

fn id(field: &'static str, text: &str) -> Result<Uuid, Error> {
    Uuid::parse_str(text).map_err(|error| Error::invalid(field, error, "give the id as it was answered"))
}

fn pack_id(hex: &str) -> Result<PackId, Error> {
    hex.parse().map_err(|error| Error::invalid("pack", error, "pack ids are 64 lower-case hex digits"))
}
