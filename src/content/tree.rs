//! Tree v1: *what* files a version holds. Its digest is the version's identity, so its bytes are canonical.
//!
//! ```text
//! {"format":"dray-tree","version":1,"names":"posix"}
//! {"kind":"dir","path":"a","mode":"0755"}
//! {"kind":"file","path":"a/b","size":5,"mode":"0644","mtime":"1700000000.000000001","digest":"<64 hex>"}
//! {"kind":"file","path":"a/c","size":5,"mode":"0644","mtime":"1700000000.000000001","digest":"<64 hex>","hardlink":"a/b"}
//! {"kind":"symlink","path":"a/d","mtime":"1700000000.000000000","target":"b"}
//! ```
//!
//! One line an entry, in tree order (a directory directly before all it holds); JSON with fixed keys in this order, no
//! spaces, one `\n` a line, `hardlink` absent where there is none. What is not UTF-8 stands in base64 under `path_b64`,
//! `hardlink_b64`, `target_b64`. A time is a decimal number of seconds since 1970 with exactly nine digits after the
//! point, negative before. Reader and writer share one checker, so each refuses what the other would.
//!
//! Memory does not grow with the number of entries (the portable profile: with the widest directory, within
//! [`path::MAX_OPEN_NAMES`](super::path::MAX_OPEN_NAMES)). That a hard link's target exists is seen by
//! [`merge`](super::merge), which may go over the tree twice.

mod check;
mod entry;
mod line;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use entry::{Counts, Entry, Error, Fault, Kind, MAX_FILE_SIZE, MAX_LINE, MAX_TARGET, MAX_TREE_BYTES, Time};
pub use reader::TreeReader;
pub use writer::TreeWriter;

pub(in crate::content) use line::{push_time, take_time};
