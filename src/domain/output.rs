//! What comes back from a job: which outputs are due when a lease ends, and how one of them moves from declared to stored.
//!
//! Pure. One row per (job, lease epoch, output) is fenced by itself, so the lease may end while its outputs are still on their way. Invariant: an
//! output only moves forward, so a report said twice or out of order changes nothing, and a stored output never becomes anything else.
//!
//! ```text
//! declared -> sealing -> sealed -> storing -> stored
//!                  any of the first four -> missing | failed
//! ```
//!
//! States may be skipped, since an agent may report once where it could report four times.

use super::lease::Reason;

/// When an output is collected.
/// `Success`: from a finished lease. `Always`: from any. `Evicted`: from a preempted or expired one, for what lets the next
/// run go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    Success,
    Always,
    Evicted,
}

impl When {
    /// Whether an output declared so comes back from a lease that ended for `reason`.
    pub fn is_due(self, reason: Reason) -> bool {
        match reason {
            Reason::Finished => matches!(self, Self::Success | Self::Always),
            Reason::Failed => matches!(self, Self::Always),
            Reason::Preempted | Reason::Expired => matches!(self, Self::Evicted | Self::Always),
        }
    }
}

/// Where one output stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing was heard of it yet.
    Declared,
    /// The node gathers it.
    Sealing,
    /// Safe on the node's disk: the GPU may go.
    Sealed,
    /// Its bytes are on their way.
    Storing,
    /// Durable in the store.
    Stored,
    /// Nothing matched its globs, or the node never had the job.
    Missing,
    /// The node tried and gave it up.
    Failed,
}

impl State {
    pub const ALL: [Self; 7] =
        [Self::Declared, Self::Sealing, Self::Sealed, Self::Storing, Self::Stored, Self::Missing, Self::Failed];

    /// The word on the wire and in SQL.
    pub fn word(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Sealing => "sealing",
            Self::Sealed => "sealed",
            Self::Storing => "storing",
            Self::Stored => "stored",
            Self::Missing => "missing",
            Self::Failed => "failed",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }

    /// The job waits for it no longer, and no report changes it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Stored | Self::Missing | Self::Failed)
    }

    /// Safe on the node's disk or beyond, or never coming: nothing more is needed from the running job.
    pub fn is_sealed(self) -> bool {
        matches!(self, Self::Sealed | Self::Storing) || self.is_final()
    }

    /// Order of the road; the three ends share one rank, so that none of them follows another.
    fn rank(self) -> u8 {
        match self {
            Self::Declared => 0,
            Self::Sealing => 1,
            Self::Sealed => 2,
            Self::Storing => 3,
            Self::Stored | Self::Missing | Self::Failed => 4,
        }
    }

    /// What a report makes of this state. Never a step back: a report that comes late or twice is [`Move::Same`] or
    /// [`Move::Over`], not an error, so that an agent need not know which of its reports arrived.
    pub fn report(self, said: Self) -> Move {
        if self == said {
            Move::Same
        } else if self.is_final() {
            Move::Over
        } else if said.rank() < self.rank() {
            // an agent that restarted begins again; what it had sealed is sealed still
            Move::Same
        } else {
            Move::To(said)
        }
    }
}

/// What a report does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    To(State),
    /// Known already; counts may have grown.
    Same,
    /// The output reached its end before and keeps it.
    Over,
}

/// One declared output at the end of a lease.
/// Only outputs that the lease's end asks for are given; the others do not hold a job up.
#[derive(Debug, Clone, Copy)]
pub struct Due {
    pub state: State,
    pub required: Need,
}

/// Whether a job counts as failed without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Required,
    Optional,
}

/// Whether all that was required came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// A required output is missing or failed.
    Lacking,
}

/// Whether a lease's due outputs have all reached their end, and if so, whether all that was required came back. `None`
/// while any is on its way, also an optional one: a job is not over while something of it still moves. Nothing due is
/// [`Outcome::Complete`].
pub fn settle(due: &[Due]) -> Option<Outcome> {
    if !due.iter().all(|output| output.state.is_final()) {
        return None;
    }
    let lacking = due.iter().any(|output| output.required == Need::Required && output.state != State::Stored);
    Some(if lacking { Outcome::Lacking } else { Outcome::Complete })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn due_follows_the_reason() {
        let due = |reason| [When::Success, When::Always, When::Evicted].map(|when| when.is_due(reason));
        assert_eq!(due(Reason::Finished), [true, true, false]);
        assert_eq!(due(Reason::Failed), [false, true, false]);
        assert_eq!(due(Reason::Preempted), [false, true, true]);
        assert_eq!(due(Reason::Expired), [false, true, true]);
    }

    #[test]
    fn settled_when_all_ended() {
        let due = |state, required| Due { state, required };
        assert_eq!(settle(&[]), Some(Outcome::Complete));
        assert_eq!(settle(&[due(State::Storing, Need::Optional)]), None);
        assert_eq!(settle(&[due(State::Missing, Need::Optional)]), Some(Outcome::Complete));
        assert_eq!(settle(&[due(State::Missing, Need::Required)]), Some(Outcome::Lacking));
        assert_eq!(
            settle(&[due(State::Stored, Need::Required), due(State::Failed, Need::Required)]),
            Some(Outcome::Lacking)
        );
    }

    proptest! {
        #[test]
        fn outputs_only_move_forward(walk in proptest::collection::vec(0usize..7, 0..30)) {
            let mut state = State::Declared;
            for said in walk {
                let said = State::ALL[said];
                if let Move::To(next) = state.report(said) {
                    prop_assert!(!state.is_final());
                    prop_assert!(next.rank() > state.rank());
                    prop_assert!(!state.is_sealed() || next.is_sealed());
                    state = next;
                }
            }
        }
    }
}
