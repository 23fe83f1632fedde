//! What a pull knows about one file, how its part is named, and the runs of bytes it is written in. Plain values.

use crate::content::digest::{Digest, digest};
use crate::content::layout::FileLayout;
use crate::content::path::RelPath;
use crate::content::tree::Time;
use std::sync::Arc;

/// Digits of a key.
const KEY: usize = 32;
/// Smaller files are fetched anew.
const LEAST: u64 = 1 << 20;

/// Whether a part of such a file can be taken over. What lies where a hole should be would never be looked at again, so files with holes
/// are fetched anew.
pub(super) fn may_resume(size: u64, layout: &FileLayout) -> bool {
    size >= LEAST && layout.segments.iter().all(|segment| segment.pack.is_some())
}

/// The name of a file's part under a pull's id: the same for the same name and content, wherever the directory was moved to.
pub(super) fn part_name(run: &str, name: &[u8], digest_of_file: &Digest) -> String {
    let identity = [name, b"/", digest_of_file.as_bytes()].concat();
    let key = digest(&identity).to_string();
    format!(".dray-{run}-{}.part", &key[..KEY])
}

/// A file to be written, or only proven.
#[derive(Debug)]
pub(in crate::client) struct FileFacts {
    /// Counts the selected entries.
    pub number: u64,
    pub path: RelPath,
    pub size: u64,
    pub mode: u32,
    pub mtime: Time,
    pub digest: Digest,
    pub layout: Arc<FileLayout>,
}

impl FileFacts {
    /// Whether the runs are all of the file.
    pub fn is_whole(&self, runs: &[Run]) -> bool {
        runs.first().is_some_and(|first| first.offset == 0)
            && runs.iter().map(|run| run.length).sum::<u64>() == self.size
    }
}

/// A run of bytes of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::client) struct Run {
    /// Where in the file.
    pub offset: u64,
    pub length: u64,
    /// Where in the buffer; `None` for a hole.
    pub at: Option<usize>,
}
