//! Commits: from an upload's tree and layout to a version, by whichever replica claims the work.
//!
//! ```text
//! [upload: committing, operation: running] -> check -> ref prepared -> [version + references + pins gone] -> ref committed -> done
//! ```
//!
//! The operation outlives its request and the process: its claim runs out and another replica goes on, from the start or, when
//! the version is there already, from the last step. The middle transaction decides everything again under its locks, so
//! nothing that changed since the check can slip through. Lock order: upload, team, dataset, packs by number.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::check::{Checked, Claimed, check, chunks_gone};
use super::error::{CORRUPT, Code, Error, Kind};
use super::refs;
use super::upload::{over_quota, refused, visible};
use super::{App, Caller};
use crate::api;
use crate::api::uploads::Commit;
use crate::content::digest::Digest;
use crate::db::operations::{self, Claim, Operation, State};
use crate::db::uploads::{self, Object, ObjectKind, Upload};
use crate::db::versions::{self, Layout, Version};
use crate::db::{Tx, packs, teams};
use crate::domain::version::{Act, UploadState, is_unchanged, within_quota};
use crate::transaction;

pub const OBJECT_MISSING: Code = Code::new(Kind::Conflict, "object_missing", "the tree or layout was not sent");
const CHANGED: Code =
    Code::new(Kind::Unavailable, "dataset_changed", "the dataset changed while the commit was checked");

/// Topic of workers that wait for a commit.
pub const TOPIC: &str = "commits";
/// How long a claim lasts without being renewed, and how often it is.
const CLAIM: Duration = Duration::from_secs(60);
const RENEW: Duration = Duration::from_secs(20);
/// Runs of a commit that failed for passing reasons only.
const ATTEMPTS: u64 = 30;

impl App {
    /// Begins to commit. The same commit said again is the same operation, until it failed: then it is tried anew.
    pub async fn commit_upload(
        &self,
        caller: &Caller,
        id: Uuid,
        request: &Commit,
    ) -> Result<api::uploads::Operation, Error> {
        let (tree, layout) = (digest("tree", &request.tree)?, digest("layout", &request.layout)?);
        transaction!(self.db, |tx| {
            let mut upload = visible(uploads::lock(tx, id).await?, caller, id)?;
            let standing = upload.standing.fence(request.epoch).map_err(refused)?;
            if matches!(standing.state, UploadState::Committing | UploadState::Committed)
                && let Some(earlier) = self.same_operation(tx, &upload, (tree, layout, request.incomplete)).await?
            {
                return self.operation_document(tx, earlier).await;
            }
            for (kind, digest) in [(ObjectKind::Tree, &tree), (ObjectKind::Layout, &layout)] {
                standing.after(Act::Commit).map_err(refused)?;
                if uploads::object(tx, id, kind, digest).await?.is_none() {
                    let word = if kind == ObjectKind::Tree { "tree" } else { "layout" };
                    let detail = format!("the upload has sent no {word} `{digest}`");
                    return Err(Error::new(OBJECT_MISSING, detail, format!("PUT the {word}, then commit again")));
                }
            }
            let operation = Operation {
                id: self.ids.uuid(),
                team: caller.team,
                upload: id,
                tree,
                layout,
                incomplete: request.incomplete,
                state: State::Running,
                version: None,
                error: None,
                attempts: 0,
            };
            let life = self.upload_life();
            operations::insert(tx, &operation, life.now).await?;
            self.step(tx, &mut upload, Act::Commit, life.until).await?;
            uploads::set_operation(tx, id, operation.id).await?;
            tx.notify(TOPIC);
            self.operation_document(tx, operation).await
        })
    }

    async fn same_operation(
        &self,
        tx: &mut Tx,
        upload: &Upload,
        said: (Digest, Digest, bool),
    ) -> Result<Option<Operation>, Error> {
        let Some(id) = upload.operation else { return Ok(None) };
        let found = operations::get(tx, id).await?;
        Ok(found.filter(|found| (found.tree, found.layout, found.incomplete) == said))
    }

    /// How an operation stands; waits up to `wait` while it runs.
    pub async fn get_operation(
        &self,
        caller: &Caller,
        id: Uuid,
        wait: Duration,
    ) -> Result<api::uploads::Operation, Error> {
        let deadline = tokio::time::Instant::now() + wait.min(self.settings.limits.longest_wait.0);
        let mut ear = self.db.wakeups().listen(&topic(id));
        loop {
            {
                let mut session = self.db.read().await?;
                let found = operations::get(&mut session, id).await?.filter(|found| found.team == caller.team);
                let found = found
                    .ok_or_else(|| Error::not_found("operation", id, "operations are named by what began them"))?;
                let upload = uploads::get(&mut session, found.upload).await?;
                visible(upload, caller, found.upload)?;
                if found.state != State::Running || tokio::time::Instant::now() >= deadline {
                    return self.operation_document(&mut session, found).await;
                }
            }
            ear.wait(deadline).await;
        }
    }

    async fn operation_document(&self, tx: &mut Tx, operation: Operation) -> Result<api::uploads::Operation, Error> {
        let done = operation.state == State::Done;
        let version = match operation.version.filter(|_| done) {
            Some(version) => versions::get(tx, version).await?,
            None => None,
        };
        let error = operation.error.as_deref().map(serde_json::from_str).transpose();
        Ok(api::uploads::Operation {
            id: operation.id.to_string(),
            state: match operation.state {
                State::Running => api::uploads::OperationState::Running,
                State::Done => api::uploads::OperationState::Done,
                State::Failed => api::uploads::OperationState::Failed,
            },
            version: version.as_ref().map(super::versions::document),
            error: error
                .map_err(|error| Error::internal("an operation's problem cannot be read").with_source(error))?,
        })
    }

    /// Works on commits until none waits.
    pub async fn run_commits(self: &Arc<Self>) -> Result<(), Error> {
        while self.run_commit().await? {}
        Ok(())
    }

    /// Claims one waiting commit and works on it to its end. `false` when none waited. May run in any number of replicas.
    pub async fn run_commit(self: &Arc<Self>) -> Result<bool, Error> {
        let token = self.ids.uuid();
        let claimed = transaction!(self.db, |tx| {
            let now = self.clock.now();
            operations::claim(tx, token, now.saturating_add(CLAIM).unwrap_or(now), now).await.map_err(Error::from)
        })?;
        let Some(operation) = claimed else { return Ok(false) };
        let claim = Claim { operation: operation.id, token };
        match self.keeping(claim, self.work(&operation, claim)).await {
            None => {
                tracing::info!(operation = %operation.id, "a commit's claim was lost; another replica goes on with it")
            }
            Some(Ok(())) => self.finish(&operation, claim, None).await?,
            Some(Err(error)) if error.is_retryable() && operation.attempts < ATTEMPTS => {
                let pause = if error.code == CHANGED { 0 } else { 1 << operation.attempts.min(6) };
                tracing::warn!(operation = %operation.id, %error, pause, "a commit could not go on; it will be tried again");
                self.renew(claim, Duration::from_secs(pause)).await?;
            }
            Some(Err(error)) => self.finish(&operation, claim, Some(error)).await?,
        }
        Ok(true)
    }

    /// Runs `work` while renewing the claim; `None` when the claim was lost.
    async fn keeping<T>(&self, claim: Claim, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                () = tokio::time::sleep(RENEW) => match self.renew(claim, CLAIM).await {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => tracing::warn!(operation = %claim.operation, %error, "a commit's claim could not be renewed"),
                },
            }
        }
    }

    async fn renew(&self, claim: Claim, lasts: Duration) -> Result<bool, Error> {
        let until = self
            .clock
            .now()
            .saturating_add(lasts)
            .map_err(|error| Error::internal("time is over").with_source(error))?;
        transaction!(self.db, |tx| operations::renew(tx, claim, until).await.map_err(Error::from))
    }

    /// Ends an operation. A failed commit opens its upload again, so that the client can mend what was named.
    async fn finish(&self, operation: &Operation, claim: Claim, error: Option<Error>) -> Result<(), Error> {
        let problem = error.as_ref().map(|error| serde_json::json!(error.problem()).to_string());
        if let Some(error) = &error
            && matches!(error.kind(), Kind::Internal | Kind::Corrupt)
        {
            tracing::error!(operation = %operation.id, code = error.code.code, detail = error.detail, "a commit failed");
        } else if let Some(error) = &error {
            tracing::info!(operation = %operation.id, code = error.code.code, detail = error.detail, "a commit was refused");
        }
        transaction!(self.db, |tx| {
            if !operations::finish(tx, claim, problem.as_deref(), self.clock.now()).await? {
                return Ok(());
            }
            if problem.is_some()
                && let Some(mut upload) = uploads::lock(tx, operation.upload).await?
                && upload.standing.state == UploadState::Committing
            {
                self.step(tx, &mut upload, Act::CommitFailed, self.upload_life().until).await?;
            }
            tx.notify(topic(operation.id));
            Ok::<_, Error>(())
        })
    }

    async fn work(self: &Arc<Self>, operation: &Operation, claim: Claim) -> Result<(), Error> {
        let version = match operation.version {
            Some(version) => version,
            None => self.make_version(operation, claim).await?,
        };
        // idempotent: the document is the same whoever writes it, and however often
        match versions::get(&mut self.db.read().await?, version).await? {
            Some(version) => refs::write_committed(self, &version).await,
            None => Ok(()), // deleted since; collection takes its documents along
        }
    }

    /// Everything up to and with the transaction that makes the version, or finds that it is there already.
    async fn make_version(self: &Arc<Self>, operation: &Operation, claim: Claim) -> Result<Uuid, Error> {
        let (upload, plan, pair) = self.plan(operation).await?;
        if let Plan::Same(version) = &plan {
            return self.conclude(operation, claim, Outcome::Same(version.id)).await;
        }
        let team = operation.team;
        let (portable, parent) = {
            let mut session = self.db.read().await?;
            (versions::is_portable(&mut session, team).await?, versions::newest(&mut session, upload.dataset).await?)
        };
        let claimed = Claimed {
            team,
            tree: operation.tree,
            tree_key: pair.tree.key.clone(),
            layout: operation.layout,
            layout_key: pair.layout.key.clone(),
            portable,
            parent,
        };
        let (app, handle) = (self.clone(), Handle::current());
        let checked = spawn_blocking(move || check(&app, &handle, &claimed)).await;
        let checked = checked.map_err(|error| Error::internal("a commit's check was cut off").with_source(error))?;
        if checked.as_ref().is_err_and(|error| error.code == CORRUPT) {
            self.forget_objects(&pair).await?;
        }
        let version = self.draft(operation, &upload, (&plan, &pair), checked?).await?;
        refs::write_prepared(self, &version.0).await?;
        let outcome = match plan {
            Plan::Heal(_) => Outcome::Healed(&version.0, &version.1, &pair),
            Plan::Same(_) | Plan::New => Outcome::New(&version.0, &version.1, &pair),
        };
        self.conclude(operation, claim, outcome).await
    }

    /// What the commit will come to, as things stand.
    async fn plan(&self, operation: &Operation) -> Result<(Upload, Plan, Pair), Error> {
        let mut session = self.db.read().await?;
        let upload = uploads::get(&mut session, operation.upload).await?;
        let upload = upload.ok_or_else(|| Error::internal("an operation's upload has no row"))?;
        let plan = plan(&mut session, &upload, operation).await?;
        let mut object = [None, None];
        for (slot, (kind, digest)) in
            object.iter_mut().zip([(ObjectKind::Tree, &operation.tree), (ObjectKind::Layout, &operation.layout)])
        {
            *slot = uploads::object(&mut session, upload.id, kind, digest).await?;
        }
        match object {
            [Some(tree), Some(layout)] => Ok((upload, plan, Pair { tree, layout })),
            _ => Err(Error::new(
                OBJECT_MISSING,
                "the tree or layout is not there any more",
                "send both again, then commit again",
            )),
        }
    }

    /// Damaged objects are forgotten, so that sending them again stores them again.
    async fn forget_objects(&self, pair: &Pair) -> Result<(), Error> {
        transaction!(self.db, |tx| {
            for object in [&pair.tree, &pair.layout] {
                uploads::take_object(tx, &object.key).await?;
            }
            Ok::<_, Error>(())
        })
    }

    /// The row of the version to be, still without its number.
    async fn draft(
        &self,
        operation: &Operation,
        upload: &Upload,
        made: (&Plan, &Pair),
        checked: Checked,
    ) -> Result<(Version, Vec<u64>), Error> {
        let (plan, pair) = made;
        let generation = match plan {
            Plan::Heal(broken) => {
                transaction!(self.db, |tx| versions::take_generation(tx, broken.id).await.map_err(Error::from))?
            }
            Plan::New | Plan::Same(_) => 0,
        };
        let layout = Layout {
            id: self.ids.uuid(),
            generation,
            digest: operation.layout,
            key: pair.layout.key.clone(),
            bytes: pair.layout.bytes,
            packs: u64::try_from(checked.packs.len()).unwrap_or(u64::MAX),
            read_until: jiff::Timestamp::UNIX_EPOCH,
        };
        let version = match plan {
            Plan::Heal(broken) => Version { layout, ..broken.as_ref().clone() },
            Plan::New | Plan::Same(_) => Version {
                id: self.ids.uuid(),
                team: operation.team,
                dataset: upload.dataset,
                name: versions::dataset_name(&mut self.db.read().await?, upload.dataset).await?,
                number: crate::domain::id::VersionNumber::FIRST,
                digest: operation.tree,
                counts: checked.counts,
                chunks: checked.chunks,
                incomplete: operation.incomplete,
                late: false,
                tree_key: pair.tree.key.clone(),
                tree_bytes: pair.tree.bytes,
                created_at: self.clock.now(),
                layout,
            },
        };
        Ok((version, checked.packs))
    }

    /// The transaction that makes the version visible, or finds an equal one, and ends the upload.
    async fn conclude(&self, operation: &Operation, claim: Claim, outcome: Outcome<'_>) -> Result<Uuid, Error> {
        transaction!(self.db, |tx| {
            let upload = uploads::lock(tx, operation.upload).await?;
            let mut upload = upload.ok_or_else(|| Error::internal("an operation's upload has no row"))?;
            let team = teams::lock(tx, operation.team).await?.ok_or_else(|| Error::internal("a team has no row"))?;
            versions::lock_dataset(tx, upload.dataset).await?;
            let made = match (plan(tx, &upload, operation).await?, &outcome) {
                (Plan::Same(version), _) => version.id,
                (Plan::New, Outcome::New(version, packs, pair)) => {
                    within_quota(team.quota_bytes, team.used_bytes, version.counts.bytes).map_err(over_quota)?;
                    self.insert_version(tx, &upload, (version, packs), pair).await?
                }
                (Plan::Heal(now), Outcome::Healed(version, packs, pair))
                    if (now.id, true) == (version.id, now.layout.generation < version.layout.generation) =>
                {
                    alive(tx, packs).await?;
                    versions::replace_layout(tx, version.id, &version.layout, packs, self.clock.now()).await?;
                    uploads::take_object(tx, &pair.layout.key).await?;
                    version.id
                }
                _ => return Err(Error::new(CHANGED, "another commit came in between", "it is tried again by itself")),
            };
            packs::unpin(tx, upload.id).await?;
            let until = upload.expires_at;
            self.step(tx, &mut upload, Act::CommitDone, until).await?;
            if !operations::made(tx, claim, made).await? {
                return Err(Error::new(CHANGED, "the claim was lost", "another replica goes on"));
            }
            Ok::<_, Error>(made)
        })
    }

    async fn insert_version(
        &self,
        tx: &mut Tx,
        upload: &Upload,
        version: (&Version, &[u64]),
        pair: &Pair,
    ) -> Result<Uuid, Error> {
        let (draft, packs) = version;
        alive(tx, packs).await?;
        let late = self.is_late(tx, upload).await?;
        let version = Version { number: versions::take_number(tx, upload.dataset).await?, late, ..draft.clone() };
        versions::insert(tx, &version, packs).await?;
        let bytes = i64::try_from(version.counts.bytes)
            .map_err(|error| Error::internal("a version's size is out of range").with_source(error))?;
        teams::add_used(tx, upload.team, bytes).await?;
        for object in [&pair.tree, &pair.layout] {
            uploads::take_object(tx, &object.key).await?;
        }
        self.version_made(tx, upload, &version).await?;
        Ok(version.id)
    }
}

/// What a commit comes to.
enum Plan {
    /// A new version.
    New,
    /// The newest version is the same and sound.
    Same(Box<Version>),
    /// The newest version is the same, but packs of it are damaged: it gets the new layout.
    Heal(Box<Version>),
}

/// What was prepared for it.
enum Outcome<'a> {
    Same(#[expect(dead_code, reason = "the transaction finds it again")] Uuid),
    New(&'a Version, &'a [u64], &'a Pair),
    Healed(&'a Version, &'a [u64], &'a Pair),
}

/// The two objects a commit uses.
struct Pair {
    tree: Object,
    layout: Object,
}

async fn plan(tx: &mut Tx, upload: &Upload, operation: &Operation) -> Result<Plan, Error> {
    let newest = versions::newest(tx, upload.dataset).await?;
    let same = newest
        .filter(|newest| is_unchanged(Some((newest.digest, newest.incomplete)), operation.tree, operation.incomplete));
    let Some(version) = same else { return Ok(Plan::New) };
    let sound = versions::dead_packs(tx, version.layout.id, 1).await?.is_empty();
    Ok(if sound { Plan::Same(Box::new(version)) } else { Plan::Heal(Box::new(version)) })
}

/// Locks the packs and refuses when one of them is not sealed any more.
async fn alive(tx: &mut Tx, numbers: &[u64]) -> Result<(), Error> {
    let gone = packs::lock_all(tx, numbers).await?;
    if gone.is_empty() { Ok(()) } else { Err(chunks_gone(&gone)) }
}

/// Topic of whoever waits for an operation.
fn topic(operation: Uuid) -> String {
    format!("operation/{operation}")
}

fn digest(field: &str, hex: &str) -> Result<Digest, Error> {
    hex.parse().map_err(|error| Error::invalid(field, error, "send 64 lower-case hex digits"))
}
