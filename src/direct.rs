//! Direct I/O: bytes between memory and disk, the page cache left aside (`O_DIRECT` of open(2)).
//!
//! For files that are written once in large pieces and synced, where the cache's copy costs more than all else, and for reading back what
//! the disk holds: such a read is answered by the disk whatever is cached, and what is cached stays.
//!
//! Offsets, lengths and addresses must be multiples of [`ALIGN`]; most file systems answer `EINVAL` to others. The end of a file that is no
//! multiple is written after [`off`]. Direct and ordinary calls may take turns in one file as long as they share no page.

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, NFS_SUPER_MAGIC, OFlags, StatxFlags};
use rustix::io::Errno;

/// A multiple of what every disk asks for that [`on`] accepts, and of the kernel's page there.
pub const ALIGN: usize = 4096;

/// Turns direct I/O on for an open file where its file system says that it does it: some take the flag and answer from the cache (ext4
/// with journalled data or encryption). `false` where it does not say so (before Linux 6.1, in memory), with pages larger than
/// [`ALIGN`], and on NFS, where each such write waits for the server; then nothing is changed.
pub fn on(file: impl AsFd) -> bool {
    if rustix::param::page_size() > ALIGN || rustix::fs::fstatfs(&file).is_ok_and(|fs| fs.f_type == NFS_SUPER_MAGIC) {
        return false;
    }
    let Ok(told) = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return false };
    let fits = |align: u32| (1..=ALIGN as u32).contains(&align);
    StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::DIOALIGN)
        && fits(told.stx_dio_mem_align)
        && fits(told.stx_dio_offset_align)
        && set(&file, true).is_ok()
}

/// Turns it on, for reads only, wherever the file system takes the flag, though it may answer from a cache or with `EINVAL`. `false` where
/// it does not.
pub fn ask(file: impl AsFd) -> bool {
    set(file, true).is_ok()
}

/// Back to ordinary I/O.
pub fn off(file: impl AsFd) -> Result<(), Errno> {
    set(&file, false)
}

fn set(file: impl AsFd, direct: bool) -> Result<(), Errno> {
    let mut flags = rustix::fs::fcntl_getfl(&file)?;
    flags.set(OFlags::DIRECT, direct);
    rustix::fs::fcntl_setfl(&file, flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::buffer::AlignedBuf;
    use std::os::unix::fs::FileExt;

    /// On whatever file system this runs on: where it is refused, ordinary I/O goes on as before.
    #[test]
    fn direct_and_ordinary_calls_take_turns_in_one_file() {
        let file = tempfile::tempfile().unwrap();
        let mut piece = AlignedBuf::new(2 * ALIGN);
        piece.fill(7);
        let direct = on(&file);
        file.write_all_at(&piece, 0).unwrap();
        off(&file).unwrap();
        file.write_all_at(&[8; 100], 2 * ALIGN as u64).unwrap();
        file.sync_all().unwrap();
        let mut back = AlignedBuf::new(4 * ALIGN);
        assert_eq!(on(&file), direct);
        assert!(!direct || rustix::fs::fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 2 * ALIGN + 100, "the end of the file is read with the rest");
        assert!(back[..2 * ALIGN].iter().all(|byte| *byte == 7) && back[2 * ALIGN..][..100] == [8; 100]);
    }

    #[test]
    fn files_in_memory_have_no_disk_to_go_to() {
        let memory = rustix::fs::memfd_create("direct", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let before = rustix::fs::fcntl_getfl(&memory).unwrap();
        assert!(!on(&memory));
        assert_eq!(rustix::fs::fcntl_getfl(&memory).unwrap(), before);
    }
}
