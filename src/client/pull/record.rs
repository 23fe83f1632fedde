//! What pulls remember of a DEST: which files they wrote, told by their stamps, and which pulls did not end.
//!
//! ```text
//! <cache>/pull/<BLAKE3 of DEST's device and inode, 32 hex>.stat    as the stat cache of pushes
//! <cache>/pull/<the same>.run                                       the running pull's id
//! ```
//!
//! Outside DEST, since DEST holds the team's data and nothing else. It decides two things: that an unchanged file need not be
//! read again, and that a differing one was written by a pull and may be replaced. Without it everything is read and nothing
//! that differs is replaced.

use super::dest::Dest;
use crate::client::stat_cache;
use crate::client::walk::Stamp;
use crate::content::digest::digest;
use rustix::fs::{AtFlags, OFlags};
use std::io;
use std::path::{Path, PathBuf};

/// Where the records of one DEST lie.
#[derive(Debug, Clone)]
pub(in crate::client) struct Records {
    base: PathBuf,
}

impl Records {
    pub fn of(cache: &Path, dest: &Dest) -> io::Result<Self> {
        let stamp = Stamp::of(&rustix::fs::fstat(&dest.root)?);
        let key = [stamp.dev.to_le_bytes(), stamp.ino.to_le_bytes()].concat();
        let name = digest(&key).to_string();
        Ok(Self { base: cache.join("pull").join(&name[..32]) })
    }

    pub fn reader(&self) -> stat_cache::Reader {
        stat_cache::Reader::open(&self.base.with_extension("stat"))
    }

    pub fn writer(&self, now: jiff::Timestamp) -> io::Result<stat_cache::Writer> {
        stat_cache::Writer::create(self.base.with_extension("stat"), now)
    }

    /// Notes that a pull runs; gives the id of one before that did not end.
    pub fn begin(&self, run: &str) -> io::Result<Option<String>> {
        let path = self.base.with_extension("run");
        if let Some(dir) = path.parent() {
            fs_err::create_dir_all(dir)?;
        }
        let before = fs_err::read_to_string(&path).ok();
        fs_err::write(&path, run)?;
        Ok(before.filter(|id| !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())))
    }

    pub fn end(&self) {
        let _ = fs_err::remove_file(self.base.with_extension("run"));
    }
}

/// Removes the temporary files of a pull that did not end from one directory.
pub(in crate::client) fn clean(dir: rustix::fd::BorrowedFd<'_>, run: &str) {
    let prefix = format!(".dray-{run}-");
    let Ok(open) =
        rustix::fs::openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, rustix::fs::Mode::empty())
    else {
        return;
    };
    let Ok(entries) = rustix::fs::Dir::new(open) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_bytes();
        if name.starts_with(prefix.as_bytes()) && name.ends_with(b".part") {
            let _ = rustix::fs::unlinkat(dir, entry.file_name(), AtFlags::empty());
        }
    }
}
