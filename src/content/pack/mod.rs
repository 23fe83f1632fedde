//! Pack v1: one object that holds many chunks, readable and provable while it streams in.
//!
//! ```text
//! header   64 bytes   "DRAYPK" | version u8 = 1 | cipher u8 = 0 | flags u16 = 0 | count u32 | index bytes u32
//!                     | key id [16] | nonce [24] | rest [6]                   integers little-endian; the last three all 0
//! index    count x 45 chunk id [32] | stored length u32 | raw length u32 | crc32 of the raw bytes u32 | codec u8
//!          32         BLAKE3 of header and entries: the pack's id
//! frames   the chunks' stored forms, back to back, in index order; nothing follows
//! ```
//!
//! The id covers every chunk's id, lengths, crc and codec; frames are proven by decoding them against those. So two packs of one id hold the
//! same chunks, and equal raw frames; a zstd frame might be another frame of the same content and length. Limits: 1 to
//! 65,536 chunks, index of at most 4 MiB, chunks of 1 to 96 KiB, stored never longer than raw.

mod entry;
mod index;
mod verify;

#[cfg(test)]
mod tests;

pub use entry::{ChunkEntry, ChunkFault, Error, MAX_CHUNKS, PackId, verify_chunk};
pub use index::{HEADER_BYTES, MAX_INDEX_BYTES, PackIndex, front_bytes, index_bytes};
pub use verify::PackVerifier;
