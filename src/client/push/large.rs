//! Reads and cuts one large file, region by region.
//!
//! What the file system calls a hole is not read where whole blocks of it lie in the hole; the cuts are the same as if it had
//! been. The file is compared with its stamp at the end; one that changed is read once more from the start, then given up.
//!
//! ```text
//! LargeStart  LargeParts ...  LargeEnd         read whole and unchanged
//! LargeStart  LargeParts ...  LargeDropped     changed or unreadable; then once more, or Failed
//! ```
//!
//! Memory: one region, and what the cut has left over of it. The read is on the source's thread: cuts depend on the bytes before.

use super::Item;
use super::batch::{Batch, Chunk, FileFacts, MARGIN, Part, REGION, Unit};
use super::feed::{Feed, Stop};
use crate::client::walk::{Place, READ, Stamp, errno_reason};
use crate::content::chunker::{End, Piece, Splitter, whole_blocks};
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, FileType, Mode, SeekFrom};
use rustix::io::Errno;
use std::ops::Range;

/// Why one reading of a file did not count.
enum Fault {
    Stop,
    /// Not the same at the end as at the begin.
    Changed,
    Io(Errno),
}

impl From<Stop> for Fault {
    fn from(_: Stop) -> Self {
        Self::Stop
    }
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        Self::Io(error)
    }
}

/// Reads the file into the feed: a start, its parts, an end; or a failed item.
pub(super) fn read(feed: &mut Feed, facts: FileFacts, place: &Place, leads: bool) -> Result<(), Stop> {
    let path = facts.path.clone();
    let mut facts = Some(facts);
    for tries in [1, 0] {
        let outcome = attempt(feed, &mut facts, place);
        let reason = match outcome {
            Ok(()) => return Ok(()),
            Err(Fault::Stop) => return Err(Stop),
            Err(Fault::Changed) => "changed".to_owned(),
            Err(Fault::Io(error)) => errno_reason(error),
        };
        if facts.is_none() {
            feed.unit(Unit::LargeDropped)?;
        }
        if tries == 0 || reason != "changed" {
            return feed.unit(Unit::Failed(Item::new(path.as_bytes(), &reason)));
        }
        let Ok(stat) = rustix::fs::statat(&place.dir, &place.name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) else {
            return feed.unit(Unit::Failed(Item::new(path.as_bytes(), "vanished")));
        };
        let stamp = Stamp::of(&stat);
        facts = Some(FileFacts { path: path.clone(), stamp, mode: stat.st_mode & 0o777, leads, parent: None });
    }
    Ok(())
}

/// One reading. `facts` is taken when the start went out: what goes wrong after that must be followed by a drop.
fn attempt(feed: &mut Feed, facts: &mut Option<FileFacts>, place: &Place) -> Result<(), Fault> {
    let file = rustix::fs::openat(&place.dir, &place.name, READ, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Fault::Changed);
    }
    let stamp = Stamp::of(&stat);
    let Some(mut found) = facts.take() else { return Err(Fault::Changed) };
    if found.stamp != stamp {
        found = found.again(stamp, stat.st_mode & 0o777);
    }
    feed.unit(Unit::LargeStart(Box::new(found)))?;
    // Only a hint; a file system that does not know it reads as well.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
    let sparse = (stat.st_blocks as u64).saturating_mul(512) < stamp.size;
    let mut reader = Reader { file: &file, splitter: Splitter::new(), left: None };
    let mut at = 0;
    while at < stamp.size {
        let hole = if sparse { next_hole(&file, at, stamp.size)? } else { stamp.size..stamp.size };
        reader.data(feed, at..hole.start)?;
        if !hole.is_empty() {
            let len = hole.end - hole.start;
            feed.unit(Unit::LargeParts { parts: vec![Part::Hole(len)], offset: hole.start })?;
            reader.splitter.skip_hole(len);
        }
        at = hole.end;
    }
    let after = Stamp::of(&rustix::fs::fstat(&file)?);
    if after != stamp {
        return Err(Fault::Changed);
    }
    feed.unit(Unit::LargeEnd { digest: None })?;
    Ok(())
}

/// The first run of whole blocks at or after `at` that the file system knows to be a hole; empty at the end when none. A hint only: what is
/// read and turns out to be zeros becomes a hole as well.
fn next_hole(file: &OwnedFd, at: u64, size: u64) -> Result<Range<u64>, Errno> {
    let mut at = at;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Hole(at)) {
            Ok(start) if start < size => start,
            // No hole but the one at the end, or a file system that cannot say.
            Ok(_) | Err(Errno::INVAL | Errno::NXIO | Errno::OPNOTSUPP) => return Ok(size..size),
            Err(error) => return Err(error),
        };
        let end = match rustix::fs::seek(file, SeekFrom::Data(start)) {
            Ok(end) => end.min(size),
            Err(Errno::NXIO) => size,
            Err(error) => return Err(error),
        };
        let blocks = whole_blocks(start..end);
        if !blocks.is_empty() {
            return Ok(blocks);
        }
        if end >= size {
            return Ok(size..size);
        }
        at = end;
    }
}

/// Cuts runs of data into batches.
struct Reader<'a> {
    file: &'a OwnedFd,
    splitter: Splitter,
    /// What the last region left unread.
    left: Option<Vec<u8>>,
}

impl Reader<'_> {
    /// Reads a run of data that ends at a hole or at the end of the file.
    fn data(&mut self, feed: &mut Feed, run: Range<u64>) -> Result<(), Fault> {
        let mut at = run.start;
        while at < run.end {
            let mut batch = feed.region()?;
            let want = usize::try_from(run.end - at).unwrap_or(usize::MAX).min(REGION);
            let window = &mut batch.slot[MARGIN..MARGIN + want];
            let read = read_at(self.file, window, at)?;
            if read < want {
                // It shrank: what the stamp promised is not there.
                feed.send(batch)?;
                return Err(Fault::Changed);
            }
            at += read as u64;
            let end = if at == run.end { End::Yes } else { End::No };
            self.cut(&mut batch, read, end);
            batch.bytes += read as u64;
            feed.send(batch)?;
        }
        Ok(())
    }

    /// Cuts what lies in the slot, after what was left over; keeps what is left over now.
    fn cut(&mut self, batch: &mut Batch, read: usize, end: End) {
        let left = self.left.take().unwrap_or_default();
        let mut at = MARGIN - left.len();
        batch.slot[at..MARGIN].copy_from_slice(&left);
        let stop = MARGIN + read;
        let (mut parts, offset) = (Vec::with_capacity(read / (48 << 10) + 2), self.splitter.offset());
        while let Some(piece) = self.splitter.next(&batch.slot[at..stop], end) {
            match piece {
                Piece::Chunk(len) => {
                    parts.push(Part::Chunk(Chunk::cut(at, len)));
                    at += len;
                }
                Piece::Hole(len) => {
                    parts.push(Part::Hole(len));
                    at += usize::try_from(len).expect("a hole is no longer than the bytes shown");
                }
            }
        }
        if at < stop {
            self.left = Some(batch.slot[at..stop].to_vec());
        }
        batch.units.push(Unit::LargeParts { parts, offset });
    }
}

/// Reads until the window is full or the file ends.
fn read_at(file: &OwnedFd, window: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut read = 0;
    while read < window.len() {
        match rustix::io::pread(file, &mut window[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
