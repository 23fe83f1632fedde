//! Reading packs by grants: who pulls, verifies or stages asks here for bytes and never sees a URL.
//!
//! Grants are asked for in batches along the layout's list, so that a pull costs few requests, and again when one has run out or is
//! refused. A signed URL never gets the bearer token. What comes back is proven by who decodes it.

use super::api::Api;
use super::context::TransferError;
use super::transfer::{Pace, Target};
use super::{Error, index};
use crate::api::datasets::{Grant, GrantRequest, Grants, Version};
use crate::clock::Clock;
use crate::content::pack::{PackId, PackIndex};
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Packs in one request for grants.
const BATCH: usize = 64;
/// Grants held. Past it all are let go, since they are cheap to ask for again and reads go forward through the list.
const MAX_HELD: usize = 1024;
/// A grant with less time left is not used any more.
const SPARE: Duration = Duration::from_secs(30);

/// Reads the packs of one version's layout. Shared by all reads of a transfer.
#[derive(Debug)]
pub struct Packs {
    api: Api,
    clock: Arc<dyn Clock>,
    version: String,
    layout: String,
    /// The layout's list.
    list: Arc<[PackId]>,
    held: Mutex<HashMap<u32, Held>>,
    /// One request for grants at a time, so that readers of neighbours share it.
    asking: tokio::sync::Mutex<()>,
    /// Bytes received.
    pub received: Arc<AtomicU64>,
    pace: Option<Arc<dyn Pace>>,
}

#[derive(Debug, Clone)]
struct Held {
    grant: Arc<Grant>,
    until: jiff::Timestamp,
}

/// A grant that was refused.
#[derive(Debug, Clone, Copy)]
struct Dead<'a> {
    grant: &'a Arc<Grant>,
    /// The store says that there is no such object.
    is_missing: bool,
}

impl Packs {
    pub fn new(api: Api, clock: Arc<dyn Clock>, version: &Version, list: Arc<[PackId]>) -> Self {
        Self {
            api,
            clock,
            version: version.id.clone(),
            layout: version.layout.id.clone(),
            list,
            held: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            received: Arc::default(),
            pace: None,
        }
    }

    /// Counts into `received`, and holds reads back to `pace`.
    #[must_use]
    pub fn counted(mut self, received: Arc<AtomicU64>, pace: Option<Arc<dyn Pace>>) -> Self {
        (self.received, self.pace) = (received, pace);
        self
    }

    /// The id of a pack by its place in the list.
    pub fn id(&self, pack: u32) -> Option<PackId> {
        self.list.get(pack as usize).copied()
    }

    /// The index of a pack, proven against its id.
    pub async fn index(&self, pack: u32) -> Result<PackIndex, TransferError> {
        let id = self.id(pack).ok_or(TransferError::Broken { what: "a pack number beyond the list" })?;
        let grant = self.grant(pack, None).await?;
        let bytes = self.bytes(pack, grant, |grant| 0..grant.pack.index_bytes).await?;
        let whole = bytes.concat();
        index::decode(id, &whole)
    }

    /// A byte range of a pack, in pieces as they came.
    pub async fn read(&self, pack: u32, range: Range<u64>) -> Result<Vec<Bytes>, TransferError> {
        let grant = self.grant(pack, None).await?;
        self.bytes(pack, grant, |_| range.clone()).await
    }

    /// Reads by a grant, and once more by a new one where it is refused.
    async fn bytes(
        &self,
        pack: u32,
        grant: Arc<Grant>,
        range: impl Fn(&Grant) -> Range<u64>,
    ) -> Result<Vec<Bytes>, TransferError> {
        match self.once(&grant, range(&grant)).await {
            Err(error) if is_dead_grant(&error) => {
                tracing::info!(%error, "a grant is not honoured any more; asking for a new one");
                let is_missing = matches!(error, Error::UrlRefused { status: 404, .. });
                let grant = self.grant(pack, Some(Dead { grant: &grant, is_missing })).await?;
                Ok(self.once(&grant, range(&grant)).await?)
            }
            other => Ok(other?),
        }
    }

    async fn once(&self, grant: &Grant, range: Range<u64>) -> Result<Vec<Bytes>, Error> {
        let mut download = self.api.get_stream(Target::Signed(&grant.url), Some(range)).await?;
        let mut parts = Vec::new();
        while let Some(part) = download.next().await? {
            self.received.fetch_add(part.len() as u64, Ordering::Relaxed);
            if let Some(pace) = &self.pace {
                pace.grant(part.len()).await;
            }
            parts.push(part);
        }
        Ok(parts)
    }

    /// A grant that is good for a while, other than `dead`.
    async fn grant(&self, pack: u32, dead: Option<Dead<'_>>) -> Result<Arc<Grant>, TransferError> {
        if let Some(grant) = self.held(pack, dead) {
            return Ok(grant);
        }
        let _turn = self.asking.lock().await;
        if let Some(grant) = self.held(pack, dead) {
            return Ok(grant);
        }
        let first = pack as usize;
        let wanted = &self.list[first..self.list.len().min(first + BATCH)];
        let request = GrantRequest {
            version: self.version.clone(),
            layout: self.layout.clone(),
            packs: wanted.iter().map(PackId::to_string).collect(),
            missing: dead.iter().filter(|dead| dead.is_missing).map(|_| wanted[0].to_string()).collect(),
        };
        let grants = match self.api.post::<_, Grants>("/v1/grants", &request).await {
            Ok(grants) => grants,
            // One bad pack among them refuses all: ask for the wanted one alone.
            Err(Error::Refused(_)) if wanted.len() > 1 => {
                let request = GrantRequest { packs: vec![wanted[0].to_string()], ..request };
                self.api.post("/v1/grants", &request).await?
            }
            Err(error) => return Err(error.into()),
        };
        self.hold(pack, grants);
        self.held(pack, dead).ok_or_else(|| TransferError::BadPack {
            pack: self.list[first],
            why: "the service gave no usable grant for it".to_owned(),
        })
    }

    fn held(&self, pack: u32, dead: Option<Dead<'_>>) -> Option<Arc<Grant>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let found = held.get(&pack)?;
        if dead.is_some_and(|dead| Arc::ptr_eq(dead.grant, &found.grant)) {
            return None;
        }
        let now = self.clock.now();
        let fresh = now.saturating_add(SPARE).is_ok_and(|soon| soon < found.until);
        fresh.then(|| Arc::clone(&found.grant))
    }

    fn hold(&self, first: u32, grants: Grants) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        if held.len() > MAX_HELD {
            held.clear();
        }
        for grant in grants.grants {
            let at = self.list[first as usize..].iter().take(BATCH).position(|id| id.to_string() == grant.pack.id);
            let Some(pack) = at.and_then(|at| u32::try_from(at).ok()).map(|at| first + at) else { continue };
            // An end that cannot be read, or lies in the past (this clock may be wrong), counts as a minute away: a dead URL
            // is refused and asked for again anyway.
            let least = now.saturating_add(SPARE * 3).unwrap_or(jiff::Timestamp::MAX);
            let until = grant.expires_at.parse().map_or(least, |until: jiff::Timestamp| until.max(least));
            held.insert(pack, Held { grant: Arc::new(grant), until });
        }
    }
}

fn is_dead_grant(error: &Error) -> bool {
    match error {
        Error::UrlRefused { .. } => true,
        Error::Refused(problem) => matches!(problem.status, 401 | 403 | 410),
        _ => false,
    }
}
