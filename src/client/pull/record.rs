//! What pulls remember of a DEST: which files they wrote, told by their stamps, and which pulls did not end.
//!
//! ```text
//! <cache>/pull/<BLAKE3 of DEST's device and inode, 32 hex>.stat    as the stat cache of pushes
//! <cache>/pull/<the same>-<id>.run                                  a pull that began and did not end; locked while it lives
//! ```
//!
//! Each killed pull leaves its `.run` behind. Its temporary files, wherever they lie below DEST, are removed by the next pull, and then the `.run` goes.
//!
//! Outside DEST, since DEST holds the team's data and nothing else. It decides two things: that an unchanged file need not be
//! read again, and that a differing one was written by a pull and may be replaced. Without it everything is read and nothing
//! that differs is replaced.

use super::dest::Dest;
use super::resume::is_key;
use crate::client::stat_cache;
use crate::client::walk::Stamp;
use crate::content::digest::digest;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::NamedTempFile;

/// Directories deeper than any path of a tree are not entered.
const MAX_DEPTH: usize = 300;

/// Where the records of one DEST lie.
#[derive(Debug)]
pub(in crate::client) struct Records {
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
    pub fn of(cache: &Path, dest: &Dest) -> io::Result<Self> {
        let stamp = Stamp::of(&rustix::fs::fstat(&dest.root)?);
        let key = [stamp.dev.to_le_bytes(), stamp.ino.to_le_bytes()].concat();
        let name = digest(&key).to_string();
        Ok(Self { base: cache.join("pull").join(&name[..32]), running: OnceLock::new() })
    }

    pub fn reader(&self) -> stat_cache::Reader {
        stat_cache::Reader::open(&self.base.with_extension("stat"))
    }

    pub fn writer(&self, now: jiff::Timestamp) -> io::Result<stat_cache::Writer> {
        stat_cache::Writer::create(self.base.with_extension("stat"), now)
    }

    /// Notes that a pull runs; gives the ids of those before that were killed, one a line.
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

    /// The pull came to its end, and the rests of those before are gone.
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

/// What [`clean`] removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rests {
    All,
    /// All but parts of large files, which may be taken over.
    Useless,
}

/// Removes the temporary files of pulls that did not end, wherever they lie below `dir`. `runs` has their ids, one a line. No link is followed, and
/// what cannot be read or removed stays: it is in nobody's way. Gives the bytes that the parts left there take.
pub(super) fn clean(dir: BorrowedFd<'_>, runs: &str, which: Rests) -> u64 {
    let runs: HashSet<&[u8]> = runs.lines().map(str::as_bytes).collect();
    clean_below(dir, &runs, which, 0)
}

fn clean_below(dir: BorrowedFd<'_>, runs: &HashSet<&[u8]>, which: Rests, depth: usize) -> u64 {
    const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    let Ok(entries) = rustix::fs::openat(dir, ".", DIR, Mode::empty()).and_then(rustix::fs::Dir::new) else { return 0 };
    let mut left = 0;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if let Some((_, end)) = run_of(name.to_bytes()).filter(|(run, _)| runs.contains(run)) {
            if which == Rests::Useless && is_key(end) {
                let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
                left += stat.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512);
            } else {
                let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
            }
            continue;
        }
        let may_be_dir = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if may_be_dir
            && depth < MAX_DEPTH
            && let Ok(child) = rustix::fs::openat(dir, name, DIR, Mode::empty())
        {
            left += clean_below(child.as_fd(), runs, which, depth + 1);
        }
    }
    left
}

/// The id in the name of a temporary file, and what follows it: `.dray-<id>-<number or key>.part`.
fn run_of(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let middle = name.strip_prefix(b".dray-")?.strip_suffix(b".part")?;
    let end = middle.iter().rposition(|byte| *byte == b'-')?;
    Some((middle.get(..end)?, middle.get(end + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let part = place.join(format!("a/.dray-aa-{}.part", "0f".repeat(16)));
        fs_err::write(&part, "x").unwrap();
        assert!(clean(dest.root.as_fd(), &dead, Rests::Useless) > 0 && part.exists(), "it may be taken over");
        assert_eq!(clean(dest.root.as_fd(), &dead, Rests::All), 0);
        assert!(!part.exists());
        assert!(rests.iter().all(|path| !path.exists()) && kept.iter().all(|path| path.exists()));
        next.end();
        alive.end();
        assert_eq!(records().begin("ee").unwrap(), None);
    }
}
