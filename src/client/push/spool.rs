//! Layout lines in a temporary file, before the list of packs is known. The form is private to one push.
//!
//! ```text
//! dir    0 | seconds i64 | nanoseconds u32
//! file   1 | profile u8 | digest [32] | size u64 | crc32 u32 | count u32 | count x { pack u32 | first u32 | count u32 | raw u64 }
//! ```
//!
//! Little-endian; a hole's pack is all ones. Unproven, since nobody else ever sees the file; a sha256 is not kept, for a push makes none.

use crate::content::crc::Crc32;
use crate::content::digest::Digest;
use crate::content::layout::{FileLayout, Line, Segment};
use crate::content::tree::Time;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};

const DIR: u8 = 0;
const FILE: u8 = 1;
/// Number that stands for a hole.
const HOLE: u32 = u32::MAX;

/// Takes lines.
#[derive(Debug)]
pub(super) struct Spool(BufWriter<File>);

impl Spool {
    pub fn new(file: File) -> Self {
        Self(BufWriter::with_capacity(128 << 10, file))
    }

    pub fn write(&mut self, line: &Line) -> io::Result<()> {
        let out = &mut self.0;
        match line {
            Line::Dir { mtime } => {
                out.write_all(&[DIR])?;
                out.write_all(&mtime.seconds.to_le_bytes())?;
                out.write_all(&mtime.nanos.to_le_bytes())
            }
            Line::File(file) => {
                out.write_all(&[FILE, file.profile])?;
                out.write_all(file.digest.as_bytes())?;
                out.write_all(&file.size.to_le_bytes())?;
                out.write_all(&file.crc.0.to_le_bytes())?;
                out.write_all(&u32::try_from(file.segments.len()).unwrap_or(u32::MAX).to_le_bytes())?;
                for segment in &file.segments {
                    out.write_all(&segment.pack.unwrap_or(HOLE).to_le_bytes())?;
                    out.write_all(&segment.first.to_le_bytes())?;
                    out.write_all(&segment.count.to_le_bytes())?;
                    out.write_all(&segment.raw.to_le_bytes())?;
                }
                Ok(())
            }
        }
    }

    /// Ends the spool and reads it from its beginning.
    pub fn read(self) -> io::Result<Lines> {
        let mut file = self.0.into_inner().map_err(io::IntoInnerError::into_error)?;
        let end = file.stream_position()?;
        file.rewind()?;
        Ok(Lines { file: BufReader::with_capacity(128 << 10, file), left: end })
    }
}

/// Gives lines back, in the order in which they were taken, one at a time.
#[derive(Debug)]
pub(super) struct Lines {
    file: BufReader<File>,
    left: u64,
}

impl Lines {
    pub fn next(&mut self) -> io::Result<Option<Line>> {
        if self.left == 0 {
            return Ok(None);
        }
        let [kind] = self.take()?;
        if kind == DIR {
            let mtime = Time { seconds: i64::from_le_bytes(self.take()?), nanos: u32::from_le_bytes(self.take()?) };
            return Ok(Some(Line::Dir { mtime }));
        }
        let [profile] = self.take()?;
        let digest = Digest::from_bytes(self.take()?);
        let size = u64::from_le_bytes(self.take()?);
        let crc = Crc32(u32::from_le_bytes(self.take()?));
        let count = u32::from_le_bytes(self.take()?);
        let mut segments = Vec::new();
        for _ in 0..count {
            let pack = u32::from_le_bytes(self.take()?);
            segments.push(Segment {
                pack: (pack != HOLE).then_some(pack),
                first: u32::from_le_bytes(self.take()?),
                count: u32::from_le_bytes(self.take()?),
                raw: u64::from_le_bytes(self.take()?),
            });
        }
        Ok(Some(Line::File(FileLayout { digest, size, crc, profile, segments, sha256: None })))
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        self.left -= N as u64;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::digest::digest;

    #[test]
    fn lines_come_back_as_they_went_in() {
        let lines = [
            Line::Dir { mtime: Time { seconds: -5, nanos: 7 } },
            Line::File(FileLayout {
                digest: digest(b"x"),
                size: 65_540,
                crc: Crc32(9),
                profile: 1,
                segments: vec![
                    Segment { pack: None, first: 0, count: 0, raw: 65_536 },
                    Segment { pack: Some(3), first: 4, count: 1, raw: 4 },
                ],
                sha256: None,
            }),
        ];
        let mut spool = Spool::new(tempfile::tempfile().unwrap());
        for line in &lines {
            spool.write(line).unwrap();
        }
        let mut read = spool.read().unwrap();
        assert_eq!(read.next().unwrap().as_ref(), Some(&lines[0]));
        assert_eq!(read.next().unwrap().as_ref(), Some(&lines[1]));
        assert_eq!(read.next().unwrap(), None);
    }
}
