//! The entries of a tree, their times, and what can be wrong with them.
//!
//! Plain values: making one checks nothing but the path; the writer and the reader check the rest.

use super::super::digest::Digest;
use super::super::path::{NotPortable, PathError, RelPath, TwinError};
use std::io;

/// Longest line, its end included: a path, a link target and a hard link, all escaped, fit.
pub const MAX_LINE: u64 = 64 * 1024;
/// Longest tree, uncompressed: about 30 million entries.
pub const MAX_TREE_BYTES: u64 = 8 << 30;
/// Largest file, so that JSON readers that know only doubles read its size exactly.
pub const MAX_FILE_SIZE: u64 = (1 << 53) - 1;
/// Longest symlink target, in bytes: what Linux holds.
pub const MAX_TARGET: usize = 4095;

/// A point in time: `seconds` since 1970 (may be negative) plus `nanos` (below 10⁹, always forward).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    pub seconds: i64,
    pub nanos: u32,
}

impl Time {
    /// The first time a tree can hold: the year 1.
    pub const MIN: Self = Self { seconds: -62_135_596_800, nanos: 0 };
    /// The last time a tree can hold: the end of 9999-12-30.
    pub const MAX: Self = Self { seconds: 253_402_207_199, nanos: 999_999_999 };

    /// Whether a tree can hold this time.
    pub fn is_valid(self) -> bool {
        self.nanos < 1_000_000_000 && (Self::MIN..=Self::MAX).contains(&self)
    }

    /// The nearest time a tree can hold. File systems hold stranger ones, and their files are still worth keeping.
    pub fn clamped(self) -> Self {
        Self { seconds: self.seconds, nanos: self.nanos.min(999_999_999) }.clamp(Self::MIN, Self::MAX)
    }
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file. `digest` is of its whole content. `hardlink` names the first member of its group in tree order,
    /// absent on that first member; a follower repeats the first member's size, mode, mtime and digest.
    File { size: u64, mode: u32, mtime: Time, digest: Digest, hardlink: Option<RelPath> },
    /// A directory. Its time is in the layout, because it is no part of the identity.
    Dir { mode: u32 },
    /// A link, kept as text and never followed.
    Symlink { mtime: Time, target: Vec<u8> },
}

/// One line of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: RelPath,
    pub kind: Kind,
}

impl Entry {
    /// Whether a layout has a file line for it: a regular file with bytes of its own.
    pub fn has_bytes(&self) -> bool {
        matches!(&self.kind, Kind::File { size, hardlink: None, .. } if *size > 0)
    }
}

/// What a tree holds in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Regular files, hard links included.
    pub files: u64,
    pub dirs: u64,
    pub symlinks: u64,
    /// The sizes of all regular files, each hard-link group once: what a copy needs on disk.
    pub bytes: u64,
}

/// Why a tree is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the tree could not be read or written")]
    Io(#[source] io::Error),
    #[error("this is no tree of version 1: its first line is not the header of one")]
    Header,
    #[error("line {line} of the tree is not in canonical form: write the tree with this version of dray")]
    Malformed { line: u64 },
    #[error("line {line} of the tree holds a path that no tree may hold")]
    Path { line: u64, source: PathError },
    #[error("line {line} of the tree ends too soon: the tree is cut off")]
    CutOff { line: u64 },
    #[error("line {line} of the tree passes the limits of {MAX_LINE} bytes a line and {MAX_TREE_BYTES} in all")]
    TooLong { line: u64 },
    #[error("`{path}` does not come after `{previous}` in tree order: sort the entries, each path once")]
    Order { path: RelPath, previous: RelPath },
    #[error("`{path}` lies below `{parent}`, which is no directory: rename one of them")]
    PrefixConflict { path: RelPath, parent: RelPath },
    #[error("`{path}` lies in a directory that the tree does not name: add the directory before it")]
    MissingParent { path: RelPath },
    #[error("`{path}` has {fault}")]
    Value { path: RelPath, fault: Fault },
    #[error("`{path}` is refused by the portable profile: rename it, or use the posix profile")]
    NotPortable { path: RelPath, source: NotPortable },
    #[error("`{path}` is refused by the portable profile")]
    Twin { path: RelPath, source: TwinError },
}

/// What is wrong with a value of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("mode bits other than the nine permission bits: mask them")]
    Mode,
    #[error("a size, or makes a sum of sizes, beyond the limit")]
    Size,
    #[error("a time outside the years 1 to 9999, or a second of more than 10⁹ nanoseconds: clamp it")]
    Time,
    #[error("no bytes, but not the digest of no bytes")]
    EmptyDigest,
    #[error("a link target that is empty, holds NUL or is longer than 4,095 bytes")]
    Target,
    #[error("a hard link to itself or to a later path: name the first of the group in tree order")]
    HardLink,
}

impl Error {
    /// A stable word for a problem document.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Header | Self::Malformed { .. } | Self::CutOff { .. } => "bad_tree",
            Self::Path { .. } => "bad_path",
            Self::TooLong { .. } => "tree_too_large",
            Self::Order { path, previous } if path == previous => "duplicate_path",
            Self::Order { .. } => "bad_order",
            Self::PrefixConflict { .. } => "prefix_conflict",
            Self::MissingParent { .. } => "missing_parent",
            Self::Value { .. } => "bad_entry",
            Self::NotPortable { .. } => "not_portable",
            Self::Twin { .. } => "name_collision",
        }
    }
}
