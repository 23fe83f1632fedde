//! Proves a pack while its bytes stream through, in whatever pieces they come.
//!
//! Holds the index (at most 4 MiB) and at most one frame. A frame that lies whole in the pushed bytes is checked where it lies. Whatever is
//! wrong is an error at the earliest byte that shows it, and a verifier that has refused once never accepts.
#![deny(clippy::indexing_slicing)]

use super::entry::{ChunkEntry, ChunkFault, Error, PackId, verify_chunk};
use super::index::{HEADER_BYTES, PackIndex, index_bytes};
use crate::content::codec::Decoder;

/// One pack's proof. Push all bytes in order, then [`finish`](Self::finish).
#[derive(Debug)]
pub struct PackVerifier {
    expected: PackId,
    /// The part of header, index or frame that has come and is not yet whole.
    held: Vec<u8>,
    /// What `held` grows to before the index is known.
    head_bytes: Option<usize>,
    index: Option<PackIndex>,
    /// Chunks proven so far.
    proven: usize,
    received: u64,
    refused: bool,
    decoder: Decoder,
}

impl PackVerifier {
    /// The id is compared as soon as the index has come, before any frame is taken.
    pub fn new(expected: PackId) -> Self {
        Self {
            expected,
            held: Vec::new(),
            head_bytes: None,
            index: None,
            proven: 0,
            received: 0,
            refused: false,
            decoder: Decoder::new(),
        }
    }

    /// Takes the next bytes of the object and checks all that they complete. After an error every further call is
    /// [`Error::Refused`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.refused {
            return Err(Error::Refused);
        }
        let result = self.take(bytes);
        self.refused = result.is_err();
        result
    }

    /// The index, proven, as soon as it has come; so that a receiver can judge sizes before it takes the frames.
    pub fn index(&self) -> Option<&PackIndex> {
        self.index.as_ref()
    }

    /// The proven pack. An error where bytes are missing or one was refused.
    pub fn finish(self) -> Result<PackIndex, Error> {
        if self.refused {
            return Err(Error::Refused);
        }
        match self.index {
            Some(index) if self.proven == index.entries().len() => Ok(index),
            _ => Err(Error::Truncated { received: self.received }),
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.received += bytes.len() as u64;
        while !bytes.is_empty() {
            bytes = if self.index.is_none() { self.take_head(bytes)? } else { self.take_frame(bytes)? };
        }
        Ok(())
    }

    /// Collects header and index; returns what follows.
    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        let wanted = self.head_bytes.unwrap_or(HEADER_BYTES);
        let rest = hold(&mut self.held, bytes, wanted);
        if self.held.len() == wanted {
            if self.head_bytes.is_some() {
                let index = PackIndex::decode(&self.held)?;
                if index.id() != self.expected {
                    return Err(Error::Id { expected: self.expected, actual: index.id() });
                }
                self.index = Some(index);
                self.held = Vec::new();
            } else {
                let header = self.held.first_chunk().expect("the header was just completed");
                let length = usize::try_from(index_bytes(header)?).expect("at most 4 MiB");
                self.head_bytes = Some(HEADER_BYTES + length);
            }
        }
        Ok(rest)
    }

    /// Completes and proves the next frame, as far as the bytes go; returns what follows.
    fn take_frame<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        let entry = self.index.as_ref().and_then(|index| index.entries().get(self.proven)).ok_or(Error::Trailing)?;
        let wanted = entry.stored as usize;
        if self.held.is_empty()
            && let Some((frame, rest)) = bytes.split_at_checked(wanted)
        {
            prove_frame(&mut self.decoder, entry, frame)?;
            self.proven += 1;
            return Ok(rest);
        }
        let rest = hold(&mut self.held, bytes, wanted);
        if self.held.len() == wanted {
            prove_frame(&mut self.decoder, entry, &self.held)?;
            self.held.clear();
            self.proven += 1;
        }
        Ok(rest)
    }
}

/// Moves bytes to `held` until it holds `wanted`; returns the others.
fn hold<'a>(held: &mut Vec<u8>, bytes: &'a [u8], wanted: usize) -> &'a [u8] {
    let missing = wanted.saturating_sub(held.len()).min(bytes.len());
    let (part, rest) = bytes.split_at(missing);
    held.extend_from_slice(part);
    rest
}

fn prove_frame(decoder: &mut Decoder, entry: &ChunkEntry, stored: &[u8]) -> Result<(), Error> {
    let raw = decoder
        .decode(entry.codec, stored, entry.raw)
        .map_err(|fault| Error::Chunk { id: entry.id, source: ChunkFault::Codec(fault) })?;
    verify_chunk(entry, raw)
}
