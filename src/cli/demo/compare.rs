//! Byte for byte: what was staged against what was pushed, what came home against what the job wrote.
//!
//! Blocks; for a thread that may. Memory: two buffers.

use crate::client::TransferError;
use crate::client::stored::TreeSource;
use crate::content::path::RelPath;
use crate::content::tree::Kind;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tokio_util::sync::CancellationToken;

/// What was compared.
#[derive(Debug, Default, Clone, Copy)]
pub struct Compared {
    pub files: u64,
    pub bytes: u64,
    pub links: u64,
}

/// Why two things are not the same.
///
/// The first difference ends a comparison; it is the demonstration's failure.
#[derive(Debug, thiserror::Error)]
pub enum Differs {
    #[error(transparent)]
    Tree(#[from] TransferError),
    #[error("`{path}` cannot be compared: {why}")]
    Unreadable { path: String, why: String },
    #[error("`{path}` differs at byte {at}")]
    Bytes { path: String, at: u64 },
    #[error("`{path}` is another link than what was pushed")]
    Link { path: String },
    #[error("interrupted")]
    Interrupted,
}

/// Compares every file and link of the version at two places on disk.
///
/// Guided by the version's tree, so a file that is missing on either side is found, one that is extra is not. Modes and
/// times are not compared.
pub fn trees(
    source: TreeSource,
    pushed: &Path,
    staged: &Path,
    cancel: &CancellationToken,
) -> Result<Compared, Differs> {
    let mut compared = Compared::default();
    // A single pushed file stands under its base name.
    let base = if pushed.is_dir() { pushed.to_owned() } else { pushed.parent().unwrap_or(pushed).to_owned() };
    for entry in source.entries()? {
        let entry = entry?;
        let (ours, theirs) = (below(&base, &entry.path), below(staged, &entry.path));
        let path = entry.path.to_string();
        let unreadable = |error: io::Error| Differs::Unreadable { path: path.clone(), why: error.to_string() };
        match entry.kind {
            Kind::Dir { .. } => {}
            Kind::Symlink { .. } => {
                let targets = (fs_err::read_link(&ours), fs_err::read_link(&theirs));
                if targets.0.map_err(unreadable)? != targets.1.map_err(unreadable)? {
                    return Err(Differs::Link { path });
                }
                compared.links += 1;
            }
            Kind::File { size, .. } => {
                if let Some(at) = files(&ours, &theirs, cancel).map_err(unreadable)? {
                    return Err(Differs::Bytes { path, at });
                }
                compared.files += 1;
                compared.bytes += size;
            }
        }
        if cancel.is_cancelled() {
            return Err(Differs::Interrupted);
        }
    }
    Ok(compared)
}

fn below(root: &Path, path: &RelPath) -> PathBuf {
    root.join(OsStr::from_bytes(path.as_bytes()))
}

/// The first byte where two files differ; `None` when they are equal to their ends.
pub fn files(a: &Path, b: &Path, cancel: &CancellationToken) -> io::Result<Option<u64>> {
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    let (mut from_a, mut from_b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while !cancel.is_cancelled() {
        let (read_a, read_b) = (fill(&mut a, &mut from_a)?, fill(&mut b, &mut from_b)?);
        let (part_a, part_b) = (&from_a[..read_a], &from_b[..read_b]);
        if part_a != part_b {
            let same = part_a.iter().zip(part_b).take_while(|(a, b)| a == b).count();
            return Ok(Some(at + same as u64));
        }
        if read_a == 0 {
            return Ok(None);
        }
        at += read_a as u64;
    }
    Err(io::ErrorKind::Interrupted.into())
}

/// Full but for the end of the file, so that two files are compared at the same places.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs_err::write(&path, bytes).unwrap();
            path
        };
        let long = vec![7; (1 << 20) + 10];
        let mut other = long.clone();
        other[(1 << 20) + 3] = 8;
        let (a, b, c) = (write("a", &long), write("b", &other), write("c", &long[..long.len() - 1]));
        let cancel = CancellationToken::new();
        assert_eq!(files(&a, &a, &cancel).unwrap(), None);
        assert_eq!(files(&a, &b, &cancel).unwrap(), Some((1 << 20) + 3));
        assert_eq!(files(&a, &c, &cancel).unwrap(), Some(long.len() as u64 - 1));
        cancel.cancel();
        assert!(files(&a, &a, &cancel).is_err(), "a cut comparison proves nothing");
    }
}
