//! A pull from its begin to its end.
//!
//! Version, tree and layout first; then what is at DEST is looked at, without changing it; then everything moves at once: one
//! planning thread, reads as async tasks, workers that decode and write, one thread that keeps the order. When a layout is
//! replaced meanwhile (repack), the pull begins again and keeps what is there.
//!
//! Nothing below DEST is written before version and tree are proven, the selection stands and every entry was looked at. What a look
//! can find is refused then (`WouldOverwrite`, `InTheWay`, `OutsideLinks`, `NoSpace`); by that time DEST may have been made, and rests of
//! killed pulls removed.

use super::conduct::{Conducted, Conductor};
use super::dest::{Dest, free_bytes};
use super::finish::{Account, Finisher, Wrong};
use super::large::Finish;
use super::parts::Depth;
use super::reads;
use super::record::{self, Records};
use super::scan::{Decisions, Scan};
use super::settle::{Doubt, Later};
use super::window::room;
use super::write::{Sink, Writer};
use super::{Durability, OutsideLinks, PullOptions, PullReport};
use crate::api::datasets::Version;
use crate::client::api::route;
use crate::client::context::TransferError;
use crate::client::download::{Fetched, fetch_tree_and_layout};
use crate::client::fetch::Packs;
use crate::client::progress::{Meter, Phase};
use crate::client::select::Chosen;
use crate::client::{Context, rate, stat_cache};
use crate::content::buffer::AlignedBuf;
use crate::content::digest::Digest;
use crate::content::plan::Limits;
use futures::future::BoxFuture;
use rustix::fd::AsFd;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread;

/// Layouts that one pull tries, the first included.
const LAYOUTS: u32 = 5;
/// Windows under way, from plan to hash; each has a buffer of its own.
const WINDOWS: usize = 4;

/// Pulls. When the caller cancels: [`crate::client::Error::Interrupted`]; the same call later keeps what is whole. Dropping the future
/// stops it too, but its threads may write for a moment longer.
///
/// Files that cannot be made at DEST are in the report. Damage is an error, [`TransferError::DigestMismatch`] or `BadPack`, though only
/// after all else was put in place: the first of the damaged files is named, and none of them was given its name.
pub async fn pull(context: &Context, options: PullOptions) -> Result<PullReport, TransferError> {
    let meter = Arc::new(Meter::default());
    let running: BoxFuture<'_, _> = Box::pin(context.watch(&meter, pull_version(context, &options, &meter)));
    let mut report = running.await?;
    report.seconds = meter.elapsed().as_secs_f64();
    report.fetched_bytes = meter.network_bytes.load(Ordering::Relaxed);
    for warning in &report.warnings {
        context.reporter.warn(warning);
    }
    Ok(report)
}

async fn pull_version(
    context: &Context,
    options: &PullOptions,
    meter: &Arc<Meter>,
) -> Result<PullReport, TransferError> {
    for _ in 1..LAYOUTS {
        match once(context, options, meter).await {
            Err(TransferError::Api(error)) if error.is("layout_gone") => {
                tracing::info!("the version's layout was replaced; going on by the new one");
                meter.restart();
            }
            other => return other,
        }
    }
    once(context, options, meter).await
}

/// The version that a reference names: a UUID is looked up as it is, all else is for the service to resolve.
pub(in crate::client) async fn resolve(context: &Context, reference: &str) -> Result<Version, TransferError> {
    let is_id = uuid::Uuid::try_parse(reference).is_ok();
    let path = match is_id {
        true => route(&["v1", "versions", reference], &[]),
        false => route(&["v1", "resolve"], &[("ref", reference)]),
    };
    Ok(context.api.get(&path).await?)
}

/// One layout. `layout_gone` = it was replaced meanwhile; whatever is at DEST by then is kept by the next.
async fn once(context: &Context, options: &PullOptions, meter: &Arc<Meter>) -> Result<PullReport, TransferError> {
    context.check()?;
    meter.enter(Phase::Prepare);
    let version = resolve(context, &options.reference).await?;
    let fetched = fetch_tree_and_layout(context, &version, options.temp_dir.as_deref()).await?;
    let packs = packs(context, options, meter, &version, &fetched)?;
    meter.files_total.store(version.files, Ordering::Relaxed);
    meter.bytes_total.store(version.bytes, Ordering::Relaxed);
    let run = context.ids.uuid().simple().to_string();
    let now = context.clock.now();
    let work =
        Work { options: options.clone(), version: version.clone(), fetched, packs, meter: Arc::clone(meter), run, now };
    let runtime = tokio::runtime::Handle::current();
    let guard = context.cancel.child_token();
    let stop = guard.clone();
    let _stop = guard.drop_guard();
    tokio::task::spawn_blocking(move || work.run(&runtime, &stop))
        .await
        .map_err(|_| TransferError::Broken { what: "the pull's main thread" })?
}

/// One set of grants for all reads of a pull; its bytes count as the network's, and its reads are held to the limit.
fn packs(
    context: &Context,
    options: &PullOptions,
    meter: &Arc<Meter>,
    version: &Version,
    fetched: &Fetched,
) -> Result<Arc<Packs>, TransferError> {
    let list = fetched.open().map_err(|error| bad(version, &error.to_string()))?.packs().to_vec().into();
    let pace = rate::pace(&options.limit, &context.clock);
    let packs = Packs::new(context.api.cancelled_by(context.cancel.clone()), Arc::clone(&context.clock), version, list);
    Ok(Arc::new(packs.counted(Arc::clone(&meter.network_bytes), pace)))
}

/// Everything the threads of a pull need.
/// Given to the pull's main thread; nothing of it is async.
struct Work {
    options: PullOptions,
    version: Version,
    fetched: Fetched,
    /// Of this layout: a pull that goes on by another layout has others.
    packs: Arc<Packs>,
    meter: Arc<Meter>,
    run: String,
    /// Before anything at DEST was looked at: what the record's stamps are measured against.
    now: jiff::Timestamp,
}

impl Work {
    fn run(
        self,
        runtime: &tokio::runtime::Handle,
        stop: &tokio_util::sync::CancellationToken,
    ) -> Result<PullReport, TransferError> {
        self.fetched.prove_tree(&self.version)?;
        let chosen = Chosen::of(&self.options.select, &self.version, &self.fetched)?;
        if self.options.outside_links == OutsideLinks::Refuse {
            chosen.refuse_outside_links()?;
        }
        let dest = Arc::new(Dest::open(&chosen.directory(&self.options.dest), self.run.clone())?);
        let chosen = chosen.named_at(&self.options.dest);
        let records = self.options.cache_dir.as_ref().map(|cache| Records::of(cache, &dest)).transpose();
        let records = records.map_err(TransferError::local(&*self.options.dest))?;
        let begun = records.as_ref().and_then(|records| records.begin(&self.run).ok());
        dest.keeps.store(begun.is_some(), Ordering::Relaxed);
        let earlier = begun.flatten();
        let rests = Rests { dest: &dest, depth: if chosen.is_file { Depth::One } else { Depth::All } };
        let decisions = self.decide(&rests, &chosen, records.as_ref(), earlier.as_deref());
        if let (Err(_), Some(records)) = (&decisions, &records) {
            records.end_own();
        }
        let decisions = decisions?;
        self.meter.enter(Phase::Fetch);
        let how = Finish { durability: self.options.durability, mode_mask: self.options.mode_mask };
        let mut later = Later::new(self.options.temp_dir.as_deref())?;
        let pipeline = Pipeline {
            sink: Sink::Write(Arc::clone(&dest), how),
            packs: Arc::clone(&self.packs),
            meter: Arc::clone(&self.meter),
            memory: self.options.memory,
            local: self.options.local.clone(),
            earlier: earlier.clone(),
            reference: self.version.reference.clone(),
        };
        let record = records.as_ref().and_then(|records| records.writer(self.now).ok());
        let runs = format!("{}{}", earlier.as_deref().unwrap_or_default(), self.run);
        let outcome = pipeline.run(runtime, stop, &chosen, decisions, &mut later, record);
        if let Err(TransferError::NoSpace { .. }) = outcome {
            // Half a file would keep the room that is short.
            rests.clean(&runs, &HashSet::new());
        }
        let (sums, account) = outcome?;
        // Parts that nobody wanted, of files that came out small, and of those that failed; before directories get their times.
        let has_own = account.failed_count > 0 || account.wrong_count > 0;
        let is_clean = (earlier.is_none() && !has_own) || rests.clean(&runs, &HashSet::new());
        self.meter.enter(Phase::Settle);
        let links = records.as_ref().and_then(|records| records.links_writer(self.now).ok());
        let settled = later.settle(&dest, &Doubt::of(&account, &sums.failed), links)?;
        seal(&dest, self.options.durability, account.record.into_iter().chain(settled.record))?;
        match &records {
            Some(records) if is_clean => records.end(),
            Some(records) if !has_own => records.end_own(),
            _ => {}
        }
        if let Some(wrong) = account.wrong.into_iter().next() {
            return Err(wrong.into_error());
        }
        let failed_count = settled.failed.count + sums.failed.count + account.failed_count;
        let failed = [settled.failed.items, sums.failed.items.clone(), account.failed].concat();
        Ok(PullReport { failed, failed_count, ..self.report(&sums, &chosen.digest()?) })
    }

    /// Without what failed; times and the network's bytes are filled in by who waits for it all.
    fn report(&self, sums: &Conducted, selected: &Digest) -> PullReport {
        PullReport {
            reference: self.version.reference.clone(),
            digest: self.version.digest.clone(),
            selected_digest: selected.to_string(),
            files: sums.files,
            dirs: sums.dirs,
            symlinks: sums.symlinks,
            bytes: sums.bytes,
            reused_bytes: sums.reused_bytes,
            local_bytes: sums.local_bytes,
            outside_links: sums.outside_links,
            ..PullReport::default()
        }
    }

    /// What to keep; refuses before anything is changed, but for what earlier pulls left and nobody can use: its room is needed.
    ///
    /// An empty DEST with room for the whole version needs no look. The room is an estimate: blocks and names take some as well.
    fn decide(
        &self,
        rests: &Rests<'_>,
        chosen: &Chosen,
        records: Option<&Records>,
        earlier: Option<&str>,
    ) -> Result<Decisions, TransferError> {
        let dest = rests.dest;
        let free = || free_bytes(dest).unwrap_or(u64::MAX);
        let at = TransferError::local(&*dest.path);
        if dest.is_empty().map_err(at)? && self.version.bytes <= free() {
            return Ok(Decisions::FetchAll);
        }
        self.meter.enter(Phase::Scan);
        let scan = Scan {
            dest,
            record: records.map_or_else(stat_cache::Reader::none, Records::reader),
            links: records.map_or_else(stat_cache::Reader::none, Records::links),
            overwrite: self.options.overwrite,
            temp: self.options.temp_dir.as_deref(),
            earlier,
        };
        let scanned = scan.run(&self.version.reference, chosen.pairs()?)?;
        if let Some(runs) = earlier {
            rests.clean(runs, &scanned.parts);
        }
        let free = free();
        if scanned.needed > free {
            return Err(TransferError::NoSpace { path: dest.path.clone(), needed: scanned.needed, free });
        }
        Ok(scanned.decisions)
    }
}

/// Where temporary files of pulls may lie: for a single file only beside it, since all else in that directory is
/// no business of this pull.
struct Rests<'a> {
    dest: &'a Arc<Dest>,
    depth: Depth,
}

impl Rests<'_> {
    /// Whether nothing of the `runs` is left. What stays is in nobody's way and is tried again by the next pull, as long as its `.run` stands.
    fn clean(&self, runs: &str, keep: &HashSet<String>) -> bool {
        record::clean(self.dest.root.as_fd(), runs, keep, self.depth)
    }
}

/// The moving part, shared with verify: with [`Sink::Prove`] nothing is written and DEST is not asked about.
#[derive(Debug)]
pub(in crate::client) struct Pipeline {
    pub sink: Sink,
    pub packs: Arc<Packs>,
    pub meter: Arc<Meter>,
    /// As [`PullOptions::memory`].
    pub memory: u64,
    pub local: Option<Arc<dyn super::LocalFiles>>,
    /// Ids of pulls that were killed, one a line; only with a sink that writes.
    pub earlier: Option<String>,
    /// For messages.
    pub reference: String,
}

impl Pipeline {
    /// Runs planning, reads, workers and the ordering end until all is done. Call it from a thread that may block.
    ///
    /// When it returns, whichever way, none of its threads runs any more. Of two errors the one that is no consequence of the other is given.
    pub fn run(
        self,
        runtime: &tokio::runtime::Handle,
        stop: &tokio_util::sync::CancellationToken,
        chosen: &Chosen,
        decisions: Decisions,
        later: &mut Later,
        record: Option<stat_cache::Writer>,
    ) -> Result<(Conducted, Account), TransferError> {
        let limits = limits(self.memory);
        let workers = thread::available_parallelism().map_or(2, usize::from).min(8);
        let list: Vec<_> = (0..).map_while(|pack| self.packs.id(pack)).collect();
        let (slots_in, slots_out) = sync_channel(WINDOWS);
        for _ in 0..WINDOWS {
            let _ = slots_in.send(AlignedBuf::new(room(limits.window)));
        }
        let (windows, windows_out) = tokio::sync::mpsc::channel(WINDOWS);
        let (fetched, fetched_out) = sync_channel(WINDOWS);
        let fetched_out = std::sync::Mutex::new(fetched_out);
        // Kept files come in runs; everything else is bounded by the windows.
        let (inbox_in, inbox) = sync_channel(2 * WINDOWS + 16);
        let finisher = Finisher::new(&self.sink, &list, &self.meter, slots_in, record);
        let conductor = Conductor {
            sink: self.sink.clone(),
            packs: Arc::clone(&self.packs),
            runtime: runtime.clone(),
            cancel: stop.clone(),
            meter: Arc::clone(&self.meter),
            local: self.local.clone(),
            earlier: self.earlier.clone(),
            limits,
            slots: slots_out,
            windows,
            inbox: inbox_in.clone(),
            reference: self.reference.clone(),
        };
        let pairs = chosen.pairs()?;
        let reads = reads::run(Arc::clone(&self.packs), windows_out, fetched, inbox_in.clone());
        let reads = runtime.spawn(reads);
        let outcome = thread::scope(|scope| {
            let plan = scope.spawn(move || {
                let outcome = conductor.run(pairs, decisions, later);
                if outcome.is_err() {
                    let _ = conductor.inbox.send(super::finish::Event::Stop);
                }
                outcome
            });
            for _ in 0..workers {
                let (sink, inbox, fetched_out) = (self.sink.clone(), inbox_in.clone(), &fetched_out);
                scope.spawn(move || reads::work(Writer::new(sink), fetched_out, &inbox));
            }
            drop(inbox_in);
            let account = finisher.run(inbox);
            // A planner that waits for a buffer or for room ends when the reads and this end are gone.
            if account.is_err() {
                reads.abort();
            }
            let plan = plan.join().unwrap_or(Err(TransferError::Broken { what: "the planning thread" }));
            match (plan, account) {
                (Ok(sums), Ok(account)) => Ok((sums, account)),
                // The cause is the one that is no mere consequence.
                (Err(TransferError::Broken { .. }), Err(error)) | (Ok(_), Err(error)) => Err(error),
                (Err(error), _) => Err(error),
            }
        });
        reads.abort();
        outcome
    }
}

/// Windows of a sixteenth of the memory: four of them raw and stored come to half of it. The other half is for indexes, decoders and
/// all else.
fn limits(memory: u64) -> Limits {
    let window = (memory / 16).clamp(2 << 20, 32 << 20);
    Limits { window, read: window, gap: 128 << 10, places: 4_096 }
}

/// Brings all to the disk, then puts the records in place. In that order: a record that outlived a loss of power would else vouch, by their
/// stamps, for files whose bytes did not, and the next pull would keep them.
fn seal(
    dest: &Dest,
    durability: Durability,
    records: impl Iterator<Item = stat_cache::Writer>,
) -> Result<(), TransferError> {
    sync(dest, durability)?;
    for record in records {
        if let Err(error) = record.finish() {
            tracing::warn!(%error, "the record of this pull cannot be written; the next one reads all files");
        }
    }
    Ok(())
}

/// Both ways need it: a rename is safe only once the directory is on the disk.
fn sync(dest: &Dest, durability: Durability) -> Result<(), TransferError> {
    match durability {
        Durability::Batch | Durability::ReadBack => {
            rustix::fs::syncfs(&dest.root).map_err(|error| super::dest::local(&dest.path, error))
        }
    }
}

pub(in crate::client) fn bad(version: &Version, why: &str) -> TransferError {
    TransferError::BadVersion { reference: version.reference.clone(), what: "tree or layout", why: why.to_owned() }
}

impl Wrong {
    /// The typed error of the first damage: a pack's where damage in a pack is all there is to tell, else the file's.
    pub fn into_error(self) -> TransferError {
        match (self.actual, self.pack) {
            (None, Some(pack)) => TransferError::BadPack { pack, why: format!("{} (`{}`)", self.why, self.path) },
            (actual, pack) => TransferError::DigestMismatch {
                path: self.path.to_string(),
                expected: self.expected,
                actual: actual.unwrap_or(self.expected),
                pack,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    #[test]
    fn no_record_is_in_place_where_the_disk_was_not_synced() {
        let root = tempfile::tempdir().unwrap();
        let (place, cache) = (root.path().join("dest"), root.path().join("cache"));
        let mut dest = Dest::open(&place, "aa".to_owned()).unwrap();
        let records = Records::of(&cache, &dest).unwrap();
        let writers = || {
            let now = jiff::Timestamp::UNIX_EPOCH;
            [records.writer(now).unwrap(), records.links_writer(now).unwrap()].into_iter()
        };
        let names = || fs_err::read_dir(cache.join("pull")).unwrap().count();
        // A handle that only names the directory cannot be synced by.
        let real = std::mem::replace(&mut dest.root, rustix::fs::open(&place, OFlags::PATH, Mode::empty()).unwrap());
        assert!(seal(&dest, Durability::Batch, writers()).is_err());
        assert_eq!(names(), 0);
        dest.root = real;
        seal(&dest, Durability::ReadBack, writers()).unwrap();
        assert_eq!(names(), 2);
    }
}
