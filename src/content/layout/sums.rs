//! A file's layout held against the packs it names.
//!
//! What commit checks without reading a byte of data: the chunks are there, their raw lengths add up segment by segment,
//! and their crc32s combine to the file's. Chunk ids are not compared with the file's digest: only reading proves that.

use super::super::crc::Crc32;
use super::super::pack::PackIndex;
use super::entry::{Fault, FileLayout, Segment};

/// Sums of one file, segment by segment; one half microsecond a chunk.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    raw: u64,
    crc: Crc32,
}

impl Sums {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the file's next segment; `index` is that of its pack, `None` for a hole.
    pub fn add(&mut self, segment: &Segment, index: Option<&PackIndex>) -> Result<(), Fault> {
        let before = self.raw;
        match index {
            None if segment.pack.is_none() => {
                self.crc = self.crc.combine(Crc32::zeros(segment.raw), segment.raw);
                self.raw = self.raw.checked_add(segment.raw).ok_or(Fault::Sum)?;
            }
            None => return Err(Fault::Pack),
            Some(index) => {
                let first = segment.first as usize;
                let chunks = index.entries().get(first..first + segment.count as usize).ok_or(Fault::Chunks)?;
                for chunk in chunks {
                    self.crc = self.crc.combine(chunk.crc, u64::from(chunk.raw));
                    self.raw = self.raw.checked_add(u64::from(chunk.raw)).ok_or(Fault::Sum)?;
                }
            }
        }
        if self.raw - before == segment.raw { Ok(()) } else { Err(Fault::Raw) }
    }

    /// Whether the segments added come to what the file's line says.
    pub fn check(&self, file: &FileLayout) -> Result<(), Fault> {
        if self.raw != file.size {
            Err(Fault::Sum)
        } else if self.crc != file.crc {
            Err(Fault::Crc)
        } else {
            Ok(())
        }
    }
}
