//! Commits: from an upload's tree and layout to a version, by whichever replica claims the work.
//!
//! ```text
//! [upload: committing, operation: running] -> check -> ref prepared -> [version + references + pins gone] -> ref committed -> done
//! ```
//!
//! The operation outlives its request and the process: its claim runs out and another replica goes on, from the start or, when
//! the version is there already, from the last step. How a version is made is in `making`.
//!
//! What may be said of each crash: before the transaction in brackets there is no version, and the next claim begins anew;
//! after it there is one, and the next claim only writes the committed mark, however often that takes: an operation that has
//! made its version never fails. At no point are there two versions of one operation.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::upload::{refused, visible};
use super::{App, Caller};
use crate::api;
use crate::api::uploads::Commit;
use crate::content::digest::Digest;
use crate::db::operations::{self, Claim, Operation, State};
use crate::db::uploads::{self, ObjectKind, Upload};
use crate::db::{Tx, Woken, versions};
use crate::domain::version::{Act, UploadState};
use crate::transaction;

/// Send the tree or layout to this upload, then commit again.
pub const OBJECT_MISSING: Code = Code::new(Kind::Conflict, "object_missing", "the tree or layout was not sent");
/// Nobody's fault: the commit runs again at once.
pub(super) const CHANGED: Code =
    Code::new(Kind::Unavailable, "dataset_changed", "the dataset changed while the commit was checked");

/// Topic of workers that wait for a commit.
pub const TOPIC: &str = "commits";
/// How long a claim lasts without being renewed, and how often it is: three tries before it is lost.
const CLAIM: Duration = Duration::from_secs(20);
const RENEW: Duration = Duration::from_secs(6);
/// Runs of a commit that has made no version, with pauses that double from 2 s to 64 s. Runs whose process died or lost the
/// claim count too, or a commit that kills its process would kill every process, one after the other.
const ATTEMPTS: u64 = 30;

impl App {
    /// Begins to commit. The same commit said again is the same operation, until it failed: then it is tried anew. So a
    /// client that lost the answer repeats the request, without an Idempotency-Key. [`OBJECT_MISSING`] when tree or layout
    /// were not sent; packs may be missing still, which the operation finds out. From here on the upload takes nothing
    /// until the operation ends.
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

    /// How an operation stands; waits up to `wait` while it runs, cut to the service's limit. Seen by whoever sees its
    /// upload.
    pub async fn get_operation(
        &self,
        caller: &Caller,
        id: Uuid,
        wait: Duration,
    ) -> Result<api::uploads::Operation, Error> {
        let deadline = tokio::time::Instant::now() + wait.min(self.settings.limits.longest_wait.0);
        let mut ear = self.db.wakeups().listen(&topic(id));
        let mut last = wait.is_zero();
        loop {
            {
                let mut session = self.db.read().await?;
                let found = operations::get(&mut session, id).await?.filter(|found| found.team == caller.team);
                let found = found
                    .ok_or_else(|| Error::not_found("operation", id, "operations are named by what began them"))?;
                let upload = uploads::get(&mut session, found.upload).await?;
                visible(upload, caller, found.upload)?;
                if found.state != State::Running || last {
                    return self.operation_document(&mut session, found).await;
                }
            }
            last = ear.wait(deadline).await == Woken::TimeIsUp;
        }
    }

    /// The version is shown once the operation is done; absent when it was deleted since.
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

    /// Works on commits until none waits, one after the other.
    pub async fn run_commits(self: &Arc<Self>) -> Result<(), Error> {
        while self.run_commit().await? {}
        Ok(())
    }

    /// Claims one waiting commit and works on it to its end. `false` when none waited. May run in any number of replicas. An
    /// error of the work is written into the operation, not answered; an error answered here is one of the database, and the
    /// claim runs out.
    pub async fn run_commit(self: &Arc<Self>) -> Result<bool, Error> {
        let token = self.ids.uuid();
        let claimed = transaction!(self.db, |tx| {
            let now = self.clock.now();
            operations::claim(tx, token, now.saturating_add(CLAIM).unwrap_or(now), now).await.map_err(Error::from)
        })?;
        let Some(operation) = claimed else { return Ok(false) };
        let claim = Claim { operation: operation.id, token };
        if operation.version.is_none() && operation.attempts > ATTEMPTS {
            let error = Error::internal(format!("the commit was begun {ATTEMPTS} times and never came to an end"));
            self.finish(&operation, claim, Some(error)).await?;
            return Ok(true);
        }
        match self.keeping(claim, self.work(&operation, claim)).await {
            None => {
                tracing::info!(operation = %operation.id, "a commit's claim was lost; another replica goes on with it")
            }
            Some(Ok(())) => self.finish(&operation, claim, None).await?,
            Some(Err(error)) => self.go_on_or_fail(&operation, claim, error).await?,
        }
        Ok(true)
    }

    /// After a run that did not come to its end. Once there is a version, the run is repeated whatever the error says: its
    /// mark is still to be written, and to call it failed would be a lie.
    async fn go_on_or_fail(&self, operation: &Operation, claim: Claim, error: Error) -> Result<(), Error> {
        let now = operations::get(&mut self.db.read().await?, operation.id).await?;
        let has_made = now.is_some_and(|now| now.version.is_some());
        let goes_on = has_made || (error.is_retryable() && operation.attempts < ATTEMPTS);
        if !goes_on {
            return self.finish(operation, claim, Some(error)).await;
        }
        let pause = if error.code == CHANGED { 0 } else { 1 << operation.attempts.min(6) };
        if error.is_retryable() {
            tracing::warn!(operation = %operation.id, %error, pause, "a commit could not go on; it will be tried again");
        } else {
            tracing::error!(operation = %operation.id, %error, pause, "a version's committed mark cannot be written yet");
        }
        self.renew(claim, Duration::from_secs(pause)).await.map(drop)
    }

    /// Runs `work` while renewing the claim; `None` when the claim was lost, and then `work` is dropped where it stands.
    /// What it had on the blocking pool runs to its end without effect.
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

    /// Ends an operation, with a problem document if it failed. A failed commit opens its upload again, so that the client
    /// can mend what was named. Changes nothing when the claim was lost. Logged as an error only when a person must look.
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
}

/// Topic of whoever waits for an operation.
fn topic(operation: Uuid) -> String {
    format!("operation/{operation}")
}

fn digest(field: &str, hex: &str) -> Result<Digest, Error> {
    hex.parse().map_err(|error| Error::invalid(field, error, "send 64 lower-case hex digits"))
}
