//! The end of a push: the two documents go up, the service commits, the answer is waited for.
//!
//! ```text
//! PUT tree -> PUT layout -> POST commit -> 202 -> GET operation?wait=30, until Done | Failed
//! ```
//!
//! Each step may be repeated: documents are named by their digests, and the commit of one upload makes one version. A POST whose
//! answer was lost is sent again under the same key.

use super::courier::{Destination, epoch};
use super::record::Documents;
use crate::api::datasets::Version;
use crate::api::problem::Problem;
use crate::api::uploads::{Commit, Operation, OperationState, Upload};
use crate::client::api::route;
use crate::client::context::TransferError;
use crate::client::transfer::{Body, Put};
use crate::client::{Context, Error};
use crate::content::digest::Digest;
use crate::content::pack::PackId;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a document read at once.
const PIECE: u64 = 256 << 10;
/// How long one question about the operation may wait at the service.
const WAIT: Duration = Duration::from_secs(30);

/// How a commit ended.
#[derive(Debug)]
pub(super) enum Committed {
    Version(Box<Version>),
    /// The service has lost these packs since it offered them: what was in them is to be sent again. Never empty.
    Gone(Vec<PackId>),
}

/// Sends the documents and commits. May be called again with other documents for the same upload.
///
/// All packs must have been acknowledged. [`TransferError::Commit`] is the service's last word; when the future is dropped or fails
/// otherwise, the commit may have happened all the same, and the next push finds an equal newest version.
pub(super) async fn commit(
    context: &Context,
    to: &Destination,
    upload: &Upload,
    documents: &Documents,
    incomplete: bool,
) -> Result<Committed, TransferError> {
    let Documents { files, place, .. } = documents;
    let tree = Sheet { what: "tree", digest: documents.tree, file: &files.tree, place };
    document(context, to, upload, tree).await?;
    let layout = Sheet { what: "layout", digest: documents.layout, file: &files.layout, place };
    document(context, to, upload, layout).await?;
    let path = route(&["v1", "uploads", &upload.id, "commit"], &[]);
    let body = Commit {
        epoch: upload.epoch,
        tree: documents.tree.to_string(),
        layout: documents.layout.to_string(),
        incomplete,
    };
    let mut operation: Operation = match context.api.post(&path, &body).await {
        Ok(operation) => operation,
        Err(Error::Refused(problem)) => return refused(problem),
        Err(error) => return Err(error.into()),
    };
    loop {
        match (operation.state, operation.version, operation.error) {
            (OperationState::Done, Some(version), _) => return Ok(Committed::Version(Box::new(version))),
            (OperationState::Failed, _, Some(problem)) => return refused(Box::new(problem)),
            (OperationState::Running, ..) => {}
            _ => return Err(TransferError::Broken { what: "the commit's answer says neither a version nor why not" }),
        }
        let path = route(&["v1", "operations", &operation.id], &[("wait", "30")]);
        operation = context.api.get_waiting(&path, WAIT).await?;
    }
}

/// One of the two documents on its way.
struct Sheet<'a> {
    what: &'static str,
    digest: Digest,
    file: &'a Arc<File>,
    /// Where the file lies, for messages.
    place: &'a Path,
}

/// Read from the temporary file once for each attempt; nothing of it is held but a piece.
async fn document(
    context: &Context,
    to: &Destination,
    upload: &Upload,
    Sheet { what, digest, file, place }: Sheet<'_>,
) -> Result<(), TransferError> {
    let len = file.metadata().map_err(TransferError::local(place))?.len();
    let path = route(&["v1", "uploads", &upload.id, what, &digest.to_string()], &[]);
    let file = Arc::clone(file);
    let put = Put {
        path: &path,
        headers: epoch(upload),
        body: Body::new(len, move || {
            let file = Arc::clone(&file);
            let pieces = stream::iter((0..len).step_by(usize::try_from(PIECE).expect("small")));
            pieces.then(move |at| piece(Arc::clone(&file), at, len)).boxed()
        }),
        sent: Arc::clone(&to.sent),
        pace: to.pace.clone(),
    };
    Ok(context.api.put_stream::<()>(put).await?)
}

async fn piece(file: Arc<File>, at: u64, len: u64) -> io::Result<Bytes> {
    let read = move || {
        let mut piece = vec![0; usize::try_from((len - at).min(PIECE)).expect("small")];
        file.read_exact_at(&mut piece, at)?;
        Ok(Bytes::from(piece))
    };
    tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
}

/// Only `chunks_gone` with packs that are named can be healed from here.
fn refused(problem: Box<Problem>) -> Result<Committed, TransferError> {
    if problem.code != "chunks_gone" {
        return Err(TransferError::Commit(problem));
    }
    let named = problem.data.as_ref().and_then(|data| data.get("packs")).and_then(|packs| packs.as_array());
    let packs: Vec<PackId> =
        named.into_iter().flatten().filter_map(|pack| pack.as_str()).filter_map(|pack| pack.parse().ok()).collect();
    if packs.is_empty() {
        return Err(TransferError::Commit(problem));
    }
    Ok(Committed::Gone(packs))
}
