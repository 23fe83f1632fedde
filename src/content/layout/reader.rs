//! Reads a layout as strictly as the writer writes it.
//!
//! The pack list is read at once (it is bounded); lines stream.

use super::super::digest::Digest;
use super::super::lines::{LineError, LineReader};
use super::super::pack::PackId;
use super::entry::{Error, Fault, Line, MAX_LAYOUT_BYTES, MAX_LINE, MAX_PACKS};
use super::line::{take_header, take_line, take_pack};
use super::writer::{check_line, check_packs};
use std::io::BufRead;

/// Longest header or pack line.
const SHORT: u64 = 128;

/// The lines of an uncompressed layout, in tree order. After an error it yields nothing more.
#[derive(Debug)]
pub struct LayoutReader<R> {
    lines: LineReader<R>,
    packs: Vec<PackId>,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Reading,
    Ended(Digest),
    Failed,
}

impl<R: BufRead> LayoutReader<R> {
    /// Reads and checks the header and the pack list: 32 bytes of memory a pack, and 4 more while they are compared.
    pub fn open(inner: R) -> Result<Self, Error> {
        let mut lines = LineReader::new(inner, MAX_LAYOUT_BYTES);
        match lines.advance(SHORT) {
            Ok(true) => {}
            Err(LineError::Io(source)) => return Err(Error::Io(source)),
            Ok(false) | Err(_) => return Err(Error::Header),
        }
        let count = take_header(lines.line()).ok_or(Error::Header)?;
        if count > MAX_PACKS as u64 {
            return Err(Error::TooManyPacks { packs: count });
        }
        // grows as the lines arrive: a header alone allocates nothing
        let mut packs = Vec::new();
        for _ in 0..count {
            let line = lines.number() + 1;
            if !advance(&mut lines, SHORT)? {
                return Err(Error::CutOff { line });
            }
            packs.push(take_pack(lines.line()).ok_or(Error::Line { line, source: Fault::Form })?);
        }
        check_packs(&packs)?;
        Ok(Self { lines, packs, state: State::Reading })
    }

    /// In the layout's order: segments name packs by their places in it.
    pub fn packs(&self) -> &[PackId] {
        &self.packs
    }

    /// The layout's digest; `None` before the end was reached without an error.
    pub fn digest(&self) -> Option<Digest> {
        match self.state {
            State::Ended(digest) => Some(digest),
            State::Reading | State::Failed => None,
        }
    }

    /// The number of the line last read, from 1.
    pub fn line_number(&self) -> u64 {
        self.lines.number()
    }

    fn read(&mut self) -> Result<Option<Line>, Error> {
        if !advance(&mut self.lines, MAX_LINE)? {
            return Ok(None);
        }
        let refused = |source| Error::Line { line: self.lines.number(), source };
        let line = take_line(self.lines.line()).ok_or_else(|| refused(Fault::Form))?;
        check_line(&line, self.packs.len()).map_err(refused)?;
        Ok(Some(line))
    }
}

fn advance<R: BufRead>(lines: &mut LineReader<R>, limit: u64) -> Result<bool, Error> {
    let line = lines.number() + 1;
    lines.advance(limit).map_err(|error| match error {
        LineError::Io(source) => Error::Io(source),
        LineError::TooLong => Error::TooLong { line },
        LineError::CutOff => Error::CutOff { line },
    })
}

impl<R: BufRead> Iterator for LayoutReader<R> {
    type Item = Result<Line, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if !matches!(self.state, State::Reading) {
            return None;
        }
        match self.read() {
            Ok(Some(line)) => Some(Ok(line)),
            Ok(None) => {
                self.state = State::Ended(self.lines.digest());
                None
            }
            Err(error) => {
                self.state = State::Failed;
                Some(Err(error))
            }
        }
    }
}
