//! The zip format: local headers, central directory, end records (APPNOTE 6.3.10, stored only).
//!
//! Sizes and crc32 stand in the local header, so a reader needs no data descriptor. zip64 fields appear only where a
//! value does not fit, because some readers stumble over needless ones. Times stand twice: in DOS form (UTC, two seconds,
//! 1980 to 2107) and, where it fits, as the extended timestamp that keeps whole seconds.

use super::member::{Body, Member};
use super::names::{Changed, zip_name};
use data_encoding::BASE64;

const U16: u64 = 0xffff;
const U32: u64 = 0xffff_ffff;
/// Made on unix, by version 4.5 of the format.
const MADE_BY: u16 = 3 << 8 | 45;
const DIR_ATTRIBUTE: u32 = 0x10;
/// Bit 11: the name is UTF-8.
const UTF8: u16 = 1 << 11;

/// Appends a member's local header.
pub(super) fn push_local(out: &mut Vec<u8>, member: &Member) {
    let (name, _) = full_name(member);
    let size = member.size();
    let mut extra = Vec::new();
    if size >= U32 {
        push_u16s(&mut extra, &[1, 16]);
        push_u64s(&mut extra, &[size, size]);
    }
    push_timestamp(&mut extra, member);
    push_u32s(out, &[0x0403_4b50]);
    push_u16s(out, &[needed(size >= U32)]);
    push_common(out, member, &name);
    push_u16s(out, &[name.len() as u16, extra.len() as u16]);
    out.extend_from_slice(&name);
    out.extend_from_slice(&extra);
}

/// Appends a member's record in the central directory; `offset` is that of its local header.
pub(super) fn push_central(out: &mut Vec<u8>, member: &Member, offset: u64) {
    let (name, changed) = full_name(member);
    let size = member.size();
    let mut wide = Vec::new();
    if size >= U32 {
        push_u64s(&mut wide, &[size, size]);
    }
    if offset >= U32 {
        push_u64s(&mut wide, &[offset]);
    }
    let mut extra = Vec::new();
    if !wide.is_empty() {
        push_u16s(&mut extra, &[1, wide.len() as u16]);
        extra.extend_from_slice(&wide);
    }
    push_timestamp(&mut extra, member);
    // the map from safe names to true ones travels in the archive itself
    let comment = match changed {
        Changed::Yes => format!("path, base64: {}", BASE64.encode(member.path.as_bytes())),
        Changed::No => String::new(),
    };
    push_u32s(out, &[0x0201_4b50]);
    push_u16s(out, &[MADE_BY, needed(!wide.is_empty())]);
    push_common(out, member, &name);
    push_u16s(out, &[name.len() as u16, extra.len() as u16, comment.len() as u16, 0, 0]);
    push_u32s(out, &[attributes(member), offset.min(U32) as u32]);
    out.extend_from_slice(&name);
    out.extend_from_slice(&extra);
    out.extend_from_slice(comment.as_bytes());
}

/// Appends what ends the archive.
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

fn full_name(member: &Member) -> (Vec<u8>, Changed) {
    let (mut name, changed) = zip_name(&member.path);
    if member.body == Body::Dir {
        name.push(b'/');
    }
    (name, changed)
}

fn needed(zip64: bool) -> u16 {
    if zip64 { 45 } else { 20 }
}

/// The unix mode in the upper half, where unzip, Python and Finder look for it.
fn attributes(member: &Member) -> u32 {
    match member.body {
        Body::Dir => (0o040_000 | member.mode) << 16 | DIR_ATTRIBUTE,
        Body::Symlink(_) => (0o120_000 | member.mode) << 16,
        Body::Empty | Body::File(_) | Body::HardLink(_) => (0o100_000 | member.mode) << 16,
    }
}

/// The extended timestamp, where the time fits its 32 bits.
fn push_timestamp(extra: &mut Vec<u8>, member: &Member) {
    if let Ok(seconds) = i32::try_from(member.mtime.seconds) {
        push_u16s(extra, &[0x5455, 5]);
        extra.push(1);
        extra.extend_from_slice(&seconds.to_le_bytes());
    }
}

/// DOS time and date in UTC, held to the years it knows.
fn dos_time(seconds: i64) -> (u16, u16) {
    const FIRST: i64 = 315_532_800; // 1980-01-01
    const LAST: i64 = 4_354_819_199; // 2107-12-31T23:59:59
    let seconds = seconds.clamp(FIRST, LAST);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let time = (rest / 3600) << 11 | (rest / 60 % 60) << 5 | rest % 60 / 2;
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
