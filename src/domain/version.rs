//! Rules about versions and the uploads that make them: which one a reference means, and what an upload may still do.
//!
//! Pure decisions over facts that `app` read in one transaction; `app` carries them out in the same one. A version is immutable;
//! only whether it is still there changes. An upload's epoch fences: whoever holds an older one may change nothing.
//!
//! ```text
//! open -commit-> committing -done-> committed
//!  ^                 |
//!  +-----failed------+
//! open -expire-> expired                    epoch + 1
//! open | expired -reopen-> open             epoch + 1
//! open | expired -abort-> aborted           epoch + 1
//! ```

use super::id::{Selector, VersionNumber};
use crate::content::digest::Digest;

/// What resolution has to know of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub number: VersionNumber,
    pub digest: Digest,
    /// Some files could not be read when it was pushed: never meant by `@latest`.
    pub incomplete: bool,
}

/// Why a selector means none of the versions.
/// None of them creates or changes anything; the caller names another version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    #[error("no version of the dataset matches `@{0}`; `dray log DATASET` lists them")]
    Missing(Selector),
    #[error("the dataset has incomplete versions only; name one by its number, or push again until nothing fails")]
    OnlyIncomplete,
    #[error("`@{0}` begins more than one digest of the dataset; give more digits")]
    Ambiguous(Selector),
}

/// Which of the candidates, newest first, the selector means. Candidates that do not match are passed over, so the caller
/// may give more than needed; it must give enough to decide, for a digest the newest of each matching one.
///
/// `@latest` is the newest complete one; a number is that one, complete or not; a digest prefix is the newest version with
/// the one digest that begins so, since the same tree may have been pushed more than once.
pub fn resolve(
    selector: &Selector,
    newest_first: impl IntoIterator<Item = Candidate>,
) -> Result<Candidate, Unresolved> {
    let mut found: Option<Candidate> = None;
    let mut passed_incomplete = false;
    for candidate in newest_first {
        match selector {
            Selector::Latest if !candidate.incomplete => return Ok(candidate),
            Selector::Latest => passed_incomplete = true,
            Selector::Number(number) if *number == candidate.number => return Ok(candidate),
            Selector::Digest(prefix) if candidate.digest.to_string().starts_with(prefix.as_str()) => match &found {
                Some(first) if first.digest != candidate.digest => return Err(Unresolved::Ambiguous(selector.clone())),
                Some(_) => {}
                None => found = Some(candidate),
            },
            Selector::Number(_) | Selector::Digest(_) => {}
        }
    }
    match found {
        Some(candidate) => Ok(candidate),
        None if passed_incomplete => Err(Unresolved::OnlyIncomplete),
        None => Err(Unresolved::Missing(selector.clone())),
    }
}

/// Where an upload stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UploadState {
    /// Takes packs.
    Open,
    /// Its commit is being worked on; packs are refused until that fails.
    Committing,
    /// Made its version; stays so.
    Committed,
    /// Given up by its owner; stays so.
    Aborted,
    /// Ran out of time; may be reopened.
    Expired,
}

/// What somebody wants to do to an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Add packs, tree or layout, or ask what is known.
    Add,
    Commit,
    /// The commit was refused; the client may mend it.
    CommitFailed,
    /// The version exists, in the same transaction.
    CommitDone,
    Abort,
    /// By whoever knows the id and may see the upload; it fences the holder before.
    Reopen,
    /// By the service, once its time is over; a commit under way is never cut off.
    Expire,
}

/// Why an upload refuses an act.
/// What stands in the way, with what to do about it. `app` answers them as conflicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(
        "another holder of this upload has reopened or ended it (its epoch is {now}, this request said {said}); open a new upload"
    )]
    Fenced { said: u64, now: u64 },
    #[error("the upload is being committed; wait for its operation")]
    Committing,
    #[error("the upload has been committed; open a new one")]
    Committed,
    #[error("the upload was aborted; open a new one")]
    Aborted,
    #[error("the upload expired; reopen it, or open a new one, which is offered the packs that were sent")]
    Expired,
    #[error("no commit of the upload is under way")]
    NotCommitting,
}

/// An upload's state and fencing token. The rules say what follows; time is not theirs, so whether an open upload is overdue
/// is for the caller to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub state: UploadState,
    /// 1 at first; rises whenever the upload is taken from its holder, so that requests of the former one, still on their
    /// way, change nothing.
    pub epoch: u64,
}

impl Standing {
    /// A fresh upload.
    pub const FIRST: Self = Self { state: UploadState::Open, epoch: 1 };

    /// Refuses whoever speaks with another epoch, older or newer. To be asked before [`Self::after`] for whatever a holder
    /// wants; the service's own acts carry no epoch.
    pub fn fence(self, said: u64) -> Result<Self, Refused> {
        if said == self.epoch { Ok(self) } else { Err(Refused::Fenced { said, now: self.epoch }) }
    }

    /// The standing after an act; the epoch rises when the upload is reopened, aborted or expires, and never falls.
    /// Aborting twice is no error and does not raise it again; every other repeat is refused by the state that the first has
    /// led to.
    pub fn after(self, act: Act) -> Result<Self, Refused> {
        use UploadState::{Aborted, Committed, Committing, Expired, Open};
        let Self { state, epoch } = self;
        let same = |state| Ok(Self { state, epoch });
        let raised = |state| Ok(Self { state, epoch: epoch + 1 });
        match (state, act) {
            (Open, Act::Add) => same(Open),
            (Open, Act::Commit) => same(Committing),
            (Open | Expired, Act::Abort) => raised(Aborted),
            (Open | Expired, Act::Reopen) => raised(Open),
            (Open, Act::Expire) => raised(Expired),
            (Committing, Act::CommitDone) => same(Committed),
            (Committing, Act::CommitFailed) => same(Open),
            (Aborted, Act::Abort) => same(Aborted),
            (Open | Expired | Aborted, Act::CommitDone | Act::CommitFailed) => Err(Refused::NotCommitting),
            (Committing, _) => Err(Refused::Committing),
            (Committed, _) => Err(Refused::Committed),
            (Aborted, _) => Err(Refused::Aborted),
            (Expired, _) => Err(Refused::Expired),
        }
    }
}

/// Whether a commit of this tree makes nothing new: the newest version holds the same tree and is as complete. Layouts are
/// not compared: where bytes lie is no part of what a version is.
pub fn is_unchanged(newest: Option<(Digest, bool)>, tree: Digest, incomplete: bool) -> bool {
    newest == Some((tree, incomplete))
}

/// What a quota leaves, and what would be needed, in logical bytes. Absent limits leave everything. Judged twice: when an
/// upload opens, against what others announced, and under the team's lock when its version is made; only the second binds.
pub fn within_quota(limit: Option<u64>, used: u64, asked: u64) -> Result<(), OverQuota> {
    match limit {
        Some(limit) if used.saturating_add(asked) > limit => {
            Err(OverQuota { needed: asked, left: limit.saturating_sub(used) })
        }
        _ => Ok(()),
    }
}

/// The team's quota has no room for this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this needs {needed} bytes and the team's quota has {left} left; delete versions, or ask for more")]
pub struct OverQuota {
    pub needed: u64,
    pub left: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::digest::digest;
    use proptest::prelude::*;

    fn candidate(number: u64, tree: &str, incomplete: bool) -> Candidate {
        Candidate { number: VersionNumber::new(number).unwrap(), digest: digest(tree.as_bytes()), incomplete }
    }

    #[test]
    fn a_selector_means_at_most_one_version() {
        let all =
            [candidate(4, "a", true), candidate(3, "a", false), candidate(2, "b", false), candidate(1, "a", false)];
        let found = |selector: &str| resolve(&selector.parse().unwrap(), all).map(|c| c.number.get());
        assert_eq!(found("latest"), Ok(3));
        assert_eq!(found("v4"), Ok(4), "an incomplete version can be named");
        assert_eq!(found(&digest(b"a").to_string()[..8]), Ok(4), "the newest of the same tree");
        assert_eq!(found(&digest(b"b").to_string()), Ok(2));
        assert!(matches!(found("v9"), Err(Unresolved::Missing(_))));
        assert!(matches!(found("ffffffff00"), Err(Unresolved::Missing(_))));
        assert_eq!(resolve(&Selector::Latest, [candidate(1, "a", true)]), Err(Unresolved::OnlyIncomplete));
        assert!(matches!(resolve(&Selector::Latest, []), Err(Unresolved::Missing(_))));
    }

    #[test]
    fn two_digests_behind_one_prefix_are_ambiguous() {
        let twin = |last: u8, number| {
            let mut bytes = [7; 32];
            bytes[31] = last;
            Candidate {
                number: VersionNumber::new(number).unwrap(),
                digest: Digest::from_bytes(bytes),
                incomplete: false,
            }
        };
        let selector: Selector = "07070707".parse().unwrap();
        assert!(matches!(resolve(&selector, [twin(1, 2), twin(2, 1)]), Err(Unresolved::Ambiguous(_))));
        assert_eq!(resolve(&selector, [twin(1, 2), twin(1, 1)]).unwrap().number.get(), 2);
    }

    #[test]
    fn quotas_count_to_the_byte() {
        assert_eq!(within_quota(None, u64::MAX, u64::MAX), Ok(()));
        assert_eq!(within_quota(Some(10), 4, 6), Ok(()));
        assert_eq!(within_quota(Some(10), 4, 7), Err(OverQuota { needed: 7, left: 6 }));
        assert_eq!(within_quota(Some(10), 40, u64::MAX), Err(OverQuota { needed: u64::MAX, left: 0 }));
    }

    proptest! {
        /// Random walks: epochs never fall, a committed or aborted upload never takes anything again, and only a standing
        /// commit can end.
        #[test]
        fn walks_never_leave_the_rules(acts in proptest::collection::vec(0_usize..7, 0..60)) {
            let all = [Act::Add, Act::Commit, Act::CommitFailed, Act::CommitDone, Act::Abort, Act::Reopen, Act::Expire];
            let mut standing = Standing::FIRST;
            for act in acts.into_iter().map(|i| all[i]) {
                let Ok(next) = standing.after(act) else { continue };
                prop_assert!(next.epoch >= standing.epoch && next.epoch <= standing.epoch + 1);
                prop_assert!(!matches!(standing.state, UploadState::Committed));
                prop_assert!(standing.state != UploadState::Aborted || next == standing);
                prop_assert!(next.state != UploadState::Committed || standing.state == UploadState::Committing);
                prop_assert!(act != Act::Add || standing.state == UploadState::Open);
                prop_assert_eq!(next.fence(next.epoch), Ok(next));
                prop_assert!(next.fence(next.epoch + 1).is_err());
                standing = next;
            }
        }
    }
}
