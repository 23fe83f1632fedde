//! Half-written files that killed pulls left: found by their names and removed. The one walk for it, for pulls and for the agent.
//!
//! Blocking. Works by directory handles that follow no link, stays on one file system, and is bounded in depth. Whose parts go is for the
//! caller to say: those of a pull that lives must stay.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::io;

/// Directories deeper than any path of a tree are not entered.
const MAX_DEPTH: usize = 300;
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Below where [`Parts::remove`] looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// In the directory itself only.
    One,
    /// In all below it on the same file system.
    All,
}

/// Which parts are to go.
pub struct Parts<'a> {
    /// By a file's name.
    pub wanted: &'a dyn Fn(&[u8]) -> bool,
    pub depth: Depth,
    /// A name in the directory itself that is not touched, nor what lies in it. May be empty.
    pub spare: &'a [u8],
}

impl std::fmt::Debug for Parts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("depth", &self.depth).field("spare", &self.spare).finish_non_exhaustive()
    }
}

/// Whether a file has the name of a part, whichever pull's.
pub fn is_part(name: &[u8]) -> bool {
    name.starts_with(b".dray-") && name.ends_with(b".part")
}

impl Parts<'_> {
    /// Removes them. After a failure, which a directory that cannot be read is too, it goes on, and the first is answered in the end.
    pub fn remove(&self, dir: BorrowedFd<'_>) -> io::Result<()> {
        let device = rustix::fs::fstat(dir)?.st_dev;
        self.below(dir, device, 0)
    }

    fn below(&self, dir: BorrowedFd<'_>, device: u64, depth: usize) -> io::Result<()> {
        let mut first = Ok(());
        for entry in Dir::new(rustix::fs::openat(dir, ".", DIR, Mode::empty())?)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return first.and(Err(error.into())),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || (depth == 0 && name.to_bytes() == self.spare) {
                continue;
            }
            let may_be_dir = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            let child = match may_be_dir {
                true => rustix::fs::openat(dir, name, DIR, Mode::empty()),
                false => Err(Errno::NOTDIR),
            };
            let done = match child {
                Ok(child) if self.enters(depth) && rustix::fs::fstat(&child)?.st_dev == device => {
                    self.below(child.as_fd(), device, depth + 1)
                }
                Err(Errno::NOTDIR | Errno::LOOP) if (self.wanted)(name.to_bytes()) => {
                    rustix::fs::unlinkat(dir, name, AtFlags::empty()).map_err(io::Error::from)
                }
                Ok(_) | Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => Ok(()),
                Err(error) if self.enters(depth) => Err(error.into()),
                Err(_) => Ok(()),
            };
            first = first.and(done);
        }
        first
    }

    fn enters(&self, depth: usize) -> bool {
        self.depth == Depth::All && depth < MAX_DEPTH
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn only_parts_are_removed_and_what_is_spared_is_not_entered() {
        let root = tempfile::tempdir().unwrap();
        let (dest, elsewhere) = (root.path().join("dest"), root.path().join("elsewhere"));
        for dir in [
            dest.join("in/deep"),
            dest.join("out"),
            dest.join("in/out"),
            dest.join("in/.dray-5.part"),
            elsewhere.clone(),
        ] {
            fs_err::create_dir_all(dir).unwrap();
        }
        let kept = [dest.join("in/a.part"), dest.join("out/.dray-1.part"), elsewhere.join(".dray-2.part")];
        let gone = [".dray-0.part", "in/.dray-3.part", "in/deep/.dray-4.part", "in/out/.dray-1.part"]
            .map(|name| dest.join(name));
        for path in kept.iter().chain(&gone) {
            fs_err::write(path, "x").unwrap();
        }
        std::os::unix::fs::symlink(&elsewhere, dest.join("in/link")).unwrap();
        let dir = File::open(&dest).unwrap();
        let parts = |depth| Parts { wanted: &is_part, depth, spare: b"out" };
        parts(Depth::One).remove(dir.as_fd()).unwrap();
        assert!(!gone[0].exists() && gone[1..].iter().all(|path| path.exists()));
        parts(Depth::All).remove(dir.as_fd()).unwrap();
        assert!(kept.iter().all(|path| path.exists()) && !gone.iter().any(|path| path.exists()));
        assert!(dest.join("in/.dray-5.part").is_dir(), "a directory is none");
    }
}
