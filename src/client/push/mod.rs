//! Push: a directory, a file or several become the next version of a dataset.
//!
//! The way of the bytes: walk and large-file reads on one thread, small files, hashing and compression on the workers,
//! decisions and packing in order on one thread, PUTs as async tasks. Every queue has a bound, so memory follows the
//! options and never the tree. Nothing local is needed to resume: what the service acknowledged is found again by asking it.
//!
//! Order of what counts: packs are acknowledged before the documents that name them go up, and those before the commit. A push that dies
//! before its commit has left packs that the next one is offered, and no version.
//!
//! Not atomic against its source: each file is whole and as it was at one moment, files of different moments may stand side by side.

mod batch;
mod catalog;
mod commit;
mod courier;
mod decide;
mod feed;
mod large;
mod messages;
mod order;
mod pack;
mod parent;
mod pipeline;
mod place;
mod record;
mod run;
mod source;
mod spool;
mod worker;

pub use crate::client::report::{Item, PushReport};
pub use run::push;

use crate::api::uploads::OutputOf;
use crate::client::rate::Limit;
use std::path::PathBuf;

/// What to push, where to, and within which bounds.
#[derive(Debug, Clone)]
pub struct PushOptions {
    /// Dataset's name, `warehouse/aisle-cams`.
    pub dataset: String,
    /// One directory (its contents become the root), one file, or several of either by base name.
    /// Those that the user names are followed where they are links.
    pub paths: Vec<PathBuf>,
    /// Patterns in gitignore syntax, relative to the root; on top of `.drayignore` files.
    pub exclude: Vec<String>,
    /// When not empty, only files that match one of these globs (relative to the root), and the directories above them. Does not overrule
    /// `exclude`.
    pub include: Vec<String>,
    /// Most memory the push may use, bytes. Shapes the number of buffers and the size of packs; below 100 MiB or so it is not kept to.
    pub memory: u64,
    /// For packs, tree and layout; questions and indexes are not held back.
    pub limit: Limit,
    /// Where stat caches live; none = no stat cache.
    pub cache_dir: Option<PathBuf>,
    /// Names the service in the stat cache's key, since equal roots may go to several.
    pub cache_scope: String,
    /// Where the tree and the layout are spooled; the system's place for temporary files by default.
    pub temp_dir: Option<PathBuf>,
    /// Read every file again, whatever the stat cache says; a new cache is written all the same.
    pub rehash: bool,
    /// Read and count, send nothing: no upload is opened, and only the newest version is asked for. What would be sent is an upper bound,
    /// since the service is not asked what it knows.
    pub dry_run: bool,
    /// Commit nothing when an item failed; what was sent stays for the next run.
    pub all_or_nothing: bool,
    /// Set by the agent for a declared output: then an equal tree makes a version too, since the output must have one of its own.
    pub output: Option<OutputOf>,
}

impl PushOptions {
    /// Default of `--memory`.
    pub const MEMORY: u64 = 256 << 20;

    /// A plain push of `paths` to `dataset`: no limit, no stat cache.
    pub fn new(dataset: impl Into<String>, paths: Vec<PathBuf>) -> Self {
        Self {
            dataset: dataset.into(),
            paths,
            exclude: Vec::new(),
            include: Vec::new(),
            memory: Self::MEMORY,
            limit: Limit::None,
            cache_dir: None,
            cache_scope: String::new(),
            temp_dir: None,
            rehash: false,
            dry_run: false,
            all_or_nothing: false,
            output: None,
        }
    }
}
