//! B60: the database is busy or gone in the middle of a commit. The service answers 503 with `Retry-After`, the program comes again with the same
//! `Idempotency-Key`, and the work is done once.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Connection;

use crate::support::binary::{Served, wait};
use crate::support::client::assert_same;
use crate::support::dice::Dice;
use crate::support::fault_proxy::{Fault, FaultProxy, Rule, Seen};
use crate::support::line::Line;
use crate::support::postgres;
use crate::support::service::PgDatabase;

const LIMIT: Duration = Duration::from_secs(120);

fn is_commit(seen: &Seen) -> bool {
    seen.method == "POST" && seen.target.ends_with("/commit")
}

/// Waits for a request that the service itself refused so.
async fn refused(proxy: &FaultProxy, wanted: impl Fn(&Seen) -> bool) {
    let refused = |seen: &Seen| wanted(seen) && seen.status == Some(503);
    tokio::time::timeout(LIMIT, proxy.wait(refused, 1)).await.expect("a 503 of the service");
}

/// A call by hand: what the answer holds besides its status.
async fn make_team(served: &Served, name: &str, key: &str) -> (u16, Option<String>, Value) {
    let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
    let request = client.post(format!("{}/v1/teams", served.url)).bearer_auth(&served.token);
    let answer = request.header("idempotency-key", key).json(&json!({ "name": name })).send().await.unwrap();
    let after = answer.headers().get("retry-after").map(|after| after.to_str().unwrap().to_owned());
    (answer.status().as_u16(), after, answer.json().await.unwrap())
}

/// When the database goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// Before the service hears of the commit.
    BeforeCommit,
    /// After it has accepted the commit, while it works on it.
    InCommit,
}

/// A push; `fail` takes the database away in time, and `mend` gives it back once the service has refused for its sake.
async fn push_through(served: &Served, fail: impl AsyncFnOnce(), mend: impl AsyncFnOnce(), when: When) {
    let mut dice = Dice::new("a push whose database fails");
    let tree = tempfile::tempdir().unwrap();
    fs_err::write(tree.path().join("film.mp4"), dice.bytes(12 << 20)).unwrap();
    fs_err::write(tree.path().join("note.txt"), "a note").unwrap();
    let proxy = FaultProxy::start(&served.url).await;
    if when == When::BeforeCommit {
        // The first attempt is swallowed by the line: the database fails meanwhile.
        proxy.on(Rule::new("POST", "/commit").times(1).does(Fault::Hang));
    }
    let mut command = served.command();
    command.args(["push", tree.path().to_str().unwrap(), "--to", "fail/over", "--json"]);
    command.env("DRAY_URL", proxy.url()).env("DRAY_STALL_TIMEOUT", "3s");
    let push = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = |seen: &Seen| is_commit(seen) && (when == When::BeforeCommit || seen.status == Some(202));
    tokio::time::timeout(LIMIT, proxy.wait(begun, 1)).await.expect("a commit");
    fail().await;
    match when {
        When::BeforeCommit => refused(&proxy, is_commit).await,
        When::InCommit => refused(&proxy, |seen| seen.target.starts_with("/v1/operations/")).await,
    }
    mend().await;
    let ran = wait(push, LIMIT);
    assert_eq!(ran.code, 0, "{ran:?}\n{}", served.log());
    assert_eq!(ran.document()["ref"], "fail/over@v1");
    let log = proxy.log();
    let keys: Vec<_> = log.iter().filter(|seen| is_commit(seen)).map(|seen| &seen.headers["idempotency-key"]).collect();
    assert!(keys.iter().all(|key| *key == keys[0]), "one commit, however often it is said");
    assert_eq!(served.json(["log", "fail/over"]).as_array().unwrap().len(), 1);
    let dest = served.dir.path().join("dest");
    served.json(["pull", "fail/over", dest.to_str().unwrap()]);
    assert_same(tree.path(), &dest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_sqlite_delays_a_commit_and_loses_nothing() {
    let served = Served::start_with(|command| {
        command.env("DRAY_DATABASE_TIMEOUT", "1s");
    });
    let path = served.dir.path().join("data/dray.sqlite");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let outside = tokio::sync::Mutex::new(sqlx::SqliteConnection::connect_with(&options).await.unwrap());
    let run = async |sql: &'static str| sqlx::raw_sql(sql).execute(&mut *outside.lock().await).await.map(drop).unwrap();
    let lock = async || run("BEGIN IMMEDIATE").await;
    let unlock = async || {
        let (status, after, problem) = make_team(&served, "blue", "one").await;
        assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{problem}");
        assert!(after.is_some_and(|after| after.parse::<u32>().is_ok_and(|seconds| seconds > 0)), "{problem}");
        run("ROLLBACK").await;
    };
    push_through(&served, lock, unlock, When::BeforeCommit).await;
    let (status, _, made) = make_team(&served, "blue", "one").await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(make_team(&served, "blue", "one").await, (201, None, made), "said again, it was done once");
    assert_eq!(make_team(&served, "blue", "two").await.0, 409);
}

/// A service on Postgres over a line that can be cut, as a failover cuts it.
async fn on_a_line() -> Option<(Served, Line, PgDatabase)> {
    postgres()?;
    let database = PgDatabase::create().await;
    let mut url: url::Url = database.url.parse().unwrap();
    let upstream = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let line = Line::start(upstream).await;
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(line.address.port())).unwrap();
    let served = Served::start_with(|command| {
        command.args(["--database", url.as_str()]).env("DRAY_DATABASE_TIMEOUT", "1s");
    });
    Some((served, line, database))
}

/// Gone when the commit comes: it is refused, said again, and done once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_gone_when_the_commit_comes_delays_it() {
    let Some((served, line, _database)) = on_a_line().await else { return };
    let mend = async || {
        let (status, after, problem) = make_team(&served, "blue", "one").await;
        assert_eq!((status, &problem["code"]), (503, &json!("unavailable")), "{problem}");
        assert!(after.is_some(), "{problem}");
        line.mend();
    };
    push_through(&served, async || line.cut(), mend, When::BeforeCommit).await;
    let (status, _, made) = make_team(&served, "blue", "one").await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(make_team(&served, "blue", "one").await, (201, None, made), "said again, it was done once");
}

/// Gone while the service works on the commit, or just after: the operation ends well by itself when the database is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_gone_while_the_commit_is_made_delays_it() {
    let Some((served, line, database)) = on_a_line().await else { return };
    // No version can be written until the lock goes: the commit is under way when the line is cut.
    let outside = tokio::sync::Mutex::new(sqlx::PgConnection::connect(&database.url).await.unwrap());
    let run = async |sql: &'static str| sqlx::raw_sql(sql).execute(&mut *outside.lock().await).await.map(drop).unwrap();
    run("BEGIN; LOCK TABLE versions IN EXCLUSIVE MODE").await;
    let mend = async || {
        run("ROLLBACK").await;
        line.mend();
    };
    push_through(&served, async || line.cut(), mend, When::InCommit).await;
}
