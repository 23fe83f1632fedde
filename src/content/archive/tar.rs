//! The tar format: ustar headers, with a pax header before them where a value does not fit.
//!
//! Plain members cost 512 bytes. Owners are 0 and unnamed: a dataset belongs to whoever unpacks it.
//!
//! POSIX.1 (ustar and pax): a pax record overrules the header's field, which then holds what fits. Modes are nine bits; times are whole
//! seconds in the header and exact in a record.

use super::super::lines::push_number;
use super::super::tree::push_time;
use super::member::{Body, Member};

/// Headers and data fill whole blocks.
pub(super) const BLOCK: u64 = 512;
/// Two blocks of zeros end the archive.
pub(super) const END: [u8; 1024] = [0; 1024];
/// What eleven octal digits hold.
const OCTAL_MAX: u64 = 0o77_777_777_777;

/// The length of what [`push_head`] appends.
pub(super) fn head_length(member: &Member) -> u64 {
    let mut records = Vec::new();
    push_records(&mut records, member);
    let records = records.len() as u64;
    if records == 0 { BLOCK } else { 2 * BLOCK + records.next_multiple_of(BLOCK) }
}

/// Appends a member's headers.
pub(super) fn push_head(out: &mut Vec<u8>, member: &Member) {
    let mut records = Vec::new();
    push_records(&mut records, member);
    if !records.is_empty() {
        let head = Head { mode: 0o644, size: records.len() as u64, seconds: 0, flag: b'x' };
        push_header(out, &[b"././@PaxHeader"], b"", &head);
        out.extend_from_slice(&records);
        out.resize(out.len() + padding(records.len() as u64) as usize, 0);
    }
    let flag = match member.body {
        Body::Dir => b'5',
        Body::Symlink(_) => b'2',
        Body::HardLink(_) => b'1',
        Body::Empty | Body::File(_) | Body::Copy { .. } => b'0',
    };
    let size = data(member);
    let size = if size > OCTAL_MAX { 0 } else { size };
    let seconds = u64::try_from(member.mtime.seconds).unwrap_or(0).min(OCTAL_MAX);
    push_header(out, &name(member), link(member), &Head { mode: member.mode, size, seconds, flag });
}

/// What does not fit the header, as pax records.
fn push_records(records: &mut Vec<u8>, member: &Member) {
    let (name, link, size) = (name(member), link(member), data(member));
    if needs_record(name[0], name[1].len()) {
        push_record(records, b"path", &name);
    }
    if needs_record(link, 0) {
        push_record(records, b"linkpath", &[link]);
    }
    if size > OCTAL_MAX {
        push_record(records, b"size", &[size.to_string().as_bytes()]);
    }
    let time = member.mtime;
    if time.nanos != 0 || u64::try_from(time.seconds).is_ok_and(|seconds| seconds > OCTAL_MAX) || time.seconds < 0 {
        let mut text = Vec::new();
        push_time(&mut text, time);
        push_record(records, b"mtime", &[&text]);
    }
}

/// The path, and the `/` that marks a directory.
fn name(member: &Member) -> [&[u8]; 2] {
    [member.path.as_bytes(), if member.body == Body::Dir { b"/" } else { b"" }]
}

fn link(member: &Member) -> &[u8] {
    match &member.body {
        Body::Symlink(target) => target,
        Body::HardLink(first) => first.as_bytes(),
        Body::Dir | Body::Empty | Body::File(_) | Body::Copy { .. } => b"",
    }
}

/// Bytes that follow the headers.
fn data(member: &Member) -> u64 {
    if let Body::File(layout) = &member.body { layout.size } else { 0 }
}

/// Zeros after a member's data.
pub(super) fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK) - size
}

/// Too long for its field (with `more` bytes after it), or text that readers would otherwise take in their own
/// encoding. Bytes that are no text at all go in raw as long as they fit: pax knows only UTF-8.
fn needs_record(name: &[u8], more: usize) -> bool {
    name.len() + more > 100 || (!name.is_ascii() && std::str::from_utf8(name).is_ok())
}

/// `length key=value\n`, where the length counts its own digits.
fn push_record(records: &mut Vec<u8>, key: &[u8], value: &[&[u8]]) {
    let digits = |number: usize| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let body = key.len() + value.iter().map(|part| part.len()).sum::<usize>() + 3;
    let mut length = body + digits(body);
    if body + digits(length) != length {
        length = body + digits(length);
    }
    push_number(records, length as u64);
    records.push(b' ');
    records.extend_from_slice(key);
    records.push(b'=');
    value.iter().for_each(|part| records.extend_from_slice(part));
    records.push(b'\n');
}

/// Fields that differ between a member's header and that of its records.
struct Head {
    mode: u32,
    size: u64,
    seconds: u64,
    flag: u8,
}

/// One ustar header. Names are cut to their fields: a pax record says the whole of a longer one.
fn push_header(out: &mut Vec<u8>, name: &[&[u8]], link: &[u8], head: &Head) {
    let mut header = [0; BLOCK as usize];
    let mut room = &mut header[..100];
    for part in name {
        let fits = part.len().min(room.len());
        room[..fits].copy_from_slice(&part[..fits]);
        room = &mut room[fits..];
    }
    octal(&mut header[100..108], u64::from(head.mode));
    octal(&mut header[108..116], 0);
    octal(&mut header[116..124], 0);
    octal(&mut header[124..136], head.size);
    octal(&mut header[136..148], head.seconds);
    header[148..156].fill(b' ');
    header[156] = head.flag;
    let fits = link.len().min(100);
    header[157..157 + fits].copy_from_slice(&link[..fits]);
    header[257..265].copy_from_slice(b"ustar\x0000");
    octal(&mut header[329..337], 0);
    octal(&mut header[337..345], 0);
    let sum = header.iter().map(|&byte| u64::from(byte)).sum();
    // six digits, NUL, and the space that is there already
    octal(&mut header[148..155], sum);
    out.extend_from_slice(&header);
}

/// Octal digits that fill the field, and a NUL.
fn octal(field: &mut [u8], mut value: u64) {
    if let [digits @ .., end] = field {
        *end = 0;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (value & 7) as u8;
            value >>= 3;
        }
    }
}
