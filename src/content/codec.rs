//! How a chunk's bytes are stored: raw, or as one zstd frame.
//!
//! The writer probes before it spends CPU, so footage costs next to nothing. The reader believes nothing: a frame's header is read and
//! judged here before zstd sees it, output goes into a buffer of exactly the declared raw size, and whatever differs is a typed error.
//! Contexts and buffers are made once per worker; nothing is allocated per chunk.
//!
//! A frame has one form here, the writer's (content size, no checksum, no dictionary: RFC 8878), so the same stored bytes can never be read
//! in two ways.
#![deny(clippy::indexing_slicing)]

use super::chunker::MAX_CHUNK;
use super::probe::{Outcome, Probe};
use std::fmt;
use zstd::zstd_safe::{self, CCtx, CParameter, DCtx};

/// No frame may ask its reader for a larger window.
pub const MAX_WINDOW: u64 = 8 << 20;

const LEVEL: i32 = 1;
/// Shorter chunks are stored raw: a frame's own bytes eat what it saves.
const MIN_FRAME: usize = 64;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// How stored bytes become raw ones. A byte of the pack format; `2` is reserved (4-byte grouping, then zstd) and refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    Raw = 0,
    Zstd = 1,
}

impl TryFrom<u8> for Codec {
    type Error = Error;

    fn try_from(byte: u8) -> Result<Self, Error> {
        match byte {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Zstd),
            codec => Err(Error::UnknownCodec { codec }),
        }
    }
}

/// Stored bytes that are not what they are declared to be. All but `UnknownCodec` mean damage or a writer that is not ours; the caller tells
/// which chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("codec {codec} is not known to this build (it knows 0 and 1): use a newer dray")]
    UnknownCodec { codec: u8 },
    #[error("a chunk of {raw} bytes is declared; 1 to {MAX_CHUNK} are allowed")]
    RawLength { raw: u32 },
    #[error("{stored} bytes are stored for a chunk of {raw}")]
    StoredLength { stored: usize, raw: u32 },
    #[error("the stored bytes do not begin with a zstd frame")]
    NotAFrame,
    #[error("the zstd frame names a dictionary, carries a checksum or sets a reserved bit")]
    FrameFlags,
    #[error("the zstd frame asks for a window of {window} bytes; at most {MAX_WINDOW} are allowed")]
    Window { window: u64 },
    #[error("the zstd frame does not declare {raw} bytes of content (it says {declared:?})")]
    ContentSize { declared: Option<u64>, raw: u32 },
    #[error("the zstd frame is {frame} bytes long where {stored} are stored")]
    FrameLength { frame: usize, stored: usize },
    #[error("the zstd frame is damaged: {detail}")]
    Damaged { detail: &'static str },
}

/// Turns chunks into their stored form. One per worker; it learns from the last chunks where compression is in vain, which never changes
/// what is read back.
pub struct Encoder {
    zstd: CCtx<'static>,
    frame: Vec<u8>,
    probe: Probe,
}

impl Encoder {
    pub fn new() -> Self {
        Self { zstd: context(LEVEL), frame: vec![0; MAX_CHUNK], probe: Probe::new(context(-5)) }
    }

    /// Appends the stored form of `raw` to `out`: a frame where it saves at least a thirty-second, else `raw` itself.
    pub fn encode(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Codec {
        let codec = self.shrink(raw, out);
        if codec == Codec::Raw {
            out.extend_from_slice(raw);
        }
        codec
    }

    /// As [`encode`](Self::encode), but appends nothing where the answer is [`Codec::Raw`], for callers that send `raw` from where it lies.
    pub fn shrink(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Codec {
        if raw.len() < MIN_FRAME || !self.probe.worth_trying(raw) {
            return Codec::Raw;
        }
        // zstd stops as soon as the frame no longer fits, so what does not pay costs no output
        let room = raw.len() - raw.len() / 32 - 1;
        if self.frame.len() < room {
            self.frame.resize(room, 0);
        }
        let (frame, _) = self.frame.split_at_mut(room);
        match self.zstd.compress2(frame, raw) {
            Ok(len) => {
                self.probe.learn(raw.len(), Outcome::Shrank);
                out.extend_from_slice(frame.get(..len).expect("zstd wrote within the frame"));
                Codec::Zstd
            }
            Err(_) => {
                self.probe.learn(raw.len(), Outcome::DidNot);
                Codec::Raw
            }
        }
    }
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

/// A context whose frames are what the format wants: content size, no checksum, no dictionary.
fn context(level: i32) -> CCtx<'static> {
    let mut zstd = CCtx::create();
    for parameter in
        [CParameter::CompressionLevel(level), CParameter::ContentSizeFlag(true), CParameter::ChecksumFlag(false)]
    {
        zstd.set_parameter(parameter).expect("zstd knows its own parameters");
    }
    zstd
}

/// Turns stored forms back into chunks. One per worker; holds one chunk.
pub struct Decoder {
    zstd: DCtx<'static>,
    raw: Vec<u8>,
}

impl Decoder {
    pub fn new() -> Self {
        Self { zstd: DCtx::create(), raw: Vec::new() }
    }

    /// The raw bytes of a chunk: exactly `raw_len` of them, else an error. A raw chunk is passed through without a copy. Allocates at most
    /// `raw_len` bytes, whatever the frame says, and says nothing about whether the bytes are the *right* ones: that is
    /// [`verify_chunk`](super::pack::verify_chunk)'s.
    pub fn decode<'a>(&'a mut self, codec: Codec, stored: &'a [u8], raw_len: u32) -> Result<&'a [u8], Error> {
        let raw = check_lengths(codec, stored.len(), raw_len)?;
        if codec == Codec::Raw {
            return Ok(stored);
        }
        check_frame(stored, raw_len)?;
        if self.raw.len() < raw {
            self.raw.resize(raw, 0);
        }
        let (out, _) = self.raw.split_at_mut(raw);
        let len = self.zstd.decompress(out, stored).map_err(damaged)?;
        if len != raw {
            return Err(Error::ContentSize { declared: Some(len as u64), raw: raw_len });
        }
        Ok(out)
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("held", &self.raw.len()).finish_non_exhaustive()
    }
}

/// Whether a chunk may declare these lengths; the raw one as a `usize`. The pack index asks before any frame is read.
pub(super) fn check_lengths(codec: Codec, stored: usize, raw_len: u32) -> Result<usize, Error> {
    let raw = usize::try_from(raw_len).ok().filter(|raw| (1..=MAX_CHUNK).contains(raw));
    let raw = raw.ok_or(Error::RawLength { raw: raw_len })?;
    let fits = match codec {
        Codec::Raw => stored == raw,
        Codec::Zstd => (1..=raw).contains(&stored),
    };
    if fits { Ok(raw) } else { Err(Error::StoredLength { stored, raw: raw_len }) }
}

/// Judges a frame's header as RFC 8878 draws it, and that the frame is all there is.
fn check_frame(stored: &[u8], raw_len: u32) -> Result<(), Error> {
    let (flags, rest) = stored.strip_prefix(&MAGIC).and_then(<[u8]>::split_first).ok_or(Error::NotAFrame)?;
    // bits 0-1 dictionary id, 2 checksum, 3 reserved, 4 unused: decoders ignore the last, and a frame has one form here
    if flags & 0b0001_1111 != 0 {
        return Err(Error::FrameFlags);
    }
    let single_segment = flags & 0b0010_0000 != 0;
    let rest = if single_segment {
        rest
    } else {
        let (descriptor, rest) = rest.split_first().ok_or(Error::NotAFrame)?;
        let base = 1u64 << (10 + (descriptor >> 3));
        let window = base + base / 8 * u64::from(descriptor & 7);
        if window > MAX_WINDOW {
            return Err(Error::Window { window });
        }
        rest
    };
    let declared = match (flags >> 6, single_segment) {
        (0, false) => None,
        (0, true) => rest.first().map(|&byte| u64::from(byte)),
        (1, _) => rest.first_chunk().map(|&bytes| u64::from(u16::from_le_bytes(bytes)) + 256),
        (2, _) => rest.first_chunk().map(|&bytes| u64::from(u32::from_le_bytes(bytes))),
        _ => rest.first_chunk().map(|&bytes| u64::from_le_bytes(bytes)),
    };
    if declared != Some(u64::from(raw_len)) {
        return Err(Error::ContentSize { declared, raw: raw_len });
    }
    let frame = zstd_safe::find_frame_compressed_size(stored).map_err(damaged)?;
    if frame != stored.len() {
        return Err(Error::FrameLength { frame, stored: stored.len() });
    }
    Ok(())
}

/// zstd's own words for its code; static, so an error costs nothing.
fn damaged(code: zstd_safe::ErrorCode) -> Error {
    Error::Damaged { detail: zstd_safe::get_error_name(code) }
}

#[cfg(test)]
mod tests;
