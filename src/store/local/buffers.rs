//! Page-aligned buffers for reading files, used again and again.
//!
//! A fresh `Vec` of this size sits 16 bytes past a page, which makes `read` several times dearer on some processors, and costs a
//! page fault every 4 KiB. So a buffer is over-allocated once, the wanted place in it is chosen by the file offset modulo a page,
//! and it comes back when the last `Bytes` made of it is dropped. At most [`IDLE`] wait for use.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Bytes read at a time.
pub(super) const PIECE: usize = 512 << 10;
/// Smaller reads take a plain buffer of their own size, so that a few bytes do not hold a whole piece.
///
/// The plain buffer is freed with its last `Bytes`; a pooled one would be held whole by a reader of a few bytes.
const SMALL: usize = 64 << 10;
/// The kernel's page on the machines we run on; a larger one costs speed, nothing else.
const PAGE: usize = 4096;
/// Most buffers kept for later: 16 MiB.
///
/// Not a bound on buffers that are out: streams bound those themselves, two pieces each.
const IDLE: usize = 32;

/// The pool of one store; its lock is held for a push or a pop only. Buffers keep old bytes, which `read` overwrites before
/// they are seen.
#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// Reads exactly `len` bytes (at most [`PIECE`]) at `offset`.
    ///
    /// Fails with `UnexpectedEof` when the file is shorter, and then too the buffer goes back. Blocks.
    pub(super) fn read(self: &Arc<Self>, file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
        if len <= SMALL {
            let mut plain = vec![0; len];
            file.read_exact_at(&mut plain, offset)?;
            return Ok(plain.into());
        }
        let mut buffer = self.take();
        let skew = usize::try_from(offset % PAGE as u64).expect("less than a page");
        // source and destination lie alike in their pages, so the kernel copies whole pages; the two spare pages hold the
        // shift
        let start = buffer.as_ptr().align_offset(PAGE) + skew;
        let read = file.read_exact_at(&mut buffer[start..start + len], offset);
        let lent = Lent { buffer, start, len, home: Arc::clone(self) };
        read.map(|()| Bytes::from_owner(lent))
    }

    fn take(&self) -> Vec<u8> {
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| vec![0; PIECE + 2 * PAGE])
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE {
            idle.push(buffer);
        }
    }
}

/// A buffer that is out; it goes home when dropped.
struct Lent {
    buffer: Vec<u8>,
    start: usize,
    len: usize,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.len]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_congruent_with_its_offset_and_its_buffer_comes_back() {
        let data: Vec<u8> = (0..3 * PIECE).map(|n| (n % 251) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&data, 0).unwrap();
        let buffers = Arc::new(Buffers::default());
        for (offset, len) in [(0, PIECE), (1, PIECE), (4095, PIECE), (70_001, SMALL + 1), (5, 7)] {
            let piece = buffers.read(&file, offset as u64, len).unwrap();
            assert_eq!(piece, data[offset..offset + len], "{offset}");
            if len > SMALL {
                assert_eq!(piece.as_ptr() as usize % PAGE, offset % PAGE);
            }
        }
        assert_eq!(buffers.0.lock().unwrap().len(), 1, "one buffer served them all");
        assert!(buffers.read(&file, data.len() as u64 - 10, PIECE).is_err(), "a short file is no success");
        assert_eq!(buffers.0.lock().unwrap().len(), 1);
    }
}
