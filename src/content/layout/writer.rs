//! Writes a layout: joins and checks segments, then appends the line.
//!
//! A refused line leaves nothing behind.

use super::super::digest::Digest;
use super::super::lines::{LineError, LineWriter};
use super::super::pack::PackId;
use super::entry::{Error, Fault, Line, MAX_LAYOUT_BYTES, MAX_LINE, MAX_PACKS};
use super::line::{push_header, push_line, push_pack};
use std::io::Write;

/// Writes the canonical, uncompressed bytes of a layout to `W`. Compression is the caller's.
#[derive(Debug)]
pub struct LayoutWriter<W> {
    out: LineWriter<W>,
    packs: usize,
    lines: u64,
}

impl<W: Write> LayoutWriter<W> {
    /// Writes the header and the pack list, in the caller's order; every pack once.
    pub fn new(inner: W, packs: &[PackId]) -> Result<Self, Error> {
        check_packs(packs)?;
        let mut writer = Self { out: LineWriter::new(inner, MAX_LAYOUT_BYTES), packs: packs.len(), lines: 0 };
        writer.append(|out| push_header(out, packs.len()))?;
        for pack in packs {
            writer.append(|out| push_pack(out, pack))?;
        }
        Ok(writer)
    }

    /// Appends the next line in tree order. The caller joins segments with [`FileLayout::push`]; what is left unjoined
    /// is refused, as is every other [`Fault`].
    ///
    /// [`FileLayout::push`]: super::FileLayout::push
    pub fn write(&mut self, line: &Line) -> Result<(), Error> {
        check_line(line, self.packs).map_err(|source| Error::Line { line: self.lines + 1, source })?;
        self.append(|out| push_line(out, line))
    }

    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Error> {
        let number = self.lines + 1;
        self.out.line(MAX_LINE, write).map_err(|error| match error {
            LineError::Io(source) => Error::Io(source),
            LineError::TooLong | LineError::CutOff => Error::TooLong { line: number },
        })?;
        self.lines = number;
        Ok(())
    }

    /// Ends the layout: its digest and the writer below, flushed.
    pub fn finish(self) -> Result<(Digest, W), Error> {
        self.out.finish().map_err(Error::Io)
    }
}

pub(super) fn check_line(line: &Line, packs: usize) -> Result<(), Fault> {
    match line {
        Line::File(file) => file.check(packs),
        Line::Dir { mtime } if mtime.is_valid() => Ok(()),
        Line::Dir { .. } => Err(Fault::Time),
    }
}

/// Refuses too many packs and a pack named twice, with 4 bytes of memory a pack.
pub(super) fn check_packs(packs: &[PackId]) -> Result<(), Error> {
    if packs.len() > MAX_PACKS {
        return Err(Error::TooManyPacks { packs: packs.len() as u64 });
    }
    let mut order: Vec<u32> = (0..packs.len() as u32).collect();
    order.sort_unstable_by_key(|&index| packs[index as usize]);
    let twice = order.windows(2).find(|pair| packs[pair[0] as usize] == packs[pair[1] as usize]);
    match twice {
        Some(pair) => Err(Error::DuplicatePack { pack: packs[pair[0] as usize] }),
        None => Ok(()),
    }
}
