//! Time and ids: the one door through which either enters the program.
//!
//! Everything that needs the wall clock or a fresh id takes a [`Clock`] or an [`Ids`], so that tests own both. Durations of
//! waiting (timeouts, back-off) are tokio's business, not this file's. Times have microsecond precision everywhere in the
//! service, because that is what the database keeps: [`SystemClock`] truncates, so that a time read back equals the one written.

use std::fmt::Debug;
use std::sync::Mutex;

use jiff::Timestamp;
use uuid::Uuid;

/// Tells the wall-clock time, at microsecond precision.
///
/// It may jump, backwards too: whoever orders or fences by it needs something besides (an epoch, a lock).
pub trait Clock: Send + Sync + Debug {
    /// Never blocks; cut to whole microseconds by every implementor.
    fn now(&self) -> Timestamp;
}

/// Makes ids and secrets nobody can guess.
pub trait Ids: Send + Sync + Debug {
    /// A fresh UUID v7 (RFC 9562): unique, and within one process sorted by the time it was made.
    fn uuid(&self) -> Uuid;
    /// 256 bits from the system's random source: for tokens and keys, which a UUID is not fit for.
    fn secret(&self) -> [u8; 32];
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the door")]
        let now = Timestamp::now();
        truncate(now)
    }
}

fn truncate(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).expect("a timestamp's own microseconds are in range")
}

/// A clock that stands still until it is moved. For tests.
#[derive(Debug)]
pub struct ManualClock(Mutex<Timestamp>);

impl ManualClock {
    pub fn new(at: Timestamp) -> Self {
        Self(Mutex::new(truncate(at)))
    }

    /// Sets the time; backwards too, since real clocks do that.
    pub fn set(&self, at: Timestamp) {
        *self.slot() = truncate(at);
    }

    pub fn advance(&self, by: std::time::Duration) {
        let mut slot = self.slot();
        *slot = truncate(slot.saturating_add(by).expect("a plain duration can be added"));
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Timestamp> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    /// 2026-01-01T00:00:00Z.
    fn default() -> Self {
        Self::new(Timestamp::from_second(1_767_225_600).expect("in range"))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.slot()
    }
}

/// Ids from the system's random source.
#[derive(Debug, Clone, Copy, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn uuid(&self) -> Uuid {
        #[expect(clippy::disallowed_methods, reason = "this is the door")]
        Uuid::now_v7()
    }

    fn secret(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).expect("the system has a random source");
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_still_until_moved() {
        let clock = ManualClock::default();
        let start = clock.now();
        assert_eq!(start.to_string(), "2026-01-01T00:00:00Z");
        clock.advance(std::time::Duration::from_millis(1_500));
        assert_eq!(clock.now().as_millisecond() - start.as_millisecond(), 1_500);
        clock.set(start);
        assert_eq!(clock.now(), start);
    }

    #[test]
    fn times_carry_no_more_than_the_database_keeps() {
        let now = SystemClock.now();
        assert_eq!(Timestamp::from_microsecond(now.as_microsecond()).unwrap(), now);
    }

    #[test]
    fn ids_differ_and_sort_by_time() {
        let ids = RandomIds;
        let (a, b) = (ids.uuid(), ids.uuid());
        assert!(a < b);
        assert_ne!(ids.secret(), ids.secret());
    }
}
