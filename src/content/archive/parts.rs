//! The parts of any range of an archive.
//!
//! Members before the range cost their lengths and no headers; a range inside the central directory walks no members.
//!
//! ```text
//! Members    headers and content, skipped by their lengths before the range
//! Directory  zip only: one record a member, in a walk of its own
//! End        the end records, or two blocks of zeros
//! ```
//!
//! Content is not read here: a [`Part::File`] says which bytes of which file belong there, and the caller streams and proves them.

use super::super::layout::FileLayout;
use super::member::{Body, Error, Format, Member, Members, Source};
use super::outline::{Outline, data_length, head_length, push_head};
use super::{tar, zip};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Headers are handed out in runs of about this size.
const RUN: usize = 64 * 1024;

/// A piece of an archive. `Bytes` (headers, padding, link targets) are made here and come in runs of about 64 KiB, shorter where
/// content follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Bytes(Vec<u8>),
    /// This range of this file's content; never empty.
    File {
        layout: Arc<FileLayout>,
        range: Range<u64>,
    },
}

impl Part {
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { range, .. } => range.end - range.start,
        }
    }
}

/// The parts of one range, in order. After an error it yields nothing more.
///
/// Walking is blocking work of the source's kind; it can be dropped at any point. Memory: one run, one member and the leaders' places.
pub struct Parts<S: Source> {
    source: Arc<S>,
    outline: Arc<Outline>,
    range: Range<u64>,
    stage: Stage,
    members: Option<Members<S::Pairs>>,
    /// Where in the archive the next byte made belongs.
    at: u64,
    /// While the directory is written: where the next member's local header stands.
    offset: u64,
    scratch: Vec<u8>,
    run: Vec<u8>,
    ready: VecDeque<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Members,
    Directory,
    End,
    Done,
}

impl<S: Source> fmt::Debug for Parts<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("range", &self.range).field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl<S: Source> Parts<S> {
    pub(super) fn new(source: Arc<S>, outline: Arc<Outline>, range: Range<u64>) -> Self {
        // whoever wants only the directory need not walk the members before it
        let only_directory = outline.format == Format::Zip && range.start >= outline.members_end;
        let (stage, at) = if only_directory { (Stage::Directory, outline.members_end) } else { (Stage::Members, 0) };
        Self {
            source,
            outline,
            range,
            stage,
            members: None,
            at,
            offset: 0,
            scratch: Vec::new(),
            run: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// One member, record or end, however many bytes of it fall into the range.
    fn step(&mut self) -> Result<(), Error> {
        if self.stage == Stage::End {
            self.end()?;
            self.stage = Stage::Done;
            return Ok(());
        }
        let format = self.outline.format;
        let mut members = match self.members.take() {
            Some(members) => members,
            None => Members::new(self.source.open()?, format, &self.outline.leaders),
        };
        match (members.next()?, self.stage) {
            (Some(member), Stage::Members) => {
                self.member(format, &member);
                self.members = Some(members);
            }
            (Some(member), _) => {
                self.record(&member);
                self.members = Some(members);
            }
            (None, Stage::Members) if self.at != self.outline.members_end => return Err(Error::Changed),
            (None, Stage::Members) if format == Format::Zip => self.stage = Stage::Directory,
            (None, _) => self.stage = Stage::End,
        }
        Ok(())
    }

    fn member(&mut self, format: Format, member: &Member) {
        let length = head_length(format, member) + data_length(format, member);
        if self.at + length <= self.range.start {
            self.at += length;
            return;
        }
        self.made(|scratch| push_head(scratch, format, member));
        match &member.body {
            Body::File(layout) => {
                self.file(layout);
                if format == Format::Tar {
                    self.bytes(&tar::END[..tar::padding(layout.size) as usize]);
                }
            }
            Body::Symlink(target) if format == Format::Zip => self.bytes(target),
            Body::Symlink(_) | Body::Dir | Body::Empty | Body::Copy { .. } | Body::HardLink(_) => {}
        }
    }

    /// A record of the central directory.
    fn record(&mut self, member: &Member) {
        let offset = self.offset;
        self.offset += zip::local_length(member) + member.size();
        self.made(|scratch| zip::push_central(scratch, member, offset));
    }

    /// Makes headers in a buffer that is used again, and hands on what falls into the range.
    fn made(&mut self, make: impl FnOnce(&mut Vec<u8>)) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        make(&mut scratch);
        self.bytes(&scratch);
        self.scratch = scratch;
    }

    fn end(&mut self) -> Result<(), Error> {
        let outline = Arc::clone(&self.outline);
        match outline.format {
            Format::Tar => self.bytes(&tar::END),
            Format::Zip => {
                let mut end = Vec::new();
                let directory = self.at - outline.members_end;
                zip::push_end(&mut end, outline.entries, outline.members_end, directory);
                self.bytes(&end);
            }
        }
        if self.at == outline.length { Ok(()) } else { Err(Error::Changed) }
    }

    /// What of the next `length` bytes falls into the range, counted from their start.
    fn cut(&mut self, length: u64) -> Range<u64> {
        let start = self.range.start.saturating_sub(self.at).min(length);
        let end = self.range.end.saturating_sub(self.at).min(length);
        self.at += length;
        start..end.max(start)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let cut = self.cut(bytes.len() as u64);
        self.run.extend_from_slice(&bytes[cut.start as usize..cut.end as usize]);
        if self.run.len() >= RUN {
            self.flush();
        }
    }

    fn file(&mut self, layout: &Arc<FileLayout>) {
        let range = self.cut(layout.size);
        if !range.is_empty() {
            self.flush();
            self.ready.push_back(Part::File { layout: Arc::clone(layout), range });
        }
    }

    fn flush(&mut self) {
        if !self.run.is_empty() {
            self.ready.push_back(Part::Bytes(std::mem::take(&mut self.run)));
        }
    }
}

impl<S: Source> Iterator for Parts<S> {
    type Item = Result<Part, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                return Some(Ok(part));
            }
            if self.stage == Stage::Done || self.at >= self.range.end {
                self.stage = Stage::Done;
                self.flush();
                return self.ready.pop_front().map(Ok);
            }
            if let Err(error) = self.step() {
                self.stage = Stage::Done;
                self.run.clear();
                self.ready.clear();
                return Some(Err(error));
            }
        }
    }
}
