//! The service's own look at what a staging is to bring: its exact tree, and whether the store has it all.
//!
//! Runs in the background, claimed row by row, and may run twice. It computes the tree that the readiness receipt must name, refuses symlinks that lead
//! out of it, and for a staging without a node proves every pack present, by its size in the store, before it says `near`. What is missing is named by
//! file.
//!
//! ```text
//! claim -> sources (versions, rules) -> [without a node: HEAD of every pack] -> walk of the trees -> one transaction
//!          near (without a node) | expected tree written (with one) | failed, with the reason
//! ```

use std::collections::HashSet;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use jiff::SignedDuration;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::App;
use super::error::{CORRUPT, Code, Error, Kind};
use super::jobs::spec_of;
use super::stored::{Document, parse_key};
use crate::api::jobs::InputSpec;
use crate::content::digest::Digest;
use crate::content::layout::{self, Line};
use crate::content::merge::{self, Merged};
use crate::content::path::RelPath;
use crate::content::tree::{self, Counts, Kind as EntryKind, TreeReader};
use crate::db::stagings::{self, Claim, Expected, StoredPack};
use crate::db::versions::Version;
use crate::db::{jobs, versions};
use crate::domain::selection::{self, OutsideLinks, Selection, staged_tree_of};
use crate::domain::staging::State;
use crate::store;
use crate::transaction;

/// Stagings looked into at the same time.
const AT_ONCE: u32 = 4;
/// Packs asked for at the same time.
const HEADS: usize = 16;
/// Packs of one page.
const PAGE: u32 = 500;
/// A claim is lost after this, so that another replica takes over. It is not renewed: a look that takes longer is made
/// twice, and the second finds what the first wrote.
const CLAIM: SignedDuration = SignedDuration::from_mins(30);
/// Wait after a store that could not be reached.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// Missing files that are named.
const NAMED: usize = 10;

/// What a look found.
enum Found {
    Expected(Expected),
    Refused(Refused),
}

/// Why a staging cannot succeed, as its row and its plan say it. `code` is for programs.
pub(super) struct Refused {
    pub code: &'static str,
    pub detail: String,
}

/// One input, ready to be read.
#[derive(Clone)]
pub(super) struct Source {
    version: Version,
    selection: Selection,
}

impl Source {
    /// Fails with `bad_job` for globs, shards or paths that mean nothing; submit has refused these before, so that is a job
    /// of an older release.
    pub fn new(version: Version, input: &InputSpec, subtree: &[u8]) -> Result<Self, Refused> {
        let refused = |error: selection::Error| Refused { code: "bad_job", detail: error.to_string() };
        let selection = selection_of(input, subtree).map_err(refused)?;
        Ok(Self { version, selection })
    }
}

impl App {
    /// Looks into stagings that nobody has looked into, [`AT_ONCE`] at most and at once; answers how many there were, so
    /// call it until it answers 0. One that fails is given back and tried again after [`AGAIN`].
    pub async fn look_into_stagings(self: &Arc<Self>) -> Result<usize, Error> {
        let now = self.clock.now();
        let claim = Claim { now, until: now.saturating_add(CLAIM).unwrap_or(now) };
        let claimed =
            transaction!(self.db, |tx| stagings::claim_unchecked(tx, claim, AT_ONCE).await.map_err(Error::from))?;
        let looks = claimed.into_iter().map(|(team, id)| {
            let app = self.clone();
            async move { app.look_or_retry(team, id).await }
        });
        let looked: Vec<()> = futures::stream::iter(looks).buffer_unordered(AT_ONCE as usize).try_collect().await?;
        Ok(looked.len())
    }

    /// A failed look is a warning in the log and never an error of the reconciler, so that one staging does not hold up the
    /// others. Only what may pass fails a look: damage ends the staging.
    async fn look_or_retry(self: &Arc<Self>, team: Uuid, id: Uuid) -> Result<(), Error> {
        let Some(row) = stagings::get(&mut self.db.read().await?, team, id).await? else { return Ok(()) };
        match self.look_into(&row).await {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::warn!(staging = %id, %error, "a staging's inputs cannot be looked into; again shortly");
                let at = self.clock.now().saturating_add(AGAIN).unwrap_or_default();
                transaction!(self.db, |tx| stagings::unclaim(tx, id, at).await.map_err(Error::from))
            }
        }
    }

    /// Computes what a staging must bring and, without a node, whether it is near; writes what was found under the job's
    /// lock, unless the staging has ended or is `near` meanwhile. Inputs that are damaged are found too, and fail the
    /// staging. An error changes nothing: the look is made again.
    pub(super) async fn look_into(self: &Arc<Self>, row: &stagings::Staging) -> Result<(), Error> {
        let found = match self.sources(row).await? {
            Ok(sources) => match self.look_at(row, sources).await {
                Err(Error { code, detail, .. }) if code.kind == Kind::Corrupt => {
                    Found::Refused(Refused { code: code.code, detail })
                }
                looked => looked?,
            },
            Err(refused) => refused,
        };
        transaction!(self.db, |tx| {
            let job = self.locked_job(tx, row.team, row.job).await?;
            let Some(mut row) = stagings::get(tx, row.team, row.id).await? else { return Ok(()) };
            if row.state.is_over() || row.state == State::Near {
                return Ok(());
            }
            let was = row.state_seq;
            let mut facts = Vec::new();
            match &found {
                Found::Expected(expected) => {
                    stagings::set_expected(tx, row.id, expected).await?;
                    row.expected = Some(*expected);
                    row.bytes.total = expected.bytes;
                    match row.node {
                        None => {
                            row.bytes.done = expected.bytes;
                            self.move_staging(tx, &job, row, State::Near, &mut facts).await?;
                        }
                        Some(_) => self.write_staging(tx, &row, was).await?,
                    }
                }
                Found::Refused(Refused { code, detail }) => {
                    row.error = Some(((*code).to_owned(), detail.clone()));
                    self.move_staging(tx, &job, row, State::Failed, &mut facts).await?;
                }
            }
            self.tell(tx, job.team, &facts).await
        })
    }

    /// The job's inputs with their versions, or why there are none.
    /// In the order of the spec, `work` first, as they were kept at submit. The outer error is ours, the inner one the
    /// staging's end.
    async fn sources(&self, row: &stagings::Staging) -> Result<Result<Vec<Source>, Found>, Error> {
        let mut session = self.db.snapshot().await?;
        let job = jobs::get(&mut session, row.team, row.job).await?.ok_or_else(|| super::jobs::no_job(row.job))?;
        let spec = spec_of(&job)?;
        let mut sources = Vec::new();
        for (input, kept) in spec.work.iter().chain(&spec.data).zip(jobs::inputs(&mut session, job.id).await?) {
            let Some(version) = versions::get(&mut session, kept.version).await? else {
                let detail = format!("the version of `{}` is gone", input.from.escape_debug());
                return Ok(Err(Found::Refused(Refused { code: "version_gone", detail })));
            };
            match Source::new(version, input, kept.path.as_bytes()) {
                Ok(source) => sources.push(source),
                Err(refused) => return Ok(Err(Found::Refused(refused))),
            }
        }
        Ok(Ok(sources))
    }

    /// Presence first, since it is cheaper and its refusal names what to push. With a node the node finds out itself, by
    /// pulling.
    async fn look_at(self: &Arc<Self>, row: &stagings::Staging, sources: Vec<Source>) -> Result<Found, Error> {
        if row.node.is_none() {
            for source in &sources {
                let missing = self.missing_packs(&source.version).await?;
                if !missing.is_empty() {
                    let detail = self.name_missing(&source.version, missing).await?;
                    return Ok(Found::Refused(Refused { code: "packs_missing", detail }));
                }
            }
        }
        let turn = self.data.walk().await.map_err(|error| Error::internal("no more walks").with_source(error))?;
        Ok(match self.staged_of(sources, turn).await? {
            Ok((tree, counts)) => {
                Found::Expected(Expected { tree: *tree.as_bytes(), files: counts.files, bytes: counts.bytes })
            }
            Err(refused) => Found::Refused(refused),
        })
    }

    /// The tree of exactly what is staged of these inputs, and what it holds; the inner error is the job's fault, the outer
    /// one the store's. The walk holds `turn` until it ends, also when nobody waits for it any more.
    pub(super) async fn staged_of(
        self: &Arc<Self>,
        sources: Vec<Source>,
        turn: Arc<OwnedSemaphorePermit>,
    ) -> Result<Result<(Digest, Counts), Refused>, Error> {
        let (app, handle) = (self.clone(), Handle::current());
        let walked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            walk(&app, &handle, sources)
        });
        let walked =
            walked.await.map_err(|error| Error::internal("the walk of a tree ended early").with_source(error))?;
        let (code, error) = match walked {
            Ok(staged) => return Ok(Ok(staged)),
            Err(Stop::Unread(error)) => return Err(error),
            Err(Stop::Job(selection::Error::Tree(error))) => return Err(damaged("tree", error.into())),
            Err(Stop::Job(error @ selection::Error::OutsideLink { .. })) => ("outside_links", error),
            Err(Stop::Job(error @ selection::Error::NoSuchPath(_))) => ("path_not_found", error),
            Err(Stop::Job(error)) => ("bad_job", error),
        };
        Ok(Err(Refused { code, detail: error.to_string() }))
    }

    /// Packs of a version that the store does not have as they should be: never sealed, quarantined, absent, or of another
    /// length. One HEAD each, [`HEADS`] at a time; no bytes are read, so damage inside a pack is not found here.
    async fn missing_packs(&self, version: &Version) -> Result<Vec<StoredPack>, Error> {
        let (mut after, mut missing) = (0, Vec::new());
        loop {
            let page = stagings::layout_packs(&mut self.db.read().await?, version.layout.id, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(missing) };
            after = last.number;
            let heads = page.into_iter().map(|pack| async move {
                match self.is_present(&pack).await {
                    Ok(true) => Ok(None),
                    Ok(false) => Ok(Some(pack)),
                    Err(error) => Err(error),
                }
            });
            let found: Vec<Option<StoredPack>> =
                futures::stream::iter(heads).buffer_unordered(HEADS).try_collect().await?;
            missing.extend(found.into_iter().flatten());
        }
    }

    async fn is_present(&self, pack: &StoredPack) -> Result<bool, Error> {
        if !pack.is_sealed {
            return Ok(false);
        }
        match self.store.head(&parse_key(&pack.key)?).await {
            Ok(meta) => Ok(Some(meta.size) == pack.bytes),
            Err(store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Which files lie in missing packs, in words: [`NAMED`] at most, in the tree's order.
    async fn name_missing(self: &Arc<Self>, version: &Version, missing: Vec<StoredPack>) -> Result<String, Error> {
        let handle = Handle::current();
        let ids: HashSet<[u8; 32]> = missing.iter().filter_map(|pack| pack.id).collect();
        let (app, tree, layout) = (self.clone(), version.tree_key.clone(), version.layout.key.clone());
        let turn = self.data.walk().await.map_err(|error| Error::internal("no more walks").with_source(error))?;
        let walked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let tree = open(&app, &handle, "tree", &tree)?;
            let pairs = Merged::open(tree, open(&app, &handle, "layout", &layout)?);
            let pairs = pairs.map_err(|error| damaged("layout", error))?;
            let lost: Vec<bool> = pairs.packs().iter().map(|pack| ids.contains(pack.as_bytes())).collect();
            let mut files: Vec<RelPath> = Vec::new();
            for pair in pairs {
                let (entry, line) = pair.map_err(|error| damaged("layout", error))?;
                let Some(Line::File(file)) = line else { continue };
                let is_lost = |pack: u32| lost.get(pack as usize).copied().unwrap_or(true);
                if file.segments.iter().filter_map(|segment| segment.pack).any(is_lost) {
                    files.push(entry.path);
                    if files.len() > NAMED {
                        break;
                    }
                }
            }
            Ok::<_, Error>(files)
        });
        let files =
            walked.await.map_err(|error| Error::internal("the walk of a layout ended early").with_source(error))??;
        let more = if files.len() > NAMED { ", and more" } else { "" };
        let named: Vec<String> = files.iter().take(NAMED).map(|path| format!("`{path}`")).collect();
        let count = missing.len();
        Ok(format!(
            "the store lacks {count} of the packs of `{}`; affected: {}{more}",
            version.reference(),
            named.join(", ")
        ))
    }

    /// Whether a path is a file or directory of a version: read at submit, so that a typing error is known at once.
    pub(super) async fn check_path(self: &Arc<Self>, version: &Version, path: &RelPath) -> Result<(), Error> {
        self.kind_of(version, path).await.map(drop)
    }

    /// What lies at a path of a version: a file or a directory, else there is no such path ([`PATH_NOT_FOUND`]). Walks the
    /// tree up to it on the blocking pool.
    pub(super) async fn kind_of(self: &Arc<Self>, version: &Version, path: &RelPath) -> Result<EntryKind, Error> {
        let (app, handle, key, wanted) = (self.clone(), Handle::current(), version.tree_key.clone(), path.clone());
        let turn = self.data.look_up().await.map_err(|error| Error::internal("no more walks").with_source(error))?;
        let walked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let tree = TreeReader::open(open(&app, &handle, "tree", &key)?);
            for entry in tree.map_err(|error| damaged("tree", error.into()))? {
                let entry = entry.map_err(|error| damaged("tree", error.into()))?;
                if entry.path >= wanted {
                    return Ok((entry.path == wanted).then_some(entry.kind));
                }
            }
            Ok::<_, Error>(None)
        });
        match walked.await.map_err(|error| Error::internal("the walk of a tree ended early").with_source(error))?? {
            Some(kind @ (EntryKind::File { .. } | EntryKind::Dir { .. })) => Ok(kind),
            Some(EntryKind::Symlink { .. }) | None => {
                let hint = format!("`dray ls {}` lists what it holds", version.reference());
                let detail = format!("`{}` holds no file or directory `{path}`", version.reference());
                Err(Error::new(PATH_NOT_FOUND, detail, hint))
            }
        }
    }
}

/// A symlink at the path counts as nothing there: it is not followed.
pub const PATH_NOT_FOUND: Code = Code::new(Kind::NotFound, "path_not_found", "the version has no such path");

/// Why a walk over the inputs ended early.
enum Stop {
    /// A tree could not be opened.
    Unread(Error),
    Job(selection::Error),
}

impl From<selection::Error> for Stop {
    fn from(error: selection::Error) -> Self {
        Self::Job(error)
    }
}

/// Walks the trees one after the other, so that one is open at a time. Blocks.
fn walk(app: &App, handle: &Handle, sources: Vec<Source>) -> Result<(Digest, Counts), Stop> {
    let read = |key: &str| {
        let tree = open(app, handle, "tree", key).map_err(Stop::Unread)?;
        TreeReader::open(tree).map_err(|error| Stop::Job(selection::Error::Tree(error)))
    };
    let read = &read;
    let mut inputs = Vec::with_capacity(sources.len());
    for Source { version, selection } in sources {
        let selection = match selection.needs_weighing() {
            true => selection.weigh(read(&version.tree_key)?)?,
            false => selection,
        };
        inputs.push((selection, move || read(&version.tree_key)));
    }
    staged_tree_of(inputs)
}

/// Opens a document of a version. One that the store does not have is as damaged as one that cannot be decoded.
fn open(app: &App, handle: &Handle, what: &'static str, key: &str) -> Result<Document, Error> {
    app.open_document(handle, key).map_err(|error| {
        let source = error.source.as_ref().and_then(|source| source.downcast_ref::<store::Error>());
        match source {
            Some(store::Error::NotFound { .. }) => corrupt(what, error),
            _ => error,
        }
    })
}

/// What a failed read of a document means. An error of the store comes inside an `io::Error` and is the store's still.
fn damaged(what: &'static str, error: merge::Error) -> Error {
    match error {
        merge::Error::Tree(tree::Error::Io(source)) | merge::Error::Layout(layout::Error::Io(source)) => {
            match source.downcast::<store::Error>() {
                Ok(error) => error.into(),
                Err(source) => corrupt(what, source),
            }
        }
        error => corrupt(what, error),
    }
}

/// For good: push the dataset again and submit with the new version.
fn corrupt(what: &'static str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let hint = "push the dataset again, and submit the job with the new version";
    Error::new(CORRUPT, format!("the {what} of an input cannot be read"), hint).with_source(error)
}

fn selection_of(input: &InputSpec, subtree: &[u8]) -> Result<Selection, selection::Error> {
    Selection::new(&selection::Input {
        at: &input.at,
        subtree,
        include: &input.include,
        exclude: &input.exclude,
        shard: input.shard.as_deref(),
        links: if input.allow_outside_links { OutsideLinks::Keep } else { OutsideLinks::Refuse },
    })
}
