//! The version that a push starts from: the newest one of the dataset, or what an earlier attempt of the same push made.
//!
//! Tree and layout are fetched to temporary files once and then read as two streams beside the walk, so that memory does not
//! follow their size. They only spare work: whatever is wrong with them costs bytes sent again, never a wrong version.
//!
//! Three uses: a file that the stat cache calls unchanged takes the parent's places as they are; a small one that was read and has the
//! parent's digest does so too; and the packs that a changed file lay in are looked into first, since its chunks are most likely there.

use super::catalog::Catalog;
use crate::api::datasets::Version;
use crate::client::context::TransferError;
use crate::client::download::{Fetched, fetch_tree_and_layout};
use crate::client::{Context, Error};
use crate::content::digest::Digest;
use crate::content::layout::{FileLayout, Line};
use crate::content::merge::{Merged, ParentCursor};
use crate::content::pack::PackId;
use crate::content::path::RelPath;
use crate::content::tree::Kind;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// Where the parent's two documents lie.
#[derive(Debug)]
pub(super) struct Parent {
    pub fetched: Fetched,
    /// All packs of its layout.
    pub packs: Arc<[PackId]>,
    /// Chunks it holds, as far as known.
    pub chunks: u64,
}

impl Parent {
    /// Fetches the parent. One that cannot be had (just deleted, damaged) is as if there were none; only a call that fails otherwise is an error.
    pub async fn fetch(
        context: &Context,
        version: &Version,
        temp: Option<&Path>,
    ) -> Result<Option<Self>, TransferError> {
        let fetched = match fetch_tree_and_layout(context, version, temp).await {
            Ok(fetched) => fetched,
            Err(TransferError::Api(Error::Refused(problem))) if problem.status == 404 || problem.status == 409 => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Ok(Self::of(fetched, version.chunks))
    }

    /// From documents that are here. `None` where they are damaged.
    pub fn of(fetched: Fetched, chunks: u64) -> Option<Self> {
        let packs = match fetched.open() {
            Ok(merged) => merged.packs().to_vec().into(),
            Err(error) => {
                tracing::warn!(%error, "the parent version cannot be read and is not used");
                return None;
            }
        };
        Some(Self { fetched, packs, chunks })
    }

    /// A cursor at its beginning.
    pub fn cursor(&self, catalog: &Catalog) -> Cursor {
        let lost = self.packs.iter().zip(0..).filter(|(id, _)| catalog.is_gone(id)).map(|(_, number)| number);
        Cursor { inner: self.fetched.open().ok().map(ParentCursor::new), lost: lost.collect() }
    }
}

/// What the parent says about a file.
#[derive(Debug)]
pub(super) struct ParentFile {
    pub digest: Digest,
    /// Absent for an empty file.
    pub layout: Option<Box<FileLayout>>,
    /// All packs of its layout are there, as far as the service has told.
    pub is_whole: bool,
}

/// Follows the walk through the parent. After a fault it says nothing any more.
#[derive(Debug)]
pub(super) struct Cursor {
    inner: Option<ParentCursor<Merged<crate::client::download::Text, crate::client::download::Text>>>,
    /// Packs that the service has lost, by their numbers in the layout.
    lost: HashSet<u32>,
}

impl Cursor {
    /// Says nothing.
    pub fn none() -> Self {
        Self { inner: None, lost: HashSet::new() }
    }

    /// The file at this path, asked for in tree order.
    pub fn file(&mut self, path: &RelPath) -> Option<ParentFile> {
        let found = match self.inner.as_mut()?.find(path) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the parent version cannot be read any further and is not used");
                self.inner = None;
                return None;
            }
        };
        let (entry, line) = found?;
        let Kind::File { digest, hardlink: None, .. } = &entry.kind else { return None };
        let layout = match line {
            Some(Line::File(layout)) => Some(Box::new(layout.clone())),
            _ => None,
        };
        let segments = layout.iter().flat_map(|layout| &layout.segments);
        let is_whole = segments.filter_map(|segment| segment.pack).all(|pack| !self.lost.contains(&pack));
        Some(ParentFile { digest: *digest, layout, is_whole })
    }
}
