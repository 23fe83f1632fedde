//! A version as one zip or tar, computed from tree and layout without a temporary copy.
//!
//! The length, every offset and the bytes of any range are known before a byte of data is read, so a download has
//! `Content-Length`, `ETag` and `Range`. Zip is *stored*, with sizes and crc32s in front (no data descriptors) and zip64
//! fields only where needed; tar is ustar with pax records only where needed. Hard links are links in a tar and copies
//! in a zip. The entries come from a [`Source`] that can be opened again and again: once to measure, then once (a
//! zip to its end: twice) for each range.
//!
//! Memory: one entry and 64 KiB of headers, whatever the count; a zip of a tree with hard links also keeps the places of
//! linked files, see [`Leaders`](super::merge::Leaders).

mod member;
mod names;
mod outline;
mod parts;
mod tar;
#[cfg(test)]
mod tests;
mod whole;
mod zip;

pub use member::{Error, Format, Source};
pub use parts::{Part, Parts};
pub use whole::Archive;
