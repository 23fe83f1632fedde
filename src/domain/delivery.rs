//! When a callback is attempted again.
//!
//! Pure. The schedule is the one Standard Webhooks recommends; a receiver's `Retry-After` may make a wait longer, never shorter; a little jitter keeps
//! many jobs of one receiver from coming at once. After the last attempt the delivery is dead until somebody replays it.

use std::time::Duration;

/// Seconds before the second, third, ... attempt: ten attempts over about three days, so that a receiver may be down for a
/// weekend.
const WAITS: [u64; 9] = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
/// Longest wait a receiver may ask for.
const MOST: u64 = 86_400;

/// How long to wait after `attempts` failed ones; `None` when that was the last, and for 0, which is no failure. The wait is
/// the schedule's or `retry_after`, whichever is longer, the latter cut to a day. `jitter` 0 to 255 adds up to a tenth; it
/// is the caller's random byte, so that this stays a function of its arguments.
pub fn wait_after(attempts: u32, retry_after: Option<Duration>, jitter: u8) -> Option<Duration> {
    let wait = WAITS.get(usize::try_from(attempts.checked_sub(1)?).ok()?)?;
    let asked = retry_after.map_or(0, |asked| asked.as_secs().min(MOST));
    let wait = Duration::from_secs((*wait).max(asked));
    Some(wait + wait.mul_f64(f64::from(jitter) / 2_550.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_is_the_recommended_one() {
        let waits: Vec<u64> =
            (1..20).map_while(|attempts| wait_after(attempts, None, 0)).map(|wait| wait.as_secs()).collect();
        assert_eq!(waits, [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400]);
        assert_eq!(wait_after(0, None, 0), None);
    }

    #[test]
    fn jitter_and_retry_after_only_lengthen() {
        assert_eq!(wait_after(1, None, 255), Some(Duration::from_millis(5_500)));
        assert_eq!(wait_after(1, Some(Duration::from_secs(120)), 0), Some(Duration::from_secs(120)));
        assert_eq!(wait_after(2, Some(Duration::from_secs(1)), 0), Some(Duration::from_secs(300)));
        assert_eq!(wait_after(1, Some(Duration::from_secs(u64::MAX)), 0), Some(Duration::from_secs(86_400)));
    }
}
