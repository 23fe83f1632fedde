//! What a transfer tells about itself while it runs: counters that cost one relaxed atomic addition, and a [`Reporter`] that is
//! shown them from time to time.
//!
//! No terminal here: the command line draws bars or lines, the agent sends reports, tests look. A reporter is called from
//! inside the transfer's tick task; it must not block for long.

use serde::Serialize;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Named phases, so that nobody has to guess what a full bar waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Opening the upload, fetching the parent's or the version's tree and layout.
    Prepare,
    /// Push: walking, reading, hashing and sending, all at once.
    Send,
    /// Push: the last packs, the tree and the layout are on their way.
    Finish,
    /// Push: the service checks and commits.
    Commit,
    /// Pull: looking at what DEST already holds.
    Scan,
    /// Pull: fetching, checking and writing.
    Fetch,
    /// Reading back and hashing.
    Verify,
    /// Directory times, syncing to disk.
    Settle,
}

impl Phase {
    const ALL: [Self; 8] =
        [Self::Prepare, Self::Send, Self::Finish, Self::Commit, Self::Scan, Self::Fetch, Self::Verify, Self::Settle];

    /// The word that is shown to people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Prepare => "preparing",
            Self::Send => "sending",
            Self::Finish => "finishing",
            Self::Commit => "committing",
            Self::Scan => "scanning",
            Self::Fetch => "fetching",
            Self::Verify => "verifying",
            Self::Settle => "settling",
        }
    }
}

/// The state of a transfer at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Snapshot {
    pub phase: Phase,
    /// Files done with.
    pub files: u64,
    /// Logical bytes done with.
    pub bytes: u64,
    /// Files there are, once known; for a push it grows while the walk goes on.
    pub files_total: u64,
    pub bytes_total: u64,
    /// Bytes over the network: request bodies of a push, answers of a pull.
    pub network_bytes: u64,
    /// Logical bytes that did not have to travel.
    pub reused_bytes: u64,
    pub failed: u64,
    /// Whole seconds since the phase, the files, the total of files, the failed or the network's bytes last moved, as far as snapshots saw.
    pub stalled_for: u64,
    /// Since the transfer began.
    pub seconds: f64,
}

/// Is shown the state of a transfer: at its begin, about four times a second, and once at its end, be it an error.
///
/// Called from the future that runs the transfer, one call at a time: what blocks here blocks the transfer. A phase shorter than a
/// tick may never be seen.
pub trait Reporter: Send + Sync + Debug {
    /// Counters never fall, save where another attempt begins (packs or the layout were lost meanwhile): `files`, `bytes`,
    /// `reused_bytes` and `failed` start at 0 then.
    fn show(&self, now: &Snapshot);
    /// Something a person should know; also found in the report. Called at the end of a transfer that went well.
    fn warn(&self, text: &str);
}

/// A reporter that says nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Reporter for Silent {
    fn show(&self, _: &Snapshot) {}
    fn warn(&self, _: &str) {}
}

/// The counters behind [`Snapshot`].
/// Shared by all threads of one transfer. Counters are independent of each other: a snapshot may see a file counted and its bytes not yet.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    phase: AtomicU8,
    pub files: AtomicU64,
    pub bytes: AtomicU64,
    pub files_total: AtomicU64,
    pub bytes_total: AtomicU64,
    /// Shared with the HTTP client, which counts while it sends.
    pub network_bytes: Arc<AtomicU64>,
    pub reused_bytes: AtomicU64,
    pub failed: AtomicU64,
    /// Sum of the counters when last looked at, and when that was (milliseconds since the start).
    seen: AtomicU64,
    moved_at: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            phase: AtomicU8::new(0),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            files_total: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
            network_bytes: Arc::default(),
            reused_bytes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            moved_at: AtomicU64::new(0),
        }
    }
}

impl Meter {
    /// How often a reporter is shown the state.
    pub const TICK: Duration = Duration::from_millis(250);

    /// Shown with the next tick.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// Counts what was done anew: another attempt begins. What went over the network stays.
    pub fn restart(&self) {
        for counter in [&self.files, &self.bytes, &self.reused_bytes, &self.failed] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Reads all counters; also keeps the time of the last movement, so call it regularly.
    pub fn snapshot(&self) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let elapsed = self.started.elapsed();
        let now = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let phase = self.phase.load(Ordering::Relaxed);
        let sum = [&self.files, &self.bytes, &self.files_total, &self.network_bytes, &self.failed]
            .into_iter()
            .fold(u64::from(phase), |sum, counter| sum.wrapping_add(get(counter)));
        if self.seen.swap(sum, Ordering::Relaxed) != sum {
            self.moved_at.store(now, Ordering::Relaxed);
        }
        Snapshot {
            phase: Phase::ALL[usize::from(phase).min(Phase::ALL.len() - 1)],
            files: get(&self.files),
            bytes: get(&self.bytes),
            files_total: get(&self.files_total),
            bytes_total: get(&self.bytes_total),
            network_bytes: get(&self.network_bytes),
            reused_bytes: get(&self.reused_bytes),
            failed: get(&self.failed),
            stalled_for: now.saturating_sub(self.moved_at.load(Ordering::Relaxed)) / 1000,
            seconds: elapsed.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_found_again_and_movement_is_seen() {
        let meter = Meter::default();
        for phase in Phase::ALL {
            meter.enter(phase);
            assert_eq!(meter.snapshot().phase, phase);
        }
        Meter::add(&meter.bytes, 7);
        let now = meter.snapshot();
        assert_eq!((now.bytes, now.stalled_for), (7, 0));
    }
}
