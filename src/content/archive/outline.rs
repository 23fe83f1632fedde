//! Measuring an archive: one walk, no header written.
//!
//! The lengths of headers follow from the members; that they are those of the headers later made is held by a test and,
//! for every range that runs to the end, by the parts themselves.

use super::super::digest::{Digest, Hasher};
use super::super::merge::Leaders;
use super::super::tree::MAX_FILE_SIZE;
use super::member::{Body, Error, Format, Member, Members, Source};
use super::{tar, zip};

/// A change of a single byte of any archive is a new version here, so that no old ETag lives on and no download goes on with other bytes.
const VERSION: u8 = 1;

/// What is known of an archive before any of it is made.
#[derive(Debug)]
pub(super) struct Outline {
    pub(super) format: Format,
    pub(super) entries: u64,
    /// Where the members end, and the central directory or the end blocks begin.
    pub(super) members_end: u64,
    pub(super) length: u64,
    pub(super) etag: Digest,
    /// First files that a zip needs again for its copies; empty in a tar.
    pub(super) leaders: Leaders,
}

/// One walk; its memory is one member and a key for each file that is linked to.
pub(super) fn measure<S: Source>(format: Format, source: &S) -> Result<Outline, Error> {
    let mut members = Members::to_measure(source.open()?, format);
    let mut tag = Tag::new(format);
    let (mut entries, mut at, mut directory) = (0, 0_u64, 0_u64);
    while let Some(member) = members.next()? {
        tag.add(&member);
        if format == Format::Zip {
            directory += zip::central_length(&member, at);
        }
        entries += 1;
        at = at
            .checked_add(head_length(format, &member) + data_length(format, &member))
            .filter(|&end| end <= MAX_FILE_SIZE)
            .ok_or(Error::TooLong)?;
    }
    let end = match format {
        Format::Tar => tar::END.len() as u64,
        Format::Zip => {
            let mut end = Vec::new();
            zip::push_end(&mut end, entries, at, directory);
            directory + end.len() as u64
        }
    };
    let leaders = members.into_leaders();
    Ok(Outline { format, entries, members_end: at, length: at + end, etag: tag.finish(), leaders })
}

/// Of the bytes before a member's content. Must be what [`push_head`] appends, byte for byte: offsets are made from it.
pub(super) fn head_length(format: Format, member: &Member) -> u64 {
    match format {
        Format::Zip => zip::local_length(member),
        Format::Tar => tar::head_length(member),
    }
}

pub(super) fn push_head(out: &mut Vec<u8>, format: Format, member: &Member) {
    match format {
        Format::Zip => zip::push_local(out, member),
        Format::Tar => tar::push_head(out, member),
    }
}

/// Bytes of a member after its headers, padding included.
pub(super) fn data_length(format: Format, member: &Member) -> u64 {
    match (format, &member.body) {
        (Format::Zip, _) => member.size(),
        (Format::Tar, Body::File(layout)) => layout.size + tar::padding(layout.size),
        (Format::Tar, _) => 0,
    }
}

/// The ETag in the making: everything from which an archive's bytes follow, and nothing else.
struct Tag {
    hasher: Hasher,
    batch: Vec<u8>,
}

impl Tag {
    fn new(format: Format) -> Self {
        let kind = match format {
            Format::Zip => b'z',
            Format::Tar => b't',
        };
        Self { hasher: Hasher::new(), batch: vec![VERSION, kind] }
    }

    fn add(&mut self, member: &Member) {
        self.push(member.path.as_bytes());
        self.batch.extend_from_slice(&member.mode.to_le_bytes());
        self.batch.extend_from_slice(&member.mtime.seconds.to_le_bytes());
        self.batch.extend_from_slice(&member.mtime.nanos.to_le_bytes());
        match &member.body {
            Body::Dir => self.batch.push(0),
            Body::Empty => self.batch.push(1),
            Body::File(layout) => {
                self.batch.push(2);
                self.batch.extend_from_slice(&layout.size.to_le_bytes());
                self.batch.extend_from_slice(&layout.crc.0.to_le_bytes());
                self.batch.extend_from_slice(layout.digest.as_bytes());
            }
            Body::Copy { first, .. } => {
                self.batch.push(3);
                self.push(first.as_bytes());
            }
            Body::Symlink(target) => {
                self.batch.push(4);
                self.push(target);
            }
            Body::HardLink(first) => {
                self.batch.push(5);
                self.push(first.as_bytes());
            }
        }
        if self.batch.len() >= 64 * 1024 {
            self.hasher.update(&self.batch);
            self.batch.clear();
        }
    }

    /// Bytes of any length, so that no two sequences look the same.
    fn push(&mut self, bytes: &[u8]) {
        self.batch.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.batch.extend_from_slice(bytes);
    }

    fn finish(mut self) -> Digest {
        self.hasher.update(&self.batch);
        self.hasher.finalize()
    }
}
