//! Datasets and versions: found, listed, deleted, and the documents that say what and where.
//!
//! Everything is scoped by the caller's team; what another team has does not exist, in the same words. Deleting drops the
//! references in one transaction; the bytes stay until collection proves that nobody refers to them.

use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::stored::{StoredPart, parse_key};
use super::{App, Caller, Paging};
use crate::api;
use crate::api::datasets::LayoutInfo;
use crate::api::teams::{Page, PageQuery};
use crate::db::versions::{self, DatasetRow, Version};
use crate::db::{Tx, links};
use crate::domain::id::{DatasetName, DatasetRef, VersionNumber};
use crate::domain::version::{Unresolved, resolve};
use crate::transaction;

/// Name one by its number, or push until nothing fails.
pub const ONLY_INCOMPLETE: Code = Code::new(Kind::NotFound, "only_incomplete", "the dataset has no complete version");
/// A conflict and no choice: the newest of them would be a guess.
pub const AMBIGUOUS: Code = Code::new(Kind::Conflict, "ambiguous_digest", "the digits begin more than one digest");

/// Topic of whoever deletes the objects of direct links that are over.
pub const EXPORTS: &str = "exports";

/// Which of a version's two documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Tree,
    Layout,
}

impl App {
    /// Datasets that have live versions and whose name begins with `prefix`, by name.
    pub async fn list_datasets(
        &self,
        caller: &Caller,
        prefix: &str,
        page: &PageQuery,
    ) -> Result<Page<api::datasets::Dataset>, Error> {
        let paging = Paging::new(page)?;
        let mut session = self.db.read().await?;
        let rows = versions::list_datasets(&mut session, caller.team, prefix, &paging.after, paging.rows()).await?;
        Ok(paging.page(rows.iter().map(dataset_document).collect(), |dataset| dataset.name.clone()))
    }

    /// Live versions of a dataset, newest first. A dataset without any is answered as one that does not exist, except for a
    /// later page.
    pub async fn list_versions(
        &self,
        caller: &Caller,
        dataset: &str,
        page: &PageQuery,
    ) -> Result<Page<api::datasets::Version>, Error> {
        let name = dataset_name(dataset)?;
        let paging = Paging::new(page)?;
        let below = match paging.after.strip_prefix('v').map(str::parse) {
            None => i64::MAX.unsigned_abs(),
            Some(Ok(number)) => number,
            Some(Err(error)) => return Err(Error::invalid("cursor", error, "give `next` as it was answered")),
        };
        let mut session = self.db.read().await?;
        let Some(dataset) = versions::dataset(&mut session, caller.team, &name).await? else {
            return Err(no_dataset(&name));
        };
        let rows = versions::list_versions(&mut session, dataset, below, paging.rows()).await?;
        if rows.is_empty() && page.cursor.is_none() {
            return Err(no_dataset(&name));
        }
        Ok(paging.page(rows.iter().map(document).collect(), |version| version.version.clone()))
    }

    /// The version a reference means at this moment: `@latest` may be another one the next. By its id it stays the same.
    pub async fn resolve(&self, caller: &Caller, reference: &str) -> Result<api::datasets::Version, Error> {
        let mut session = self.db.read().await?;
        let parsed = parse_reference(reference)?;
        let version = self.find_version(&mut session, caller.team, &parsed).await?;
        self.readable(&mut session, caller, version).await.map(|version| document(&version))
    }

    /// The same inside a use case's own session, without asking what a node may read: for jobs that keep the version they
    /// were submitted with.
    pub(crate) async fn find_version(&self, tx: &mut Tx, team: Uuid, reference: &DatasetRef) -> Result<Version, Error> {
        let Some(dataset) = versions::dataset(tx, team, &reference.dataset).await? else {
            return Err(no_dataset(&reference.dataset));
        };
        let found = versions::candidates(tx, dataset, &reference.version).await?;
        let meant = match resolve(&reference.version, found.iter().map(Version::candidate)) {
            Ok(meant) => meant,
            Err(Unresolved::Missing(_)) if found.is_empty() && versions::newest(tx, dataset).await?.is_none() => {
                return Err(no_dataset(&reference.dataset));
            }
            Err(why) => return Err(unresolved(reference, &why)),
        };
        let version = found.into_iter().find(|version| version.number == meant.number);
        version.ok_or_else(|| Error::internal("a version was resolved that was not there"))
    }

    pub async fn get_version(&self, caller: &Caller, id: Uuid) -> Result<api::datasets::Version, Error> {
        let mut session = self.db.read().await?;
        self.version(&mut session, caller, id).await.map(|version| document(&version))
    }

    /// A live version that this caller may read. One of another team, a deleted one, or one that is not staged on the
    /// calling node does not exist.
    pub(super) async fn version(&self, tx: &mut Tx, caller: &Caller, id: Uuid) -> Result<Version, Error> {
        let found = versions::get(tx, id).await?.filter(|version| version.team == caller.team);
        self.readable(tx, caller, found.ok_or_else(|| no_version(id))?).await
    }

    /// For a node: what is staged on it or lies in the dataset it pushes to. Everybody else of the team reads all.
    async fn readable(&self, tx: &mut Tx, caller: &Caller, version: Version) -> Result<Version, Error> {
        if self.may_read(tx, caller, version.id).await? { Ok(version) } else { Err(no_version(version.id)) }
    }

    /// Where a version's tree or current layout lies. The layout may be replaced afterwards; the tag says which one it was.
    pub async fn version_part(&self, caller: &Caller, id: Uuid, part: Part) -> Result<StoredPart, Error> {
        let version = self.version(&mut self.db.read().await?, caller, id).await?;
        Ok(match part {
            Part::Tree => StoredPart {
                key: parse_key(&version.tree_key)?,
                bytes: version.tree_bytes,
                tag: version.digest.to_string(),
            },
            Part::Layout => {
                let layout = &version.layout;
                StoredPart { key: parse_key(&layout.key)?, bytes: layout.bytes, tag: layout.id.to_string() }
            }
        })
    }

    /// Deletes one version. Refused with `in_use` while a job that is not over stages it. Links of ours to it end at once,
    /// direct ones as soon as a reconciler has deleted their objects; who reads it is cut off at the next grant or pack.
    pub async fn delete_version(&self, caller: &Caller, id: Uuid) -> Result<(), Error> {
        transaction!(self.db, |tx| {
            let version = self.version(tx, caller, id).await?;
            self.delete_one(tx, version.id).await
        })
    }

    async fn delete_one(&self, tx: &mut Tx, id: Uuid) -> Result<(), Error> {
        let now = self.clock.now();
        versions::delete(tx, id, now).await?;
        if links::end_direct(tx, id, now).await? > 0 {
            tx.notify(EXPORTS);
        }
        self.not_held_by_jobs(tx, id).await
    }

    /// Deletes every version of a dataset, in transactions of bounded size. Its numbers go on where they were. One that a
    /// job holds on to ends it with `in_use`; what was deleted before stays deleted, and saying it again goes on.
    pub async fn delete_dataset(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        let name = dataset_name(name)?;
        let mut any = false;
        loop {
            let deleted = transaction!(self.db, |tx| {
                let Some(dataset) = versions::dataset(tx, caller.team, &name).await? else { return Ok(0) };
                let ids = versions::some_ids(tx, dataset).await?;
                for id in &ids {
                    self.delete_one(tx, *id).await?;
                }
                Ok::<_, Error>(ids.len())
            })?;
            match deleted {
                0 if any => return Ok(()),
                0 => return Err(no_dataset(&name)),
                _ => any = true,
            }
        }
    }
}

/// Parses the dataset's name of a request.
pub(super) fn dataset_name(name: &str) -> Result<DatasetName, Error> {
    DatasetName::parse(name).map_err(|error| Error::invalid("dataset", error, "name it like `warehouse/aisle-cams`"))
}

/// Parses `D[@V]`; a path is refused, since a version is asked for.
pub(super) fn parse_reference(reference: &str) -> Result<DatasetRef, Error> {
    let parsed: DatasetRef =
        reference.parse().map_err(|error| Error::invalid("ref", error, "write it like `warehouse/aisle-cams@v3`"))?;
    match parsed.path {
        None => Ok(parsed),
        Some(_) => Err(Error::invalid("ref", "names a path where a version is meant", "leave out what follows `:`")),
    }
}

fn no_dataset(name: &DatasetName) -> Error {
    Error::not_found("dataset", name, "`dray ls` lists the datasets of the team")
}

fn no_version(id: Uuid) -> Error {
    Error::not_found("version", id, "`dray log DATASET` lists the versions of a dataset")
}

/// A dataset that exists but lacks the version is told apart from none; both are the team's own.
fn unresolved(reference: &DatasetRef, why: &Unresolved) -> Error {
    let hint = "`dray log DATASET` lists the versions of a dataset";
    match why {
        Unresolved::Missing(_) => Error::not_found("version", reference, hint),
        Unresolved::OnlyIncomplete => Error::new(ONLY_INCOMPLETE, why.to_string(), hint),
        Unresolved::Ambiguous(_) => Error::new(AMBIGUOUS, why.to_string(), hint),
    }
}

fn dataset_document(row: &DatasetRow) -> api::datasets::Dataset {
    api::datasets::Dataset {
        name: row.name.clone(),
        latest: row.latest.and_then(VersionNumber::new).map(|number| number.to_string()),
        versions: row.versions,
        bytes: row.bytes,
        created_at: row.created_at.to_string(),
    }
}

/// A version as it goes over the wire; also what jobs keep as their snapshot, so a field is only ever added, and with a default.
pub(crate) fn document(version: &Version) -> api::datasets::Version {
    api::datasets::Version {
        id: version.id.to_string(),
        reference: version.reference(),
        dataset: version.name.clone(),
        version: version.number.to_string(),
        digest: version.digest.to_string(),
        files: version.counts.files,
        dirs: version.counts.dirs,
        symlinks: version.counts.symlinks,
        bytes: version.counts.bytes,
        chunks: version.chunks,
        incomplete: version.incomplete,
        late: version.late,
        created_at: version.created_at.to_string(),
        layout: LayoutInfo {
            id: version.layout.id.to_string(),
            generation: version.layout.generation,
            packs: version.layout.packs,
        },
    }
}
