//! Sealing: what a job wrote, taken out of its reach.
//!
//! Regular files are hard-linked (copied where that cannot be) into a directory that only the agent can enter, and synced. Nothing is
//! opened through a link: every step goes by a directory handle with `O_NOFOLLOW`. Links that leave the output, files whose other names
//! belong to somebody else, pipes, sockets and devices are refused by name; no byte of them is read.
//!
//! Nothing that was asked for is left out in silence: it is refused by name, and what is the job's own and only could not be sealed
//! counts as left behind, so that the caller keeps the directory.

use super::report::OutputFacts;
use crate::api::jobs::SkippedEntry;
use crate::content::path::{PathError, RelPath, escaped, symlink_escapes};
use crate::domain::job::glob_set;
use fs_err as fs;
use globset::GlobSet;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most refused entries that are reported; further ones are only counted.
const MAX_SKIPPED: usize = 1_000;

/// What was sealed.
#[derive(Debug, Default)]
pub struct Found {
    pub files: u64,
    pub bytes: u64,
    /// The first of what was refused.
    pub skipped: Vec<SkippedEntry>,
    /// All that was refused.
    pub refused: u64,
    /// Of these, entries of the job's own that no version can hold, or that cannot be read: they are only here.
    pub left: u64,
}

impl Found {
    /// Said with every later state of the output.
    pub fn facts(&self) -> OutputFacts {
        OutputFacts { files: self.files, bytes: self.bytes, skipped: self.skipped.clone(), ..OutputFacts::default() }
    }

    fn skip(&mut self, path: impl std::fmt::Display, reason: &str) {
        self.refused += 1;
        if self.skipped.len() < MAX_SKIPPED {
            self.skipped.push(SkippedEntry { path: path.to_string(), reason: reason.to_owned() });
        }
    }

    fn leave(&mut self, path: impl std::fmt::Display, reason: &str) {
        self.skip(path, reason);
        self.left += 1;
    }
}

/// Links or copies what matches into `sealed`, synced. Blocking.
///
/// May be repeated: what is sealed already stays. A missing `out/` is an output without files. A hard link shares the file
/// with the job's name for it, so the job must have ended. Symlinks within the output are made anew as text.
pub fn seal(out: &Path, sealed: &Path, globs: &[String]) -> io::Result<Found> {
    let globs = glob_set(globs).map_err(io::Error::other)?;
    fs::create_dir_all(sealed)?;
    let mut found = Found::default();
    let from = match open_dir(rustix::fs::CWD, out.as_os_str()) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    let owner = rustix::fs::fstat(&from)?.st_uid;
    let sealer = Sealer { globs: &globs, owner, draft: sealed.with_extension("part") };
    sealer.directory(&from, sealed, None, &mut found)?;
    rustix::fs::syncfs(File::open(sealed)?)?;
    Ok(found)
}

fn open_dir(at: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Runs as the agent, perhaps root, over a directory in which the job could make what it liked.
struct Sealer<'a> {
    globs: &'a GlobSet,
    /// Who owns `out/`: a file with further names that belongs to somebody else is not the job's to give.
    owner: u32,
    /// Where a file is copied before it gets its name; beside the sealed directory, so that it is no name of an output's.
    draft: PathBuf,
}

impl Sealer<'_> {
    /// As deep as a path can be, which bounds the recursion.
    fn directory(&self, dir: &OwnedFd, into: &Path, path: Option<&RelPath>, found: &mut Found) -> io::Result<()> {
        for entry in rustix::fs::Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let below = match path {
                Some(path) => path.join(name),
                None => RelPath::parse(name),
            };
            match below {
                Ok(below) => self.entry(dir, OsStr::from_bytes(name), into, &below, found)?,
                Err(why) => self.beyond(dir, path, name, why, found)?,
            }
        }
        Ok(())
    }

    /// An entry whose path no version can hold. A directory counts, since what was asked for may lie in it.
    fn beyond(
        &self,
        dir: &OwnedFd,
        above: Option<&RelPath>,
        name: &[u8],
        why: PathError,
        found: &mut Found,
    ) -> io::Result<()> {
        let path = above.map_or_else(|| name.to_vec(), |above| [above.as_bytes(), b"/", name].concat());
        let stat = rustix::fs::statat(dir, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)?;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_dir || self.globs.is_match(OsStr::from_bytes(&path)) {
            let reason = match why {
                PathError::TooDeep { .. } => "path_too_deep",
                PathError::TooLong { .. } => "path_too_long",
                _ => "bad_name",
            };
            found.leave(escaped(&path), reason);
        }
        Ok(())
    }

    fn entry(&self, dir: &OwnedFd, name: &OsStr, into: &Path, path: &RelPath, found: &mut Found) -> io::Result<()> {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let wanted = self.globs.is_match(OsStr::from_bytes(path.as_bytes()));
        match kind {
            FileType::Directory => {
                return match open_dir(dir, name) {
                    Ok(child) => self.directory(&child, into, Some(path), found),
                    Err(_) => {
                        found.leave(path, "unreadable");
                        Ok(())
                    }
                };
            }
            _ if !wanted => {}
            FileType::RegularFile if stat.st_nlink > 1 && stat.st_uid != self.owner => {
                found.skip(path, "foreign_hard_link")
            }
            FileType::RegularFile => {
                self.file(dir, name, &place(into, path)?)?;
                found.files += 1;
                found.bytes += u64::try_from(stat.st_size).unwrap_or(0);
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                if symlink_escapes(path, target.as_bytes()) {
                    found.skip(path, "link_leaves_output");
                } else {
                    let place = place(into, path)?;
                    match std::os::unix::fs::symlink(OsStr::from_bytes(target.as_bytes()), &place) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                        _ => {}
                    }
                }
            }
            FileType::Fifo => found.skip(path, "fifo"),
            FileType::Socket => found.skip(path, "socket"),
            _ => found.skip(path, "device"),
        }
        Ok(())
    }

    /// Gives the file a second name in the sealed directory; where the system forbids that, copies it.
    fn file(&self, dir: &OwnedFd, name: &OsStr, place: &Path) -> io::Result<()> {
        match rustix::fs::linkat(dir, name, rustix::fs::CWD, place, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(_) => self.copy(dir, name, place),
        }
    }

    fn copy(&self, dir: &OwnedFd, name: &OsStr, place: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut from = File::from(rustix::fs::openat(dir, name, flags, Mode::empty())?);
        let mut to = File::create(&self.draft)?;
        io::copy(&mut from, &mut to)?;
        let meta = from.metadata()?;
        to.set_permissions(meta.permissions())?;
        to.set_modified(meta.modified()?)?;
        fs::rename(&self.draft, place)
    }
}

/// The sealed path of an entry, its directories made.
fn place(into: &Path, path: &RelPath) -> io::Result<PathBuf> {
    let place = into.join(OsStr::from_bytes(path.as_bytes()));
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(skipped: &[SkippedEntry]) -> Vec<(&str, &str)> {
        let mut names: Vec<_> = skipped.iter().map(|item| (item.path.as_str(), item.reason.as_str())).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_regular_files_of_the_output_are_sealed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (out, sealed) = (root.path().join("out"), root.path().join("sealed"));
        std::fs::create_dir_all(out.join("d/deep")).expect("made");
        std::fs::write(root.path().join("token"), "secret").expect("written");
        std::fs::write(out.join("d/deep/a"), "alpha").expect("written");
        std::fs::write(out.join("other"), "not asked for").expect("written");
        std::os::unix::fs::symlink("../../token", out.join("d/stolen")).expect("linked");
        std::os::unix::fs::symlink("deep/a", out.join("d/near")).expect("linked");
        rustix::fs::mknodat(rustix::fs::CWD, out.join("d/pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .expect("a pipe");
        for _ in 0..2 {
            let found = seal(&out, &sealed, &["d/**".to_owned()]).expect("sealed");
            assert_eq!((found.files, found.bytes), (1, 5));
            assert_eq!(names(&found.skipped), [("d/pipe", "fifo"), ("d/stolen", "link_leaves_output")]);
        }
        assert_eq!(std::fs::read(sealed.join("d/deep/a")).expect("read"), b"alpha");
        assert!(!sealed.join("other").exists() && std::fs::symlink_metadata(sealed.join("d/stolen")).is_err());
    }

    #[test]
    fn a_directory_that_became_a_link_is_not_entered() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (out, sealed, else_where) = (root.path().join("out"), root.path().join("sealed"), root.path().join("x"));
        std::fs::create_dir_all(&out).expect("made");
        std::fs::create_dir_all(&else_where).expect("made");
        std::fs::write(else_where.join("secret"), "s").expect("written");
        std::os::unix::fs::symlink(&else_where, out.join("d")).expect("linked");
        let found = seal(&out, &sealed, &["**".to_owned()]).expect("sealed");
        assert_eq!(found.files, 0);
        assert_eq!(names(&found.skipped), [("d", "link_leaves_output")]);
    }

    #[test]
    fn what_no_version_can_hold_is_told_and_counts_as_left() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (out, sealed) = (root.path().join("out"), root.path().join("sealed"));
        let deep = out.join(["d"; 256].join("/"));
        std::fs::create_dir_all(&deep).expect("made");
        std::fs::write(deep.join("lost"), "x").expect("written");
        std::fs::write(deep.join("unasked"), "x").expect("written");
        std::fs::write(deep.with_file_name("kept"), "y").expect("written");
        // a path longer than one call may have: made step by step
        let mut at = open_dir(rustix::fs::CWD, out.as_os_str()).expect("opened");
        let long = "l".repeat(240);
        for _ in 0..18 {
            rustix::fs::mkdirat(&at, &*long, Mode::from_raw_mode(0o755)).expect("made");
            at = open_dir(&at, OsStr::new(&long)).expect("opened");
        }
        let found = seal(&out, &sealed, &["**/lost".to_owned(), "**/kept".to_owned()]).expect("sealed");
        assert_eq!((found.files, found.refused, found.left), (1, 2, 2));
        let lost = format!("{}/lost", ["d"; 256].join("/"));
        let long = [&*long; 18].join("/");
        assert_eq!(names(&found.skipped), [(&*lost, "path_too_deep"), (&*long, "path_too_long")]);
    }

    #[test]
    fn refused_entries_are_all_counted_and_the_first_told() {
        let mut found = Found::default();
        (0..MAX_SKIPPED + 5).for_each(|n| found.skip(n, "fifo"));
        assert_eq!((found.skipped.len(), found.refused, found.left), (MAX_SKIPPED, MAX_SKIPPED as u64 + 5, 0));
    }

    #[test]
    fn a_copy_goes_through_no_name_of_the_output() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (out, sealed) = (root.path().join("out"), root.path().join("sealed"));
        std::fs::create_dir_all(&out).expect("made");
        std::fs::create_dir_all(&sealed).expect("made");
        for name in ["x", "x.dray-seal", "x.part"] {
            std::fs::write(out.join(name), name).expect("written");
            std::fs::hard_link(out.join(name), sealed.join(name)).expect("linked");
        }
        let globs = glob_set(&["**".to_owned()]).expect("globs");
        let sealer = Sealer { globs: &globs, owner: 0, draft: sealed.with_extension("part") };
        let dir = open_dir(rustix::fs::CWD, out.as_os_str()).expect("opened");
        sealer.copy(&dir, OsStr::new("x"), &sealed.join("y")).expect("copied");
        for (name, bytes) in [("y", "x"), ("x.dray-seal", "x.dray-seal"), ("x.part", "x.part")] {
            assert_eq!(std::fs::read_to_string(sealed.join(name)).expect("read"), bytes);
        }
        assert_eq!(std::fs::read_dir(&sealed).expect("listed").count(), 4);
    }
}
