//! When to try a request again, and when to give up. Pure decisions plus one watch over progress; no HTTP here.
//!
//! Patience is spent by pauses and by attempts that ended without result, each attempt counted for the stall time at most:
//! a pack that takes ten minutes on a slow line and is cut at its end costs no more patience than a refused connection.
//! Success costs nothing. Every wait has jitter, and a `Retry-After` is honoured where it is longer.
//!
//! ```text
//! attempt fails -> Never      -> give up
//!               -> Elsewhere  -> next base URL at once, until each had its turn; then as Again
//!               -> Again      -> pause 0.2 s, doubled up to 10 s (jitter) -> patience left? -> attempt
//! ```

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Most attempts of one call, whatever the patience.
/// With one base URL that is about ten minutes of pauses.
const MAX_ATTEMPTS: u32 = 60;

/// What a failed attempt says about the next one.
/// Made where the failure is seen, since only there the status and the headers are at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The same answer would come again.
    Never,
    /// Try again, after this long at least.
    Again { after: Option<Duration> },
    /// Try the next base URL at once; when all had their turn, pause.
    Elsewhere { after: Option<Duration> },
}

/// Counts the attempts of one call.
#[derive(Debug)]
pub(super) struct Attempts {
    backoff: ExponentialBackoff,
    patience: Duration,
    stall: Duration,
    spent: Duration,
    made: u32,
    /// Base URLs tried since the last pause.
    turns: usize,
    bases: usize,
}

impl Attempts {
    /// `bases` is the number of places to try in turn; 1 makes [`Next::Elsewhere`] the same as [`Next::Again`].
    pub fn new(patience: Duration, stall: Duration, bases: usize) -> Self {
        Self {
            backoff: ExponentialBuilder::new()
                .with_min_delay(Duration::from_millis(200))
                .with_max_delay(Duration::from_secs(10))
                .with_factor(2.0)
                .without_max_times()
                .with_jitter()
                .build(),
            patience,
            stall,
            spent: Duration::ZERO,
            made: 0,
            turns: 0,
            bases,
        }
    }

    /// Books a failed attempt. `Some(pause)` = try again after it; `None` = give up, the last error stands.
    ///
    /// A pause that would overdraw the patience is not begun: better to say now what is wrong than after a wait that is in vain.
    pub fn failed(&mut self, took: Duration, next: Next) -> Option<Duration> {
        self.made += 1;
        self.spent += took.min(self.stall);
        let after = match next {
            Next::Never => return None,
            _ if self.made >= MAX_ATTEMPTS => return None,
            Next::Elsewhere { after } => {
                self.turns += 1;
                if self.turns < self.bases {
                    return Some(Duration::ZERO);
                }
                after
            }
            Next::Again { after } => after,
        };
        self.turns = 0;
        let pause = self.backoff.next().unwrap_or(Duration::from_secs(10)).max(after.unwrap_or_default());
        self.spent += pause;
        (self.spent <= self.patience).then_some(pause)
    }
}

/// When the last byte of a transfer moved. Shared by the body and the watch over it.
#[derive(Debug)]
pub(super) struct Progress {
    start: Instant,
    last_ms: AtomicU64,
    /// Non-zero while our own rate limit holds the body back: that is no stall.
    held: AtomicU64,
}

impl Progress {
    pub fn new() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0), held: AtomicU64::new(0) }
    }

    /// A byte moved. Never goes back, so ticks may come from several tasks.
    pub fn tick(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(now, Ordering::Relaxed);
    }

    /// The body waits for our own rate; to be followed by [`release`](Self::release), which counts as a movement.
    pub fn hold(&self) {
        self.held.store(1, Ordering::Relaxed);
    }

    pub fn release(&self) {
        self.tick();
        self.held.store(0, Ordering::Relaxed);
    }

    /// How long nothing has moved.
    pub fn silence(&self) -> Duration {
        (self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))).elapsed()
    }

    /// Resolves once nothing moved for `limit`.
    /// Never while held. For a `select!` beside the transfer: it sleeps until the limit can be reached at the earliest, so it costs next to
    /// nothing while bytes move.
    pub async fn stalled(&self, limit: Duration) {
        loop {
            let last = self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let held = self.held.load(Ordering::Relaxed) != 0;
            if !held && last.elapsed() >= limit {
                return;
            }
            let wake = if held { Instant::now() + limit } else { last + limit };
            tokio::time::sleep_until(wake).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_refusal_is_final() {
        let mut attempts = Attempts::new(60 * SECOND, 30 * SECOND, 1);
        assert_eq!(attempts.failed(SECOND, Next::Never), None);
    }

    #[test]
    fn every_base_url_has_its_turn_before_the_first_pause() {
        let mut attempts = Attempts::new(60 * SECOND, 30 * SECOND, 3);
        let elsewhere = Next::Elsewhere { after: None };
        assert_eq!(attempts.failed(Duration::ZERO, elsewhere), Some(Duration::ZERO));
        assert_eq!(attempts.failed(Duration::ZERO, elsewhere), Some(Duration::ZERO));
        assert!(attempts.failed(Duration::ZERO, elsewhere).is_some_and(|pause| pause > Duration::ZERO));
        assert_eq!(attempts.failed(Duration::ZERO, elsewhere), Some(Duration::ZERO));
    }

    #[test]
    fn retry_after_is_a_floor_and_patience_ends() {
        let mut attempts = Attempts::new(20 * SECOND, 5 * SECOND, 1);
        let pause = attempts.failed(Duration::ZERO, Next::Again { after: Some(7 * SECOND) }).expect("patience left");
        assert!(pause >= 7 * SECOND);
        // An hour-long attempt is booked with the stall time only: 7 + 5 + pause <= 20.
        assert!(attempts.failed(3600 * SECOND, Next::Again { after: None }).is_some());
        assert_eq!(attempts.failed(SECOND, Next::Again { after: Some(9 * SECOND) }), None);
    }

    #[tokio::test]
    async fn a_held_body_is_not_stalled() {
        let limit = Duration::from_millis(20);
        let progress = Progress::new();
        progress.hold();
        assert!(tokio::time::timeout(8 * limit, progress.stalled(limit)).await.is_err());
        progress.release();
        tokio::time::timeout(SECOND, progress.stalled(limit)).await.expect("stalls once released");
    }
}
