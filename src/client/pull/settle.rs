//! What a pull does last: hard links, then the modes and times of directories, deepest first.
//!
//! Both are spooled to an unlinked temporary file while the pull runs, since memory must not follow their number; directories are
//! read back from the end, because a directory that loses its write or search permission closes what is below.
//!
//! Hard links come first, since making a name in a directory changes its time. Each step may be done twice to the same effect.
//!
//! A further name is only given to bytes that are this version's: where the first name's file failed, an older one may lie there still.

use super::dest::{Dest, Dirs, Missing, look, mode, timestamps};
use super::finish::Account;
use super::large::read_back;
use crate::client::context::TransferError;
use crate::client::download::{place, temporary};
use crate::client::report::{Item, Listed};
use crate::client::stat_cache;
use crate::client::walk::{READ, Stamp, errno_reason};
use crate::content::digest::Digest;
use crate::content::path::{RelPath, escaped};
use crate::content::tree::Time;
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Mode, Stat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files that this pull may not have put in place.
#[derive(Debug)]
pub(super) enum Doubt {
    /// These, by their escaped paths.
    Some(HashSet<String>),
    /// More than were listed: it may be any.
    Any,
}

impl Doubt {
    /// All that failed or is damaged; `listed` is what failed before it came to the account.
    pub fn of(account: &Account, listed: &Listed) -> Self {
        let Account { failed, failed_count, wrong, wrong_count, .. } = account;
        let all = failed.len() as u64 == *failed_count && wrong.len() as u64 == *wrong_count && listed.is_whole();
        if !all {
            return Self::Any;
        }
        let wrong = wrong.iter().map(|wrong| escaped(wrong.path.as_bytes()).to_string());
        Self::Some(failed.iter().chain(&listed.items).map(|item| item.path.clone()).chain(wrong).collect())
    }

    fn holds(&self, path: &RelPath) -> bool {
        match self {
            Self::Some(paths) => !paths.is_empty() && paths.contains(&escaped(path.as_bytes()).to_string()),
            Self::Any => true,
        }
    }
}

/// What settling came to.
#[derive(Debug)]
pub(super) struct Settled {
    pub failed: Listed,
    /// Not in place yet. None where none was given, or where it could not be written.
    pub record: Option<stat_cache::Writer>,
}

/// What waits for the end. Two temporary files without names; memory is their buffers.
#[derive(Debug)]
pub(in crate::client) struct Later {
    dirs: BufWriter<File>,
    /// Bytes written, so where the last record ends.
    dirs_end: u64,
    links: BufWriter<File>,
    links_end: u64,
    /// For messages: the files have no names.
    place: PathBuf,
}

/// A further name of a file.
struct Further {
    path: RelPath,
    first: RelPath,
    digest: Digest,
}

impl Later {
    pub fn new(temp: Option<&Path>) -> Result<Self, TransferError> {
        Ok(Self {
            dirs: BufWriter::new(temporary(temp)?),
            dirs_end: 0,
            links: BufWriter::new(temporary(temp)?),
            links_end: 0,
            place: place(temp),
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
        self.dirs.write_all(&record).map_err(TransferError::local(&*self.place))
    }

    /// Notes a further name of a file with these bytes. `first` is that of the file in the same selection. To be called in tree order.
    ///
    /// Record: length u16, path, length u16, path of the first name, digest.
    pub fn hard_link(&mut self, path: &RelPath, first: &RelPath, digest: &Digest) -> Result<(), TransferError> {
        let mut record = Vec::with_capacity(4 + 2 * 64 + 32);
        for path in [path, first] {
            let length = u16::try_from(path.as_bytes().len()).expect("a path has at most 4,096 bytes");
            record.extend_from_slice(&length.to_le_bytes());
            record.extend_from_slice(path.as_bytes());
        }
        record.extend_from_slice(digest.as_bytes());
        self.links_end += record.len() as u64;
        self.links.write_all(&record).map_err(TransferError::local(&*self.place))
    }

    /// Does it all, once every file has its name. What fails is listed; a link whose first name is not there is `vanished`, and one whose
    /// first name has not this version's bytes `hard_link_of_failed`: whatever stands in its place stays. `record` takes the links made.
    pub(super) fn settle(
        self,
        dest: &Arc<Dest>,
        doubt: &Doubt,
        record: Option<stat_cache::Writer>,
    ) -> Result<Settled, TransferError> {
        let mut settled = Settled { failed: Listed::default(), record };
        let local = |source| TransferError::Local { path: self.place.clone(), source };
        let links = self.links.into_inner().map_err(|error| local(error.into_error()))?;
        link_all(links, self.links_end, dest, doubt, &mut settled).map_err(local)?;
        let dirs_file = self.dirs.into_inner().map_err(|error| local(error.into_error()))?;
        let (mut end, mut dirs) = (self.dirs_end, Dirs::new(Arc::clone(dest)));
        while end > 0 {
            let (path, bits, mtime) = take_dir(&dirs_file, &mut end).map_err(local)?;
            let set = dirs.dir(path.as_bytes(), Missing::Fail).and_then(|dir| {
                rustix::fs::futimens(dir, &timestamps(mtime))?;
                rustix::fs::fchmod(dir, mode(bits))
            });
            if let Err(error) = set {
                settled.failed.push(Item::new(path.as_bytes(), &errno_reason(error)));
            }
        }
        Ok(settled)
    }
}

/// Makes all links of the spool, `end` bytes long. An error is the spool's.
fn link_all(mut links: File, end: u64, dest: &Arc<Dest>, doubt: &Doubt, settled: &mut Settled) -> io::Result<()> {
    links.rewind()?;
    let mut links = BufReader::new(links);
    let (mut at, mut to_dirs, mut from_dirs) = (0, Dirs::new(Arc::clone(dest)), Dirs::new(Arc::clone(dest)));
    while at < end {
        let further = take_further(&mut links, &mut at)?;
        let made = match link(dest, &mut to_dirs, &mut from_dirs, &further, doubt) {
            Ok(made) => made,
            Err(reason) => {
                settled.failed.push(Item::new(further.path.as_bytes(), &reason));
                continue;
            }
        };
        let Some(record) = &mut settled.record else { continue };
        if let Err(error) = record.add(&further.path, &Stamp::of(&made), &further.digest) {
            tracing::warn!(%error, "the record of this pull's hard links cannot be written");
            settled.record = None;
        }
    }
    Ok(())
}

/// Makes a further name, unless it is one already, and answers with its file; else why not. By a temporary name and rename, so that it
/// replaces what is there in one step. Two cursors, because the paths are seldom neighbours.
fn link(
    dest: &Dest,
    to_dirs: &mut Dirs,
    from_dirs: &mut Dirs,
    Further { path, first, digest }: &Further,
    doubt: &Doubt,
) -> Result<Stat, String> {
    let to = to_dirs.parent(path, Missing::Fail).map_err(errno_reason)?;
    let from = from_dirs.parent(first, Missing::Fail).map_err(errno_reason)?;
    let there = look(from, first.name()).and_then(|there| there.ok_or(Errno::NOENT)).map_err(errno_reason)?;
    if doubt.holds(first) && !is_proven(from, first, &there, digest) {
        return Err("hard_link_of_failed".to_owned());
    }
    let inode = |stat: &Stat| (Stamp::of(stat).dev, Stamp::of(stat).ino);
    if look(to, path.name()).map_err(errno_reason)?.is_some_and(|here| inode(&here) == inode(&there)) {
        return Ok(there);
    }
    let temporary = dest.temporary();
    rustix::fs::linkat(from, first.name(), to, &*temporary, AtFlags::empty()).map_err(errno_reason)?;
    let named = rustix::fs::renameat(to, &*temporary, to, path.name());
    if named.is_err() {
        let _ = rustix::fs::unlinkat(to, &*temporary, AtFlags::empty());
    }
    named.map(|()| there).map_err(errno_reason)
}

/// Whether the file has these bytes, by reading it.
fn is_proven(dir: BorrowedFd<'_>, path: &RelPath, stat: &Stat, digest: &Digest) -> bool {
    let file = rustix::fs::openat(dir, path.name(), READ, Mode::empty());
    file.and_then(|file| read_back(&file, Stamp::of(stat).size)).is_ok_and(|actual| actual == *digest)
}

/// What comes back from the spool is checked like a stranger's: a damaged temporary file is an error, not another path.
fn take_path(from: &mut impl Read, at: &mut u64) -> io::Result<RelPath> {
    let mut length = [0; 2];
    from.read_exact(&mut length)?;
    let mut path = vec![0; usize::from(u16::from_le_bytes(length))];
    from.read_exact(&mut path)?;
    *at += 2 + path.len() as u64;
    RelPath::from_vec(path).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn take_further(from: &mut impl Read, at: &mut u64) -> io::Result<Further> {
    let (path, first) = (take_path(from, at)?, take_path(from, at)?);
    let mut digest = [0; 32];
    from.read_exact(&mut digest)?;
    *at += digest.len() as u64;
    Ok(Further { path, first, digest: Digest::from_bytes(digest) })
}

/// The record that ends at `end`, which moves to its begin.
fn take_dir(file: &File, end: &mut u64) -> io::Result<(RelPath, u32, Time)> {
    let mut length = [0; 2];
    file.read_exact_at(&mut length, *end - 2)?;
    let length = usize::from(u16::from_le_bytes(length));
    let mut record = vec![0; 16 + length];
    *end -= 18 + length as u64;
    file.read_exact_at(&mut record, *end)?;
    let path = RelPath::parse(&record[16..]).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let number =
        |range: std::ops::Range<usize>| record[range].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let seconds = i64::from_le_bytes(number(4..12).to_le_bytes());
    let nanos = u32::try_from(number(12..16)).unwrap_or(0);
    Ok((path, u32::try_from(number(0..4)).unwrap_or(0), Time { seconds, nanos }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::digest::digest;

    /// `first` lies in DEST with old bytes; `further` is to be its further name, with new ones or the same.
    fn settled(doubt: &Doubt, wanted: &[u8]) -> (Vec<String>, bool) {
        let root = tempfile::tempdir().unwrap();
        let dest = Arc::new(Dest::open(root.path(), "aa".to_owned()).unwrap());
        fs_err::write(root.path().join("first"), "old").unwrap();
        let path = |name: &str| RelPath::parse(name.as_bytes()).unwrap();
        let mut later = Later::new(None).unwrap();
        later.hard_link(&path("further"), &path("first"), &digest(wanted)).unwrap();
        let settled = later.settle(&dest, doubt, None).unwrap();
        let failed = settled.failed.items.iter().map(|item| format!("{} {}", item.path, item.reason)).collect();
        (failed, root.path().join("further").exists())
    }

    #[test]
    fn a_further_name_is_given_to_proven_bytes_only() {
        let refused = (vec!["further hard_link_of_failed".to_owned()], false);
        let listed = |path: &str| Doubt::Some(HashSet::from([path.to_owned()]));
        assert_eq!(settled(&listed("first"), b"new"), refused);
        assert_eq!(settled(&Doubt::Any, b"new"), refused);
        assert_eq!(settled(&Doubt::Any, b"old"), (Vec::new(), true), "it is right all the same");
        assert_eq!(settled(&listed("another"), b"old"), (Vec::new(), true));
    }

    #[test]
    fn what_is_not_listed_is_doubted() {
        let mut listed = Listed::default();
        listed.push(Item::new(b"link", "vanished"));
        let account = Account { failed: vec![Item::new(b"a", "io_error")], failed_count: 1, ..Account::default() };
        let path = |name: &str| RelPath::parse(name.as_bytes()).unwrap();
        let doubt = Doubt::of(&account, &listed);
        assert_eq!([("a"), ("link"), ("b")].map(|name| doubt.holds(&path(name))), [true, true, false]);
        let account = Account { failed_count: 2, ..account };
        assert!(Doubt::of(&account, &listed).holds(&path("b")));
    }
}
