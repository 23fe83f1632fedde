//! A pack's header and index: made, written, read and judged.
//!
//! Every count and length is held against the format's limits before anything is allocated for it. A [`PackIndex`] exists only if all its
//! rows are within the limits, so sums over it cannot overflow.
#![deny(clippy::indexing_slicing)]

use super::entry::{ChunkEntry, Error, MAX_CHUNKS, PackId};
use crate::content::codec::{self, Codec, check_lengths};
use crate::content::crc::Crc32;
use crate::content::digest::{Digest, digest};
use std::ops::Range;

/// Fixed, so that one read tells how long the index is.
pub const HEADER_BYTES: usize = 64;
/// The format's limit; with rows of 45 bytes, [`MAX_CHUNKS`] is the nearer one.
pub const MAX_INDEX_BYTES: u64 = 4 << 20;

const MAGIC: &[u8; 6] = b"DRAYPK";
const VERSION: u8 = 1;
const ROW_BYTES: usize = 45;
const DIGEST_BYTES: usize = 32;
const _: () = assert!((MAX_CHUNKS * ROW_BYTES + DIGEST_BYTES) as u64 <= MAX_INDEX_BYTES);

/// What a pack holds and where. Immutable; proven by its [`id`](Self::id). About 56 bytes of memory per chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackIndex {
    entries: Vec<ChunkEntry>,
    /// Where each frame ends, counted from the first frame.
    ends: Vec<u64>,
    id: PackId,
    raw_bytes: u64,
}

impl PackIndex {
    /// The index of a pack with these chunks, in this order. Refuses what a reader would refuse.
    pub fn new(entries: Vec<ChunkEntry>) -> Result<Self, Error> {
        let mut index = Self::checked(entries)?;
        index.id = digest(&index.encode_rows());
        Ok(index)
    }

    /// All but the id.
    fn checked(entries: Vec<ChunkEntry>) -> Result<Self, Error> {
        if entries.is_empty() || entries.len() > MAX_CHUNKS {
            return Err(Error::Count { count: entries.len() as u64 });
        }
        let mut ends = Vec::with_capacity(entries.len());
        let (mut end, mut raw_bytes) = (0, 0);
        for (row, entry) in (0..).zip(&entries) {
            check_lengths(entry.codec, entry.stored as usize, entry.raw)
                .map_err(|source| Error::Row { row, source })?;
            end += u64::from(entry.stored);
            raw_bytes += u64::from(entry.raw);
            ends.push(end);
        }
        Ok(Self { entries, ends, id: Digest::from_bytes([0; 32]), raw_bytes })
    }

    /// Reads header and index, exactly: nothing may be missing, nothing may follow.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let truncated = || Error::Truncated { received: bytes.len() as u64 };
        let (header, rest) = bytes.split_first_chunk().ok_or_else(truncated)?;
        let length = index_bytes(header)?;
        if (rest.len() as u64) < length {
            return Err(truncated());
        }
        if rest.len() as u64 > length {
            return Err(Error::Trailing);
        }
        let (hashed, written) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or_else(truncated)?;
        let (written, actual) = (Digest::from_bytes(*written), digest(hashed));
        if written != actual {
            return Err(Error::IndexDigest { written, actual });
        }
        let rows = hashed.get(HEADER_BYTES..).ok_or_else(truncated)?;
        let mut entries = Vec::with_capacity(rows.len() / ROW_BYTES);
        for (row, bytes) in (0..).zip(rows.chunks_exact(ROW_BYTES)) {
            let entry = decode_row(bytes).ok_or_else(truncated)?;
            entries.push(entry.map_err(|source| Error::Row { row, source })?);
        }
        let mut index = Self::checked(entries)?;
        index.id = actual;
        Ok(index)
    }

    /// Header and index as they begin the object; the frames follow in the order of [`entries`](Self::entries).
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.encode_rows();
        bytes.extend_from_slice(self.id.as_bytes());
        bytes
    }

    fn encode_rows(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.entries.len() * ROW_BYTES + DIGEST_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[VERSION, 0, 0, 0]);
        let count = u32::try_from(self.entries.len()).expect("at most 65,536 chunks");
        bytes.extend_from_slice(&count.to_le_bytes());
        let length = u32::try_from(self.index_bytes()).expect("at most 4 MiB");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.resize(HEADER_BYTES, 0);
        for entry in &self.entries {
            bytes.extend_from_slice(entry.id.as_bytes());
            bytes.extend_from_slice(&entry.stored.to_le_bytes());
            bytes.extend_from_slice(&entry.raw.to_le_bytes());
            bytes.extend_from_slice(&entry.crc.0.to_le_bytes());
            bytes.push(entry.codec as u8);
        }
        bytes
    }

    /// In the order of the frames; a chunk's index in the pack is its place here. An id may stand there twice.
    pub fn entries(&self) -> &[ChunkEntry] {
        &self.entries
    }

    pub fn id(&self) -> PackId {
        self.id
    }

    /// Bytes of the index, without the header.
    pub fn index_bytes(&self) -> u64 {
        length_for(self.entries.len() as u64)
    }

    /// Where chunk `i`'s stored form lies in the object.
    ///
    /// # Panics
    /// Where the pack has no chunk `i`.
    pub fn frame(&self, i: usize) -> Range<u64> {
        let base = HEADER_BYTES as u64 + self.index_bytes();
        let end = *self.ends.get(i).expect("the pack has such a chunk");
        let length = self.entries.get(i).map_or(0, |entry| u64::from(entry.stored));
        base + end - length..base + end
    }

    /// The length of the whole object.
    pub fn pack_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.index_bytes() + self.ends.last().copied().unwrap_or(0)
    }

    /// What the chunks come to.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }
}

/// Judges a header and says how many bytes of index follow it: at most [`MAX_INDEX_BYTES`], and what the chunk count needs.
pub fn index_bytes(header: &[u8; HEADER_BYTES]) -> Result<u64, Error> {
    let rest = header.strip_prefix(MAGIC).ok_or(Error::NotAPack)?;
    let (&[version, cipher, flag0, flag1], rest) = rest.split_first_chunk().ok_or(Error::NotAPack)?;
    if version != VERSION {
        return Err(Error::Version { version });
    }
    let (&count, rest) = rest.split_first_chunk().ok_or(Error::NotAPack)?;
    let (&found, unused) = rest.split_first_chunk().ok_or(Error::NotAPack)?;
    if [cipher, flag0, flag1] != [0; 3] || unused.iter().any(|&byte| byte != 0) {
        return Err(Error::Reserved);
    }
    let (count, found) = (u32::from_le_bytes(count), u64::from(u32::from_le_bytes(found)));
    if count == 0 || count > MAX_CHUNKS as u32 {
        return Err(Error::Count { count: count.into() });
    }
    let expected = length_for(count.into());
    if found != expected {
        return Err(Error::IndexLength { found, count, expected });
    }
    Ok(found)
}

/// Where the frames of a pack of so many chunks begin.
pub fn front_bytes(chunks: u64) -> u64 {
    HEADER_BYTES as u64 + length_for(chunks)
}

fn length_for(count: u64) -> u64 {
    count * ROW_BYTES as u64 + DIGEST_BYTES as u64
}

/// One row; `None` where the bytes are too few.
fn decode_row(row: &[u8]) -> Option<Result<ChunkEntry, codec::Error>> {
    let (&id, row) = row.split_first_chunk()?;
    let (&stored, row) = row.split_first_chunk()?;
    let (&raw, row) = row.split_first_chunk()?;
    let (&crc, row) = row.split_first_chunk()?;
    let &[byte] = row else { return None };
    Some(Codec::try_from(byte).map(|codec| ChunkEntry {
        id: Digest::from_bytes(id),
        stored: u32::from_le_bytes(stored),
        raw: u32::from_le_bytes(raw),
        crc: Crc32(u32::from_le_bytes(crc)),
        codec,
    }))
}
