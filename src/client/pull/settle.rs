//! What a pull does last: hard links, then the modes and times of directories, deepest first.
//!
//! Both are spooled to an unlinked temporary file while the pull runs, since memory must not follow their number; directories are
//! read back from the end, because a directory that loses its write or search permission closes what is below.
//!
//! Hard links come first, since making a name in a directory changes its time. Each step may be done twice to the same effect.

use super::dest::{Dest, Dirs, Missing, look, mode, timestamps};
use crate::client::context::TransferError;
use crate::client::download::temporary;
use crate::client::report::{Item, PushReport};
use crate::client::walk::{Stamp, errno_reason};
use crate::content::path::RelPath;
use crate::content::tree::Time;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// What waits for the end. Two temporary files without names; memory is their buffers.
#[derive(Debug)]
pub(in crate::client) struct Later {
    dirs: BufWriter<File>,
    /// Bytes written, so where the last record ends.
    dirs_end: u64,
    links: BufWriter<File>,
    links_end: u64,
}

impl Later {
    pub fn new(temp: Option<&Path>) -> Result<Self, TransferError> {
        Ok(Self {
            dirs: BufWriter::new(temporary(temp)?),
            dirs_end: 0,
            links: BufWriter::new(temporary(temp)?),
            links_end: 0,
        })
    }

    /// Notes a directory's mode and time. To be called in tree order, so that the end of the file has the deepest.
    ///
    /// Record: mode u32, seconds i64, nanoseconds u32, path, its length u16. The length comes last, since records are read from the end.
    pub fn dir(&mut self, path: &RelPath, mode: u32, mtime: Time) -> Result<(), TransferError> {
        let length = u16::try_from(path.as_bytes().len()).expect("a path has at most 4,096 bytes");
        let record = [
            &mode.to_le_bytes()[..],
            &mtime.seconds.to_le_bytes(),
            &mtime.nanos.to_le_bytes(),
            path.as_bytes(),
            &length.to_le_bytes(),
        ]
        .concat();
        self.dirs_end += record.len() as u64;
        self.dirs.write_all(&record).map_err(spool)
    }

    /// Notes a further name. `first` is that of the file in the same selection.
    ///
    /// Record: length u16, path, length u16, path of the first name.
    pub fn hard_link(&mut self, path: &RelPath, first: &RelPath) -> Result<(), TransferError> {
        for path in [path, first] {
            let length = u16::try_from(path.as_bytes().len()).expect("a path has at most 4,096 bytes");
            self.links.write_all(&length.to_le_bytes()).map_err(spool)?;
            self.links.write_all(path.as_bytes()).map_err(spool)?;
            self.links_end += 2 + u64::from(length);
        }
        Ok(())
    }

    /// Does it all, once every file has its name. What fails is listed, with how many there were; a link whose first name is not there is
    /// `vanished`.
    pub fn settle(self, dest: &Arc<Dest>) -> Result<(Vec<Item>, u64), TransferError> {
        let mut failed = (Vec::new(), 0);
        let mut fail = |path: &RelPath, error: Errno| {
            failed.1 += 1;
            if failed.0.len() < PushReport::MAX_ITEMS {
                failed.0.push(Item::new(path.as_bytes(), &errno_reason(error)));
            }
        };
        let mut links = self.links.into_inner().map_err(|error| spool(error.into_error()))?;
        links.rewind().map_err(spool)?;
        let mut links = BufReader::new(links);
        let (mut at, mut to_dirs, mut from_dirs) = (0, Dirs::new(Arc::clone(dest)), Dirs::new(Arc::clone(dest)));
        while at < self.links_end {
            let (path, first) = (take_path(&mut links, &mut at)?, take_path(&mut links, &mut at)?);
            if let Err(error) = link(dest, &mut to_dirs, &mut from_dirs, &path, &first) {
                fail(&path, error);
            }
        }
        let dirs_file = self.dirs.into_inner().map_err(|error| spool(error.into_error()))?;
        let (mut end, mut dirs) = (self.dirs_end, Dirs::new(Arc::clone(dest)));
        while end > 0 {
            let (path, bits, mtime) = take_dir(&dirs_file, &mut end)?;
            let set = dirs.dir(path.as_bytes(), Missing::Fail).and_then(|dir| {
                rustix::fs::futimens(dir, &timestamps(mtime))?;
                rustix::fs::fchmod(dir, mode(bits))
            });
            if let Err(error) = set {
                fail(&path, error);
            }
        }
        Ok(failed)
    }
}

/// Makes `path` a further name of `first`, unless it is already. By a temporary name and rename, so that it replaces what is there in one
/// step. Two cursors, because the paths are seldom neighbours.
fn link(dest: &Dest, to_dirs: &mut Dirs, from_dirs: &mut Dirs, path: &RelPath, first: &RelPath) -> Result<(), Errno> {
    let to = to_dirs.parent(path, Missing::Fail)?;
    let from = from_dirs.parent(first, Missing::Fail)?;
    let there = look(from, first.name())?.ok_or(Errno::NOENT)?;
    if let Some(here) = look(to, path.name())?
        && (Stamp::of(&here).dev, Stamp::of(&here).ino) == (Stamp::of(&there).dev, Stamp::of(&there).ino)
    {
        return Ok(());
    }
    let temporary = dest.temporary();
    rustix::fs::linkat(from, first.name(), to, &*temporary, AtFlags::empty())?;
    let named = rustix::fs::renameat(to, &*temporary, to, path.name());
    if named.is_err() {
        let _ = rustix::fs::unlinkat(to, &*temporary, AtFlags::empty());
    }
    named
}

/// What comes back from the spool is checked like a stranger's: a damaged temporary file is an error, not another path.
fn take_path(from: &mut impl Read, at: &mut u64) -> Result<RelPath, TransferError> {
    let mut length = [0; 2];
    from.read_exact(&mut length).map_err(spool)?;
    let mut path = vec![0; usize::from(u16::from_le_bytes(length))];
    from.read_exact(&mut path).map_err(spool)?;
    *at += 2 + path.len() as u64;
    RelPath::from_vec(path).map_err(|_| spool(io::ErrorKind::InvalidData.into()))
}

/// The record that ends at `end`, which moves to its begin.
fn take_dir(file: &File, end: &mut u64) -> Result<(RelPath, u32, Time), TransferError> {
    let mut length = [0; 2];
    file.read_exact_at(&mut length, *end - 2).map_err(spool)?;
    let length = usize::from(u16::from_le_bytes(length));
    let mut record = vec![0; 16 + length];
    *end -= 18 + length as u64;
    file.read_exact_at(&mut record, *end).map_err(spool)?;
    let path = RelPath::parse(&record[16..]).map_err(|_| spool(io::ErrorKind::InvalidData.into()))?;
    let number =
        |range: std::ops::Range<usize>| record[range].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let seconds = i64::from_le_bytes(number(4..12).to_le_bytes());
    let nanos = u32::try_from(number(12..16)).unwrap_or(0);
    Ok((path, u32::try_from(number(0..4)).unwrap_or(0), Time { seconds, nanos }))
}

fn spool(source: io::Error) -> TransferError {
    TransferError::Local { path: std::env::temp_dir(), source }
}
