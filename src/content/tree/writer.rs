//! Writes a tree: checks each entry, then appends its line.
//!
//! A refused entry leaves nothing behind, so a caller may drop that entry and go on.

use super::super::digest::Digest;
use super::super::lines::{LineError, LineWriter};
use super::super::path::Profile;
use super::check::Checker;
use super::entry::{Counts, Entry, Error, MAX_LINE, MAX_TREE_BYTES};
use super::line::{push_entry, push_header};
use std::io::Write;

/// Writes the canonical, uncompressed bytes of a tree to `W`. Compression is the caller's.
#[derive(Debug)]
pub struct TreeWriter<W> {
    out: LineWriter<W>,
    checker: Checker,
    lines: u64,
}

impl<W: Write> TreeWriter<W> {
    /// Starts a tree; nothing reaches `inner` before the first batch is full.
    pub fn new(inner: W, profile: Profile) -> Result<Self, Error> {
        Self::within(inner, profile, MAX_TREE_BYTES)
    }

    /// As [`new`](Self::new), with another limit.
    pub(super) fn within(inner: W, profile: Profile, total: u64) -> Result<Self, Error> {
        let mut out = LineWriter::new(inner, total);
        out.line(MAX_LINE, |line| push_header(line, profile)).map_err(|error| refused(error, 1))?;
        Ok(Self { out, checker: Checker::new(profile), lines: 1 })
    }

    /// Appends the next entry in tree order. A refused entry is not written and may be left out.
    pub fn write(&mut self, entry: &Entry) -> Result<(), Error> {
        let step = self.checker.check(entry)?;
        let number = self.lines + 1;
        self.out.line(MAX_LINE, |line| push_entry(line, entry)).map_err(|error| refused(error, number))?;
        self.checker.take(entry, step);
        self.lines = number;
        Ok(())
    }

    pub fn counts(&self) -> Counts {
        self.checker.counts()
    }

    /// Ends the tree: its digest (the version's identity), what it holds, and the writer below, flushed.
    pub fn finish(self) -> Result<(Digest, Counts, W), Error> {
        let counts = self.checker.counts();
        let (digest, inner) = self.out.finish().map_err(Error::Io)?;
        Ok((digest, counts, inner))
    }
}

fn refused(error: LineError, line: u64) -> Error {
    match error {
        LineError::Io(source) => Error::Io(source),
        LineError::TooLong | LineError::CutOff => Error::TooLong { line },
    }
}
