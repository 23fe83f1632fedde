//! Uploads: an open attempt to make a version.
//!
//! ```text
//! POST   /v1/uploads                         OpenUpload -> 201 Upload         (Idempotency-Key)
//! GET    /v1/uploads/{id}                    Upload
//! POST   /v1/uploads/{id}/reopen             Upload, epoch + 1
//! DELETE /v1/uploads/{id}                    204; aborted, epoch + 1
//! POST   /v1/uploads/{id}/known              Known -> KnownPacks, pinned for this upload
//! PUT    /v1/uploads/{id}/packs/{pack}       pack v1 -> 201 or 200 PackInfo; idempotent
//! PUT    /v1/uploads/{id}/tree/{digest}      tree v1, zstd -> 204
//! PUT    /v1/uploads/{id}/layout/{digest}    layout v1, zstd; digest = BLAKE3 of the uncompressed bytes -> 204
//! POST   /v1/uploads/{id}/commit             Commit -> 202 Operation; the same answer when said again
//! GET    /v1/operations/{id}?wait=30         Operation
//! ```
//!
//! Every call after the first carries the upload's epoch, in the body or as header [`EPOCH_HEADER`] on PUTs; a stale one is `409 fenced`.

use super::datasets::{PackInfo, Version};
use super::problem::Problem;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Header of PUTs that carries the upload's epoch.
pub const EPOCH_HEADER: &str = "dray-upload-epoch";

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenUpload {
    pub dataset: String,
    /// Logical bytes the client means to send, for the quota; counted again at commit.
    #[serde(default)]
    pub bytes: u64,
    /// Set by an agent for a declared output; a node's token must say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputOf>,
}

/// The declared output that an upload is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputOf {
    pub job: String,
    pub lease_epoch: u64,
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UploadState {
    Open,
    Committing,
    Committed,
    Aborted,
    Expired,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upload {
    pub id: String,
    pub dataset: String,
    pub epoch: u64,
    pub state: UploadState,
    pub expires_at: String,
    /// Newest version of the dataset, whose tree and layout spare the client work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Version>,
    /// Packs of the parent that are damaged or gone: what was in them is to be sent again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_packs: Vec<String>,
    /// Sealed packs of other unexpired, uncommitted uploads of this dataset, pinned for this one too.
    pub offered_packs: u64,
    /// Largest pack the service takes.
    pub max_pack_bytes: u64,
    /// The team takes portable trees only: names that every system can hold.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub portable_names: bool,
}

/// Chunk ids (hex) whose last byte's low 6 bits are 0; 4,096 at most.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Known {
    pub epoch: u64,
    pub chunks: Vec<String>,
}

/// Packs worth looking into, 64 at most, pinned for the upload.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KnownPacks {
    pub packs: Vec<PackInfo>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    pub epoch: u64,
    pub tree: String,
    pub layout: String,
    /// Some file could not be read; the version says so.
    #[serde(default)]
    pub incomplete: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    Running,
    Done,
    Failed,
}

/// Work that outlives a request. `version` once done; `error` once failed (`chunks_gone` says in `data.packs` what to send again).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    pub id: String,
    pub state: OperationState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}
