//! Reference documents in the store: enough to rebuild the SQL side of every version without the database.
//!
//! `refs/<team>/<version>/<generation>.json` is written before the transaction that makes the version (or swaps its layout),
//! `0.committed` after it and with the number, so that recovery never resurrects what was not committed. Keys are written once:
//! version ids and generations are taken afresh by every run, and the committed mark is the same whoever writes it.
//!
//! ```text
//! 0.json          prepared: everything but the number
//! 0.committed     id and number; what has none of these never was
//! <n>.json        the layout of generation n
//! ```
//!
//! A version that was never made leaves its prepared document as garbage. Documents hold ids, digests, keys and counts; of
//! names the dataset's alone.

use bytes::Bytes;
use serde::Serialize;

use super::App;
use super::error::Error;
use crate::db::versions::Version;
use crate::store::{self, Key, PutMode};

#[derive(Serialize)]
struct Prepared<'a> {
    format: &'static str,
    version: u32,
    team: String,
    dataset: &'a str,
    id: String,
    tree: Document<'a>,
    layout: Document<'a>,
    layout_id: String,
    generation: u32,
    files: u64,
    dirs: u64,
    symlinks: u64,
    bytes: u64,
    chunks: u64,
    incomplete: bool,
    created_at: String,
}

#[derive(Serialize)]
struct Document<'a> {
    digest: String,
    key: &'a str,
    bytes: u64,
}

#[derive(Serialize)]
struct Committed {
    format: &'static str,
    version: u32,
    id: String,
    number: u64,
    late: bool,
}

/// Writes what the version will be. Before the transaction: data, then row, then reference, so what the row says can always
/// be found again.
pub(super) async fn write_prepared(app: &App, version: &Version) -> Result<(), Error> {
    let document = Prepared {
        format: "dray-ref",
        version: 1,
        team: version.team.to_string(),
        dataset: &version.name,
        id: version.id.to_string(),
        tree: Document { digest: version.digest.to_string(), key: &version.tree_key, bytes: version.tree_bytes },
        layout: Document {
            digest: version.layout.digest.to_string(),
            key: &version.layout.key,
            bytes: version.layout.bytes,
        },
        layout_id: version.layout.id.to_string(),
        generation: version.layout.generation,
        files: version.counts.files,
        dirs: version.counts.dirs,
        symlinks: version.counts.symlinks,
        bytes: version.counts.bytes,
        chunks: version.chunks,
        incomplete: version.incomplete,
        created_at: version.created_at.to_string(),
    };
    let key = Key::reference(version.team, version.id, u64::from(version.layout.generation));
    put(app, &key, &document).await
}

/// Writes that it came to be. Any number of times, by any replica; the first one written stays.
pub(super) async fn write_committed(app: &App, version: &Version) -> Result<(), Error> {
    let document = Committed {
        format: "dray-ref-committed",
        version: 1,
        id: version.id.to_string(),
        number: version.number.get(),
        late: version.late,
    };
    put(app, &Key::committed(version.team, version.id), &document).await
}

/// An existing one counts as written: its key was ours alone, or its content is the same.
async fn put(app: &App, key: &Key, document: &impl Serialize) -> Result<(), Error> {
    let json = serde_json::to_vec(document)
        .map_err(|error| Error::internal("a reference cannot be written").with_source(error))?;
    match app.store.put_small(key, Bytes::from(json), PutMode::Create).await {
        Ok(_) | Err(store::Error::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
