//! One line of a layout, and back.
//!
//! The reader takes exactly what the writer gives; rules about values stand in `entry`.

use super::super::crc::Crc32;
use super::super::digest::Digest;
use super::super::lines::{Cursor, push_hex, push_number};
use super::super::pack::PackId;
use super::super::tree::{push_time, take_time};
use super::entry::{FileLayout, Line, MAX_SEGMENTS, Segment};

pub(super) fn push_header(out: &mut Vec<u8>, packs: usize) {
    out.extend_from_slice(b"{\"format\":\"dray-layout\",\"version\":1,\"packs\":");
    push_number(out, packs as u64);
    out.push(b'}');
}

/// The number of packs it announces; not yet held against the limit.
pub(super) fn take_header(line: &[u8]) -> Option<u64> {
    let mut cursor = Cursor::new(line);
    cursor.literal(b"{\"format\":\"dray-layout\",\"version\":1,\"packs\":")?;
    let packs = cursor.number()?;
    cursor.literal(b"}")?;
    cursor.end()?;
    Some(packs)
}

pub(super) fn push_pack(out: &mut Vec<u8>, pack: &PackId) {
    out.extend_from_slice(b"{\"pack\":\"");
    push_hex(out, pack.as_bytes());
    out.extend_from_slice(b"\"}");
}

pub(super) fn take_pack(line: &[u8]) -> Option<PackId> {
    let mut cursor = Cursor::new(line);
    cursor.literal(b"{\"pack\":\"")?;
    let pack = cursor.digest()?;
    cursor.literal(b"\"}")?;
    cursor.end()?;
    Some(pack)
}

/// Without the line's end. Nothing is checked: what is written is what it is told.
pub(super) fn push_line(out: &mut Vec<u8>, line: &Line) {
    match line {
        Line::Dir { mtime } => {
            out.extend_from_slice(b"{\"dir_mtime\":\"");
            push_time(out, *mtime);
            out.extend_from_slice(b"\"}");
        }
        Line::File(file) => push_file(out, file),
    }
}

fn push_file(out: &mut Vec<u8>, file: &FileLayout) {
    out.extend_from_slice(b"{\"digest\":\"");
    push_hex(out, file.digest.as_bytes());
    out.extend_from_slice(b"\",\"size\":");
    push_number(out, file.size);
    out.extend_from_slice(b",\"crc32\":");
    push_number(out, u64::from(file.crc.0));
    out.extend_from_slice(b",\"profile\":");
    push_number(out, u64::from(file.profile));
    out.extend_from_slice(b",\"segments\":[");
    for (index, segment) in file.segments.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"[" } else { b",[" });
        match segment.pack {
            Some(pack) => push_number(out, u64::from(pack)),
            None => out.extend_from_slice(b"-1"),
        }
        for value in [u64::from(segment.first), u64::from(segment.count), segment.raw] {
            out.push(b',');
            push_number(out, value);
        }
        out.push(b']');
    }
    out.push(b']');
    if let Some(sha256) = &file.sha256 {
        out.extend_from_slice(b",\"sha256\":\"");
        push_hex(out, sha256);
        out.push(b'"');
    }
    out.push(b'}');
}

/// `None` for every deviation from what [`push_line`] would write. Allocates as segments arrive, [`MAX_SEGMENTS`] and one at most.
pub(super) fn take_line(line: &[u8]) -> Option<Line> {
    let mut cursor = Cursor::new(line);
    let line = if cursor.takes(b"{\"dir_mtime\":\"") {
        let mtime = take_time(&mut cursor)?;
        cursor.literal(b"\"}")?;
        Line::Dir { mtime }
    } else {
        cursor.literal(b"{\"digest\":\"")?;
        let digest = cursor.digest()?;
        Line::File(take_file(&mut cursor, digest)?)
    };
    cursor.end()?;
    Some(line)
}

fn take_file(cursor: &mut Cursor<'_>, digest: Digest) -> Option<FileLayout> {
    cursor.literal(b"\",\"size\":")?;
    let size = cursor.number()?;
    cursor.literal(b",\"crc32\":")?;
    let crc = Crc32(cursor.small()?);
    cursor.literal(b",\"profile\":")?;
    let profile = u8::try_from(cursor.number()?).ok()?;
    cursor.literal(b",\"segments\":[")?;
    let mut segments = Vec::new();
    while !cursor.takes(b"]") {
        // one more than allowed is enough to be refused by its own name
        if segments.len() > MAX_SEGMENTS {
            return None;
        }
        cursor.literal(if segments.is_empty() { b"[" } else { b",[" })?;
        segments.push(take_segment(cursor)?);
    }
    let sha256 = if cursor.takes(b",\"sha256\":\"") {
        let sha256 = cursor.hex()?;
        cursor.literal(b"\"")?;
        Some(sha256)
    } else {
        None
    };
    cursor.literal(b"}")?;
    Some(FileLayout { digest, size, crc, profile, segments, sha256 })
}

/// Numbers within their types; whether they make sense is `entry`'s to say.
fn take_segment(cursor: &mut Cursor<'_>) -> Option<Segment> {
    let pack = if cursor.takes(b"-1") { None } else { Some(cursor.small()?) };
    cursor.literal(b",")?;
    let first = cursor.small()?;
    cursor.literal(b",")?;
    let count = cursor.small()?;
    cursor.literal(b",")?;
    let raw = cursor.number()?;
    cursor.literal(b"]")?;
    Some(Segment { pack, first, count, raw })
}
