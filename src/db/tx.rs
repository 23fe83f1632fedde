//! A session with the database: a transaction, or a plain connection for reads.
//!
//! Functions of an aggregate take `&mut Tx` and can therefore be joined into one transaction by a use case. A transaction
//! that is dropped is rolled back. Wake-ups asked for with [`Tx::notify`] go out only when, and only after, the commit was
//! acknowledged.
//!
//! The engines' futures are boxed here: they are large, and would otherwise be compiled anew into every use case.

use futures::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Postgres, SqlSafeStr, SqlStr, Sqlite, Transaction};

use super::error::Error;
use super::value::{Row, Sql, Text, Value};
use super::wakeups::Wakeups;

/// A transaction or a read session on either engine. Holds a connection until it is dropped, so hold it briefly: requests
/// beyond the pool wait, and are told to come again when that takes too long. After [`Error::Busy`], or any error on
/// Postgres, a transaction is good for nothing but a rollback.
#[derive(Debug)]
pub struct Tx {
    pub(super) session: Session,
    pub(super) wakeups: Wakeups,
    /// Said by [`Tx::notify`], kept until the commit.
    pub(super) topics: Vec<String>,
}

#[derive(Debug)]
pub(super) enum Session {
    Sqlite(Transaction<'static, Sqlite>),
    Pg(Transaction<'static, Postgres>),
    SqliteRead(PoolConnection<Sqlite>),
    PgRead(PoolConnection<Postgres>),
}

impl Tx {
    /// Runs a statement; answers how many rows it changed. Zero is no error here: where the `WHERE` is a fence, the caller
    /// asks for the number.
    pub fn execute(&mut self, sql: impl Into<Sql>, values: Vec<Value>) -> BoxFuture<'_, Result<u64, Error>> {
        let sql = sql.into();
        self.execute_boxed(sql, values)
    }

    fn execute_boxed(&mut self, sql: Sql, values: Vec<Value>) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move {
            Ok(match self.connection() {
                Connection::Sqlite(c) => {
                    sqlx::query_with(text(&sql.sqlite), sqlite(values)?).execute(c).await?.rows_affected()
                }
                Connection::Pg(c) => {
                    sqlx::query_with(text(&sql.postgres), postgres(values)?).execute(c).await?.rows_affected()
                }
            })
        })
    }

    /// All rows, collected in memory. The statement bounds them (`LIMIT`), or the caller knows they are few.
    pub fn all(&mut self, sql: impl Into<Sql>, values: Vec<Value>) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        let sql = sql.into();
        self.all_boxed(sql, values)
    }

    fn all_boxed(&mut self, sql: Sql, values: Vec<Value>) -> BoxFuture<'_, Result<Vec<Row>, Error>> {
        Box::pin(async move {
            Ok(match self.connection() {
                Connection::Sqlite(c) => {
                    let rows: Vec<SqliteRow> =
                        sqlx::query_with(text(&sql.sqlite), sqlite(values)?).fetch_all(c).await?;
                    rows.into_iter().map(Row::Sqlite).collect()
                }
                Connection::Pg(c) => {
                    let rows: Vec<PgRow> =
                        sqlx::query_with(text(&sql.postgres), postgres(values)?).fetch_all(c).await?;
                    rows.into_iter().map(Row::Pg).collect()
                }
            })
        })
    }

    /// The first row, if there is one.
    pub fn optional(&mut self, sql: impl Into<Sql>, values: Vec<Value>) -> BoxFuture<'_, Result<Option<Row>, Error>> {
        let sql = sql.into();
        self.optional_boxed(sql, values)
    }

    fn optional_boxed(&mut self, sql: Sql, values: Vec<Value>) -> BoxFuture<'_, Result<Option<Row>, Error>> {
        Box::pin(async move {
            Ok(match self.connection() {
                Connection::Sqlite(c) => {
                    sqlx::query_with(text(&sql.sqlite), sqlite(values)?).fetch_optional(c).await?.map(Row::Sqlite)
                }
                Connection::Pg(c) => {
                    sqlx::query_with(text(&sql.postgres), postgres(values)?).fetch_optional(c).await?.map(Row::Pg)
                }
            })
        })
    }

    /// The row that a statement always gives (`count(*)`, `RETURNING` after a certain change); without one
    /// [`Error::Refused`].
    pub async fn one(&mut self, sql: impl Into<Sql>, values: Vec<Value>) -> Result<Row, Error> {
        let row = self.optional(sql, values);
        row.await?.ok_or(Error::Refused(sqlx::Error::RowNotFound))
    }

    /// Wakes whoever waits for `topic`, in every replica, once this transaction is committed. Saying it twice wakes once. A
    /// rolled back transaction wakes nobody.
    pub fn notify(&mut self, topic: impl Into<String>) {
        let topic = topic.into();
        if !self.topics.contains(&topic) {
            self.topics.push(topic);
        }
    }

    /// Makes the changes durable and sends the wake-ups. [`Error::Unavailable`] leaves open whether it happened. On Postgres
    /// the notifications are part of the transaction, so a replica hears of it exactly if it was committed; in this process
    /// waiters are woken right after.
    pub fn commit(mut self) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            let topics = std::mem::take(&mut self.topics);
            match self.session {
                Session::Sqlite(tx) => tx.commit().await?,
                Session::Pg(mut tx) => {
                    for topic in &topics {
                        sqlx::query("SELECT pg_notify('dray', $1)").bind(topic).execute(&mut *tx).await?;
                    }
                    tx.commit().await?;
                }
                Session::SqliteRead(_) | Session::PgRead(_) => {}
            }
            for topic in &topics {
                self.wakeups.wake(topic);
            }
            Ok(())
        })
    }

    /// Undoes everything. Dropping does the same, later.
    pub fn rollback(self) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            match self.session {
                Session::Sqlite(tx) => tx.rollback().await?,
                Session::Pg(tx) => tx.rollback().await?,
                Session::SqliteRead(_) | Session::PgRead(_) => {}
            }
            Ok(())
        })
    }

    /// Lets the engine parse and plan a statement without running it. For the test that does so with every statement.
    pub async fn prepare(&mut self, sql: impl Into<Sql>) -> Result<(), Error> {
        use sqlx::Executor as _;
        let sql = sql.into();
        match self.connection() {
            Connection::Sqlite(c) => c.prepare(text(&sql.sqlite)).await.map(drop)?,
            Connection::Pg(c) => c.prepare(text(&sql.postgres)).await.map(drop)?,
        }
        Ok(())
    }

    fn connection(&mut self) -> Connection<'_> {
        match &mut self.session {
            Session::Sqlite(tx) => Connection::Sqlite(tx),
            Session::Pg(tx) => Connection::Pg(tx),
            Session::SqliteRead(c) => Connection::Sqlite(c),
            Session::PgRead(c) => Connection::Pg(c),
        }
    }
}

enum Connection<'a> {
    Sqlite(&'a mut sqlx::SqliteConnection),
    Pg(&'a mut sqlx::PgConnection),
}

fn text(text: &Text) -> SqlStr {
    match text {
        Text::Static(text) => text.into_sql_str(),
        Text::Built(text) => AssertSqlSafe(text.clone()).into_sql_str(),
    }
}

macro_rules! bind {
    ($name:ident, $arguments:ty) => {
        fn $name(values: Vec<Value>) -> Result<$arguments, Error> {
            let mut arguments = <$arguments>::default();
            for value in values {
                match value {
                    Value::Int(x) => Arguments::add(&mut arguments, x),
                    Value::Float(x) => Arguments::add(&mut arguments, x),
                    Value::Text(Some(x)) if x.contains('\0') => return Err(Error::Nul),
                    Value::Text(x) => Arguments::add(&mut arguments, x),
                    Value::Blob(x) => Arguments::add(&mut arguments, x),
                    Value::TooBig(x) => return Err(Error::Range(x)),
                }
                .map_err(|error| Error::Refused(sqlx::Error::Encode(error)))?;
            }
            Ok(arguments)
        }
    };
}
bind!(sqlite, SqliteArguments);
bind!(postgres, PgArguments);
