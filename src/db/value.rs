//! Values into statements and out of rows, the same on both engines.
//!
//! Only BIGINT, TEXT, BLOB (BYTEA on Postgres) and DOUBLE PRECISION exist. Everything richer is mapped here, in one place:
//! UUIDs are TEXT, times are BIGINT microseconds, digests are BLOB of 32 bytes, flags are BIGINT 0 or 1. A row that does not
//! hold what is asked for is an error, never a default.

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::error::Error;

/// One bound parameter. NULLs are typed, since Postgres wants to know. Times are cut to microseconds: what is read back may
/// be a little earlier than what was written.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Int(Option<i64>),
    Float(Option<f64>),
    Text(Option<String>),
    Blob(Option<Vec<u8>>),
    /// A number over `i64::MAX`: refused when the statement runs, so that binding stays free of errors.
    TooBig(u64),
}

/// Builds the parameters of a statement: `params![id, name, bytes]`, anything that is `Into<Value>`.
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => { vec![$($crate::db::Value::from($value)),*] };
}

macro_rules! from {
    ($variant:ident: $($source:ty => |$x:ident| $made:expr),+ $(,)?) => { $(
        impl From<$source> for Value { fn from($x: $source) -> Self { Self::$variant(Some($made)) } }
        impl From<Option<$source>> for Value { fn from(x: Option<$source>) -> Self { Self::$variant(x.map(|$x| $made)) } }
    )+ };
}

from!(Int: i64 => |x| x, u32 => |x| i64::from(x), i32 => |x| i64::from(x), bool => |x| i64::from(x), Timestamp => |x| x.as_microsecond());
from!(Float: f64 => |x| x);
from!(Text: String => |x| x, &str => |x| x.to_owned(), &String => |x| x.clone(), Uuid => |x| x.hyphenated().to_string());
from!(Blob: Vec<u8> => |x| x, &[u8] => |x| x.to_vec(), [u8; 32] => |x| x.to_vec(), &[u8; 32] => |x| x.to_vec());

impl From<u64> for Value {
    fn from(x: u64) -> Self {
        i64::try_from(x).map_or(Self::TooBig(x), |x| Self::Int(Some(x)))
    }
}

impl From<Option<u64>> for Value {
    fn from(x: Option<u64>) -> Self {
        x.map_or(Self::Int(None), Self::from)
    }
}

/// A row of either engine. Columns are asked for by position, as the statement lists them.
pub enum Row {
    Sqlite(SqliteRow),
    Pg(PgRow),
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Row") // contents may be anything a team said
    }
}

impl Row {
    /// Counted from 0. A type that the column cannot be read as is [`Error::Refused`]; a value that the type cannot mean,
    /// [`Error::Column`].
    pub fn get<T: Column>(&self, column: usize) -> Result<T, Error> {
        T::of(self, column)
    }

    fn raw<T>(&self, column: usize) -> Result<T, Error>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        use sqlx::Row as _;
        match self {
            Self::Sqlite(row) => Ok(row.try_get(column)?),
            Self::Pg(row) => Ok(row.try_get(column)?),
        }
    }
}

/// What can be read from a column. An implementor answers [`Error::Column`] for what it does not know, and never a default:
/// a row that something else has written must not be taken for another.
pub trait Column: Sized {
    fn of(row: &Row, column: usize) -> Result<Self, Error>;
}

macro_rules! raw_column {
    ($($target:ty),+) => { $(
        impl Column for $target { fn of(row: &Row, column: usize) -> Result<Self, Error> { row.raw(column) } }
        impl Column for Option<$target> { fn of(row: &Row, column: usize) -> Result<Self, Error> { row.raw(column) } }
    )+ };
}
raw_column!(i64, f64, String, Vec<u8>);

macro_rules! mapped_column {
    ($($target:ty, $raw:ty, $expected:literal, |$x:ident| $made:expr;)+) => { $(
        impl Column for $target {
            fn of(row: &Row, column: usize) -> Result<Self, Error> {
                let $x: $raw = row.raw(column)?;
                $made.ok_or(Error::Column { column, expected: $expected })
            }
        }
        impl Column for Option<$target> {
            fn of(row: &Row, column: usize) -> Result<Self, Error> {
                let Some($x) = row.raw::<Option<$raw>>(column)? else { return Ok(None) };
                Ok(Some($made.ok_or(Error::Column { column, expected: $expected })?))
            }
        }
    )+ };
}
mapped_column! {
    u64, i64, "a number that is not negative", |x| u64::try_from(x).ok();
    u32, i64, "a number below 2^32", |x| u32::try_from(x).ok();
    bool, i64, "0 or 1", |x| match x { 0 => Some(false), 1 => Some(true), _ => None };
    Timestamp, i64, "microseconds since 1970", |x| Timestamp::from_microsecond(x).ok();
    Uuid, String, "a UUID", |x| Uuid::parse_str(&x).ok();
    [u8; 32], Vec<u8>, "32 bytes", |x| <[u8; 32]>::try_from(x).ok();
}

/// A statement's text, per engine. All of them live in the `mod q` of their aggregate, as constants; what a caller said
/// comes in as parameters only.
#[derive(Debug, Clone)]
pub struct Sql {
    pub(super) sqlite: Text,
    pub(super) postgres: Text,
}

#[derive(Debug, Clone)]
pub(super) enum Text {
    Static(&'static str),
    Built(std::sync::Arc<str>),
}

impl Sql {
    /// The same text for both engines: `$1` placeholders, standard SQL, `ON CONFLICT ... RETURNING`.
    pub const fn new(text: &'static str) -> Self {
        Self { sqlite: Text::Static(text), postgres: Text::Static(text) }
    }

    /// Two texts that mean the same; for row locks and little else. Both must take the same parameters and give the same
    /// columns.
    pub const fn split(sqlite: &'static str, postgres: &'static str) -> Self {
        Self { sqlite: Text::Static(sqlite), postgres: Text::Static(postgres) }
    }

    /// A text put together at run time from constants and [`placeholders`]. Never from what a caller said. Each length of a
    /// list is another statement to the engine, so lists are bounded.
    pub fn built(text: String) -> Self {
        let text: std::sync::Arc<str> = text.into();
        Self { sqlite: Text::Built(text.clone()), postgres: Text::Built(text) }
    }

    /// [`split`](Self::split) for texts put together at run time; the same care as with [`built`](Self::built).
    pub fn built_split(sqlite: String, postgres: String) -> Self {
        Self { sqlite: Text::Built(sqlite.into()), postgres: Text::Built(postgres.into()) }
    }
}

impl From<&'static str> for Sql {
    fn from(text: &'static str) -> Self {
        Self::new(text)
    }
}

impl From<&Self> for Sql {
    fn from(sql: &Self) -> Self {
        sql.clone()
    }
}

/// A `SELECT` that locks its rows until the transaction ends: `FOR UPDATE` on Postgres, nothing on SQLite, whose writers
/// are one at a time anyway.
#[macro_export]
macro_rules! for_update {
    ($text:literal) => {
        $crate::db::Sql::split($text, concat!($text, " FOR UPDATE"))
    };
}

/// `($1, $2), ($3, $4)`: placeholders of `rows` rows of `columns` columns, for batched inserts and `IN` lists
/// (`columns` 1 gives `($1), ($2)`; see [`list`] for `IN`).
pub fn placeholders(rows: usize, columns: usize) -> String {
    let mut text = String::with_capacity(rows * columns * 6);
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        push_list(&mut text, row * columns + 1, columns);
        text.push(')');
    }
    text
}

/// `$3, $4, $5`: `count` placeholders beginning with number `first`, for `IN (...)`.
pub fn list(first: usize, count: usize) -> String {
    let mut text = String::with_capacity(count * 6);
    push_list(&mut text, first, count);
    text
}

fn push_list(text: &mut String, first: usize, count: usize) {
    use std::fmt::Write as _;
    for i in 0..count {
        let comma = if i == 0 { "" } else { ", " };
        write!(text, "{comma}${}", first + i).expect("writing to a String cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_count_through_rows() {
        assert_eq!(placeholders(2, 3), "($1, $2, $3), ($4, $5, $6)");
        assert_eq!(list(4, 2), "$4, $5");
        assert_eq!(placeholders(0, 3), "");
    }

    #[test]
    fn numbers_the_database_cannot_hold_are_kept_as_such() {
        assert_eq!(Value::from(u64::MAX), Value::TooBig(u64::MAX));
        assert_eq!(Value::from(7_u64), Value::Int(Some(7)));
        assert_eq!(Value::from(None::<u64>), Value::Int(None));
    }
}
