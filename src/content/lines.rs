//! Canonical JSON Lines: the few pieces from which tree and layout lines are written and read.
//!
//! There is exactly one way to write a value: no spaces, integers without leading zeros, strings with only `"`, `\` and
//! U+0000-001F escaped (short forms where JSON has them, else `\u00xx` in lower case). The reader accepts that way and no
//! other, so what it accepts is byte for byte what the writer would write. Lines are bounded before they are buffered.

use super::digest::{Digest, Hasher};
use std::io::{self, BufRead, Read, Write};

/// Bytes gathered before they are hashed and written at once; hashing line by line would cost twice as much.
const BATCH: usize = 64 * 1024;

/// A reader of one line; every method consumes from the front and answers `None` where the line reads otherwise.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    pub(super) fn literal(&mut self, text: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    /// Whether the line goes on with `text`, which is then consumed.
    pub(super) fn takes(&mut self, text: &[u8]) -> bool {
        self.literal(text).is_some()
    }

    /// A decimal integer that fits 64 bits.
    pub(super) fn number(&mut self) -> Option<u64> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, rest) = self.rest.split_at(digits);
        if digits == 0 || (digits > 1 && number[0] == b'0') {
            return None;
        }
        let value = number
            .iter()
            .try_fold(0_u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?;
        self.rest = rest;
        Some(value)
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        self.number().and_then(|value| u32::try_from(value).ok())
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    /// 64 lower-case hex digits.
    pub(super) fn hex(&mut self) -> Option<[u8; 32]> {
        let digits = self.bytes::<64>()?;
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Some(bytes)
    }

    pub(super) fn digest(&mut self) -> Option<Digest> {
        self.hex().map(Digest::from_bytes)
    }

    /// The inside of a string up to and with the closing quote; the opening one is consumed already.
    pub(super) fn string(&mut self) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        loop {
            let plain = self.rest.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20)?;
            text.extend_from_slice(&self.rest[..plain]);
            let stop = self.rest[plain];
            self.rest = &self.rest[plain + 1..];
            match stop {
                b'"' => break,
                b'\\' => text.push(self.escape()?),
                _ => return None,
            }
        }
        std::str::from_utf8(&text).is_ok().then_some(text)
    }

    /// After the backslash. All bytes it can give are below 0x80, so an escape never completes a UTF-8 sequence.
    fn escape(&mut self) -> Option<u8> {
        let [kind] = self.bytes()?;
        Some(match kind {
            b'"' | b'\\' => kind,
            b'b' => 0x08,
            b't' => b'\t',
            b'n' => b'\n',
            b'f' => 0x0c,
            b'r' => b'\r',
            b'u' => {
                self.literal(b"00")?;
                let [high, low] = self.bytes()?;
                let value = match low {
                    b'0'..=b'9' => low - b'0',
                    b'a'..=b'f' => low - b'a' + 10,
                    _ => return None,
                };
                let byte = match high {
                    b'0' => value,
                    b'1' => 0x10 | value,
                    _ => return None,
                };
                // these have a short form, which is then the only one
                if short_escape(byte).is_some() {
                    return None;
                }
                byte
            }
            _ => return None,
        })
    }

    /// Whether the line was consumed whole; to be asked last.
    pub(super) fn end(&self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}

fn short_escape(byte: u8) -> Option<u8> {
    match byte {
        b'"' | b'\\' => Some(byte),
        0x08 => Some(b'b'),
        b'\t' => Some(b't'),
        b'\n' => Some(b'n'),
        0x0c => Some(b'f'),
        b'\r' => Some(b'r'),
        _ => None,
    }
}

/// Appends `text` with its quotes.
pub(super) fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(plain) = rest.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20) {
        out.extend_from_slice(&rest[..plain]);
        let byte = rest[plain];
        match short_escape(byte) {
            Some(letter) => out.extend_from_slice(&[b'\\', letter]),
            None => {
                out.extend_from_slice(b"\\u00");
                push_hex(out, &[byte]);
            }
        }
        rest = &rest[plain + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Appends lower-case hex without quotes.
pub(super) fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

pub(super) fn push_number(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Appends exactly `width` decimal digits.
pub(super) fn push_padded(out: &mut Vec<u8>, value: u32, width: usize) {
    let start = out.len();
    push_number(out, u64::from(value));
    let missing = width.saturating_sub(out.len() - start);
    out.splice(start..start, std::iter::repeat_n(b'0', missing));
}

/// Why the next line could not be had.
#[derive(Debug)]
pub(super) enum LineError {
    Io(io::Error),
    /// The line, or the stream with it, is longer than its limit.
    TooLong,
    /// The stream ends inside a line.
    CutOff,
}

/// Reads bounded lines and hashes every byte of them, line ends included. After an error it is of no use.
#[derive(Debug)]
pub(super) struct LineReader<R> {
    inner: R,
    line: Vec<u8>,
    batch: Vec<u8>,
    hasher: Hasher,
    /// Bytes that the whole stream may still have.
    left: u64,
    number: u64,
}

impl<R: BufRead> LineReader<R> {
    /// `total` bounds the whole stream.
    pub(super) fn new(inner: R, total: u64) -> Self {
        Self { inner, line: Vec::new(), batch: Vec::new(), hasher: Hasher::new(), left: total, number: 0 }
    }

    /// Reads the next line of at most `limit` bytes, its end included; `false` at the end of the stream. The buffer
    /// grows as bytes arrive, never by a declared length.
    pub(super) fn advance(&mut self, limit: u64) -> Result<bool, LineError> {
        self.line.clear();
        let bound = limit.min(self.left);
        let read = (&mut self.inner).take(bound + 1).read_until(b'\n', &mut self.line).map_err(LineError::Io)? as u64;
        if read == 0 {
            return Ok(false);
        }
        if read > bound {
            return Err(LineError::TooLong);
        }
        if self.line.last() != Some(&b'\n') {
            return Err(LineError::CutOff);
        }
        self.left -= read;
        self.number += 1;
        if self.line.len() >= BATCH {
            self.flush();
            self.hasher.update(&self.line);
        } else {
            self.batch.extend_from_slice(&self.line);
            if self.batch.len() >= BATCH {
                self.flush();
            }
        }
        self.line.pop();
        Ok(true)
    }

    fn flush(&mut self) {
        self.hasher.update(&self.batch);
        self.batch.clear();
    }

    /// The line last read, without its end.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// The number of the line last read, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The digest of everything read.
    pub(super) fn digest(&mut self) -> Digest {
        self.flush();
        std::mem::replace(&mut self.hasher, Hasher::new()).finalize()
    }
}

/// Gathers lines, hashes them, hands them on in batches of 64 KiB or more. After an I/O error it is of no use; a line that was too long
/// leaves no trace.
#[derive(Debug)]
pub(super) struct LineWriter<W> {
    inner: W,
    batch: Vec<u8>,
    hasher: Hasher,
    left: u64,
}

impl<W: Write> LineWriter<W> {
    /// `total` bounds the whole stream.
    pub(super) fn new(inner: W, total: u64) -> Self {
        Self { inner, batch: Vec::with_capacity(2 * BATCH), hasher: Hasher::new(), left: total }
    }

    /// Appends one line as `write` forms it (without its end), or nothing where it would be longer than `limit`.
    pub(super) fn line(&mut self, limit: u64, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), LineError> {
        let start = self.batch.len();
        write(&mut self.batch);
        self.batch.push(b'\n');
        let length = (self.batch.len() - start) as u64;
        if length > limit || length > self.left {
            self.batch.truncate(start);
            return Err(LineError::TooLong);
        }
        self.left -= length;
        if self.batch.len() >= BATCH { self.flush().map_err(LineError::Io) } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hasher.update(&self.batch);
        self.inner.write_all(&self.batch)?;
        self.batch.clear();
        Ok(())
    }

    /// Hands on what is left and flushes the stream below.
    pub(super) fn finish(mut self) -> io::Result<(Digest, W)> {
        self.flush()?;
        self.inner.flush()?;
        Ok((self.hasher.finalize(), self.inner))
    }
}
