//! The tar format: ustar headers, with a pax header before them where a value does not fit.
//!
//! Plain members cost 512 bytes. Owners are 0 and unnamed: a dataset belongs to whoever unpacks it.

use super::super::path::RelPath;
use super::super::tree::{Time, push_time};
use super::member::{Body, Member};

/// Headers and data fill whole blocks.
pub(super) const BLOCK: u64 = 512;
/// Two blocks of zeros end the archive.
pub(super) const END: [u8; 1024] = [0; 1024];
/// What eleven octal digits hold.
const OCTAL_MAX: u64 = 0o77_777_777_777;

/// Appends a member's headers.
pub(super) fn push_head(out: &mut Vec<u8>, member: &Member) {
    let mut name = member.path.as_bytes().to_vec();
    if member.body == Body::Dir {
        name.push(b'/');
    }
    let link: &[u8] = match &member.body {
        Body::Symlink(target) => target,
        Body::HardLink(first) => RelPath::as_bytes(first),
        Body::Dir | Body::Empty | Body::File(_) => b"",
    };
    let size = if let Body::File(layout) = &member.body { layout.size } else { 0 };
    let mut records = Vec::new();
    if needs_record(&name) {
        push_record(&mut records, b"path", &name);
    }
    if needs_record(link) {
        push_record(&mut records, b"linkpath", link);
    }
    if size > OCTAL_MAX {
        push_record(&mut records, b"size", size.to_string().as_bytes());
    }
    let octal_time = octal_time(member.mtime);
    if octal_time.is_none() {
        let mut text = Vec::new();
        push_time(&mut text, member.mtime);
        push_record(&mut records, b"mtime", &text);
    }
    let seconds = u64::try_from(member.mtime.seconds).unwrap_or(0).min(OCTAL_MAX);
    if !records.is_empty() {
        let head = Head { mode: 0o644, size: records.len() as u64, seconds: 0, flag: b'x' };
        push_header(out, b"././@PaxHeader", b"", &head);
        out.extend_from_slice(&records);
        out.resize(out.len().next_multiple_of(BLOCK as usize), 0);
    }
    let flag = match member.body {
        Body::Dir => b'5',
        Body::Symlink(_) => b'2',
        Body::HardLink(_) => b'1',
        Body::Empty | Body::File(_) => b'0',
    };
    let size = if size > OCTAL_MAX { 0 } else { size };
    push_header(out, &name, link, &Head { mode: member.mode, size, seconds, flag });
}

/// Zeros after a member's data.
pub(super) fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK) - size
}

/// Too long for its field, or text that readers would otherwise take in their own encoding. Bytes that are no text at
/// all go in raw as long as they fit: pax knows only UTF-8.
fn needs_record(name: &[u8]) -> bool {
    name.len() > 100 || (!name.is_ascii() && std::str::from_utf8(name).is_ok())
}

/// Whole seconds that fit the header.
fn octal_time(time: Time) -> Option<u64> {
    u64::try_from(time.seconds).ok().filter(|&seconds| time.nanos == 0 && seconds <= OCTAL_MAX)
}

/// `length key=value\n`, where the length counts its own digits.
fn push_record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let body = key.len() + value.len() + 3;
    let mut length = body + 1;
    while body + length.to_string().len() != length {
        length = body + length.to_string().len();
    }
    records.extend_from_slice(length.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

struct Head {
    mode: u32,
    size: u64,
    seconds: u64,
    flag: u8,
}

fn push_header(out: &mut Vec<u8>, name: &[u8], link: &[u8], head: &Head) {
    let start = out.len();
    push_field(out, name, 100);
    push_octal(out, u64::from(head.mode), 8);
    push_octal(out, 0, 8);
    push_octal(out, 0, 8);
    push_octal(out, head.size, 12);
    push_octal(out, head.seconds, 12);
    let checksum_at = out.len();
    out.extend_from_slice(b"        ");
    out.push(head.flag);
    push_field(out, link, 100);
    out.extend_from_slice(b"ustar\x0000");
    push_field(out, b"", 32);
    push_field(out, b"", 32);
    push_octal(out, 0, 8);
    push_octal(out, 0, 8);
    push_field(out, b"", 167);
    let sum: u64 = out[start..].iter().map(|&byte| u64::from(byte)).sum();
    let checksum = format!("{sum:06o}\0 ");
    out[checksum_at..checksum_at + 8].copy_from_slice(checksum.as_bytes());
}

/// A name cut to its field; a pax record says the whole of a longer one.
fn push_field(out: &mut Vec<u8>, bytes: &[u8], width: usize) {
    let kept = &bytes[..bytes.len().min(width)];
    out.extend_from_slice(kept);
    out.resize(out.len() + width - kept.len(), 0);
}

fn push_octal(out: &mut Vec<u8>, value: u64, width: usize) {
    out.extend_from_slice(format!("{value:0digits$o}\0", digits = width - 1).as_bytes());
}
