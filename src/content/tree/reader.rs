//! Reads a tree as strictly as the writer writes it.
//!
//! Each entry is written again into a reused buffer and compared with its line, so that no second spelling of the same
//! tree can ever be accepted under another digest.

use super::super::digest::Digest;
use super::super::lines::{LineError, LineReader};
use super::super::path::Profile;
use super::check::Checker;
use super::entry::{Counts, Entry, Error, MAX_LINE, MAX_TREE_BYTES};
use super::line::{Refused, push_entry, take_entry, take_header};
use std::io::BufRead;

/// The entries of an uncompressed tree, in tree order. After an error it yields nothing more. Memory: one line, twice, and the open
/// directories.
#[derive(Debug)]
pub struct TreeReader<R> {
    lines: LineReader<R>,
    profile: Profile,
    checker: Checker,
    again: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Reading,
    Ended(Digest),
    Failed,
}

impl<R: BufRead> TreeReader<R> {
    /// Reads and checks the header.
    pub fn open(inner: R) -> Result<Self, Error> {
        let mut lines = LineReader::new(inner, MAX_TREE_BYTES);
        match lines.advance(MAX_LINE) {
            Ok(true) => {}
            Err(LineError::Io(source)) => return Err(Error::Io(source)),
            Ok(false) | Err(_) => return Err(Error::Header),
        }
        let profile = take_header(lines.line()).ok_or(Error::Header)?;
        Ok(Self { lines, profile, checker: Checker::new(profile), again: Vec::new(), state: State::Reading })
    }

    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The tree's digest; `None` before the end was reached without an error.
    pub fn digest(&self) -> Option<Digest> {
        match self.state {
            State::Ended(digest) => Some(digest),
            State::Reading | State::Failed => None,
        }
    }

    /// What was read so far.
    pub fn counts(&self) -> Counts {
        self.checker.counts()
    }

    fn read(&mut self) -> Result<Option<Entry>, Error> {
        let number = self.lines.number() + 1;
        let more = self.lines.advance(MAX_LINE).map_err(|error| match error {
            LineError::Io(source) => Error::Io(source),
            LineError::TooLong => Error::TooLong { line: number },
            LineError::CutOff => Error::CutOff { line: number },
        })?;
        if !more {
            return Ok(None);
        }
        let entry = take_entry(self.lines.line()).map_err(|refused| match refused {
            Refused::Form => Error::Malformed { line: number },
            Refused::Path(source) => Error::Path { line: number, source },
        })?;
        self.again.clear();
        push_entry(&mut self.again, &entry);
        if self.again != self.lines.line() {
            return Err(Error::Malformed { line: number });
        }
        self.checker.add(&entry)?;
        Ok(Some(entry))
    }
}

impl<R: BufRead> Iterator for TreeReader<R> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if !matches!(self.state, State::Reading) {
            return None;
        }
        match self.read() {
            Ok(Some(entry)) => Some(Ok(entry)),
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
