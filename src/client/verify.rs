//! Verify: a directory against a version, or the stored version itself, byte for byte.
//!
//! Nothing is trusted but bytes that were read now: no stat cache, no record of an earlier pull. Nothing is written.
//!
//! ```text
//! Directory  walk DIR  --\
//!                         merge by path -> missing | extra | differs | unreadable
//!            tree      --/
//! Stored     the pipeline of a pull with a sink that writes nothing: every chunk and every whole file is proven
//! ```

use super::context::TransferError;
use super::download::fetch_tree_and_layout;
use super::fetch::Packs;
use super::progress::{Meter, Phase};
use super::pull::{Pipeline, Scanning, Select, Sink, Waiting, read_file, resolve};
use super::report::{Item, list};
use super::select::Chosen;
use super::walk::{Found, RuleFiles, Step, Walk, WalkOptions, What};
use super::{Context, Error};
use crate::content::merge::Pair;
use crate::content::path::RelPath;
use crate::content::tree::{Entry, Kind};
use futures::future::BoxFuture;
use serde::Serialize;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What is to be proven.
#[derive(Debug, Clone)]
pub enum Verify {
    /// That this directory holds exactly the version.
    Directory(PathBuf),
    /// That every byte of the version can be read from the store and is right.
    /// Costs the download of all its chunks.
    Stored,
}

#[derive(Debug, Clone)]
pub struct VerifyOptions {
    pub reference: String,
    /// Only this file or subtree.
    pub path: Option<RelPath>,
    pub what: Verify,
    /// Bytes for windows, as for a pull; only [`Verify::Stored`] needs them.
    pub memory: u64,
    pub temp_dir: Option<PathBuf>,
}

/// Equal when `missing`, `extra`, `differs` and `unreadable` are empty. Each list ends at [`PushReport::MAX_ITEMS`](super::report::PushReport::MAX_ITEMS); the counts say how many
/// there were.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct VerifyReport {
    #[serde(rename = "ref")]
    pub reference: String,
    /// The version's tree digest, whatever part was looked at.
    pub digest: String,
    /// What the version holds of the part looked at: regular files with hard links, and logical bytes with each group once.
    pub files: u64,
    pub bytes: u64,
    pub missing: Vec<Item>,
    /// In the directory and not in the version.
    pub extra: Vec<Item>,
    /// With what differs as reason: `kind`, `size`, `digest`, `mode`, `mtime`, `target`, `hardlink`. The first of an entry only. Times are
    /// compared of regular files alone: those of directories are no part of a version's identity.
    pub differs: Vec<Item>,
    /// Could not be read; for the stored version with the pack in the reason.
    pub unreadable: Vec<Item>,
    pub missing_count: u64,
    pub extra_count: u64,
    pub differs_count: u64,
    pub unreadable_count: u64,
    pub seconds: f64,
}

impl VerifyReport {
    pub fn is_equal(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.differs.is_empty() && self.unreadable.is_empty()
    }

    fn missing(&mut self) -> List<'_> {
        List(&mut self.missing, &mut self.missing_count)
    }

    fn extra(&mut self) -> List<'_> {
        List(&mut self.extra, &mut self.extra_count)
    }

    fn differs(&mut self) -> List<'_> {
        List(&mut self.differs, &mut self.differs_count)
    }

    fn unreadable(&mut self) -> List<'_> {
        List(&mut self.unreadable, &mut self.unreadable_count)
    }
}

/// Verifies. What is not right is in the report; an error means that it could not be found out.
///
/// May be run beside a pull or a push; a file that changes meanwhile is told as it was read.
pub async fn verify(context: &Context, options: VerifyOptions) -> Result<VerifyReport, TransferError> {
    let meter = Arc::new(Meter::default());
    let running: BoxFuture<'_, _> = Box::pin(context.watch(&meter, run(context, &options, &meter)));
    let mut report = running.await?;
    report.seconds = meter.elapsed().as_secs_f64();
    Ok(report)
}

/// The tree is proven first: what differs from an unproven tree would say nothing.
async fn run(context: &Context, options: &VerifyOptions, meter: &Arc<Meter>) -> Result<VerifyReport, TransferError> {
    context.check()?;
    let version = resolve(context, &options.reference).await?;
    let fetched = fetch_tree_and_layout(context, &version, options.temp_dir.as_deref()).await?;
    meter.files_total.store(version.files, std::sync::atomic::Ordering::Relaxed);
    meter.bytes_total.store(version.bytes, std::sync::atomic::Ordering::Relaxed);
    let list = fetched.open().map_err(|error| bad(&version.reference, &error.to_string()))?.packs().to_vec().into();
    let api = context.api.cancelled_by(context.cancel.clone());
    let packs = Packs::new(api, Arc::clone(&context.clock), &version, list);
    let packs = Arc::new(packs.counted(Arc::clone(&meter.network_bytes), None));
    let stop = context.cancel.child_token();
    let _stop = stop.clone().drop_guard();
    let (options, meter) = (options.clone(), Arc::clone(meter));
    let runtime = tokio::runtime::Handle::current();
    let work = move || {
        fetched.prove_tree(&version)?;
        let select = Select { path: options.path.clone(), ..Select::default() };
        let chosen = Chosen::of(&select, &version, &fetched)?;
        meter.enter(Phase::Verify);
        let mut report = VerifyReport {
            reference: version.reference.clone(),
            digest: version.digest.clone(),
            ..VerifyReport::default()
        };
        match &options.what {
            Verify::Stored => {
                let pipeline = Pipeline {
                    sink: Sink::Prove,
                    packs,
                    meter,
                    memory: options.memory,
                    local: None,
                    earlier: None,
                    reference: version.reference.clone(),
                };
                let mut later = Waiting::new(options.temp_dir.as_deref())?;
                let (sums, account) = pipeline.run(&runtime, &stop, &chosen, Scanning::FetchAll, &mut later, None)?;
                (report.files, report.bytes) = (sums.files, sums.bytes);
                report.unreadable_count = account.wrong_count;
                for wrong in account.wrong {
                    let reason = match wrong.pack {
                        Some(pack) => format!("{} (pack {pack})", wrong.why),
                        None => wrong.why.clone(),
                    };
                    report.unreadable.push(Item::new(wrong.path.as_bytes(), &reason));
                }
            }
            Verify::Directory(dir) => {
                let chosen = chosen.named_at(dir);
                compare(&chosen, dir, &options, &meter, &stop, &mut report)?;
            }
        }
        Ok(report)
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| TransferError::Broken { what: "the verification" })?
}

/// Walks the directory and the version side by side. No rule file is obeyed: whether a push took or left a file, the version says.
fn compare(
    chosen: &Chosen,
    dir: &Path,
    options: &VerifyOptions,
    meter: &Meter,
    stop: &CancellationToken,
    report: &mut VerifyReport,
) -> Result<(), TransferError> {
    let mut walk = Walk::open(&WalkOptions {
        paths: vec![dir.to_owned()],
        rule_files: RuleFiles::Ignore,
        temp_dir: options.temp_dir.clone(),
        ..WalkOptions::default()
    })?;
    let mut pairs = chosen.pairs()?;
    let mut next_pair = || -> Result<Option<Entry>, TransferError> {
        let pair: Option<Pair> =
            pairs.next().transpose().map_err(|error| bad(&options.reference, &error.to_string()))?;
        Ok(pair.map(|(entry, _)| entry))
    };
    let (mut here, mut there) = (next_found(&mut walk, report), next_pair()?);
    loop {
        if stop.is_cancelled() {
            return Err(Error::Interrupted.into());
        }
        let order = match (&here, &there) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(here), Some(there)) => here.path.cmp(&there.path),
        };
        if order != Ordering::Less
            && let Some(entry) = there.take()
        {
            if let Kind::File { size, hardlink, .. } = &entry.kind {
                report.files += 1;
                Meter::add(&meter.files, 1);
                if hardlink.is_none() {
                    report.bytes += size;
                    Meter::add(&meter.bytes, *size);
                }
            }
            match &here {
                Some(found) if order == Ordering::Equal => differences(found, &entry, report),
                _ => report.missing().add(&entry.path, "missing"),
            }
            there = next_pair()?;
        }
        if order != Ordering::Greater {
            if order == Ordering::Less
                && let Some(found) = &here
            {
                report.extra().add(&found.path, kind_of(&found.what));
            }
            here = next_found(&mut walk, report);
        }
    }
}

/// Special files are extra: no version holds any.
fn next_found(walk: &mut Walk, report: &mut VerifyReport) -> Option<Found> {
    loop {
        match walk.next()? {
            Step::Found(found) => return Some(found),
            Step::Skipped(item) => report.extra().push(item),
            Step::Failed(item) => report.unreadable().push(item),
        }
    }
}

/// Compares one entry with what is there; the first difference is told.
fn differences(found: &Found, entry: &Entry, report: &mut VerifyReport) {
    let mut differ = |what: &str| report.differs().add(&entry.path, what);
    match (&entry.kind, &found.what) {
        (Kind::Dir { mode }, What::Dir) => {
            if *mode != found.mode {
                differ("mode");
            }
        }
        (Kind::Symlink { target, .. }, What::Symlink(there)) => {
            if target != there {
                differ("target");
            }
        }
        (Kind::File { hardlink: Some(first), .. }, What::HardLink { first: there, .. }) => {
            if first != there {
                differ("hardlink");
            }
        }
        (Kind::File { hardlink: None, .. }, What::HardLink { .. })
        | (Kind::File { hardlink: Some(_), .. }, What::File { .. }) => differ("hardlink"),
        (Kind::File { size, mode, mtime, digest, hardlink: None }, What::File { .. }) => {
            if *size != found.stamp.size {
                return differ("size");
            }
            match read_file(found) {
                Ok(actual) if actual != *digest => differ("digest"),
                Ok(_) if *mode != found.mode => differ("mode"),
                Ok(_) if *mtime != found.stamp.mtime.clamped() => differ("mtime"),
                Ok(_) => {}
                Err(reason) => report.unreadable().add(&entry.path, &reason),
            }
        }
        _ => differ("kind"),
    }
}

fn kind_of(what: &What) -> &'static str {
    match what {
        What::Dir => "directory",
        What::File { .. } | What::HardLink { .. } => "file",
        What::Symlink(_) => "symlink",
    }
}

/// One list of the report with its count.
struct List<'a>(&'a mut Vec<Item>, &'a mut u64);

impl List<'_> {
    fn add(self, path: &RelPath, reason: &str) {
        self.push(Item::new(path.as_bytes(), reason));
    }

    fn push(self, item: Item) {
        list(self.0, self.1, item);
    }
}

fn bad(reference: &str, why: &str) -> TransferError {
    TransferError::BadVersion { reference: reference.to_owned(), what: "tree or layout", why: why.to_owned() }
}
