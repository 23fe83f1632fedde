//! Layout v1: *where* the bytes of a tree lie in packs. May be rewritten without changing the version.
//!
//! ```text
//! {"format":"dray-layout","version":1,"packs":2}
//! {"pack":"<64 hex>"}
//! {"pack":"<64 hex>"}
//! {"dir_mtime":"1700000000.000000000"}
//! {"digest":"<64 hex>","size":200000,"crc32":7,"profile":1,"segments":[[0,0,2,134464],[-1,0,0,65536]]}
//! ```
//!
//! Header, the packs, then in tree order one line for each directory (its time) and one for each regular file that has
//! bytes of its own. A segment is `[pack, first chunk, count, raw bytes]`; a hole is `[-1,0,0,raw bytes]` and covers whole
//! 64 KiB blocks of zeros, aligned in the file. Neighbours that could be one segment are one. `sha256` is absent where
//! it is not known. JSON as in [`tree`](super::tree): one way to write it, and no other is read.
//!
//! Memory: the pack list (32 bytes a pack, at most [`MAX_PACKS`]) and one line.

mod entry;
mod line;
mod reader;
mod sums;
#[cfg(test)]
mod tests;
mod writer;

pub use entry::{
    Error, Fault, FileLayout, Line, MAX_COUNT, MAX_LAYOUT_BYTES, MAX_LINE, MAX_PACKS, MAX_SEGMENTS, PROFILE, Segment,
    same_place,
};
pub use reader::LayoutReader;
pub use sums::Sums;
pub use writer::LayoutWriter;
