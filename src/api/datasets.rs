//! Datasets, versions, and grants to read their packs.
//!
//! ```text
//! GET    /v1/datasets?prefix=&cursor=&limit=      Page<Dataset>
//! DELETE /v1/datasets?name=                       204; every version
//! GET    /v1/versions?dataset=&cursor=&limit=     Page<Version>, newest first
//! GET    /v1/resolve?ref=w/t@v1                   Version; @latest (default) is the newest complete one
//! GET    /v1/versions/{id}                        Version
//! DELETE /v1/versions/{id}                        204
//! GET    /v1/versions/{id}/tree                   tree v1, zstd, ETag = tree digest, Range
//! GET    /v1/versions/{id}/layout                 layout v1, zstd, Range
//! POST   /v1/grants                               Grants
//! GET    /v1/packs/{pack}/index                   header and index of a sealed pack of the caller's team, raw bytes
//! GET    /v1/packs/{pack}?team=&exp=&sig=         the pack's bytes, Range; what a grant's URL points at when the store cannot sign
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A named line of versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dataset {
    pub name: String,
    /// Newest complete version, `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<String>,
    pub versions: u64,
    /// Logical bytes of all live versions.
    pub bytes: u64,
    pub created_at: String,
}

/// One immutable tree of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// UUID.
    pub id: String,
    /// `warehouse/aisle-cams@v3`.
    #[serde(rename = "ref")]
    pub reference: String,
    pub dataset: String,
    /// `v3`; never reused.
    pub version: String,
    /// Tree digest.
    pub digest: String,
    pub files: u64,
    pub dirs: u64,
    pub symlinks: u64,
    pub bytes: u64,
    pub chunks: u64,
    /// Some file could not be read when it was pushed.
    pub incomplete: bool,
    /// A job's output that arrived after its lease had ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    pub created_at: String,
    /// The current layout; pins and grants name it.
    pub layout: LayoutInfo,
}

/// Where a version's bytes lie at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LayoutInfo {
    /// UUID.
    pub id: String,
    pub generation: u32,
    pub packs: u64,
}

/// A sealed pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PackInfo {
    /// Pack id, hex.
    pub id: String,
    /// The whole object.
    pub bytes: u64,
    /// Header and index: the frames begin here.
    pub index_bytes: u64,
    pub chunks: u32,
    pub raw_bytes: u64,
}

/// Asks for URLs to read packs of one version, 256 packs at most. A node's token may name only versions of its stagings.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// Version UUID.
    pub version: String,
    /// Layout UUID the caller reads by; `409 layout_gone` when it is no more.
    pub layout: String,
    pub packs: Vec<String>,
    /// Those of `packs` whose URL the store answered with 404: the service looks at them before it gives another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A time-limited URL for the bytes of one pack. `GET` with `Range`; no bearer token needed or sent.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    pub pack: PackInfo,
    /// Absolute, or a path on the service's own origin when it begins with `/`.
    pub url: String,
    pub expires_at: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Grants {
    pub grants: Vec<Grant>,
}
