//! Verify: a directory against a version, or the stored version itself, byte for byte.
//!
//! Nothing is trusted but bytes that were read now: no stat cache, no record of an earlier pull. Nothing is written.

use crate::client::push::Item;
use serde::Serialize;
use std::path::PathBuf;

/// What is to be proven.
#[derive(Debug, Clone)]
pub enum Verify {
    /// That this directory holds exactly the version.
    Directory(PathBuf),
    /// That every byte of the version can be read from the store and is right.
    Stored,
}

#[derive(Debug, Clone)]
pub struct VerifyOptions {
    pub reference: String,
    /// Only this file or subtree.
    pub path: Option<crate::content::path::RelPath>,
    pub what: Verify,
    pub memory: u64,
    pub temp_dir: Option<PathBuf>,
}

/// Equal when `missing`, `extra`, `differs` and `unreadable` are empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct VerifyReport {
    #[serde(rename = "ref")]
    pub reference: String,
    pub digest: String,
    pub files: u64,
    pub bytes: u64,
    pub missing: Vec<Item>,
    /// In the directory and not in the version.
    pub extra: Vec<Item>,
    /// With what differs as reason: `kind`, `size`, `digest`, `mode`, `mtime`, `target`, `hardlink`.
    pub differs: Vec<Item>,
    /// Could not be read; for the stored version with the pack in the reason.
    pub unreadable: Vec<Item>,
    pub seconds: f64,
}

impl VerifyReport {
    pub fn is_equal(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.differs.is_empty() && self.unreadable.is_empty()
    }
}
