//! A push from its begin to its end: upload, parent, attempts, commit, report.
//!
//! One attempt is the rule. Another follows only when the service has lost packs that it had offered: then the documents of
//! the attempt before serve as the parent, so that only files in those packs are read and sent again.
//!
//! ```text
//! walk opened -> upload opened (parent, lost packs) -> parent fetched -> attempt -> equal to the newest? -> unchanged
//!                                                                           ^          | no
//!                                                                           `-- Gone --+-> commit -> Version
//! ```

use super::catalog::Catalog;
use super::commit::{Committed, commit};
use super::courier::Destination;
use super::parent::Parent;
use super::pipeline::{self, Attempt, Outcome};
use super::record::{Documents, Record};
use super::{PushOptions, PushReport};
use crate::api::datasets::Version;
use crate::api::uploads::{OpenUpload, Upload};
use crate::client::api::route;
use crate::client::context::TransferError;
use crate::client::progress::{Meter, Phase};
use crate::client::walk::{RuleFiles, Step, Walk, WalkOptions, What};
use crate::client::{Context, Error, rate, stat_cache};
use futures::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Attempts of one push, the first included: so many commits may find packs gone before the push gives up.
const ATTEMPTS: u32 = 3;

/// Pushes. When the caller cancels: [`Error::Interrupted`]; the same call later goes on where this one stopped. A tree equal to the newest
/// version's makes no new one, save for an output's, or where that version has lost packs.
///
/// An item that cannot be read is in the report and makes the version incomplete; it is no error unless `all_or_nothing`.
pub async fn push(context: &Context, options: PushOptions) -> Result<PushReport, TransferError> {
    let meter = Arc::new(Meter::default());
    let push = Push { context, options: Arc::new(options), meter: Arc::clone(&meter) };
    // Boxed: compiled here, once, and not into every caller. So it is wherever a room is entered.
    let running: BoxFuture<'_, _> = Box::pin(context.watch(&meter, push.run()));
    let mut report = running.await?;
    report.seconds = meter.elapsed().as_secs_f64();
    report.sent_bytes = meter.network_bytes.load(Ordering::Relaxed);
    for warning in &report.warnings {
        context.reporter.warn(warning);
    }
    Ok(report)
}

/// One push; its attempts share the meter.
struct Push<'a> {
    context: &'a Context,
    options: Arc<PushOptions>,
    meter: Arc<Meter>,
}

impl Push<'_> {
    /// Roots first, then the service, then the bytes: what can fail at once fails before anything is sent.
    async fn run(&self) -> Result<PushReport, TransferError> {
        self.context.check()?;
        // Before anything is asked of the service: a path that is not there is told at once.
        let first_walk = self.walk()?;
        let (upload, newest) = self.open().await?;
        let parent = match &newest {
            Some(version) => Parent::fetch(self.context, version, self.options.temp_dir.as_deref()).await?,
            None => None,
        };
        let to = Destination {
            upload: upload.clone().map(Arc::new),
            sent: Arc::clone(&self.meter.network_bytes),
            pace: rate::pace(&self.options.limit, &self.context.clock),
        };
        let lost = upload.iter().flat_map(|upload| &upload.lost_packs).filter_map(|pack| pack.parse().ok());
        let mut next =
            Next { walk: Some(first_walk), parent: parent.map(Arc::new), catalog: Catalog::default(), cache: None };
        next.catalog.lose(lost);
        let mut stored = 0;
        for attempt in 1..=ATTEMPTS {
            let (documents, mut report, cache) = self.attempt(&to, &mut next, &mut stored).await?;
            self.fill(&mut report, &documents, stored);
            if let Some(done) = self.ended_early(&upload, newest.as_ref(), &documents, &mut report).await? {
                self.keep(cache);
                return done;
            }
            let Some(upload) = &upload else { return Ok(report) };
            self.meter.enter(Phase::Commit);
            match commit(self.context, &to, upload, &documents, report.incomplete).await? {
                Committed::Version(version) => {
                    self.keep(cache);
                    report.version_id = Some(version.id);
                    report.reference = Some(version.reference);
                    report.version = Some(version.version);
                    return Ok(report);
                }
                Committed::Gone(packs) if attempt < ATTEMPTS => {
                    tracing::warn!(packs = packs.len(), "the service has lost packs; what was in them is sent again");
                    next.catalog.lose(packs);
                    next.catalog.forget_own();
                    next.parent = Parent::of(documents.files, documents.chunks).map(Arc::new);
                    next.cache = cache;
                }
                Committed::Gone(_) => {}
            }
        }
        Err(TransferError::PacksVanish { attempts: ATTEMPTS })
    }

    fn walk(&self) -> Result<Walk, TransferError> {
        let options = &self.options;
        Walk::open(&WalkOptions {
            paths: options.paths.clone(),
            exclude: options.exclude.clone(),
            include: options.include.clone(),
            rule_files: RuleFiles::Obey,
            temp_dir: options.temp_dir.clone(),
        })
    }

    /// Opens the upload. A dry run only looks the newest version up.
    async fn open(&self) -> Result<(Option<Upload>, Option<Version>), TransferError> {
        let api = &self.context.api;
        if self.options.dry_run {
            let path = route(&["v1", "resolve"], &[("ref", &self.options.dataset)]);
            return match api.get::<Version>(&path).await {
                Ok(version) => Ok((None, Some(version))),
                Err(Error::Refused(problem)) if problem.status == 404 => Ok((None, None)),
                Err(error) => Err(error.into()),
            };
        }
        let body = OpenUpload {
            dataset: self.options.dataset.clone(),
            bytes: self.count().await?,
            output: self.options.output.clone(),
        };
        let upload: Upload = api.post("/v1/uploads", &body).await?;
        let parent = upload.parent.clone();
        Ok((Some(upload), parent))
    }

    /// Counts what there is, for the quota and the progress, within two seconds; what a slow file system shows by then is a
    /// lower bound.
    async fn count(&self) -> Result<u64, TransferError> {
        let mut walk = self.walk()?;
        let (meter, cancel) = (Arc::clone(&self.meter), self.context.cancel.clone());
        let count = move || {
            let began = std::time::Instant::now();
            let mut bytes = 0;
            while let Some(step) = walk.next() {
                if let Step::Found(found) = step {
                    let size = match found.what {
                        What::File { .. } => found.stamp.size,
                        What::HardLink { .. } => 0,
                        _ => continue,
                    };
                    bytes += size;
                    Meter::add(&meter.files_total, 1);
                    Meter::add(&meter.bytes_total, size);
                }
                if cancel.is_cancelled() || began.elapsed().as_secs() >= 2 {
                    break;
                }
            }
            bytes
        };
        tokio::task::spawn_blocking(count).await.map_err(|_| TransferError::Broken { what: "the count of files" })
    }

    /// One walk, all packs, both documents. `stored` sums the bytes of packs over the attempts.
    async fn attempt(
        &self,
        to: &Destination,
        next: &mut Next,
        stored: &mut u64,
    ) -> Result<(Documents, PushReport, Option<stat_cache::Writer>), TransferError> {
        self.context.check()?;
        let walk = match next.walk.take() {
            Some(walk) => walk,
            None => self.walk()?,
        };
        self.meter.enter(Phase::Send);
        self.meter.restart();
        let attempt = Attempt {
            options: Arc::clone(&self.options),
            walk,
            cache: self.cache_reader(next.cache.take()),
            parent: next.parent.clone(),
            catalog: std::mem::take(&mut next.catalog),
            record: Record::create(self.options.temp_dir.clone(), self.cache_writer())?,
            max_pack_bytes: to.upload.as_ref().map_or(u64::MAX, |upload| upload.max_pack_bytes),
            meter: Arc::clone(&self.meter),
        };
        let Outcome { record, sums, catalog, warnings } = pipeline::run(self.context, to, attempt).await?;
        next.catalog = catalog;
        self.meter.enter(Phase::Finish);
        let finish = tokio::task::spawn_blocking(move || record.finish());
        let (documents, mut report, cache) =
            finish.await.map_err(|_| TransferError::Broken { what: "writing the layout" })??;
        *stored += sums.stored_bytes;
        report.reused_bytes = sums.reused_bytes;
        report.warnings = warnings;
        Ok((documents, report, cache))
    }

    /// Everything but what only the commit knows. `stored` is of all attempts, since each has sent its packs.
    fn fill(&self, report: &mut PushReport, documents: &Documents, stored: u64) {
        let counts = documents.counts;
        report.digest = documents.tree.to_string();
        (report.files, report.dirs, report.symlinks, report.bytes) =
            (counts.files, counts.dirs, counts.symlinks, counts.bytes);
        report.chunks = documents.chunks;
        report.stored_bytes = stored;
        report.incomplete = report.failed_count > 0;
        report.dry_run = self.options.dry_run;
    }

    /// The ends without a commit: failed items that may not be, and a tree that is there already. The upload of the latter is given up;
    /// that of the former stays, so that what was sent waits for the next push.
    async fn ended_early(
        &self,
        upload: &Option<Upload>,
        newest: Option<&Version>,
        documents: &Documents,
        report: &mut PushReport,
    ) -> Result<Option<Result<PushReport, TransferError>>, TransferError> {
        if self.options.all_or_nothing && report.failed_count > 0 {
            let (failed, report) = (report.failed_count, Box::new(std::mem::take(report)));
            return Ok(Some(Err(TransferError::SomeFailed { failed, report })));
        }
        let equal = |version: &&Version| {
            version.digest == documents.tree.to_string()
                && version.incomplete == report.incomplete
                && self.options.output.is_none()
        };
        // A version that has lost packs is committed again, by a layout that names what was sent for them.
        let is_whole = upload.as_ref().is_none_or(|upload| upload.lost_packs.is_empty());
        let Some(version) = newest.filter(|_| is_whole).filter(equal) else { return Ok(None) };
        report.unchanged = true;
        report.version_id = Some(version.id.clone());
        report.reference = Some(version.reference.clone());
        report.version = Some(version.version.clone());
        if let Some(upload) = upload {
            let path = route(&["v1", "uploads", &upload.id], &[]);
            // It would expire by itself; a failure here changes nothing for the caller.
            if let Err(error) = self.context.api.delete::<()>(&path).await {
                tracing::warn!(%error, "the upload that was not needed stays open until it expires");
            }
        }
        Ok(Some(Ok(std::mem::take(report))))
    }

    /// None without a cache directory.
    fn cache_path(&self) -> Option<PathBuf> {
        let options = &self.options;
        let dir = options.cache_dir.as_ref()?;
        Some(stat_cache::path(dir, &options.cache_scope, &options.dataset, &options.paths))
    }

    /// With `rehash` the cache is not read, but `kept` is put in place all the same.
    fn cache_reader(&self, kept: Option<stat_cache::Writer>) -> stat_cache::Reader {
        // Of an attempt before: put in place, so that it can be read.
        self.keep(kept);
        match self.cache_path() {
            Some(path) if !self.options.rehash => stat_cache::Reader::open(&path),
            _ => stat_cache::Reader::none(),
        }
    }

    fn cache_writer(&self) -> Option<stat_cache::Writer> {
        let path = self.cache_path().filter(|_| !self.options.dry_run)?;
        stat_cache::Writer::create(path, self.context.clock.now())
            .inspect_err(
                |error| tracing::warn!(%error, "the stat cache cannot be written; the next push reads all files"),
            )
            .ok()
    }

    /// A cache that cannot be put in place costs the next push time and nothing else.
    fn keep(&self, cache: Option<stat_cache::Writer>) {
        if let Some(cache) = cache
            && let Err(error) = cache.finish()
        {
            tracing::warn!(%error, "the stat cache cannot be written; the next push reads all files");
        }
    }
}

/// What the next attempt starts from.
struct Next {
    /// The one that was opened first, to see that the roots are there; later attempts walk anew.
    walk: Option<Walk>,
    parent: Option<Arc<Parent>>,
    catalog: Catalog,
    /// Of the attempt before: what it read need not be read again.
    cache: Option<stat_cache::Writer>,
}
