//! The joined walk of a tree and its layout: two streams, one order, bounded memory.
//!
//! This is where the two are held against each other: every directory has its time, every regular file with bytes of
//! its own has its place with equal digest and size, nothing else has a line, and both end together. Hard links need a
//! second look, see [`HardLinks`].
//!
//! ```text
//! tree    dir a      file a/b (5 bytes)   file a/c -> a/b   symlink a/d
//! layout  dir_mtime  digest, segments     -                 -
//! ```

mod error;
mod leaders;
mod links;
mod parent;
#[cfg(test)]
mod tests;
mod walk;

pub use error::{Error, MAX_GROUPS, MAX_HELD_BYTES};
pub use leaders::Leaders;
pub use links::HardLinks;
pub use parent::ParentCursor;
pub use walk::{Merged, Pair, Summary};
