//! Making a version: from a checked tree and layout to the row that everybody sees.
//!
//! The middle transaction decides everything again under its locks, so nothing that changed since the check can slip through.
//! Lock order: upload, team, dataset, packs by number. What it writes to the store before is a claim, what it writes after is
//! the mark that the claim came true.
//!
//! ```text
//! plan: New | Same | Heal -> check -> draft (ids, generation) -> ref prepared -> one transaction, plan judged again -> ref committed
//! ```
//!
//! `Same`: the newest version holds this tree and is sound; the commit answers it and makes nothing. `Heal`: it holds this
//! tree but lacks packs; it keeps its number and gets the new layout. If the plan is another under the locks, the
//! transaction is given up with [`CHANGED`] and the commit begins again.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::App;
use super::check::{Checked, Claimed, check, chunks_gone};
use super::commit::{CHANGED, OBJECT_MISSING};
use super::error::{CORRUPT, Error};
use super::refs;
use super::upload::over_quota;
use crate::db::operations::{self, Claim, Operation};
use crate::db::uploads::{self, Object, ObjectKind, Upload};
use crate::db::versions::{self, Layout, Version};
use crate::db::{Tx, packs, teams};
use crate::domain::version::{Act, is_unchanged, within_quota};
use crate::transaction;

impl App {
    /// Makes the version, or finds that it was made, and marks it committed in the store. May be called any number of times
    /// for one operation, also after it has done its work.
    pub(super) async fn work(self: &Arc<Self>, operation: &Operation, claim: Claim) -> Result<(), Error> {
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

    /// Everything up to and with the transaction that makes the version, or finds that it is there already. Answers the
    /// version's id. What it leaves when it fails is a prepared reference that never gets its mark, and ids that are not
    /// used again.
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
            self.give_up_objects(&pair).await?;
        }
        let version = self.draft(operation, &upload, (&plan, &pair), checked?).await?;
        refs::write_prepared(self, &version.0).await?;
        let outcome = match plan {
            Plan::Heal(_) => Outcome::Healed(&version.0, &version.1, &pair),
            Plan::Same(_) | Plan::New => Outcome::New(&version.0, &version.1, &pair),
        };
        self.conclude(operation, claim, outcome).await
    }

    /// What the commit will come to, as things stand: not locked, so a forecast. [`OBJECT_MISSING`] when tree or layout are
    /// not there any more.
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

    /// Damaged objects are used no more, so that sending them again stores them again, under other keys. Theirs stay written
    /// down, as those of objects that were never whole.
    async fn give_up_objects(&self, pair: &Pair) -> Result<(), Error> {
        transaction!(self.db, |tx| {
            for object in [&pair.tree, &pair.layout] {
                uploads::object_damaged(tx, &object.key).await?;
            }
            Ok::<_, Error>(())
        })
    }

    /// The row of the version to be, still without its number, and the packs it will refer to. Ids and a generation are
    /// taken afresh by every run, so that no run writes a key that another has written.
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

    /// The transaction that makes the version visible, or finds an equal one, and ends the upload: version, references, the
    /// team's bytes, pins gone, upload committed, operation noted, all or nothing. [`CHANGED`] when another commit came in
    /// between or the claim was lost; `chunks_gone` when a pack was lost since the check; `quota_exceeded` is judged here
    /// for good, under the team's lock.
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
                    self.heal_version(tx, version, packs, pair).await?
                }
                _ => return Err(changed("another commit came in between")),
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

    /// [`CHANGED`] when the version was deleted since the transaction looked at it, which the dataset's lock does not
    /// prevent: references of a deleted version would never be dropped.
    async fn heal_version(&self, tx: &mut Tx, version: &Version, packs: &[u64], pair: &Pair) -> Result<Uuid, Error> {
        alive(tx, packs).await?;
        if !versions::replace_layout(tx, version.id, &version.layout, packs, self.clock.now()).await? {
            return Err(changed("the version was deleted in between"));
        }
        uploads::take_object(tx, &pair.layout.key).await?;
        Ok(version.id)
    }

    /// Under the dataset's lock, so numbers rise in the order of commits. Tree and layout are the version's from here on.
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

fn changed(detail: &str) -> Error {
    Error::new(CHANGED, detail, "it is tried again by itself")
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

/// Decided by the newest version alone: the same tree as an older one is a new version, since `@latest` is to mean it again.
async fn plan(tx: &mut Tx, upload: &Upload, operation: &Operation) -> Result<Plan, Error> {
    let newest = versions::newest(tx, upload.dataset).await?;
    let same = newest
        .filter(|newest| is_unchanged(Some((newest.digest, newest.incomplete)), operation.tree, operation.incomplete));
    let Some(version) = same else { return Ok(Plan::New) };
    let sound = versions::dead_packs(tx, version.layout.id, 1).await?.is_empty();
    Ok(if sound { Plan::Same(Box::new(version)) } else { Plan::Heal(Box::new(version)) })
}

/// Locks the packs, shared and in the order of their numbers, and refuses when one of them is not sealed any more. Until the
/// transaction ends none can be taken away.
async fn alive(tx: &mut Tx, numbers: &[u64]) -> Result<(), Error> {
    let gone = packs::lock_all(tx, numbers).await?;
    if gone.is_empty() { Ok(()) } else { Err(chunks_gone(&gone)) }
}
