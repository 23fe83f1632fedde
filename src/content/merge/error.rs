//! Why a tree and a layout do not belong together.

use super::super::digest::Digest;
use super::super::layout;
use super::super::path::RelPath;
use super::super::tree;

/// Most memory for the layouts of first files that are kept for their followers.
pub const MAX_HELD_BYTES: usize = 32 << 20;
/// Most groups of hard links in one tree: about 40 MB of claims.
pub const MAX_GROUPS: usize = 1_000_000;

/// Why a tree and a layout do not belong together.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Tree(#[from] tree::Error),
    #[error(transparent)]
    Layout(#[from] layout::Error),
    #[error("the layout has no line for `{path}`: it ends too soon")]
    MissingLine { path: RelPath },
    #[error("the layout's line {line} is not of the kind that `{path}` needs: write one line an entry, in tree order")]
    WrongLine { path: RelPath, line: u64 },
    #[error(
        "`{path}` has digest `{tree}` and {tree_size} bytes in the tree, `{layout}` and {layout_size} in the layout"
    )]
    Disagree { path: RelPath, tree: Digest, tree_size: u64, layout: Digest, layout_size: u64 },
    #[error("the layout goes on at line {line} where the tree has ended")]
    TooManyLines { line: u64 },
    #[error(
        "`{path}` is a hard link to `{target}`, which is no earlier file of its own with equal size, mode, time and digest"
    )]
    HardLink { path: RelPath, target: RelPath },
    /// Only of walks that give followers bytes of their own: a zip, or a selection without a group's first file.
    #[error("the places of all hard-linked files take more than {MAX_HELD_BYTES} bytes: choose tar, or a smaller part")]
    TooManyHeld,
    /// The caller went on after an error; that one was the cause.
    #[error("the walk over tree and layout ended at an earlier error")]
    Broken,
    /// Two walks must go over the same bytes.
    #[error("the tree read for the second look is `{actual}`, not `{expected}`")]
    Changed { expected: Digest, actual: Digest },
    #[error("the tree has more than {MAX_GROUPS} groups of hard links: split the dataset")]
    TooManyGroups,
}

impl Error {
    /// A stable word for a problem document.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Tree(source) => source.code(),
            Self::Layout(source) => source.code(),
            Self::MissingLine { .. } | Self::WrongLine { .. } | Self::TooManyLines { .. } => "layout_mismatch",
            Self::Disagree { .. } => "layout_mismatch",
            Self::HardLink { .. } => "bad_hardlink",
            Self::Broken => "broken_walk",
            Self::Changed { .. } => "tree_changed",
            Self::TooManyGroups | Self::TooManyHeld => "tree_too_large",
        }
    }
}
