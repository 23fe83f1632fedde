//! Opens a database so that what it acknowledges is durable and what hangs is cut.
//!
//! SQLite: write-ahead log, `synchronous=FULL`, one writer, and only a library that does not corrupt the log. Postgres:
//! limits on statements, locks and idle transactions, so that a stuck server becomes an answer instead of a pile of requests.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use super::error::Error;
use super::wakeups::Wakeups;
use super::{Db, Engine};

/// How to open.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Connections to Postgres, or readers of SQLite, which has one writer besides.
    pub connections: u32,
    /// How long a statement may run, a lock be waited for, and a connection be asked for, before the caller is told to come again.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { connections: 16, timeout: Duration::from_secs(10) }
    }
}

impl Db {
    /// Opens `sqlite:PATH` (made when missing, its directory must exist) or `postgres://...` and migrates it. Fails rather
    /// than serve a schema it does not know, or a SQLite that loses data.
    pub async fn open(url: &str, options: Options) -> Result<Self, Error> {
        let db = if let Some(path) = url.strip_prefix("sqlite:") {
            sqlite(Path::new(path), options).await?
        } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            postgres(url, options).await?
        } else {
            let scheme = url.split(':').next().unwrap_or_default();
            return Err(Error::Url(format!("{scheme}:..."))); // the rest may hold a password
        };
        db.migrate().await?;
        Ok(db)
    }
}

/// `synchronous=FULL`, since in write-ahead mode `NORMAL` loses acknowledged commits with the power. Waiters poll each
/// minute only, as no other process can change anything.
async fn sqlite(path: &Path, options: Options) -> Result<Db, Error> {
    let connect = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(options.timeout);
    let pool = || SqlitePoolOptions::new().acquire_timeout(options.timeout).idle_timeout(None).max_lifetime(None);
    let writer = pool().max_connections(1).connect_with(connect.clone().create_if_missing(true)).await?;
    let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&writer).await?;
    if !is_sound(&version) {
        return Err(Error::OldSqlite(version));
    }
    // the writer made the file and set the journal mode; readers only read
    let readers = pool().max_connections(options.connections).connect_with(connect.read_only(true)).await?;
    let wakeups = Wakeups::new(Duration::from_secs(60));
    Ok(Db { engine: Engine::Sqlite { writer, readers }, wakeups })
}

/// 3.51.3, 3.50.7 and 3.44.6 corrected the "WAL-reset" corruption; everything else before 3.51.3 has it.
fn is_sound(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 44, patch) => patch >= 6,
        (3, 50, patch) => patch >= 7,
        found => found >= (3, 51, 3),
    }
}

/// A transaction left idle for a minute is ended by the server, so that a process that froze does not keep its locks.
/// Waiters poll each second behind the notifications.
async fn postgres(url: &str, options: Options) -> Result<Db, Error> {
    let milliseconds = options.timeout.as_millis().to_string();
    let connect = PgConnectOptions::from_str(url)?.application_name("dray").options([
        ("statement_timeout", milliseconds.as_str()),
        ("lock_timeout", milliseconds.as_str()),
        ("idle_in_transaction_session_timeout", "60000"),
    ]);
    let pool = PgPoolOptions::new()
        .max_connections(options.connections)
        .acquire_timeout(options.timeout)
        .connect_with(connect)
        .await?;
    let wakeups = Wakeups::new(Duration::from_secs(1));
    Ok(Db { engine: Engine::Pg(pool), wakeups })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sqlite_that_keeps_its_log_is_taken() {
        for (version, sound) in [
            ("3.51.3", true),
            ("3.51.2", false),
            ("3.50.7", true),
            ("3.50.6", false),
            ("3.44.6", true),
            ("3.44.5", false),
            ("3.52.0", true),
            ("3.45.9", false),
        ] {
            assert_eq!(is_sound(version), sound, "{version}");
        }
    }

    #[tokio::test]
    async fn a_url_of_neither_engine_is_refused_without_its_secret() {
        let error = Db::open("mysql://root:hunter2@localhost/x", Options::default()).await.unwrap_err().to_string();
        assert!(error.contains("`mysql:...`") && !error.contains("hunter2"), "{error}");
    }
}
