//! Every statement of every aggregate, so that a test can let both engines parse and plan each of them.
//!
//! `statements!` makes the constants and their list together: a statement that is not checked cannot be written.

use super::value::Sql;
use super::{Db, Error};

/// Declares the body of a `mod q`: one `pub const NAME: Sql` per line, and `ALL`.
///
/// ```text
/// pub(super) mod q {
///     crate::statements! {
///         FIND = "SELECT name FROM teams WHERE id = $1";
///         LOCK = lock "SELECT used_bytes FROM teams WHERE id = $1";         FOR UPDATE on Postgres
///         CLAIM = split "...", "...";                                      SQLite, Postgres
///     }
/// }
/// ```
#[macro_export]
macro_rules! statements {
    (@sql $text:literal) => { $crate::db::Sql::new($text) };
    (@sql lock $text:literal) => { $crate::for_update!($text) };
    (@sql split $sqlite:literal, $postgres:literal) => { $crate::db::Sql::split($sqlite, $postgres) };
    ($($name:ident = $($word:ident)? $text:literal $(, $postgres:literal)?;)+) => {
        $(pub const $name: $crate::db::Sql = $crate::statements!(@sql $($word)? $text $(, $postgres)?);)+
        /// All of the above, for [`Db::check_statements`](crate::db::Db::check_statements).
        pub const ALL: &[(&str, $crate::db::Sql)] = &[$((stringify!($name), $name)),+];
    };
}

/// The list alone, for a `mod q` whose texts share a part by `concat!` and are declared one by one.
#[macro_export]
macro_rules! statement_list {
    ($($name:ident),+ $(,)?) => {
        /// All of the above, for [`Db::check_statements`](crate::db::Db::check_statements).
        pub const ALL: &[(&str, $crate::db::Sql)] = &[$((stringify!($name), $name)),+];
    };
}

/// One line per aggregate; `tests/it/layering.rs` sees to it that none is missing.
#[rustfmt::skip]
const AGGREGATES: &[(&str, &[(&str, Sql)])] = &[
    ("idempotency", super::idempotency::q::ALL),
    ("jobs", super::jobs::q::ALL),
    ("keys", super::keys::q::ALL),
    ("leases", super::leases::q::ALL),
    ("links", super::links::q::ALL),
    ("meta", super::meta::q::ALL),
    ("nodes", super::nodes::q::ALL),
    ("operations", super::operations::q::ALL),
    ("outbox", super::outbox::q::ALL),
    ("outputs", super::outputs::q::ALL),
    ("packs", super::packs::q::ALL),
    ("stagings", super::stagings::q::ALL),
    ("teams", super::teams::q::ALL),
    ("tokens", super::tokens::q::ALL),
    ("uploads", super::uploads::q::ALL),
    ("versions", super::versions::q::ALL),
];

impl Db {
    /// Lets the engine parse and plan every statement; answers how many there are. Names the first that is refused.
    /// Statements put together at run time ([`Sql::built`]) are not among them: the use cases' tests run those.
    pub async fn check_statements(&self) -> Result<usize, (String, Error)> {
        let mut session = self.read().await.map_err(|error| ("connect".to_owned(), error))?;
        let mut count = 0;
        for (aggregate, statements) in AGGREGATES {
            for (name, sql) in *statements {
                session.prepare(sql).await.map_err(|error| (format!("{aggregate}::{name}"), error))?;
                count += 1;
            }
        }
        Ok(count)
    }
}
