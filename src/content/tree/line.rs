//! One entry as a line, and back.
//!
//! Writing never fails; reading takes exactly what writing gives (values are judged by `check`, not here).

use super::super::lines::{Cursor, push_hex, push_number, push_padded, push_string};
use super::super::path::{PathError, Profile, RelPath};
use super::entry::{Entry, Kind, Time};
use data_encoding::BASE64;

/// What a line may turn out to be instead of an entry: not canonical, or with a path that no tree may hold.
#[derive(Debug)]
pub(super) enum Refused {
    Form,
    Path(PathError),
}

impl From<PathError> for Refused {
    fn from(error: PathError) -> Self {
        Self::Path(error)
    }
}

pub(super) fn push_header(out: &mut Vec<u8>, profile: Profile) {
    out.extend_from_slice(b"{\"format\":\"dray-tree\",\"version\":1,\"names\":\"");
    out.extend_from_slice(profile.word().as_bytes());
    out.extend_from_slice(b"\"}");
}

pub(super) fn take_header(line: &[u8]) -> Option<Profile> {
    let mut expected = Vec::new();
    [Profile::Posix, Profile::Portable].into_iter().find(|&profile| {
        expected.clear();
        push_header(&mut expected, profile);
        expected == line
    })
}

/// Without the line's end.
pub(super) fn push_entry(out: &mut Vec<u8>, entry: &Entry) {
    let (kind, path) = (&entry.kind, entry.path.as_bytes());
    match kind {
        Kind::File { size, mode, mtime, digest, hardlink } => {
            out.extend_from_slice(b"{\"kind\":\"file\",\"path");
            push_name(out, path);
            out.extend_from_slice(b",\"size\":");
            push_number(out, *size);
            push_mode(out, *mode);
            out.extend_from_slice(b",\"mtime\":\"");
            push_time(out, *mtime);
            out.extend_from_slice(b"\",\"digest\":\"");
            push_hex(out, digest.as_bytes());
            out.push(b'"');
            if let Some(first) = hardlink {
                out.extend_from_slice(b",\"hardlink");
                push_name(out, first.as_bytes());
            }
        }
        Kind::Dir { mode } => {
            out.extend_from_slice(b"{\"kind\":\"dir\",\"path");
            push_name(out, path);
            push_mode(out, *mode);
        }
        Kind::Symlink { mtime, target } => {
            out.extend_from_slice(b"{\"kind\":\"symlink\",\"path");
            push_name(out, path);
            out.extend_from_slice(b",\"mtime\":\"");
            push_time(out, *mtime);
            out.extend_from_slice(b"\",\"target");
            push_name(out, target);
        }
    }
    out.push(b'}');
}

/// The rest of the key and the value: `":"..."`, or `_b64":"..."` where the bytes are not UTF-8.
fn push_name(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            out.extend_from_slice(b"\":");
            push_string(out, text);
        }
        Err(_) => {
            out.extend_from_slice(b"_b64\":\"");
            out.extend_from_slice(BASE64.encode(bytes).as_bytes());
            out.push(b'"');
        }
    }
}

fn push_mode(out: &mut Vec<u8>, mode: u32) {
    out.extend_from_slice(b",\"mode\":\"");
    for shift in [9, 6, 3, 0] {
        out.push(b'0' + (mode >> shift & 7) as u8);
    }
    out.push(b'"');
}

/// A decimal number with nine digits after the point, so `{-1, 500_000_000}` is `-0.500000000`.
pub(in crate::content) fn push_time(out: &mut Vec<u8>, time: Time) {
    let (mut whole, mut nanos) = (time.seconds, time.nanos);
    if whole < 0 {
        out.push(b'-');
        if nanos > 0 {
            whole += 1;
            nanos = 1_000_000_000_u32.saturating_sub(nanos);
        }
    }
    push_number(out, whole.unsigned_abs());
    out.push(b'.');
    push_padded(out, nanos, 9);
}

/// The same way of writing only: no `-0.000000000`, nine digits always. Years are judged elsewhere.
pub(in crate::content) fn take_time(cursor: &mut Cursor<'_>) -> Option<Time> {
    let negative = cursor.takes(b"-");
    let whole = i64::try_from(cursor.number()?).ok()?;
    cursor.literal(b".")?;
    let digits = cursor.bytes::<9>()?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nanos = digits.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    match (negative, whole, nanos) {
        (false, ..) => Some(Time { seconds: whole, nanos }),
        (true, 0, 0) => None,
        (true, _, 0) => Some(Time { seconds: -whole, nanos }),
        (true, ..) => Some(Time { seconds: -whole - 1, nanos: 1_000_000_000 - nanos }),
    }
}

/// Keys in the one order there is. The reader compares what comes out with the line once more.
pub(super) fn take_entry(line: &[u8]) -> Result<Entry, Refused> {
    let cursor = &mut Cursor::new(line);
    form(cursor.literal(b"{\"kind\":\""))?;
    let entry = if cursor.takes(b"file\",\"path") {
        take_file(cursor)?
    } else if cursor.takes(b"dir\",\"path") {
        let path = take_path(cursor)?;
        Entry { path, kind: Kind::Dir { mode: form(take_mode(cursor))? } }
    } else if cursor.takes(b"symlink\",\"path") {
        let path = take_path(cursor)?;
        let mtime = form(take_mtime(cursor))?;
        form(cursor.literal(b",\"target"))?;
        Entry { path, kind: Kind::Symlink { mtime, target: form(take_name(cursor))? } }
    } else {
        return Err(Refused::Form);
    };
    form(cursor.literal(b"}"))?;
    form(cursor.end())?;
    Ok(entry)
}

fn take_file(cursor: &mut Cursor<'_>) -> Result<Entry, Refused> {
    let path = take_path(cursor)?;
    form(cursor.literal(b",\"size\":"))?;
    let size = form(cursor.number())?;
    let mode = form(take_mode(cursor))?;
    let mtime = form(take_mtime(cursor))?;
    form(cursor.literal(b",\"digest\":\""))?;
    let digest = form(cursor.digest())?;
    form(cursor.literal(b"\""))?;
    let hardlink = if cursor.takes(b",\"hardlink") { Some(take_path(cursor)?) } else { None };
    Ok(Entry { path, kind: Kind::File { size, mode, mtime, digest, hardlink } })
}

fn form<T>(value: Option<T>) -> Result<T, Refused> {
    value.ok_or(Refused::Form)
}

fn take_path(cursor: &mut Cursor<'_>) -> Result<RelPath, Refused> {
    Ok(RelPath::from_vec(form(take_name(cursor))?)?)
}

/// In base64 only what is not UTF-8: text would then have a second form.
fn take_name(cursor: &mut Cursor<'_>) -> Option<Vec<u8>> {
    if cursor.takes(b"\":\"") {
        return cursor.string();
    }
    cursor.literal(b"_b64\":\"")?;
    let bytes = BASE64.decode(&cursor.string()?).ok()?;
    std::str::from_utf8(&bytes).is_err().then_some(bytes)
}

fn take_mode(cursor: &mut Cursor<'_>) -> Option<u32> {
    cursor.literal(b",\"mode\":\"")?;
    let digits = cursor.bytes::<4>()?;
    cursor.literal(b"\"")?;
    digits.iter().try_fold(0, |mode, digit| matches!(digit, b'0'..=b'7').then(|| mode << 3 | u32::from(digit - b'0')))
}

fn take_mtime(cursor: &mut Cursor<'_>) -> Option<Time> {
    cursor.literal(b",\"mtime\":\"")?;
    let time = take_time(cursor)?;
    cursor.literal(b"\"")?;
    Some(time)
}
