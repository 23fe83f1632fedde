//! Carries wake-ups between replicas: what one commits, the others hear.
//!
//! A lost connection is made again; what may have been missed meanwhile wakes everybody. Waiters poll behind it (see
//! `wakeups`), so nothing depends on this file for being right, only for being fast.

use std::time::Duration;

use sqlx::postgres::PgListener;

use super::{Db, Engine};

impl Db {
    /// Runs for ever; end it by dropping it. One per process, owned by the service. Does nothing on SQLite, which serves one
    /// process. A line that fails is tried again after a pause that doubles up to 10 s; a line that merely ended, after 0.1
    /// s.
    pub async fn carry_wakeups(&self) {
        let Engine::Pg(pool) = &self.engine else { return std::future::pending().await };
        let mut pause = Duration::from_millis(100);
        loop {
            let heard = async {
                let mut listener = PgListener::connect_with(pool).await?;
                listener.listen("dray").await?;
                self.wakeups.wake_all();
                while let Some(notification) = listener.try_recv().await? {
                    self.wakeups.wake(notification.payload());
                }
                Ok::<_, sqlx::Error>(())
            };
            if let Err(error) = heard.await {
                tracing::warn!(%error, "wake-ups of other replicas are not heard; polling meanwhile");
                pause = (pause * 2).min(Duration::from_secs(10));
            } else {
                pause = Duration::from_millis(100);
            }
            self.wakeups.wake_all();
            tokio::time::sleep(pause).await;
        }
    }
}
