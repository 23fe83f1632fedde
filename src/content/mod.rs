//! Floor 0: the bytes. How content is cut, named, packed, described and laid out.
//!
//! Pure: nothing here opens a file, a socket or a clock, and nothing here logs. Callers bring slices and streams and get
//! values, verdicts and typed errors back. Every parser in this room reads what strangers wrote, so it checks counts and lengths
//! against the format's limits before it allocates, and never panics on bytes.

pub mod archive;
pub mod buffer;
pub mod chunker;
pub mod codec;
pub mod crc;
pub mod digest;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(any(test, fuzzing))]
pub mod fuzz_trees;
pub mod layout;
mod lines;
pub mod merge;
pub mod pack;
pub mod path;
pub mod plan;
mod probe;
#[cfg(test)]
mod samples;
pub mod select;
pub mod tree;
#[cfg(test)]
mod versions;
