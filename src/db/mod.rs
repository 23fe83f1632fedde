//! The database: SQLite inside the process, or Postgres; the same statements, the same behaviour.
//!
//! One file per aggregate, each with all its SQL in a `mod q`. Functions of an aggregate take `&mut Tx`, so that a use case
//! joins several in one transaction. What is acknowledged is durable (`synchronous=FULL`; Postgres as configured). This room
//! decides nothing about the business and knows no HTTP.
//!
//! ```text
//! let made = transaction!(db, |tx| {               run again, whole, when another transaction was in the way
//!     teams::insert(tx, &team).await?;
//!     tx.notify("teams");
//!     Ok::<_, app::Error>(team)
//! })?;
//! let mut session = db.read().await?;               reads, each statement for itself
//! let mut session = db.snapshot().await?;           reads that see one moment
//! ```
//!
//! Transactions that hold several locks take them in this order where they can: a call's Idempotency-Key; the job; an
//! upload; its team; its dataset; packs by number; last the team's count of events. Where two do wait for each other, the
//! engine ends one of them, and [`transaction!`](crate::transaction) runs it again.

mod carrier;
mod error;
pub mod idempotency;
pub mod jobs;
pub mod keys;
pub mod leases;
pub mod links;
pub mod meta;
mod migrate;
pub mod nodes;
mod open;
pub mod operations;
pub mod outbox;
pub mod outputs;
pub mod packs;
pub mod stagings;
mod statements;
pub mod teams;
pub mod tokens;
mod tx;
pub mod uploads;
mod value;
pub mod versions;
mod wakeups;

use futures::future::BoxFuture;
use std::time::Duration;

use sqlx::{PgPool, SqlitePool};

pub use error::Error;
pub use open::Options;
pub use tx::Tx;
pub use value::{Column, Row, Sql, Value, list, placeholders};
pub use wakeups::{Listener, Wakeups, Woken};

/// An open database. Clones share the pools.
#[derive(Debug, Clone)]
pub struct Db {
    engine: Engine,
    wakeups: Wakeups,
}

/// Postgres is shared by replicas, so every check that a later write relies on holds a row's lock or stands in that write's
/// `WHERE`. The same statements run on SQLite, where one writer makes both needless.
#[derive(Debug, Clone)]
enum Engine {
    /// One writer: SQLite has one write lock, and waiting for it in order is better than fighting for it.
    Sqlite {
        writer: SqlitePool,
        readers: SqlitePool,
    },
    Pg(PgPool),
}

impl Db {
    /// Begins a transaction that may write; dropped without a commit it is rolled back. On SQLite it takes the one write
    /// lock now (`BEGIN IMMEDIATE`), not at the first write, where it could only fail; on Postgres it is READ COMMITTED (the
    /// server's default), so a check needs a lock to hold until the commit. Prefer [`transaction!`](crate::transaction),
    /// which runs again when it must.
    pub fn begin(&self) -> BoxFuture<'_, Result<Tx, Error>> {
        Box::pin(async move {
            let session = match &self.engine {
                Engine::Sqlite { writer, .. } => tx::Session::Sqlite(writer.begin_with("BEGIN IMMEDIATE").await?),
                Engine::Pg(pool) => tx::Session::Pg(pool.begin().await?),
            };
            Ok(self.session(session))
        })
    }

    /// A session for reads; each statement sees the newest state, and two of them may see different ones. It holds a
    /// connection: drop it before waiting for anything else.
    pub fn read(&self) -> BoxFuture<'_, Result<Tx, Error>> {
        Box::pin(async move {
            let session = match &self.engine {
                Engine::Sqlite { readers, .. } => tx::Session::SqliteRead(readers.acquire().await?),
                Engine::Pg(pool) => tx::Session::PgRead(pool.acquire().await?),
            };
            Ok(self.session(session))
        })
    }

    /// A transaction for reads; all statements see the same moment. For answers put together of several rows. As brief as
    /// any other: on SQLite a long one keeps the write-ahead log from being folded back.
    pub fn snapshot(&self) -> BoxFuture<'_, Result<Tx, Error>> {
        Box::pin(async move {
            let session = match &self.engine {
                Engine::Sqlite { readers, .. } => tx::Session::Sqlite(readers.begin().await?),
                Engine::Pg(pool) => {
                    tx::Session::Pg(pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?)
                }
            };
            Ok(self.session(session))
        })
    }

    /// Where waiters listen; transactions say [`Tx::notify`].
    pub fn wakeups(&self) -> &Wakeups {
        &self.wakeups
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), Error> {
        self.read().await?.one("SELECT 1", vec![]).await.map(drop)
    }

    /// SQLite serves one process only; Postgres any number.
    pub fn is_shared(&self) -> bool {
        matches!(self.engine, Engine::Pg(_))
    }

    /// Waits for connections in use and closes all; later calls are [`Error::Unavailable`]. Streams and waiters should have
    /// been ended before, by [`Wakeups::close`].
    pub async fn close(&self) {
        match &self.engine {
            Engine::Sqlite { writer, readers } => {
                readers.close().await;
                writer.close().await;
            }
            Engine::Pg(pool) => pool.close().await,
        }
    }

    fn session(&self, session: tx::Session) -> Tx {
        Tx { session, wakeups: self.wakeups.clone(), topics: Vec::new() }
    }
}

/// Errors that may come out of a transaction's body and can tell contention from refusal. An implementor must see through
/// its own wrapping: an error that hides [`Error::Busy`] ends a transaction that would have gone well the next time.
pub trait Contended {
    /// The transaction failed only because another was in the way.
    fn is_busy(&self) -> bool;
}

impl Contended for Error {
    fn is_busy(&self) -> bool {
        Self::is_busy(self)
    }
}

/// Counts the runs of one transaction. Used by [`transaction!`](crate::transaction).
#[derive(Debug, Default)]
pub struct Attempts(u32);

impl Attempts {
    /// With pauses that double from 10 ms, about 1.3 s in all: longer, and the caller is better served by a 503.
    const MOST: u32 = 8;

    /// Ends one run: commits what went well, rolls back what did not. `None` asks for another run.
    /// An unclear commit ([`Error::Unavailable`]) is handed out, never run again: it may have happened.
    pub async fn settle<T, E>(&mut self, tx: Tx, outcome: Result<T, E>) -> Option<Result<T, E>>
    where
        E: From<Error> + Contended,
    {
        let failure = match outcome {
            Ok(value) => match tx.commit().await {
                Ok(()) => return Some(Ok(value)),
                Err(error) => E::from(error),
            },
            Err(failure) => {
                let _ = tx.rollback().await; // the failure tells more than a rollback that failed too
                failure
            }
        };
        self.again(failure).await.map(Err)
    }

    /// Waits a little and answers `None` when the failure was contention and runs are left.
    pub async fn again<E: Contended>(&mut self, failure: E) -> Option<E> {
        self.0 += 1;
        if !failure.is_busy() || self.0 >= Self::MOST {
            return Some(failure);
        }
        tokio::time::sleep(Duration::from_millis(5 << self.0)).await;
        None
    }
}

/// Runs a body in a transaction: `transaction!(db, |tx| { ... Ok::<_, E>(value) })` gives `Result<value, E>` where `E:
/// From<db::Error> + Contended`.
///
/// The body is an async block: `?` and `return` leave it and roll back on `Err`. It **runs again from the start** when
/// another transaction was in the way, so it must have no effect outside the transaction and must not consume what it
/// captures. Ids made inside are made anew by each run. No call to the store or the network belongs in it: on SQLite the
/// whole service waits for its end.
#[macro_export]
macro_rules! transaction {
    ($db:expr, |$tx:ident| $body:expr) => {{
        let mut attempts = $crate::db::Attempts::default();
        loop {
            let mut session = match $db.begin().await {
                Ok(session) => session,
                Err(error) => match attempts.again(error.into()).await {
                    Some(error) => break Err(error),
                    None => continue,
                },
            };
            let outcome = {
                let $tx: &mut $crate::db::Tx = &mut session;
                async { $body }.await
            };
            if let Some(outcome) = attempts.settle(session, outcome).await {
                break outcome;
            }
        }
    }};
}
