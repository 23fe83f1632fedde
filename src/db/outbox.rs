//! The outbox: events written with the change they tell of, and their way to a callback.
//!
//! [`append`] is the last thing a transaction does: it takes the team's event count, whose row stays locked until the commit, so that numbers rise in the
//! order of commits and a reader who saw number n will never be shown a lower one later. Per job at most one delivery is in flight, the oldest that is
//! pending; per receiver's origin a few, so that a slow one does not hold up the others.
//!
//! ```text
//! pending -claim-> pending, claimed -settle-> delivered
//!    ^                        |-settle(Later)-> pending, due later
//!    |                        |-settle(Dead) | bury-> dead
//!    +------replay, attempts 0------ delivered | dead
//! ```
//!
//! At least once: a claim that runs out is given to another, though the attempt may have arrived. The event's id is the same
//! each time.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Error, Row, Tx};
use crate::params;

/// Attempts under way to one origin at most, over all replicas: a slow receiver takes no more than this of everybody's
/// attempts.
pub const PER_ORIGIN: u32 = 4;

/// A fact to be told.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// Told to receivers, who drop what they have seen; made once, where the fact happens.
    pub id: Uuid,
    pub job: Uuid,
    /// `dray.staging.ready.v1`.
    pub kind: &'static str,
    /// JSON, as it will be told: a later change of the job does not change what was said.
    pub data: String,
    /// The job's callback and its origin (scheme, host, port), when it has one that listens. Without it the event is there
    /// to poll only.
    pub callback: Option<(String, String)>,
}

/// An event as it was written; no statement changes or deletes one.
#[derive(Debug, Clone)]
pub struct Event {
    pub id: Uuid,
    /// Counts within the team, from 1, without gaps, in the order of commits.
    pub seq: u64,
    pub job: Uuid,
    pub kind: String,
    pub at: Timestamp,
    pub data: String,
}

/// A delivery to be attempted now.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub event: Event,
    pub team: Uuid,
    pub url: String,
    /// Attempts before this one.
    pub attempts: u32,
    /// Sealed; empty when the job has none.
    pub secret: Vec<u8>,
    /// The claim's end; also what tells it from an earlier and a later one of the same delivery.
    pub until: Timestamp,
}

/// A delivery's row.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub event: Uuid,
    pub job: Uuid,
    pub url: String,
    /// `pending`, `delivered` or `dead`.
    pub state: String,
    /// Claims so far, one that is under way included; 0 again after a replay.
    pub attempts: u32,
    pub last_error: Option<String>,
    /// When it is due; of no meaning once it has ended.
    pub next_at: Timestamp,
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub enum Ending<'a> {
    Delivered,
    /// Try again then.
    Later {
        at: Timestamp,
        error: &'a str,
    },
    /// Given up.
    Dead {
        error: &'a str,
    },
}

/// Writes events, in this order, and their deliveries; wakes pollers and the deliverer on commit. Takes the team's count,
/// whose row every event of the team needs: call it once, last, so that it is held for the briefest time. No events, no
/// lock.
pub async fn append(tx: &mut Tx, team: Uuid, events: &[NewEvent], now: Timestamp) -> Result<(), Error> {
    if events.is_empty() {
        return Ok(());
    }
    let count: u64 = tx.one(q::COUNT, params![team, u64::try_from(events.len()).unwrap_or(u64::MAX)]).await?.get(0)?;
    let first = count - u64::try_from(events.len()).unwrap_or(0) + 1;
    for (seq, event) in (first..).zip(events) {
        tx.execute(q::INSERT, params![event.id, team, seq, event.job, event.kind, now, &event.data]).await?;
        if let Some((url, origin)) = &event.callback {
            tx.execute(q::INSERT_DELIVERY, params![event.id, team, event.job, seq, url, origin, now]).await?;
            tx.notify("deliveries");
        }
    }
    tx.notify(format!("events/{team}"));
    Ok(())
}

/// A team's events after number `after`, oldest first.
pub async fn after(tx: &mut Tx, team: Uuid, after: u64, limit: u32) -> Result<Vec<Event>, Error> {
    tx.all(q::AFTER, params![team, after, limit]).await?.iter().map(|row| event(row, 0)).collect()
}

/// The number of a team's event.
pub async fn seq_of(tx: &mut Tx, team: Uuid, id: Uuid) -> Result<Option<u64>, Error> {
    tx.optional(q::SEQ_OF, params![team, id]).await?.map(|row| row.get(0)).transpose()
}

/// Claims deliveries that are due, none of them behind an older one of its job, at most `limit` and [`PER_ORIGIN`] of an
/// origin. Each is the caller's until `until` or [`settle`]; the attempt is counted here, so one whose process dies counts
/// too. Concurrent callers share out the rows without waiting.
pub async fn claim(tx: &mut Tx, now: Timestamp, until: Timestamp, limit: u32) -> Result<Vec<Claimed>, Error> {
    let ids = tx.all(q::CLAIM, params![now, until, PER_ORIGIN, limit]).await?;
    let mut claimed = Vec::with_capacity(ids.len());
    for id in ids {
        let row = tx.one(q::CLAIMED, params![id.get::<Uuid>(0)?]).await?;
        claimed.push(Claimed {
            event: event(&row, 0)?,
            team: row.get(6)?,
            url: row.get(7)?,
            attempts: row.get(8)?,
            secret: row.get::<Option<Vec<u8>>>(9)?.unwrap_or_default(),
            until: row.get(10)?,
        });
    }
    Ok(claimed)
}

/// Writes how an attempt ended and gives the claim back. `false`, and nothing changed, when the delivery was given up or
/// claimed anew meanwhile: the later attempt says how it went, and until then the job's next event waits. An attempt that
/// outlives its claim may settle as long as nobody has claimed the delivery since.
pub async fn settle(tx: &mut Tx, claimed: &Claimed, ending: &Ending<'_>, now: Timestamp) -> Result<bool, Error> {
    let (state, error, next) = match ending {
        Ending::Delivered => ("delivered", None, now),
        Ending::Later { at, error } => ("pending", Some(*error), *at),
        Ending::Dead { error } => ("dead", Some(*error), now),
    };
    Ok(tx.execute(q::SETTLE, params![claimed.event.id, state, error, next, claimed.until]).await? == 1)
}

/// Gives up whatever still waits for this job's callback, attempts under way included; their settling then changes nothing.
pub async fn bury(tx: &mut Tx, job: Uuid, error: &str) -> Result<(), Error> {
    tx.execute(q::BURY, params![job, error]).await.map(drop)
}

/// Sends a delivery again, from its first attempt; `false`, and nothing changed, when the team has no such delivery or it is
/// pending ([`is_delivery`] tells them apart). Others of its job that are pending and newer wait behind it.
pub async fn replay(tx: &mut Tx, team: Uuid, event: Uuid, now: Timestamp) -> Result<bool, Error> {
    let found = tx.execute(q::REPLAY, params![team, event, now]).await? > 0;
    tx.notify("deliveries");
    Ok(found)
}

pub async fn is_delivery(tx: &mut Tx, team: Uuid, event: Uuid) -> Result<bool, Error> {
    Ok(tx.optional(q::IS_DELIVERY, params![team, event]).await?.is_some())
}

/// A team's deliveries, newest first, of one job or all.
pub async fn deliveries(
    tx: &mut Tx,
    team: Uuid,
    job: Option<Uuid>,
    before: &str,
    limit: u32,
) -> Result<Vec<Delivery>, Error> {
    let before = if before.is_empty() { "g" } else { before };
    let job = job.map_or(String::new(), |id| id.to_string());
    let rows = tx.all(q::DELIVERIES, params![team, job, before, limit]).await?;
    rows.iter()
        .map(|row| {
            Ok(Delivery {
                event: row.get(0)?,
                job: row.get(1)?,
                url: row.get(2)?,
                state: row.get(3)?,
                attempts: row.get(4)?,
                last_error: row.get(5)?,
                next_at: row.get(6)?,
            })
        })
        .collect()
}

fn event(row: &Row, at: usize) -> Result<Event, Error> {
    Ok(Event {
        id: row.get(at)?,
        seq: row.get(at + 1)?,
        job: row.get(at + 2)?,
        kind: row.get(at + 3)?,
        at: row.get(at + 4)?,
        data: row.get(at + 5)?,
    })
}

pub(super) mod q {
    crate::statements! {
        COUNT = "INSERT INTO event_counts (team, count) VALUES ($1, $2)
        ON CONFLICT (team) DO UPDATE SET count = event_counts.count + EXCLUDED.count RETURNING count";
        INSERT = "INSERT INTO events (id, team, seq, job, kind, at, data) VALUES ($1, $2, $3, $4, $5, $6, $7)";
        INSERT_DELIVERY = "INSERT INTO deliveries (event, team, job, seq, url, origin, state, attempts, next_at, claimed_until)
        VALUES ($1, $2, $3, $4, $5, $6, 'pending', 0, $7, 0)";
        AFTER = "SELECT id, seq, job, kind, at, data FROM events WHERE team = $1 AND seq > $2 ORDER BY seq LIMIT $3";
        SEQ_OF = "SELECT seq FROM events WHERE team = $1 AND id = $2";
        CLAIM = split "UPDATE deliveries SET claimed_until = $2, attempts = attempts + 1 WHERE state = 'pending' AND event IN (
            SELECT event FROM (
                SELECT d.event, d.next_at, row_number() OVER (PARTITION BY d.origin ORDER BY d.next_at, d.event)
                + (SELECT count(*) FROM deliveries f WHERE f.origin = d.origin AND f.state = 'pending' AND f.claimed_until > $1) AS place
                FROM deliveries d WHERE d.state = 'pending' AND d.next_at <= $1 AND d.claimed_until <= $1 AND NOT EXISTS (
                    SELECT 1 FROM deliveries e WHERE e.job = d.job AND e.state = 'pending' AND e.seq < d.seq)
            ) due WHERE place <= $3 ORDER BY next_at LIMIT $4) RETURNING event",
        "UPDATE deliveries SET claimed_until = $2, attempts = attempts + 1 WHERE event IN (
            SELECT event FROM deliveries WHERE state = 'pending' AND claimed_until <= $1 AND event IN (
                SELECT event FROM (
                    SELECT d.event, d.next_at, row_number() OVER (PARTITION BY d.origin ORDER BY d.next_at, d.event)
                    + (SELECT count(*) FROM deliveries f WHERE f.origin = d.origin AND f.state = 'pending' AND f.claimed_until > $1) AS place
                    FROM deliveries d WHERE d.state = 'pending' AND d.next_at <= $1 AND d.claimed_until <= $1 AND NOT EXISTS (
                        SELECT 1 FROM deliveries e WHERE e.job = d.job AND e.state = 'pending' AND e.seq < d.seq)
                ) due WHERE place <= $3 ORDER BY next_at LIMIT $4)
            FOR UPDATE SKIP LOCKED) RETURNING event";
        CLAIMED = "SELECT e.id, e.seq, e.job, e.kind, e.at, e.data, d.team, d.url, d.attempts - 1, j.callback_secret, d.claimed_until
        FROM deliveries d JOIN events e ON e.id = d.event JOIN jobs j ON j.id = d.job WHERE d.event = $1";
        SETTLE = "UPDATE deliveries SET state = $2, last_error = $3, next_at = $4, claimed_until = 0
        WHERE event = $1 AND state = 'pending' AND claimed_until = $5";
        BURY = "UPDATE deliveries SET state = 'dead', last_error = $2, claimed_until = 0 WHERE job = $1 AND state = 'pending'";
        REPLAY = "UPDATE deliveries SET state = 'pending', attempts = 0, next_at = $3, claimed_until = 0 WHERE team = $1 AND event = $2
        AND state <> 'pending'";
        IS_DELIVERY = "SELECT 1 FROM deliveries WHERE team = $1 AND event = $2";
        DELIVERIES = "SELECT event, job, url, state, attempts, last_error, next_at FROM deliveries
        WHERE team = $1 AND ($2 = '' OR job = $2) AND event < $3 ORDER BY event DESC LIMIT $4";
    }
}
