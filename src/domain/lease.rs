//! A job's tenure of one node: at most one live lease, and an epoch that only rises.
//!
//! Pure bookkeeping over instants given by the caller. The epoch is the fencing token of everything an agent says: whoever holds a lower one is
//! refused by comparison, never by a clock. A lease lives until it is released; the end of its time makes it *due* for release as `expired`, and
//! until that release is written it still is the job's one lease, though it can no longer be renewed.

use jiff::Timestamp;

/// Longest tenure that may be granted at once, in hours from now. A bound on typing errors, not on work: a lease can be
/// renewed any number of times.
pub const MAX_HOURS: i64 = 24 * 366;

/// Why a lease ended.
/// Chosen by whoever releases; `Expired` also by the service, when nobody did in time. It decides which outputs are due
/// ([`super::output::When::is_due`]) and what becomes of the job ([`super::job::State::after`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    Finished,
    Failed,
    Preempted,
    Expired,
}

impl Reason {
    pub const ALL: [Self; 4] = [Self::Finished, Self::Failed, Self::Preempted, Self::Expired];

    /// The word on the wire and in SQL.
    pub fn word(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Preempted => "preempted",
            Self::Expired => "expired",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.word() == word)
    }

    /// The work was taken away, not ended: the job may be leased anew.
    pub fn may_run_again(self) -> bool {
        matches!(self, Self::Preempted | Self::Expired)
    }
}

/// Why a lease cannot be granted, renewed or released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{text:?} is not an RFC 3339 instant with an offset; write for example `2026-12-01T02:00:00Z`")]
    NotAnInstant { text: String },
    #[error("`{until}` is not in the future; the service's clock says `{now}`")]
    NotFuture { until: Timestamp, now: Timestamp },
    #[error("`{until}` is more than {MAX_HOURS} hours away; grant a shorter lease and renew it")]
    TooLong { until: Timestamp },
    #[error("the job holds a lease already (epoch {epoch}); release it first")]
    Held { epoch: u64 },
    #[error("the lease has ended (`{}`); grant a new one", reason.word())]
    Over { reason: Reason },
}

/// Reads the end of a lease: an RFC 3339 instant **with** an offset, in the future, at most [`MAX_HOURS`] whole hours away.
/// A local time without an offset is refused, since the scheduler's clock and ours may stand in different zones.
pub fn parse_until(text: &str, now: Timestamp) -> Result<Timestamp, Error> {
    let until: Timestamp = text.parse().map_err(|_| Error::NotAnInstant { text: text.to_owned() })?;
    if until <= now {
        return Err(Error::NotFuture { until, now });
    }
    if until.duration_since(now).as_hours() > MAX_HOURS {
        return Err(Error::TooLong { until });
    }
    Ok(until)
}

/// A lease's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// 1 for a job's first lease, one more for each further one; never used again.
    pub epoch: u64,
    /// Moved by [`Lease::renew`] only.
    pub until: Timestamp,
    /// Set once, never changed.
    pub released: Option<Reason>,
}

impl Lease {
    /// Whether it still is the job's lease and its time has not run out.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.released.is_none() && now < self.until
    }

    /// Time has run out, but nobody has released it yet.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.released.is_none() && self.until <= now
    }

    /// Moves the end; only while live, so that time that ran out cannot come back to life before the reconciler sees it. The
    /// end may also come nearer.
    pub fn renew(&mut self, until: Timestamp, now: Timestamp) -> Result<(), Error> {
        if !self.is_live(now) {
            return Err(Error::Over { reason: self.released.unwrap_or(Reason::Expired) });
        }
        self.until = until;
        Ok(())
    }

    /// Ends it, whether or not its time has run out. `Ok(false)` when it had ended for the same reason before: said twice,
    /// done once. Another reason than the first is [`Error::Over`], and the first stays.
    pub fn release(&mut self, reason: Reason) -> Result<bool, Error> {
        match self.released {
            None => {
                self.released = Some(reason);
                Ok(true)
            }
            Some(was) if was == reason => Ok(false),
            Some(was) => Err(Error::Over { reason: was }),
        }
    }
}

/// The next lease of a job whose newest one is `newest`. [`Error::Held`] also while that one is merely due: what it leaves
/// to bring back has to be decided first.
pub fn grant(newest: Option<&Lease>, until: Timestamp) -> Result<Lease, Error> {
    match newest {
        Some(held) if held.released.is_none() => Err(Error::Held { epoch: held.epoch }),
        newest => Ok(Lease { epoch: newest.map_or(0, |lease| lease.epoch) + 1, until, released: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn until_is_a_future_instant_with_an_offset() {
        let now = at(1_800_000_000);
        assert_eq!(parse_until("2027-01-15T09:00:01+01:00", now), Ok(at(1_800_000_001)));
        for bad in ["2027-01-15T09:00:01", "tomorrow", "2027-01-15", "1800000001", ""] {
            assert!(matches!(parse_until(bad, now), Err(Error::NotAnInstant { .. })), "{bad}");
        }
        assert!(matches!(parse_until("2027-01-15T08:00:00Z", now), Err(Error::NotFuture { .. })));
        assert!(matches!(parse_until("2999-01-01T00:00:00Z", now), Err(Error::TooLong { .. })));
    }

    #[derive(Debug, Clone)]
    enum Op {
        Grant(i64),
        Renew(i64),
        Release(usize),
        Expire,
        Wait(i64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (1i64..100).prop_map(Op::Grant),
            (1i64..100).prop_map(Op::Renew),
            (0usize..4).prop_map(Op::Release),
            Just(Op::Expire),
            (1i64..60).prop_map(Op::Wait),
        ]
    }

    proptest! {
        #[test]
        fn one_live_lease_and_rising_epochs(walk in proptest::collection::vec(op(), 0..80)) {
            let mut now = 1_000i64;
            let mut leases: Vec<Lease> = Vec::new();
            for op in walk {
                match op {
                    Op::Grant(after) => {
                        let held = leases.last().is_some_and(|lease| lease.released.is_none());
                        match grant(leases.last(), at(now + after)) {
                            Ok(lease) => {
                                prop_assert!(!held);
                                prop_assert!(leases.last().is_none_or(|last| last.epoch < lease.epoch));
                                leases.push(lease);
                            }
                            Err(error) => { prop_assert!(held); let is_held = matches!(error, Error::Held { .. }); prop_assert!(is_held); }
                        }
                    }
                    Op::Renew(after) => if let Some(lease) = leases.last_mut() {
                        let live = lease.is_live(at(now));
                        prop_assert_eq!(lease.renew(at(now + after), at(now)).is_ok(), live);
                    },
                    Op::Release(reason) => if let Some(lease) = leases.last_mut() {
                        let before = lease.released;
                        let did = lease.release(Reason::ALL[reason]);
                        prop_assert_eq!(matches!(did, Ok(true)), before.is_none());
                        prop_assert!(before.is_none() || lease.released == before);
                    },
                    Op::Expire => if let Some(lease) = leases.last_mut() && lease.is_due(at(now)) {
                        prop_assert_eq!(lease.release(Reason::Expired), Ok(true));
                    },
                    Op::Wait(seconds) => now += seconds,
                }
                prop_assert!(leases.iter().filter(|lease| lease.released.is_none()).count() <= 1);
            }
        }
    }
}
