//! What push, pull and verify are given besides their options, and what they can fail with.
//!
//! One [`Context`] serves many transfers. Every error has a stable code, says what to do next and belongs to an exit class;
//! failures of calls pass through as [`super::Error`].
//!
//! Which type to return: a single call of the service fails with [`super::Error`]; what also touches local files or judges stored
//! bytes fails with [`TransferError`]. Only [`TransferError::Broken`] is a bug; everything else is a fact about the world.

use super::api::Api;
use super::error::{Error, Exit};
use super::progress::{Meter, Reporter};
use super::report::PushReport;
use crate::clock::{Clock, Ids};
use crate::content::digest::Digest;
use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The outside of a transfer. Cancel the token to stop: no new work begins, what is under way ends or is dropped within
/// seconds, and the transfer ends with [`Error::Interrupted`]; everything acknowledged stays for the next run.
///
/// Cheap to clone. `api` should be one that the same token cancels ([`Api::cancelled_by`]); calls made through another go on to
/// their own end, or until their future is dropped.
#[derive(Debug, Clone)]
pub struct Context {
    pub api: Api,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    /// Shown the progress, and at the end told the warnings that also stand in the report.
    pub reporter: Arc<dyn Reporter>,
    pub cancel: CancellationToken,
}

impl Context {
    /// An error when the caller has cancelled.
    /// Asked before work that would otherwise begin although nobody wants it any more.
    pub(crate) fn check(&self) -> Result<(), TransferError> {
        if self.cancel.is_cancelled() {
            return Err(Error::Interrupted.into());
        }
        Ok(())
    }

    /// Runs `work` while the reporter is shown `meter`, at once and about four times a second, and once at the end.
    /// The work is polled in this same future, so a reporter that blocks holds the transfer up. Dropping the future drops the work.
    pub(crate) async fn watch<T>(&self, meter: &Meter, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        let mut tick = tokio::time::interval(Meter::TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                done = &mut work => {
                    self.reporter.show(&meter.snapshot());
                    return done;
                }
                _ = tick.tick() => self.reporter.show(&meter.snapshot()),
            }
        }
    }
}

/// Why a transfer did not happen, or not wholly.
///
/// `SomeFailed` and `Broken` aside, the variants fall into four groups, told apart by whose move is next: what
/// the caller named (paths, patterns, DEST) is wrong; this
/// machine lacks room or rights; stored data is damaged (`BadVersion`, `DigestMismatch`, `BadPack`) and is healed by a push of the same
/// files; the service refused or could not be reached (`Api`, `Commit`, `PacksVanish`). [`hint`](Self::hint) says it for each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A call failed. Its code, hint and exit class are passed through unchanged.
    #[error(transparent)]
    Api(#[from] Error),
    /// A path to push that cannot be used at all.
    #[error("cannot read `{}`", path.display())]
    Source {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Several roots go by base name, and two of them collide. Nothing was sent.
    #[error("two paths have the same base name `{name}`, and a version can hold only one of them")]
    EqualNames { name: String },
    /// A root that no base name can be made of: `/`, or a name that no tree can hold.
    #[error("`{}` has no name of its own", path.display())]
    NoName { path: PathBuf },
    /// Of `exclude` or `include`, found before anything is walked. A bad line in a `.drayignore` is a warning instead.
    #[error("`{pattern}` is not a usable pattern")]
    BadPattern { pattern: String },
    /// A local file the transfer needs: spool, cache, DEST.
    #[error("cannot use `{}`", path.display())]
    Local {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Bytes, both. `needed` is an estimate before a pull began, and only a lower bound where the disk filled up on the way.
    #[error("not enough space at `{}`: {needed} bytes needed, {free} free", path.display())]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    /// With `--all-or-nothing`.
    #[error("{failed} items failed, so nothing was committed")]
    SomeFailed { failed: u64, report: Box<PushReport> },
    /// The service went on losing packs that were pinned for this upload.
    #[error("packs that this push relies on vanished {attempts} times over")]
    PacksVanish { attempts: u32 },
    /// The commit was refused after the upload was complete.
    #[error("the service did not commit: {}", .0.detail)]
    Commit(Box<crate::api::problem::Problem>),
    /// A tree or layout that does not fit its digest, its own rules, or the other one.
    #[error("the {what} of `{reference}` is damaged: {why}")]
    BadVersion { reference: String, what: &'static str, why: String },
    /// Said only after the whole tree was read and proven.
    #[error("`{reference}` holds no `{path}`")]
    NoPath { reference: String, path: String },
    /// Files at DEST that no pull wrote and that differ.
    #[error("{count} files at `{}` differ and were not written by a pull: `{}`", dest.display(), paths.join("`, `"))]
    WouldOverwrite { dest: PathBuf, count: u64, paths: Vec<String> },
    /// Something at DEST that is in the way of a directory or file and is never removed by a pull.
    #[error("`{path}` is in the way: {why}")]
    InTheWay { path: String, why: &'static str },
    /// Refused before anything is written. `paths` has the first few of `count`.
    #[error("{count} symlinks point out of the tree: `{}`", paths.join("`, `"))]
    OutsideLinks { count: u64, paths: Vec<String> },
    /// Bytes that are not what the tree says. `pack` names the pack with the wrong chunk where it could be found.
    #[error("`{path}` is damaged: its digest should be {expected} and is {actual}")]
    DigestMismatch { path: String, expected: Digest, actual: Digest, pack: Option<Digest> },
    /// A pack, or an index of one, that is not what its id says.
    #[error("pack {pack} is damaged: {why}")]
    BadPack { pack: Digest, why: String },
    /// A part of the machinery ended without saying why: a bug.
    #[error("a part of the transfer ended unexpectedly: {what}")]
    Broken { what: &'static str },
}

impl TransferError {
    /// Stable, part of the outside face: scripts match on it. The service's own where it refused.
    pub fn code(&self) -> &str {
        match self {
            Self::Api(error) => error.code(),
            Self::Source { .. } => "source_unreadable",
            Self::EqualNames { .. } => "equal_names",
            Self::NoName { .. } => "no_name",
            Self::BadPattern { .. } => "bad_pattern",
            Self::Local { .. } => "local_file",
            Self::NoSpace { .. } => "no_space",
            Self::SomeFailed { .. } => "some_failed",
            Self::PacksVanish { .. } => "chunks_gone",
            Self::Commit(problem) => &problem.code,
            Self::BadVersion { .. } => "bad_version",
            Self::NoPath { .. } => "no_such_path",
            Self::WouldOverwrite { .. } => "would_overwrite",
            Self::InTheWay { .. } => "in_the_way",
            Self::OutsideLinks { .. } => "outside_links",
            Self::DigestMismatch { .. } => "digest_mismatch",
            Self::BadPack { .. } => "bad_pack",
            Self::Broken { .. } => "internal",
        }
    }

    /// What kind of thing went wrong, the same for every occurrence of the code.
    pub fn title(&self) -> &str {
        match self {
            Self::Api(error) => error.title(),
            Self::Commit(problem) => &problem.title,
            Self::Source { .. } => "unreadable source",
            Self::EqualNames { .. } | Self::NoName { .. } => "names at the root",
            Self::BadPattern { .. } => "unusable pattern",
            Self::Local { .. } => "local file",
            Self::NoSpace { .. } => "disk full",
            Self::SomeFailed { .. } => "incomplete, not committed",
            Self::PacksVanish { .. } => "packs vanish",
            Self::BadVersion { .. } => "damaged version",
            Self::NoPath { .. } => "no such path",
            Self::WouldOverwrite { .. } | Self::InTheWay { .. } => "files in the way",
            Self::OutsideLinks { .. } => "symlinks out of the tree",
            Self::DigestMismatch { .. } | Self::BadPack { .. } => "damaged data",
            Self::Broken { .. } => "internal",
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            Self::Api(error) => return error.hint(),
            Self::Commit(problem) => return problem.hint.as_deref().map(Cow::Borrowed),
            Self::Source { .. } => "name a file or directory that exists and that you may read",
            Self::EqualNames { .. } => "push them apart, or put them under different names into one directory",
            Self::NoName { .. } => "name the directory itself instead of `/`, `.` or `..`",
            Self::BadPattern { .. } => "write it in gitignore syntax",
            Self::Local { .. } => "see that it exists, is yours and has room",
            Self::NoSpace { .. } => "make room, or choose another place, and run the same command again",
            Self::SomeFailed { .. } => {
                "repair the failed items, or leave `--all-or-nothing` away; what was sent stays for the next run"
            }
            Self::PacksVanish { .. } => "run the same command again; if it stays, ask who runs the service",
            Self::BadVersion { .. } | Self::DigestMismatch { .. } | Self::BadPack { .. } => {
                "push the files again from their source to heal it; `dray verify` lists what is damaged"
            }
            Self::NoPath { .. } => "`dray ls` shows what there is",
            Self::WouldOverwrite { .. } => "move them away, or say `--overwrite`; nothing was changed",
            Self::InTheWay { .. } => "move it away and run the same command again",
            Self::OutsideLinks { .. } => "allow them for this input, or push a tree without them",
            Self::Broken { .. } => "run the same command again, and report what you did",
        };
        Some(Cow::Borrowed(hint))
    }

    /// Facts for programs.
    /// The keys are as stable as the code; absent where the code says it all.
    pub fn data(&self) -> Option<serde_json::Value> {
        match self {
            Self::Api(error) => error.problem().and_then(|problem| problem.data.clone()),
            Self::Commit(problem) => problem.data.clone(),
            Self::NoSpace { needed, free, .. } => {
                Some(serde_json::json!({ "needed_bytes": needed, "free_bytes": free }))
            }
            Self::WouldOverwrite { count, paths, .. } | Self::OutsideLinks { count, paths } => {
                Some(serde_json::json!({ "count": count, "paths": paths }))
            }
            Self::DigestMismatch { path, expected, actual, pack } => Some(serde_json::json!({
                "path": path, "expected": expected.to_string(), "actual": actual.to_string(),
                "pack": pack.map(|pack| pack.to_string()),
            })),
            Self::BadPack { pack, .. } => Some(serde_json::json!({ "pack": pack.to_string() })),
            _ => None,
        }
    }

    /// Only of calls: local failures have left no trace in the service's log.
    pub fn request_id(&self) -> Option<&str> {
        match self {
            Self::Api(error) => error.request_id(),
            Self::Commit(problem) => problem.request_id.as_deref(),
            _ => None,
        }
    }

    /// `Partial` only for items that failed while all else went well; damage and refusals are `Failed`.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Api(error) => error.exit(),
            Self::SomeFailed { .. } => Exit::Partial,
            _ => Exit::Failed,
        }
    }

    /// For `map_err`: names the file that an I/O fault is about, which `io::Error` does not.
    pub(crate) fn local(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Local { path, source }
    }
}
