//! What pulls remember of a DEST: which files they wrote, told by their stamps, and which pulls did not end.
//!
//! ```text
//! <cache>/pull/<BLAKE3 of DEST's device and inode, 32 hex>.stat    as the stat cache of pushes
//! <cache>/pull/<the same>.links                                     further names of hard links, made when the rest was written
//! <cache>/pull/<the same>-<id>.run                                  a pull that began and did not end; locked while it lives
//! ```
//!
//! Each killed pull leaves its `.run` behind. Its temporary files, wherever they lie below DEST, are removed by the next pull, and then the `.run` goes.
//!
//! Outside DEST, since DEST holds the team's data and nothing else. It decides two things: that an unchanged file need not be
//! read again, and that a differing one was written by a pull and may be replaced. Without it everything is read and nothing
//! that differs is replaced.
//!
//! Keyed by device and inode, so a DEST that was moved is known again, and as a rule one that was made anew is not. Two pulls of one DEST at once
//! have a `.run` each, and neither takes the other's temporary files for rests: a `.run` that is locked is alive.

use super::dest::Dest;
use super::parts::{Depth, Parts};
use crate::client::stat_cache;
use crate::client::walk::Stamp;
use crate::content::digest::digest;
use rustix::fd::BorrowedFd;
use rustix::fs::FlockOperation;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::NamedTempFile;

/// Where the records of one DEST lie.
#[derive(Debug)]
pub(in crate::client) struct Records {
    /// `<cache>/pull/<key>`, to which the endings are added.
    base: PathBuf,
    running: OnceLock<Running>,
}

/// What a pull that runs holds on to.
#[derive(Debug)]
struct Running {
    /// Holds the lock as long as it is open.
    _lock: File,
    /// Its own `.run` and those of the dead.
    files: Vec<PathBuf>,
}

impl Records {
    /// Only names the place; nothing is made before [`begin`](Self::begin) or [`writer`](Self::writer).
    pub fn of(cache: &Path, dest: &Dest) -> io::Result<Self> {
        let stamp = Stamp::of(&rustix::fs::fstat(&dest.root)?);
        let key = [stamp.dev.to_le_bytes(), stamp.ino.to_le_bytes()].concat();
        let name = digest(&key).to_string();
        Ok(Self { base: cache.join("pull").join(&name[..32]), running: OnceLock::new() })
    }

    /// The record that was put in place last; finds nothing where there is none.
    pub fn reader(&self) -> stat_cache::Reader {
        stat_cache::Reader::open(&self.base.with_extension("stat"))
    }

    pub fn writer(&self, now: jiff::Timestamp) -> io::Result<stat_cache::Writer> {
        stat_cache::Writer::create(self.base.with_extension("stat"), now)
    }

    /// The record of the further names of hard links. A file of its own, since a record has one order and these are made last. Only
    /// [`stat_cache::Reader::wrote`] may be believed of it: each further name moves the change time of those before.
    pub fn links(&self) -> stat_cache::Reader {
        stat_cache::Reader::open(&self.base.with_extension("links"))
    }

    pub fn links_writer(&self, now: jiff::Timestamp) -> io::Result<stat_cache::Writer> {
        stat_cache::Writer::create(self.base.with_extension("links"), now)
    }

    /// Notes that a pull runs; gives the ids of those before that were killed, one a line. To be called once, before the first temporary file
    /// is made. An error means that rests of this pull would be found by nobody, so nothing is kept for a next one.
    pub fn begin(&self, run: &str) -> io::Result<Option<String>> {
        let dir = self.base.parent().unwrap_or(Path::new("."));
        fs_err::create_dir_all(dir)?;
        let (mut dead, mut files) = (String::new(), vec![self.run_file(run)]);
        for id in self.runs(dir)? {
            let path = self.run_file(&id);
            let Ok(file) = File::open(&path) else { continue };
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                dead.push_str(&id);
                dead.push('\n');
                files.push(path);
            }
        }
        // Locked before it has its name, so that nobody takes it for a dead one's.
        let own = NamedTempFile::new_in(dir)?;
        rustix::fs::flock(own.as_file(), FlockOperation::NonBlockingLockExclusive)?;
        let lock = own.persist(self.run_file(run)).map_err(|error| error.error)?;
        File::open(dir)?.sync_all()?;
        let _ = self.running.set(Running { _lock: lock, files });
        Ok(Some(dead).filter(|dead| !dead.is_empty()))
    }

    /// The pull leaves nothing behind: it was refused before it wrote anything, or has named all it wrote. Those before it are still to be
    /// cleaned up after.
    pub fn end_own(&self) {
        if let Some(own) = self.running.get().and_then(|running| running.files.first()) {
            let _ = fs_err::remove_file(own);
        }
    }

    /// The pull came to its end, and the rests of those before are gone: so are their `.run`s. What cannot be removed is cleaned up after once
    /// more, by the next pull.
    pub fn end(&self) {
        for file in self.running.get().iter().flat_map(|running| &running.files) {
            let _ = fs_err::remove_file(file);
        }
    }

    fn run_file(&self, run: &str) -> PathBuf {
        let mut name = self.base.clone().into_os_string();
        name.push(format!("-{run}.run"));
        name.into()
    }

    /// Ids of the pulls of this DEST that have not ended.
    /// Their names only: whether one lives is asked by its lock.
    fn runs(&self, dir: &Path) -> io::Result<Vec<String>> {
        let base = self.base.file_name().unwrap_or_default().to_string_lossy();
        let mut runs = Vec::new();
        for entry in fs_err::read_dir(dir)? {
            let name = entry?.file_name();
            let id = name.to_str().and_then(|name| name.strip_prefix(&*base)?.strip_prefix('-')?.strip_suffix(".run"));
            runs.extend(id.filter(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit())).map(str::to_owned));
        }
        Ok(runs)
    }
}

/// Removes the temporary files of pulls that did not end, but for the names to `keep`. `runs` has the pulls' ids, one a line. No link is followed.
/// Answers whether all are gone; what cannot be read or removed stays, and is in nobody's way.
pub(super) fn clean(dir: BorrowedFd<'_>, runs: &str, keep: &HashSet<String>, depth: Depth) -> bool {
    let runs: HashSet<&[u8]> = runs.lines().map(str::as_bytes).collect();
    let is_kept = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| keep.contains(name));
    let wanted = |name: &[u8]| run_of(name).is_some_and(|run| runs.contains(run)) && !is_kept(name);
    Parts { wanted: &wanted, depth, spare: b"" }.remove(dir).is_ok()
}

/// The id in the name of a temporary file: `.dray-<id>-<number or key>.part`.
fn run_of(name: &[u8]) -> Option<&[u8]> {
    let middle = name.strip_prefix(b".dray-")?.strip_suffix(b".part")?;
    let end = middle.iter().rposition(|byte| *byte == b'-')?;
    middle.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn only_rests_of_dead_pulls_are_removed_and_no_link_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let (cache, place, outside) =
            (root.path().join("cache"), root.path().join("dest"), root.path().join("outside"));
        for dir in [&place.join("a/b"), &outside] {
            fs_err::create_dir_all(dir).unwrap();
        }
        let dest = Dest::open(&place, "aa".to_owned()).unwrap();
        let records = || Records::of(&cache, &dest).unwrap();
        let killed = records();
        assert_eq!(killed.begin("aa").unwrap(), None);
        let alive = records();
        assert_eq!(alive.begin("bb").unwrap(), None, "it lives");
        drop(killed);
        std::os::unix::fs::symlink(&outside, place.join("link")).unwrap();
        let rests = [place.join(".dray-aa-0.part"), place.join("a/b/.dray-aa-17.part")];
        let kept = [
            place.join("a/.dray-bb-0.part"),
            place.join("a/.dray-cc-0.part"),
            place.join("a/.dray-aa.part"),
            outside.join(".dray-aa-0.part"),
        ];
        for path in rests.iter().chain(&kept) {
            fs_err::write(path, "x").unwrap();
        }
        let next = records();
        let dead = next.begin("dd").unwrap();
        assert_eq!(dead.as_deref(), Some("aa\n"));
        let dead = dead.unwrap();
        let keep = HashSet::from([".dray-aa-17.part".to_owned()]);
        assert!(clean(dest.root.as_fd(), &dead, &keep, Depth::All));
        assert!(rests[1].exists() && !rests[0].exists(), "it is to be taken over");
        fs_err::write(&rests[0], "x").unwrap();
        assert!(clean(dest.root.as_fd(), &dead, &HashSet::new(), Depth::One));
        assert!(rests[1].exists() && !rests[0].exists(), "not below");
        assert!(clean(dest.root.as_fd(), &dead, &HashSet::new(), Depth::All));
        assert!(rests.iter().all(|path| !path.exists()) && kept.iter().all(|path| path.exists()));
        next.end();
        alive.end();
        assert_eq!(records().begin("ee").unwrap(), None);
    }
}
