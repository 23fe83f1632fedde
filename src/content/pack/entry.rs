//! A chunk's row in a pack index, what can be wrong with a pack, and the proof of one chunk.
//!
//! Nothing here reads pack bytes; `index` and `verify` do.

use crate::content::codec::{self, Codec};
use crate::content::crc::Crc32;
use crate::content::digest::{Digest, digest};

/// In one pack; bounds its index, and with it the memory of every reader.
pub const MAX_CHUNKS: usize = 65_536;

/// The BLAKE3 that ends a pack's index: a name for its chunks in their order, not for the frames' bytes.
pub type PackId = Digest;

/// One chunk in a pack: 45 bytes of index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkEntry {
    /// BLAKE3 of the raw bytes.
    pub id: Digest,
    /// Bytes in the pack.
    pub stored: u32,
    /// Bytes of the chunk.
    pub raw: u32,
    /// Of the raw bytes.
    pub crc: Crc32,
    pub codec: Codec,
}

/// Why bytes are not the pack they should be. `Version`, `Reserved` and an unknown codec ask for a newer dray; the rest is damage, or a
/// sender that is not to be believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("not a pack: it does not begin with `DRAYPK`")]
    NotAPack,
    #[error("pack version {version} is not known to this build (it knows 1): use a newer dray")]
    Version { version: u8 },
    #[error("the pack's header sets bytes that are reserved: use a newer dray")]
    Reserved,
    #[error("the pack says it holds {count} chunks; 1 to {} are allowed", MAX_CHUNKS)]
    Count { count: u64 },
    #[error("the pack's index is {found} bytes long where its {count} chunks need {expected}")]
    IndexLength { found: u64, count: u32, expected: u64 },
    #[error("the pack's index is damaged: it ends with `{written}` and hashes to `{actual}`")]
    IndexDigest { written: Digest, actual: Digest },
    #[error("the pack is `{actual}` where `{expected}` was expected")]
    Id { expected: PackId, actual: PackId },
    #[error("row {row} of the pack's index is not valid")]
    Row { row: u32, source: codec::Error },
    #[error("chunk `{id}` in the pack is not what the index says")]
    Chunk { id: Digest, source: ChunkFault },
    #[error("the pack ends early, after {received} bytes")]
    Truncated { received: u64 },
    #[error("bytes follow the pack's last chunk")]
    Trailing,
    #[error("the pack was already refused")]
    Refused,
}

/// Why bytes are not the chunk they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkFault {
    #[error("it is {actual} bytes long where {expected} were expected")]
    Length { expected: u32, actual: usize },
    #[error("its bytes hash to `{actual}`")]
    Digest { actual: Digest },
    #[error("its crc32 is {:08x} where {:08x} was expected", actual.0, expected.0)]
    Crc { expected: Crc32, actual: Crc32 },
    #[error("its stored form is not valid")]
    Codec(#[source] codec::Error),
}

/// Proves that `raw` is the chunk: length, BLAKE3 and crc32. Costs one pass of each over the bytes.
pub fn verify_chunk(entry: &ChunkEntry, raw: &[u8]) -> Result<(), Error> {
    prove(entry, raw).and_then(|()| prove_crc(entry, raw)).map_err(|source| Error::Chunk { id: entry.id, source })
}

fn prove(entry: &ChunkEntry, raw: &[u8]) -> Result<(), ChunkFault> {
    if u32::try_from(raw.len()) != Ok(entry.raw) {
        return Err(ChunkFault::Length { expected: entry.raw, actual: raw.len() });
    }
    let actual = digest(raw);
    if actual != entry.id {
        return Err(ChunkFault::Digest { actual });
    }
    Ok(())
}

fn prove_crc(entry: &ChunkEntry, raw: &[u8]) -> Result<(), ChunkFault> {
    let actual = Crc32::of(raw);
    if actual != entry.crc {
        return Err(ChunkFault::Crc { expected: entry.crc, actual });
    }
    Ok(())
}
