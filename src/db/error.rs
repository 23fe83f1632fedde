//! What a database can answer instead of rows.
//!
//! The variants say what the caller shall do: come again ([`Error::Busy`], [`Error::Unavailable`]), look at a broken
//! expectation ([`Error::Taken`]), or stop. Texts of the drivers stay in `#[source]`, for the log and never for a caller.

/// A failed statement, transaction or opening of the database.
///
/// `app` turns `Busy` and `Unavailable` into "come again", `Nul` into a fault of the request, `Taken` into the conflict that
/// the use case names, and all others into an internal error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another transaction was in the way. Nothing was changed; the same transaction may be run again at once.
    /// [`transaction!`](crate::transaction) does so by itself, so a use case meets this only after its last run.
    #[error("the database is busy with another transaction; run this one again")]
    Busy(#[source] sqlx::Error),
    /// No connection, or no answer within the limit. A commit in flight may or may not have happened: ask, or repeat with
    /// the same Idempotency-Key; never assume that it failed.
    #[error("the database cannot be reached or did not answer in time; try again shortly")]
    Unavailable(#[source] sqlx::Error),
    /// A unique key or primary key is in use already.
    #[error("a row with this key exists already (`{constraint}`)")]
    Taken {
        /// As the engine names it; engines differ, so decide on nothing but its presence.
        constraint: String,
        #[source]
        source: sqlx::Error,
    },
    /// The row says something its column cannot mean.
    #[error("column {column} of a row does not hold {expected}; the database was changed by something else")]
    Column { column: usize, expected: &'static str },
    /// A value is too big for the database's 64-bit signed numbers.
    #[error("the number {0} does not fit the database")]
    Range(u64),
    /// Postgres cannot keep it in a text, so SQLite shall not either. Refused before the statement is sent.
    #[error("a text with a NUL character cannot be kept")]
    Nul,
    /// Also when a newer release has migrated this database, or a released file was changed. Nothing may be served.
    #[error(
        "the database's schema could not be brought up to date; restore the backup or use the release that wrote it"
    )]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// Of the library that this program was linked with, not of the file.
    #[error(
        "SQLite {0} can corrupt a write-ahead log under load; dray needs 3.51.3 or newer (3.50.7 and 3.44.6 have the correction too)"
    )]
    OldSqlite(String),
    /// The scheme alone is quoted: the rest may hold a password.
    #[error("`{0}` is no database URL; use `sqlite:PATH` or `postgres://user@host/name`")]
    Url(String),
    /// A constraint other than a unique key, a statement that is wrong, no row for [`Tx::one`](super::Tx::one); when
    /// opening, also a URL that cannot be read or a password that is not right. Coming again does not help.
    #[error("the database refused the statement")]
    Refused(#[source] sqlx::Error),
}

impl Error {
    /// The same transaction may simply be run again, at once.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_))
    }

    /// A later attempt may succeed; for [`Error::Unavailable`] after a pause, and only where doing it twice is safe.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Unavailable(_))
    }

    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Taken { .. })
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Self::Unavailable(error)
            }
            // A line that is closed while the two sides greet each other is told as a breach of the protocol.
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => Self::Unavailable(error),
            sqlx::Error::Database(refusal) => match verdict(refusal.code().as_deref().unwrap_or_default()) {
                _ if refusal.is_unique_violation() => {
                    let constraint = refusal.constraint().unwrap_or_else(|| refusal.message()).to_owned();
                    Self::Taken { constraint, source: error }
                }
                Verdict::Busy => Self::Busy(error),
                Verdict::Unavailable => Self::Unavailable(error),
                Verdict::Refused => Self::Refused(error),
            },
            _ => Self::Refused(error),
        }
    }
}

enum Verdict {
    Busy,
    Unavailable,
    Refused,
}

/// Postgres speaks in five characters (SQLSTATE), SQLite in decimal extended result codes.
fn verdict(code: &str) -> Verdict {
    match code {
        // serialization failure, deadlock
        "40001" | "40P01" => Verdict::Busy,
        // lock_timeout and statement_timeout (they have waited already), admin shutdown, crash shutdown, starting up, idle-in-transaction timeout, read-only during failover
        "55P03" | "57014" | "57P01" | "57P02" | "57P03" | "25P03" | "25006" | "53300" | "53100" => Verdict::Unavailable,
        _ if code.len() == 5 && code.starts_with("08") => Verdict::Unavailable,
        _ if code.len() == 5 => Verdict::Refused,
        // SQLite: the primary code is the low byte. BUSY, LOCKED; then IOERR, FULL, CANTOPEN
        _ => match code.parse::<u32>().map(|code| code & 0xff) {
            Ok(5 | 6) => Verdict::Busy,
            Ok(10 | 13 | 14) => Verdict::Unavailable,
            _ => Verdict::Refused,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_both_engines_say_what_to_do() {
        for (code, expected) in
            [("40001", "busy"), ("5", "busy"), ("517", "busy"), ("262", "busy"), ("57014", "later"), ("08006", "later")]
        {
            let found = match verdict(code) {
                Verdict::Busy => "busy",
                Verdict::Unavailable => "later",
                Verdict::Refused => "refused",
            };
            assert_eq!(found, expected, "{code}");
        }
        assert!(matches!(verdict("778"), Verdict::Unavailable), "SQLITE_IOERR_WRITE");
        assert!(matches!(verdict("42601"), Verdict::Refused), "a syntax error is nobody's fault but ours");
        assert!(matches!(verdict(""), Verdict::Refused));
    }
}
