//! Pull: a version, or a file or subtree of it, is put at DEST: resumed, repaired, verified.
//!
//! Every file is written under a temporary name in its own directory and renamed when its whole-file digest was right; a small one has no name at
//! all until then, where the file system can do that. All through directory handles that never follow a link below DEST. A file that differs is only
//! replaced when a pull wrote it or the caller says so, and that is found out before anything is changed.
//!
//! ```text
//! documents -> scan DEST: Keep | Fetch an entry -> conduct: directories, links, empty and local files made, the rest planned
//!              (nothing changed)                     |
//!                                                    v windows (4 buffers go round)
//!              finish <- write (decode, prove) <- reads (grants, ranges, what an earlier pull left)
//!                |  large files named, account, record
//!                v
//!              settle: hard links, then directories' modes and times, deepest first
//! ```
//!
//! Invariants: a file gets its name only whole and proven (6 of the map); nothing is removed but temporary files of pulls; memory
//! follows [`PullOptions::memory`] and never the tree. Killed at any point, the same pull later keeps what is whole and, where it has a
//! `cache_dir`, goes on in large files and cleans up the rest.

mod conduct;
mod copy;
mod dest;
mod file;
mod finish;
mod large;
mod parts;
mod reads;
mod record;
mod resume;
mod run;
mod scan;
mod settle;
mod window;
mod write;

pub use crate::client::select::Select;
pub use parts::{Depth, Parts, is_part};
pub use run::pull;

pub(in crate::client) use large::read_found as read_file;
pub(in crate::client) use run::{Pipeline, resolve};
pub(in crate::client) use scan::Decisions as Scanning;
pub(in crate::client) use settle::Later as Waiting;
pub(in crate::client) use write::Sink;

use crate::client::rate::Limit;
use crate::client::report::Item;
use crate::content::digest::Digest;
use serde::Serialize;
use std::fmt::Debug;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// When a file counts as safely on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// One `syncfs` at the end: after a loss of power before it, files may be named and hold other bytes. For a person who waits.
    Batch,
    /// Every file synced and read back past the page cache with its digest equal, before it gets its name; then `syncfs` for the names.
    /// Where a file system does not promise such reads, the cache is told to forget the file before. What `ready` rests on.
    ReadBack,
}

/// What to do with a symlink that points out of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutsideLinks {
    /// Restore it as text, as every other link.
    Keep,
    /// End with [`crate::client::TransferError::OutsideLinks`] before anything is written.
    Refuse,
}

/// Whole files that are on this machine already. What it hands out is hashed while it is copied, never trusted.
///
/// `open` is asked once for each file that is to be fetched, from the planning thread, in tree order, never for an empty one. `None` is
/// always right. The file is read from its beginning by offset; its position does not matter.
pub trait LocalFiles: Send + Sync + Debug {
    fn open(&self, digest: &Digest, size: u64) -> Option<File>;
}

/// What to pull, where to, and how careful.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// `warehouse/aisle-cams@v3`, `@latest` when no version is said; or a version's UUID.
    pub reference: String,
    pub select: Select,
    /// Made where it is missing, parents too. For a single file its own place and name.
    pub dest: PathBuf,
    /// Replace files that differ, whoever wrote them.
    /// Replace files that differ, whoever wrote them. Never a directory, and nothing in the place of one.
    pub overwrite: bool,
    /// Most memory the pull may use, bytes. Windows shrink with it, down to 2 MiB each at 32 MiB; less is not kept to.
    pub memory: u64,
    pub limit: Limit,
    /// Where pulls remember what they wrote; none = every existing file is read again, none counts as ours, and nothing is resumed inside a file.
    pub cache_dir: Option<PathBuf>,
    /// For the version's documents, decisions and spools, all without names; none = the system's place.
    pub temp_dir: Option<PathBuf>,
    pub durability: Durability,
    /// Permission bits that files and directories may keep; for files that are kept as they are, too.
    pub mode_mask: u32,
    pub outside_links: OutsideLinks,
    /// Asked before the network.
    pub local: Option<Arc<dyn LocalFiles>>,
}

impl PullOptions {
    pub fn new(reference: impl Into<String>, dest: PathBuf) -> Self {
        Self {
            reference: reference.into(),
            select: Select::default(),
            dest,
            overwrite: false,
            memory: 256 << 20,
            limit: Limit::None,
            cache_dir: None,
            temp_dir: None,
            durability: Durability::Batch,
            mode_mask: 0o777,
            outside_links: OutsideLinks::Keep,
            local: None,
        }
    }
}

/// The `pull` document of the command line, field for field. `files` to `bytes` are of what was selected, failed or not.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PullReport {
    #[serde(rename = "ref")]
    pub reference: String,
    /// Tree digest of the version.
    pub digest: String,
    /// Tree digest of exactly what was selected, as it lies under DEST; equals `digest` when that is everything.
    pub selected_digest: String,
    pub files: u64,
    pub dirs: u64,
    pub symlinks: u64,
    pub bytes: u64,
    /// Bytes that came over the network for file contents and pack indexes.
    pub fetched_bytes: u64,
    /// Logical bytes that were at DEST already.
    pub reused_bytes: u64,
    /// Logical bytes from [`LocalFiles`].
    pub local_bytes: u64,
    /// Could not be made at DEST; damage is an error instead, see [`pull`].
    pub failed: Vec<Item>,
    pub failed_count: u64,
    /// Of the symlinks selected, those that point out of the tree.
    pub outside_links: u64,
    pub seconds: f64,
    pub warnings: Vec<String>,
}
