//! Names that zip readers cannot be given as they are.
//!
//! A zip name has no room for bytes that are not UTF-8, and readers drop control characters and take `\` for a
//! separator. Those bytes are written `%XX`. Two different paths never become one: where a name already holds what
//! looks like such an escape, its `%` is escaped too. All other names, whatever a person might find odd, stay.

use super::super::path::RelPath;
use std::borrow::Cow;

/// The name in the zip, and whether it had to be changed.
pub(super) fn zip_name(path: &RelPath) -> (Cow<'_, [u8]>, Changed) {
    let bytes = path.as_bytes();
    if path.as_str().is_some() && !bytes.iter().any(|&byte| byte == b'%' || is_unsafe(byte)) {
        return (Cow::Borrowed(bytes), Changed::No);
    }
    let mut name = Vec::with_capacity(bytes.len() + 16);
    let mut at = 0;
    for run in bytes.utf8_chunks() {
        for &byte in run.valid().as_bytes() {
            at += 1;
            if is_unsafe(byte) || (byte == b'%' && looks_escaped(&bytes[at..])) {
                push_escaped(&mut name, byte);
            } else {
                name.push(byte);
            }
        }
        for &byte in run.invalid() {
            at += 1;
            push_escaped(&mut name, byte);
        }
    }
    let changed = if name == bytes { Changed::No } else { Changed::Yes };
    (Cow::Owned(name), changed)
}

/// Whether a name is not the path's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changed {
    Yes,
    No,
}

fn is_unsafe(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f || byte == b'\\'
}

/// Whether `rest`, after a `%`, would be read as an escape of ours.
fn looks_escaped(rest: &[u8]) -> bool {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    match rest {
        [high, low, ..] => match (digit(*high), digit(*low)) {
            (Some(high), Some(low)) => {
                let byte = high << 4 | low;
                is_unsafe(byte) || byte >= 0x80 || byte == b'%'
            }
            _ => false,
        },
        _ => false,
    }
}

/// Upper-case hex, as [`looks_escaped`] reads it.
fn push_escaped(name: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    name.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}
