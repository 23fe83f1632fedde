//! The zip format: local headers, central directory, end records (APPNOTE 6.3.10, stored only).
//!
//! Sizes and crc32 stand in the local header, so a reader needs no data descriptor. zip64 fields appear only where a
//! value does not fit, because some readers stumble over needless ones. Times stand twice: in DOS form (UTC, two seconds,
//! 1980 to 2107) and, where it fits, as the extended timestamp that keeps whole seconds.

use super::member::{Body, Member};
use super::names::{Changed, zip_name};
use data_encoding::BASE64;

/// What the 16- and 32-bit fields hold; the value itself says that zip64 has the true one.
const U16: u64 = 0xffff;
const U32: u64 = 0xffff_ffff;
/// Made on unix, by version 4.5 of the format.
const MADE_BY: u16 = 3 << 8 | 45;
const DIR_ATTRIBUTE: u32 = 0x10;
/// Bit 11: the name is UTF-8.
const UTF8: u16 = 1 << 11;

/// The length of what [`push_local`] appends.
pub(super) fn local_length(member: &Member) -> u64 {
    let (name, _) = zip_name(&member.path);
    let wide = if member.size() >= U32 { 20 } else { 0 };
    30 + name_length(member, &name) + wide + timestamp_length(member)
}

/// Appends a member's local header.
pub(super) fn push_local(out: &mut Vec<u8>, member: &Member) {
    let (name, _) = zip_name(&member.path);
    let size = member.size();
    let wide = size >= U32;
    push_u32s(out, &[0x0403_4b50]);
    push_u16s(out, &[needed(wide)]);
    push_common(out, member, &name);
    let extra = timestamp_length(member) + if wide { 20 } else { 0 };
    push_u16s(out, &[name_length(member, &name) as u16, extra as u16]);
    push_name(out, member, &name);
    if wide {
        push_u16s(out, &[1, 16]);
        push_u64s(out, &[size, size]);
    }
    push_timestamp(out, member);
}

/// The length of what [`push_central`] appends.
pub(super) fn central_length(member: &Member, offset: u64) -> u64 {
    let (name, changed) = zip_name(&member.path);
    let comment = comment(member, changed).len() as u64;
    46 + name_length(member, &name) + wide_length(member, offset) + timestamp_length(member) + comment
}

/// Appends a member's record in the central directory; `offset` is that of its local header.
pub(super) fn push_central(out: &mut Vec<u8>, member: &Member, offset: u64) {
    let (name, changed) = zip_name(&member.path);
    let comment = comment(member, changed);
    let size = member.size();
    let wide = wide_length(member, offset);
    push_u32s(out, &[0x0201_4b50]);
    push_u16s(out, &[MADE_BY, needed(wide > 0)]);
    push_common(out, member, &name);
    let extra = wide + timestamp_length(member);
    push_u16s(out, &[name_length(member, &name) as u16, extra as u16, comment.len() as u16, 0, 0]);
    push_u32s(out, &[attributes(member), offset.min(U32) as u32]);
    push_name(out, member, &name);
    if wide > 0 {
        push_u16s(out, &[1, wide as u16 - 4]);
        if size >= U32 {
            push_u64s(out, &[size, size]);
        }
        if offset >= U32 {
            push_u64s(out, &[offset]);
        }
    }
    push_timestamp(out, member);
    out.extend_from_slice(comment.as_bytes());
}

/// Bytes of the zip64 field in the central directory.
fn wide_length(member: &Member, offset: u64) -> u64 {
    let size = if member.size() >= U32 { 16 } else { 0 };
    let offset = if offset >= U32 { 8 } else { 0 };
    if size + offset > 0 { 4 + size + offset } else { 0 }
}

/// The map from safe names to true ones travels in the archive itself.
/// Only in the central directory, where readers look for comments.
fn comment(member: &Member, changed: Changed) -> String {
    match changed {
        Changed::Yes => format!("path, base64: {}", BASE64.encode(member.path.as_bytes())),
        Changed::No => String::new(),
    }
}

/// Appends what ends the archive: with zip64 records before the plain one where a value does not fit.
pub(super) fn push_end(out: &mut Vec<u8>, entries: u64, directory_offset: u64, directory_length: u64) {
    if entries >= U16 || directory_offset >= U32 || directory_length >= U32 {
        push_u32s(out, &[0x0606_4b50]);
        push_u64s(out, &[44]);
        push_u16s(out, &[MADE_BY, 45]);
        push_u32s(out, &[0, 0]);
        push_u64s(out, &[entries, entries, directory_length, directory_offset]);
        push_u32s(out, &[0x0706_4b50, 0]);
        push_u64s(out, &[directory_offset + directory_length]);
        push_u32s(out, &[1]);
    }
    let entries = entries.min(U16) as u16;
    push_u32s(out, &[0x0605_4b50]);
    push_u16s(out, &[0, 0, entries, entries]);
    push_u32s(out, &[directory_length.min(U32) as u32, directory_offset.min(U32) as u32]);
    push_u16s(out, &[0]);
}

/// Flags, method, time, crc and sizes: the same in both headers.
fn push_common(out: &mut Vec<u8>, member: &Member, name: &[u8]) {
    let flags = if name.is_ascii() { 0 } else { UTF8 };
    let (time, date) = dos_time(member.mtime.seconds);
    let size = member.size().min(U32) as u32;
    push_u16s(out, &[flags, 0, time, date]);
    push_u32s(out, &[member.crc().0, size, size]);
}

fn name_length(member: &Member, name: &[u8]) -> u64 {
    name.len() as u64 + u64::from(member.body == Body::Dir)
}

fn push_name(out: &mut Vec<u8>, member: &Member, name: &[u8]) {
    out.extend_from_slice(name);
    if member.body == Body::Dir {
        out.push(b'/');
    }
}

fn needed(zip64: bool) -> u16 {
    if zip64 { 45 } else { 20 }
}

/// The unix mode in the upper half, where unzip, Python and Finder look for it.
fn attributes(member: &Member) -> u32 {
    match member.body {
        Body::Dir => (0o040_000 | member.mode) << 16 | DIR_ATTRIBUTE,
        Body::Symlink(_) => (0o120_000 | member.mode) << 16,
        Body::Empty | Body::File(_) | Body::Copy { .. } | Body::HardLink(_) => (0o100_000 | member.mode) << 16,
    }
}

/// The extended timestamp, where the time fits its 32 bits.
fn push_timestamp(out: &mut Vec<u8>, member: &Member) {
    if let Ok(seconds) = i32::try_from(member.mtime.seconds) {
        push_u16s(out, &[0x5455, 5]);
        out.push(1);
        out.extend_from_slice(&seconds.to_le_bytes());
    }
}

fn timestamp_length(member: &Member) -> u64 {
    if i32::try_from(member.mtime.seconds).is_ok() { 9 } else { 0 }
}

/// DOS time and date in UTC, held to the years it knows.
fn dos_time(seconds: i64) -> (u16, u16) {
    const FIRST: i64 = 315_532_800; // 1980-01-01
    const LAST: i64 = 4_354_819_199; // 2107-12-31T23:59:59
    let seconds = seconds.clamp(FIRST, LAST);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let time = (rest / 3600) << 11 | (rest / 60 % 60) << 5 | (rest % 60 / 2);
    let date = (year - 1980) << 9 | month << 5 | day;
    (time as u16, date as u16)
}

/// Year, month and day of a day since 1970 (proleptic Gregorian; Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn push_u16s(out: &mut Vec<u8>, values: &[u16]) {
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

fn push_u32s(out: &mut Vec<u8>, values: &[u32]) {
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

fn push_u64s(out: &mut Vec<u8>, values: &[u64]) {
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}
