//! Small periodic work of the base: forget old answers, show that this replica lives, abort uploads that a crash left in the store.
//!
//! Every act takes no input, may run twice at once, and leaves what it did not finish to its next run.

use std::time::Duration;

use uuid::Uuid;

use super::App;
use super::error::{Error, Kind, UNAVAILABLE};
use crate::db::{idempotency, meta};
use crate::store;
use crate::transaction;

/// An open upload of the store that is so old is nobody's any more: no object takes a week to be written.
const ORPHANED: Duration = Duration::from_secs(7 * 24 * 3_600);

/// What becomes of a sweep when one thing of it could not be done: it is passed over and logged for a person, so that it does
/// not keep the others from being done. Only what every other would meet too, a database or store that does not answer,
/// ends the sweep.
pub(super) fn pass_over(what: &str, id: Uuid, done: Result<(), Error>) -> Result<(), Error> {
    let Err(error) = done else { return Ok(()) };
    let source = error.source.as_ref().and_then(|source| source.downcast_ref::<store::Error>());
    let is_its_own = matches!(source, Some(store::Error::Denied { .. })); // an object may be locked by itself
    if error.kind() == Kind::Unavailable && !is_its_own {
        return Err(error);
    }
    tracing::error!(what, %id, %error, source = error.source.as_ref().map(ToString::to_string), "passed over by a sweep");
    Ok(())
}

impl App {
    /// Fails while the service drains or its database does not answer. The store is not asked: without it much can be
    /// answered still.
    pub async fn healthy(&self) -> Result<(), Error> {
        if self.db.wakeups().is_closed() {
            return Err(Error::new(UNAVAILABLE, "this replica is about to stop", "send requests to another one"));
        }
        Ok(self.db.ping().await?)
    }

    /// Forgets answers whose Idempotency-Key is over, in small transactions until none is left; answers how many. A call
    /// repeated after that creates again.
    pub async fn forget_answers(&self) -> Result<u64, Error> {
        const BATCH: u32 = 500;
        let before = self.earlier(self.settings.limits.idempotency_ttl.0);
        let mut total = 0;
        loop {
            let count = transaction!(self.db, |tx| Ok::<_, Error>(idempotency::forget(tx, before, BATCH).await?))?;
            total += count;
            if count < u64::from(BATCH) {
                return Ok(total);
            }
        }
    }

    /// Says that replica `id` lives, and forgets those that were silent for an hour. By this replica's clock.
    pub async fn replica_lives(&self, id: Uuid) -> Result<(), Error> {
        let now = self.clock.now();
        let before = self.earlier(Duration::from_secs(3_600));
        transaction!(self.db, |tx| {
            meta::replica_seen(tx, id, &self.origin, env!("CARGO_PKG_VERSION"), now).await?;
            meta::replica_gone(tx, None, before).await?;
            Ok::<_, Error>(())
        })
    }

    /// Says that replica `id` has ended in good order.
    pub async fn replica_ends(&self, id: Uuid) -> Result<(), Error> {
        let before = self.earlier(Duration::from_secs(3_600));
        transaction!(self.db, |tx| Ok::<_, Error>(meta::replica_gone(tx, Some(id), before).await?))
    }

    /// Origins of other replicas heard in the last minute.
    pub async fn other_replicas(&self, id: Uuid) -> Result<Vec<String>, Error> {
        let since = self.earlier(Duration::from_secs(60));
        Ok(meta::other_replicas(&mut self.db.read().await?, id, since).await?)
    }

    /// Aborts what was begun in the store a week ago and never ended, which a crash leaves and nobody else frees; answers how
    /// many. Any number of replicas may: one that is gone is fine. What cannot be aborted is tried again by the next run, and
    /// hinders no other.
    pub async fn abort_orphans(&self) -> Result<usize, Error> {
        let (mut aborted, mut failed) = (0, None);
        for orphan in self.store.orphan_uploads(ORPHANED).await? {
            match self.store.abort_upload(&orphan).await {
                Ok(()) => aborted += 1,
                // the store is away, and would be for the others too
                Err(error) if error.is_retryable() => return Err(error.into()),
                Err(error) => failed = Some(error),
            }
        }
        if aborted > 0 {
            tracing::info!(aborted, "uploads left open in the store were aborted");
        }
        failed.map_or(Ok(aborted), |error| Err(error.into()))
    }

    fn earlier(&self, by: Duration) -> jiff::Timestamp {
        self.clock.now().saturating_sub(by).unwrap_or(jiff::Timestamp::MIN)
    }
}
