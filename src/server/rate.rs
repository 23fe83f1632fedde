//! How often one token may call: a bucket of requests per token, refilled by time.
//!
//! A token's bucket says nothing about any other's. Memory is bounded: full buckets are forgotten first, and there are never
//! more than [`MOST`].
//!
//! A replica counts by itself: n of them together admit n times the rate. The limit is against a client that runs wild, not
//! for billing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::app::{Code, Error, Kind};

pub const TOO_MANY: Code = Code::new(Kind::TooMany, "too_many_requests", "this token calls too often");

/// Little more than 1 MiB of buckets.
const MOST: usize = 16_384;

#[derive(Debug)]
pub(super) struct Rate {
    /// Requests a second; bursts of twice that.
    rate: f64,
    buckets: Mutex<HashMap<Uuid, Bucket>>,
}

/// `left` requests at the moment `at`; what has come in since is computed when it is asked for, so no timer runs.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Rate {
    /// 0 means no limit.
    pub(super) fn new(per_second: u32) -> Self {
        Self { rate: f64::from(per_second), buckets: Mutex::default() }
    }

    /// Takes one request out of a token's bucket.
    ///
    /// Fails with [`TOO_MANY`] and the time until one request is there. A refused request takes nothing, so insisting does
    /// not prolong the wait.
    pub(super) fn take(&self, token: Uuid, now: Instant) -> Result<(), Error> {
        if self.rate == 0.0 {
            return Ok(());
        }
        let full = self.rate * 2.0;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST && !buckets.contains_key(&token) {
            buckets.retain(|_, bucket| bucket.left(self.rate, now) < full);
            if buckets.len() >= MOST {
                buckets.clear(); // more busy tokens than anybody has: start anew rather than grow
            }
        }
        let bucket = buckets.entry(token).or_insert(Bucket { left: full, at: now });
        *bucket = Bucket { left: bucket.left(self.rate, now), at: now };
        if bucket.left < 1.0 {
            let wait = Duration::from_secs_f64((1.0 - bucket.left) / self.rate);
            let detail = format!("more than {} requests a second", self.rate);
            let hint = "wait as `Retry-After` says; the operator can raise limits.requests_per_second";
            return Err(Error::new(TOO_MANY, detail, hint).retry_after(wait));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

impl Bucket {
    /// Never more than a full bucket.
    fn left(&self, rate: f64, now: Instant) -> f64 {
        (self.left + now.saturating_duration_since(self.at).as_secs_f64() * rate).min(rate * 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_is_held_back_and_others_are_not() {
        let rate = Rate::new(5);
        let (busy, calm, now) = (Uuid::from_u128(1), Uuid::from_u128(2), Instant::now());
        for _ in 0..10 {
            rate.take(busy, now).unwrap();
        }
        let error = rate.take(busy, now).unwrap_err();
        assert_eq!(error.code, TOO_MANY);
        assert!(error.retry_after.unwrap() <= Duration::from_millis(200));
        rate.take(calm, now).unwrap();
        rate.take(busy, now + Duration::from_millis(250)).unwrap();
        rate.take(busy, now + Duration::from_millis(250)).unwrap_err();
    }

    #[test]
    fn no_limit_and_bounded_memory() {
        let (none, now) = (Rate::new(0), Instant::now());
        (0..10_000).for_each(|_| none.take(Uuid::nil(), now).unwrap());
        let rate = Rate::new(1);
        (0..MOST as u128 + 10).for_each(|n| rate.take(Uuid::from_u128(n), now).unwrap());
        assert!(rate.buckets.lock().unwrap().len() <= MOST);
    }
}
