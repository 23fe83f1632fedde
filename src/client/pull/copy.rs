//! Taking a file from this machine instead of the network: hashed while it is copied, never trusted.
//!
//! The same names and proofs as for a file that was fetched: temporary until its digest is right, read back where that is asked for. Its
//! source may change or be damaged meanwhile; then the file comes over the network.

use super::dest::Dest;
use super::file::FileFacts;
use super::large::{Finish, PRIVATE, Unfinished, create, name, sync};
use crate::client::walk::Stamp;
use crate::content::buffer::AlignedBuf;
use crate::content::digest::Hasher;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::fs::File;

/// Bytes copied at once.
const PIECE: usize = 1 << 20;

/// Copies and names the file; `None` when its bytes are not those wanted, and nothing stays then. An error leaves nothing either.
pub(super) fn copy(
    dest: &Dest,
    dir: BorrowedFd<'_>,
    from: &File,
    job: &FileFacts,
    how: Finish,
) -> Result<Option<Stamp>, Unfinished> {
    let (file, temporary) = create(dest, dir, PRIVATE)?;
    let copied = match copy_bytes(from, &file, job) {
        Ok(true) => {
            sync(&file, how).map_err(Unfinished::Io).and_then(|()| name(&file, dir, &temporary, job, how)).map(Some)
        }
        Ok(false) => Ok(None),
        Err(error) => Err(error.into()),
    };
    if !matches!(copied, Ok(Some(_))) {
        let _ = rustix::fs::unlinkat(dir, &*temporary, AtFlags::empty());
    }
    copied
}

/// Whether what was copied is what is wanted. Zeros in whole pieces are left out, so holes stay holes.
fn copy_bytes(from: &File, to: &OwnedFd, job: &FileFacts) -> Result<bool, Errno> {
    let mut buffer = AlignedBuf::new(PIECE);
    let mut hasher = Hasher::new();
    let mut at = 0;
    loop {
        let read = match rustix::io::pread(from, &mut buffer[..], at) {
            Ok(0) => break,
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&buffer[..read]);
        if buffer[..read].iter().any(|byte| *byte != 0) {
            let mut written = 0;
            while written < read {
                written += rustix::io::pwrite(to, &buffer[written..read], at + written as u64)?;
            }
        }
        at += read as u64;
        if at > job.size {
            return Ok(false);
        }
    }
    if at != job.size || hasher.finalize() != job.digest {
        return Ok(false);
    }
    rustix::fs::ftruncate(to, job.size)?;
    Ok(true)
}
