//! Brings the schema up to date: one folder of files for both engines.
//!
//! A migration that has been released never changes; a new one is added at the end. Types are BIGINT, TEXT, BLOB and DOUBLE
//! PRECISION. Postgres spells BLOB as BYTEA, and its text is compared byte by byte (`COLLATE "C"`) as SQLite's is, or the two
//! would page through names in different orders; both is done here and nowhere else.

use std::borrow::Cow;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr};

use super::error::Error;
use super::{Db, Engine};

/// Version, name, text; in order, one line each.
const FILES: &[(i64, &str, &str)] = &[
    (1, "core", include_str!("migrations/0001_core.sql")),
    (2, "data", include_str!("migrations/0002_data.sql")),
    (3, "jobs", include_str!("migrations/0003_jobs.sql")),
];

impl Db {
    /// Applies what is missing; replicas that start together wait for each other. A database that a newer release has
    /// migrated is refused.
    pub async fn migrate(&self) -> Result<(), Error> {
        match &self.engine {
            Engine::Sqlite { writer, .. } => migrator(Cow::Borrowed).run(writer).await,
            Engine::Pg(pool) => migrator(|sql| Cow::Owned(postgres(sql))).run(pool).await,
        }
        .map_err(Error::Migrate)
    }
}

/// By the leading space, so words such as `TEXT` must stand after one and never at the start of a line in a migration.
fn postgres(sql: &str) -> String {
    sql.replace(" BLOB", " BYTEA").replace(" TEXT", " TEXT COLLATE \"C\"")
}

/// Each file runs in a transaction of its own, with its name and checksum noted: one that fails half-way leaves nothing, and
/// a released one that was edited is refused at the next start.
fn migrator(dialect: impl Fn(&'static str) -> Cow<'static, str>) -> Migrator {
    let migration = |&(version, name, sql): &(i64, &'static str, &'static str)| {
        Migration::new(version, name.into(), MigrationType::Simple, AssertSqlSafe(dialect(sql)).into_sql_str(), false)
    };
    Migrator::with_migrations(FILES.iter().map(migration).collect())
}
