//! Both engines: every statement plans, transactions hold what they promise, wake-ups cross replicas, failures say what to do.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dray::db::{self, Db, Tx, Woken, meta, teams};
use dray::{params, transaction};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Connection;
use uuid::Uuid;

use crate::both_engines;

async fn team(tx: &mut Tx, name: &str) -> Result<Uuid, db::Error> {
    let id = Uuid::from_u128(u128::from_be_bytes(*blake3::hash(name.as_bytes()).as_bytes().first_chunk().unwrap()));
    teams::insert(tx, id, name, None, jiff::Timestamp::UNIX_EPOCH).await?;
    Ok(id)
}

async fn names(db: &Db) -> Vec<String> {
    let rows = teams::page(&mut db.read().await.unwrap(), "", 100).await.unwrap();
    rows.into_iter().map(|team| team.name).filter(|name| name != "default").collect()
}

both_engines! {
    async fn every_statement_is_understood(service) {
        match service.app().db.check_statements().await {
            Ok(count) => assert!(count > 40, "only {count}"),
            Err((statement, error)) => panic!("{statement}: {error}: {:?}", std::error::Error::source(&error)),
        }
    }

    async fn what_is_not_committed_never_was(service) {
        let db = &service.app().db;
        let refused: Result<(), db::Error> = transaction!(db, |tx| {
            team(tx, "a").await?;
            Err(db::Error::Range(1))
        });
        assert!(refused.is_err());
        let mut dropped = db.begin().await.unwrap();
        team(&mut dropped, "b").await.unwrap();
        drop(dropped);
        transaction!(db, |tx| team(tx, "c").await).unwrap();
        assert_eq!(names(db).await, ["c"]);
        let taken = transaction!(db, |tx| team(tx, "c").await).unwrap_err();
        assert!(taken.is_taken(), "{taken}");
    }

    async fn a_transaction_that_was_in_somebodys_way_runs_again_from_the_start(service) {
        let db = &service.app().db;
        let runs = AtomicU32::new(0);
        let outcome: Result<u32, db::Error> = transaction!(db, |tx| {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            team(tx, &format!("run-{run}")).await?;
            if run < 3 {
                return Err(db::Error::Busy(sqlx::Error::RowNotFound));
            }
            Ok(run)
        });
        assert_eq!(outcome.unwrap(), 3);
        assert_eq!(names(db).await, ["run-3"]);
        let runs = AtomicU32::new(0);
        let outcome: Result<(), db::Error> = transaction!(db, |_tx| {
            runs.fetch_add(1, Ordering::SeqCst);
            Err(db::Error::Busy(sqlx::Error::RowNotFound))
        });
        assert!(outcome.unwrap_err().is_busy());
        assert_eq!(runs.load(Ordering::SeqCst), 8, "runs are bounded");
    }

    async fn writers_do_not_lose_each_others_changes(service) {
        let db = service.app().db.clone();
        let id = transaction!(db, |tx| team(tx, "counted").await).unwrap();
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let db = db.clone();
            writers.spawn(async move {
                for _ in 0..10 {
                    transaction!(db, |tx| {
                        let before = teams::lock(tx, id).await?.unwrap().used_bytes;
                        tokio::task::yield_now().await;
                        teams::add_used(tx, id, 1).await?;
                        let after = teams::by_id(tx, id).await?.unwrap().used_bytes;
                        assert_eq!(after, before + 1, "the row's lock was not held");
                        Ok::<_, db::Error>(())
                    })
                    .unwrap();
                }
            });
        }
        while let Some(writer) = writers.join_next().await {
            writer.unwrap();
        }
        assert_eq!(teams::by_id(&mut db.read().await.unwrap(), id).await.unwrap().unwrap().used_bytes, 80);
    }

    async fn a_snapshot_sees_one_moment(service) {
        let db = &service.app().db;
        let mut snapshot = db.snapshot().await.unwrap();
        let before = teams::page(&mut snapshot, "", 100).await.unwrap().len();
        transaction!(db, |tx| team(tx, "later").await).unwrap();
        assert_eq!(teams::page(&mut snapshot, "", 100).await.unwrap().len(), before);
        assert_eq!(names(db).await, ["later"]);
    }

    async fn names_are_ordered_by_their_bytes(service) {
        let db = &service.app().db;
        for name in ["b.1", "B-2", "a_3", "ä", "a-1", "aa", "Z"] {
            transaction!(db, |tx| team(tx, name).await).unwrap();
        }
        assert_eq!(names(db).await, ["B-2", "Z", "a-1", "a_3", "aa", "b.1", "ä"]);
    }

    async fn a_value_that_one_engine_could_not_keep_neither_keeps(service) {
        let mut session = service.app().db.read().await.unwrap();
        let nul = session.one("SELECT CAST($1 AS TEXT)", params!["a\0b"]).await.unwrap_err();
        assert!(matches!(nul, db::Error::Nul));
        let big = session.one("SELECT CAST($1 AS BIGINT)", params![u64::MAX]).await.unwrap_err();
        assert!(matches!(big, db::Error::Range(u64::MAX)));
        service.delete("/v1/nodes/a%00b").await.problem(422, "invalid");
    }

    async fn a_commit_wakes_who_waits_and_a_rollback_does_not(service) {
        let db = &service.app().db;
        let mut ear = db.wakeups().listen("topic-of-this-test");
        let mut quiet = db.begin().await.unwrap();
        quiet.notify("topic-of-this-test");
        quiet.rollback().await.unwrap();
        // the poll behind a listener wakes it, too: look at whether it did so at once
        let woken = tokio::time::timeout(Duration::from_millis(100), ear.wait(tokio::time::Instant::now() + Duration::from_secs(60))).await;
        assert!(woken.is_err(), "a rolled back transaction woke somebody");
        transaction!(db, |tx| {
            tx.notify("topic-of-this-test");
            meta::ensure(tx, "told", "1").await
        })
        .unwrap();
        let far = tokio::time::Instant::now() + Duration::from_secs(60);
        assert_eq!(ear.wait(far).await, Woken::LookAgain);
    }

    async fn a_database_of_a_newer_release_is_refused(service) {
        let db = &service.app().db;
        transaction!(db, |tx| {
            let sql = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                VALUES (9999, 'of the future', TRUE, $1, 0)";
            tx.execute(sql, params![vec![0_u8]]).await
        })
        .unwrap();
        assert!(matches!(db.migrate().await, Err(db::Error::Migrate(_))));
    }
}

/// A second handle on the same Postgres, as another replica has.
async fn replica(url: &str) -> Db {
    Db::open(url, db::Options::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_wakes_who_waits_in_another_replica() {
    if crate::support::postgres().is_none() {
        return;
    }
    let service = crate::support::Builder::new(crate::support::Engine::Postgres).start().await;
    let other = replica(service.postgres_url().unwrap()).await;
    // faster than the poll of 1 s behind it, in one of some attempts: the machine may be busy
    let mut fast = false;
    for attempt in 0..20 {
        let topic = format!("attempt/{attempt}");
        let mut ear = service.app().db.wakeups().listen(&topic);
        let began = Instant::now();
        transaction!(other, |tx| {
            tx.notify(topic.clone());
            Ok::<_, db::Error>(())
        })
        .unwrap();
        let far = tokio::time::Instant::now() + Duration::from_secs(60);
        assert_eq!(ear.wait(far).await, Woken::LookAgain);
        if began.elapsed() < Duration::from_millis(700) {
            fast = true;
            break;
        }
    }
    assert!(fast, "notifications of another replica are not heard, only polled");
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_transactions_that_block_each_other_both_end_well() {
    if crate::support::postgres().is_none() {
        return;
    }
    let service = crate::support::Builder::new(crate::support::Engine::Postgres).quiet().start().await;
    let db = service.app().db.clone();
    let (a, b) = transaction!(db, |tx| Ok::<_, db::Error>((team(tx, "a").await?, team(tx, "b").await?))).unwrap();
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let runs = std::sync::Arc::new(AtomicU32::new(0));
    let lock_both = |first: Uuid, second: Uuid| {
        let (db, barrier, runs) = (db.clone(), barrier.clone(), runs.clone());
        async move {
            transaction!(db, |tx| {
                let run = runs.fetch_add(1, Ordering::SeqCst);
                teams::lock(tx, first).await?;
                if run < 2 {
                    barrier.wait().await; // both hold their first row
                }
                teams::lock(tx, second).await?;
                teams::add_used(tx, second, 1).await
            })
        }
    };
    let (one, two) = tokio::join!(lock_both(a, b), lock_both(b, a));
    one.unwrap();
    two.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 3, "the deadlock's victim ran again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_or_dies_is_503_and_the_repeated_call_does_its_work_once() {
    if crate::support::postgres().is_none() {
        return;
    }
    let builder = crate::support::Builder::new(crate::support::Engine::Postgres).quiet();
    let service = builder.settings(|settings| settings.database.timeout = "1s".parse().unwrap()).start().await;
    let mut outside = sqlx::PgConnection::connect(service.postgres_url().unwrap()).await.unwrap();
    let create = |key: &'static str| {
        let request = service.request(Method::POST, "/v1/teams", &service.admin).header("Idempotency-Key", key);
        request.json(&json!({ "name": "blue" })).send()
    };

    // hangs: somebody holds the table
    sqlx::raw_sql("BEGIN; LOCK TABLE teams IN EXCLUSIVE MODE").execute(&mut outside).await.unwrap();
    let answer = crate::support::Answer::of(create("one").await.unwrap()).await;
    assert!(answer.headers.contains_key("retry-after"), "{answer}");
    answer.problem(503, "unavailable");
    sqlx::raw_sql("ROLLBACK").execute(&mut outside).await.unwrap();

    // dies: every connection of the service is cut, as in a failover
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    sqlx::raw_sql(cut).execute(&mut outside).await.unwrap();
    let mut statuses = Vec::new();
    let made = loop {
        let answer = crate::support::Answer::of(create("one").await.unwrap()).await;
        statuses.push(answer.status.as_u16());
        if answer.status.is_success() {
            break answer.json();
        }
        answer.problem(503, "unavailable");
        assert!(statuses.len() < 40, "{statuses:?}");
    };
    let again = crate::support::Answer::of(create("one").await.unwrap()).await.expect(201).json();
    assert_eq!(again, made);
    crate::support::Answer::of(create("two").await.unwrap()).await.problem(409, "team_exists");
    service.call(Method::GET, "/healthz", "", &Value::Null).await.expect(200);
    outside.close().await.unwrap();
}
