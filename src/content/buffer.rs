//! Buffers that files are read into.
//!
//! A `Vec` of 128 KiB or more lies 16 bytes after a page's start, and on the processors that nodes have `read` into such an address costs
//! four times what it costs into a page's start (0.45 against 0.10 CPU s/GiB, more than BLAKE3). So the window that bytes are read
//! into begins at a page. No `unsafe`: the page's start is found inside a larger `Vec`.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

/// What the window is aligned to.
pub const PAGE: usize = 4096;

/// A fixed run of bytes that begins at a page. Zeroed at first; its pages are not touched before they are written.
pub struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// `len` zero bytes; the length never changes.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + PAGE];
        // the `Vec` never grows, so its heap block and with it the page's start stay where they are when this value moves
        let start = bytes.as_ptr().align_offset(PAGE);
        // `align_offset` may decline to answer; then the buffer is slow, not wrong
        Self { bytes, start: if start < PAGE { start } else { 0 }, len }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A sliding window over a stream: bytes are read in at the back and consumed at the front, and every full-sized read goes to a page's start.
/// What is unread when more is wanted moves to just before the page where the next read begins, so little is copied.
///
/// ```text
/// | free | unread | space to read into |
///                 ^ a page's start
/// ```
pub struct Window {
    bytes: AlignedBuf,
    unread: Range<usize>,
    margin: usize,
}

impl Window {
    /// A window that takes reads of `read` bytes while up to `keep` bytes are still unread. Holds both, rounded up to pages.
    pub fn new(keep: usize, read: usize) -> Self {
        let margin = keep.next_multiple_of(PAGE);
        Self { bytes: AlignedBuf::new(margin + read.next_multiple_of(PAGE)), unread: margin..margin, margin }
    }

    /// What was filled and not yet consumed.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.unread.clone()]
    }

    /// Drops `len` bytes from the front.
    ///
    /// # Panics
    /// Where fewer are unread.
    pub fn consume(&mut self, len: usize) {
        assert!(len <= self.unread.len(), "consumed {len} of {} unread bytes", self.unread.len());
        self.unread.start += len;
    }

    /// Where to read more; then say [`filled`](Self::filled). Empty only while more than `keep` bytes are unread and nothing is free.
    pub fn space(&mut self) -> &mut [u8] {
        if self.unread.len() <= self.margin {
            let start = self.margin - self.unread.len();
            if self.unread.end != self.margin {
                self.bytes.copy_within(self.unread.clone(), start);
                self.unread = start..self.margin;
            }
        }
        &mut self.bytes[self.unread.end..]
    }

    /// The first `len` bytes of the space are read data now.
    ///
    /// # Panics
    /// Where the space is shorter.
    pub fn filled(&mut self, len: usize) {
        assert!(len <= self.bytes.len() - self.unread.end, "filled {len} bytes past the window's end");
        self.unread.end += len;
    }

    /// Forgets what is unread, for another stream.
    pub fn clear(&mut self) {
        self.unread = self.margin..self.margin;
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("len", &self.bytes.len()).field("unread", &self.unread).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    #[test]
    fn begins_at_a_page_wherever_it_moves() {
        for len in [0, 1, PAGE, 100_000, 1 << 20] {
            let moved: Vec<AlignedBuf> = [AlignedBuf::new(len), AlignedBuf::new(len)].into_iter().collect();
            for mut buf in moved {
                assert_eq!(buf.len(), len);
                assert_eq!(buf.as_ptr() as usize % PAGE, 0);
                buf.fill(1);
            }
        }
    }

    #[test]
    fn full_reads_begin_at_pages() {
        let mut window = Window::new(10_000, 65_536);
        for unread in [0usize, 1, 4097, 9_999] {
            let left = window.unread().len();
            window.consume(left - unread.min(left));
            let space = window.space();
            assert_eq!((space.as_ptr() as usize % PAGE, space.len()), (0, 65_536));
            window.filled(65_536);
        }
    }

    proptest! {
        #[test]
        fn yields_the_stream_unchanged(data in prop::collection::vec(any::<u8>(), 0..40_000), steps in prop::collection::vec((1usize..9000, 0usize..9000), 1..40)) {
            let mut window = Window::new(6000, 8192);
            let (mut source, mut out, mut steps) = (data.as_slice(), Vec::new(), steps.iter().cycle());
            loop {
                let &(read, take) = steps.next().expect("cycles");
                let space = window.space();
                let room = space.len().min(read);
                let got = source.read(&mut space[..room]).unwrap();
                window.filled(got);
                let take = if got == 0 { window.unread().len() } else { take.min(window.unread().len()) };
                out.extend_from_slice(&window.unread()[..take]);
                window.consume(take);
                if got == 0 && source.is_empty() && window.unread().is_empty() { break; }
            }
            prop_assert_eq!(out, data);
        }
    }
}
