//! The states of a staging and what may follow what.
//!
//! Pure. A staging without a node is settled by the service (`accepted -> near | failed`); one with a node is driven by its agent's reports, which
//! say where the node stands, not what changed: a report may come twice, and it may skip states that passed while the line was down. Invariants:
//! `state_seq` rises exactly when the state changes; `ready_seq` rises exactly when `ready` is entered; an ended staging stays ended.
//!
//! ```text
//! without a node   accepted -> near | failed                               settled by the service
//! with a node      accepted -> pulling -> verifying -> ready <-> unready   as the agent reports; steps may be skipped
//!                  unready -> pulling -> ...                               what was lost is fetched again
//!                  any of these five -> failed                             by a report, or because the inputs cannot be staged
//!                  any of these five -> released                           by the end of the lease
//! either           whatever is not over -> cancelled                       by a caller, or with its job
//! ```

use jiff::{SignedDuration, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Requested; nothing has been heard of it.
    Accepted,
    /// The node fetches.
    Pulling,
    /// The node reads back what it wrote.
    Verifying,
    /// Without a lease: every input is proven present in the store.
    Near,
    /// Every file is verified on the node's disk, and a countersigned receipt says so.
    Ready,
    /// A pinned file was lost after `ready`.
    Unready,
    /// It cannot succeed; the row's error says why. A new one may be requested.
    Failed,
    Cancelled,
    /// Its lease ended. What it left on the node is cleaned up afterwards, which is no state of its own.
    Released,
}

impl State {
    pub const ALL: [Self; 9] = [
        Self::Accepted,
        Self::Pulling,
        Self::Verifying,
        Self::Near,
        Self::Ready,
        Self::Unready,
        Self::Failed,
        Self::Cancelled,
        Self::Released,
    ];

    /// The word on the wire and in SQL.
    pub fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Pulling => "pulling",
            Self::Verifying => "verifying",
            Self::Near => "near",
            Self::Ready => "ready",
            Self::Unready => "unready",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }

    /// It will not change any more by itself or by a report. `near` is not over: it may still be cancelled.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Failed | Self::Cancelled | Self::Released)
    }

    /// What an agent's report makes of this state. The service's own states (`accepted`, `near`, `cancelled`, `released`)
    /// cannot be reported. `ready` is left by `unready` or `failed` only, so that nobody who acted on it misses that it
    /// ended. The caller has checked epoch and instance before.
    pub fn report(self, said: Self) -> Result<Move, Refusal> {
        let refused = || Refusal { is: self, said };
        if self.is_over()
            || self == Self::Near
            || matches!(said, Self::Accepted | Self::Near | Self::Cancelled | Self::Released)
        {
            return Err(refused());
        }
        if self == said {
            return Ok(Move::Same);
        }
        match (self, said) {
            (
                Self::Accepted | Self::Pulling | Self::Verifying | Self::Unready,
                Self::Pulling | Self::Verifying | Self::Ready,
            )
            | (Self::Ready, Self::Unready)
            | (_, Self::Failed) => Ok(Move::To(said)),
            _ => Err(refused()),
        }
    }
}

/// What a report does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    To(State),
    /// Progress only.
    Same,
}

/// A report that cannot follow the state.
/// To be told to the agent as a conflict: it asks for its work again and reports from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the staging is `{}`; a report of `{}` cannot follow", is.word(), said.word())]
pub struct Refusal {
    pub is: State,
    pub said: State,
}

/// Progress since pulling began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The clock and the bytes count from the same moment: what was there before is in neither.
    pub began: Timestamp,
    pub now: Timestamp,
    /// Bytes done since `began`.
    pub done: u64,
    pub left: u64,
}

/// When it will likely (p50) and very likely (p90) be ready; `None` while nothing has been measured.
///
/// The rate so far, held against what is left. p90 lies 1.25 times as far from `now` as p50 when nearly all is done, up to
/// twice as far when nearly all is ahead. Spans are cut to about 30 years, so no input overflows.
pub fn eta(progress: Progress) -> Option<(Timestamp, Timestamp)> {
    let spent = progress.now.duration_since(progress.began).as_secs_f64();
    if progress.done == 0 || spent <= 0.0 {
        return None;
    }
    let left = spent * (progress.left as f64 / progress.done as f64);
    let share_left = progress.left as f64 / (progress.left as f64 + progress.done as f64);
    let after = |seconds: f64| {
        let span = SignedDuration::try_from_secs_f64(seconds.min(1e9)).ok()?;
        progress.now.checked_add(span).ok()
    };
    Some((after(left)?, after(left * (1.25 + 0.75 * share_left))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_usual_road_and_its_short_cuts() {
        use State::*;
        for road in [
            &[Accepted, Pulling, Verifying, Ready][..],
            &[Accepted, Ready],
            &[Accepted, Verifying, Pulling, Ready, Unready, Ready],
        ] {
            for pair in road.windows(2) {
                assert_eq!(pair[0].report(pair[1]), Ok(Move::To(pair[1])), "{pair:?}");
            }
        }
        assert!(Ready.report(Pulling).is_err(), "ready is left through unready only");
        assert!(Accepted.report(Unready).is_err());
        assert!(Near.report(Ready).is_err());
        assert_eq!(Ready.report(Ready), Ok(Move::Same));
    }

    #[test]
    fn eta_waits_for_a_measurement() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(eta(Progress { began: at(0), now: at(10), done: 0, left: 5 }), None);
        assert_eq!(eta(Progress { began: at(10), now: at(10), done: 1, left: 5 }), None);
        let (p50, p90) = eta(Progress { began: at(0), now: at(10), done: 100, left: 300 }).unwrap();
        assert_eq!(p50, at(40));
        assert!(p90 > p50 && p90 < at(80));
        assert_eq!(eta(Progress { began: at(0), now: at(10), done: 1, left: 0 }), Some((at(10), at(10))));
    }

    proptest! {
        #[test]
        fn an_ended_staging_stays_ended(walk in proptest::collection::vec(0usize..9, 0..60)) {
            let (mut state, mut readies, mut unreadies) = (State::Accepted, 0u32, 0u32);
            for said in walk {
                let said = State::ALL[said];
                let before = state;
                if let Ok(Move::To(next)) = state.report(said) {
                    prop_assert!(!before.is_over());
                    prop_assert_ne!(before, next);
                    if next == State::Ready { readies += 1; }
                    if next == State::Unready { unreadies += 1; prop_assert_eq!(before, State::Ready); }
                    state = next;
                }
                // between two readies lies an unready
                prop_assert!(readies <= unreadies + 1);
            }
        }

        #[test]
        fn eta_never_panics_and_p90_is_not_before_p50(spent in 0i64..10_000_000, done in any::<u64>(), left in any::<u64>()) {
            let began = Timestamp::from_second(1_000_000_000).unwrap();
            let now = Timestamp::from_second(1_000_000_000 + spent).unwrap();
            if let Some((p50, p90)) = eta(Progress { began, now, done, left }) {
                prop_assert!(p50 >= now && p90 >= p50);
            }
        }
    }
}
