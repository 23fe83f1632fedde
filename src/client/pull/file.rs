//! What a pull knows about one file, and the runs of bytes it is written in. Plain values.

use crate::content::digest::Digest;
use crate::content::layout::FileLayout;
use crate::content::path::RelPath;
use crate::content::tree::Time;
use std::sync::Arc;

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

/// A run of bytes of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::client) struct Run {
    /// Where in the file.
    pub offset: u64,
    pub length: u64,
    /// Where in the buffer; `None` for a hole.
    pub at: Option<usize>,
}
