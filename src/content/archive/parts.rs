//! Measuring an archive, and the parts of any range of it.
//!
//! Both walks build the same headers in the same order; a range only keeps what falls into it. A range that begins in
//! the middle costs the headers before it (about a microsecond a member), never their data.

use super::super::digest::{Digest, Hasher};
use super::super::layout::FileLayout;
use super::super::merge::Leaders;
use super::super::tree::MAX_FILE_SIZE;
use super::member::{Body, Error, Format, Member, Members, Source, survey};
use super::{tar, zip};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Headers are handed out in runs of about this size.
const RUN: usize = 64 * 1024;
/// A change of a single byte of any archive is a new version here, so that no old ETag lives on.
const VERSION: u32 = 1;

/// An archive that is measured: its length and its ETag are known, its parts can be had.
///
/// Cheap to clone. Holds the source, not the entries.
pub struct Archive<S> {
    source: Arc<S>,
    outline: Arc<Outline>,
}

#[derive(Debug)]
struct Outline {
    format: Format,
    entries: u64,
    /// Where the members end, and the central directory or the end blocks begin.
    members_end: u64,
    length: u64,
    etag: Digest,
    leaders: Leaders,
}

impl<S> Clone for Archive<S> {
    fn clone(&self) -> Self {
        Self { source: Arc::clone(&self.source), outline: Arc::clone(&self.outline) }
    }
}

impl<S> fmt::Debug for Archive<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive").field("outline", &self.outline).finish_non_exhaustive()
    }
}

/// A piece of an archive.
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

impl<S: Source> Archive<S> {
    /// Walks the entries (a zip: twice) and measures the archive.
    pub fn measure(format: Format, source: S) -> Result<Self, Error> {
        let leaders = survey(&source, format)?;
        let mut members = Members::new(source.open()?, format, &leaders);
        let mut hasher = Hasher::new();
        hasher.update(format!("dray-archive {VERSION} {format:?}\n").as_bytes());
        let (mut entries, mut at, mut directory) = (0, 0_u64, 0_u64);
        let mut scratch = Vec::new();
        while let Some(member) = members.next()? {
            scratch.clear();
            push_head(&mut scratch, format, &member);
            hasher.update(&scratch);
            if let Body::File(layout) = &member.body {
                hasher.update(layout.digest.as_bytes());
            }
            if format == Format::Zip {
                let head = scratch.len();
                zip::push_central(&mut scratch, &member, at);
                directory += (scratch.len() - head) as u64;
                // modes of zip members stand in the directory only
                hasher.update(&scratch[head..]);
                scratch.truncate(head);
            }
            entries += 1;
            at = at
                .checked_add(scratch.len() as u64 + member_data(format, &member))
                .filter(|&end| end <= MAX_FILE_SIZE)
                .ok_or(Error::TooLong)?;
        }
        let members_end = at;
        let length = match format {
            Format::Tar => members_end + tar::END.len() as u64,
            Format::Zip => {
                scratch.clear();
                zip::push_end(&mut scratch, entries, members_end, directory);
                members_end + directory + scratch.len() as u64
            }
        };
        let outline = Outline { format, entries, members_end, length, etag: hasher.finalize(), leaders };
        Ok(Self { source: Arc::new(source), outline: Arc::new(outline) })
    }

    pub fn length(&self) -> u64 {
        self.outline.length
    }

    pub fn entries(&self) -> u64 {
        self.outline.entries
    }

    /// A strong validator: equal ETags are equal bytes. Made from every header and the digest of every file, so it
    /// knows nothing of packs.
    pub fn etag(&self) -> Digest {
        self.outline.etag
    }

    /// The parts of `range`, in order, together exactly as long as it.
    pub fn parts(&self, range: Range<u64>) -> Result<Parts<S>, Error> {
        if range.start > range.end || range.end > self.outline.length {
            return Err(Error::Range { start: range.start, end: range.end, length: self.outline.length });
        }
        // whoever wants only the directory need not walk the members before it
        let stage = if range.start >= self.outline.members_end && self.outline.format == Format::Zip {
            Stage::Directory
        } else {
            Stage::Members
        };
        let at = if stage == Stage::Directory { self.outline.members_end } else { 0 };
        Ok(Parts {
            archive: self.clone(),
            range,
            stage,
            members: None,
            at,
            offset: 0,
            run: Vec::new(),
            ready: VecDeque::new(),
        })
    }
}

fn push_head(out: &mut Vec<u8>, format: Format, member: &Member) {
    match format {
        Format::Zip => zip::push_local(out, member),
        Format::Tar => tar::push_head(out, member),
    }
}

/// Bytes of a member after its headers, padding included.
fn member_data(format: Format, member: &Member) -> u64 {
    match (format, &member.body) {
        (Format::Zip, _) => member.size(),
        (Format::Tar, Body::File(layout)) => layout.size + tar::padding(layout.size),
        (Format::Tar, _) => 0,
    }
}

/// The parts of one range. After an error it yields nothing more.
///
/// Walking is blocking work of the source's kind; it can be dropped at any point.
pub struct Parts<S: Source> {
    archive: Archive<S>,
    range: Range<u64>,
    stage: Stage,
    members: Option<Members<S::Pairs>>,
    /// Where in the archive the next byte made belongs.
    at: u64,
    /// While the directory is written: where the next member's local header stands.
    offset: u64,
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
    fn step(&mut self) -> Result<(), Error> {
        if self.stage == Stage::End {
            self.end()?;
            self.stage = Stage::Done;
            return Ok(());
        }
        let (format, members_end) = (self.archive.outline.format, self.archive.outline.members_end);
        let mut members = match self.members.take() {
            Some(members) => members,
            None => Members::new(self.archive.source.open()?, format, &self.archive.outline.leaders),
        };
        match (members.next()?, self.stage) {
            (Some(member), Stage::Members) => {
                self.member(format, &member);
                self.members = Some(members);
            }
            (Some(member), _) => {
                let mut record = Vec::new();
                zip::push_local(&mut record, &member);
                let length = record.len() as u64 + member_data(format, &member);
                record.clear();
                zip::push_central(&mut record, &member, self.offset);
                self.bytes(&record);
                self.offset += length;
                self.members = Some(members);
            }
            (None, Stage::Members) if self.at != members_end => return Err(Error::Changed),
            (None, Stage::Members) if format == Format::Zip => self.stage = Stage::Directory,
            (None, _) => self.stage = Stage::End,
        }
        Ok(())
    }

    fn member(&mut self, format: Format, member: &Member) {
        let mut head = Vec::new();
        push_head(&mut head, format, member);
        self.bytes(&head);
        match &member.body {
            Body::File(layout) => {
                self.file(layout);
                if format == Format::Tar {
                    self.bytes(&tar::END[..tar::padding(layout.size) as usize]);
                }
            }
            Body::Symlink(target) if format == Format::Zip => self.bytes(target),
            Body::Symlink(_) | Body::Dir | Body::Empty | Body::HardLink(_) => {}
        }
    }

    fn end(&mut self) -> Result<(), Error> {
        let outline = Arc::clone(&self.archive.outline);
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
