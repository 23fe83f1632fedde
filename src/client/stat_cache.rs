//! The stat cache: which digest a file had when it was last read, told by its stamp.
//!
//! ```text
//! "DRAYSTAT" | version u8 | time of writing: seconds i64, nanoseconds u32
//! blocks: length u32 | crc32 u32 | entries      (a block of length 0 ends the file)
//! entry:  path length u16 | path | dev u64 | ino u64 | size u64 | mtime i64 u32 | ctime i64 u32 | digest [32]
//! ```
//!
//! One file per set of roots and dataset, in walk order, read as a stream beside the walk: memory is one block. It only makes
//! a push faster: a missing, foreign or damaged cache means reading files again. It is replaced in one piece, by rename.
//! An entry counts only when size, both times, inode and device are equal and both times are older than the cache by
//! [`SAFE`]: a file written in the same tick as it was read could change again without a trace.
//!
//! Integers are little-endian. A pull keeps its record of what it wrote in the same form, and asks it [`Reader::wrote`] besides.
//! Two processes with the same roots may write at once: each has a temporary file of its own, and the last rename stands.

use super::walk::Stamp;
use crate::content::crc::Crc32;
use crate::content::digest::{Digest, Hasher};
use crate::content::path::RelPath;
use crate::content::tree::Time;
use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const MAGIC: &[u8; 9] = b"DRAYSTAT\x01";
/// Seconds that a file's times must lie before the cache's.
/// The coarsest clock of a file system (FAT) goes by two.
const SAFE: i64 = 2;
/// Entries are written in blocks of about this size: a block ends with the entry that fills it, so none reaches twice as much.
const BLOCK: usize = 64 << 10;
/// Fixed bytes of an entry.
const FIXED: usize = 2 + 8 + 8 + 8 + 12 + 12 + 32;

/// Where the cache of these roots lies. `scope` names the service: the same roots pushed to another have another cache. Roots count by
/// their canonical paths, in the order given.
pub(super) fn path(dir: &Path, scope: &str, dataset: &str, roots: &[PathBuf]) -> PathBuf {
    let mut hasher = Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(scope.as_bytes());
    add(dataset.as_bytes());
    for root in roots {
        add(root.canonicalize().as_ref().unwrap_or(root).as_os_str().as_bytes());
    }
    let name = hasher.finalize().to_string();
    dir.join("stat").join(format!("{}.stat", &name[..32]))
}

/// Reads a cache beside a walk.
#[derive(Debug, Default)]
pub(super) struct Reader {
    file: Option<BufReader<File>>,
    /// Files changed at or after this are read again.
    limit: Time,
    /// The block at hand, checked, and how far it was read.
    block: Vec<u8>,
    at: usize,
    /// The entry not passed yet.
    head: Option<(RelPath, Stamp, Digest)>,
    /// Set once, at the first fault; nothing is found after that.
    damaged: Option<PathBuf>,
    path: PathBuf,
}

impl Reader {
    /// Finds nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Opens a cache; one that is not there finds nothing, and one that is no cache or of another version finds nothing with a
    /// [`warning`](Self::warning). Never an error: the files are read instead.
    pub fn open(path: &Path) -> Self {
        let mut reader = Self { path: path.to_owned(), ..Self::default() };
        let Ok(file) = File::open(path) else { return reader };
        let mut file = BufReader::with_capacity(BLOCK, file);
        let mut header = [0; 21];
        if file.read_exact(&mut header).is_err() || !header.starts_with(MAGIC) {
            reader.damaged = Some(path.to_owned());
            return reader;
        }
        let mut rest = &header[MAGIC.len()..];
        let (seconds, nanos) = (take_i64(&mut rest), take_u32(&mut rest));
        reader.limit = Time { seconds: seconds.saturating_sub(SAFE), nanos };
        reader.file = Some(file);
        reader
    }

    /// The digest of an unchanged file. Paths must be asked for in tree order; what was passed is not found any more.
    ///
    /// `None` for every doubt: no entry, another stamp, or times too near the cache's own for the stamp to tell.
    pub fn find(&mut self, path: &RelPath, stamp: &Stamp) -> Option<Digest> {
        loop {
            if self.head.is_none() {
                self.head = self.read();
            }
            let (head, cached, digest) = self.head.as_ref()?;
            match head.cmp(path) {
                Ordering::Less => self.head = None,
                Ordering::Equal => {
                    let settled = cached.mtime < self.limit && cached.ctime < self.limit;
                    return (settled && cached == stamp).then_some(*digest);
                }
                Ordering::Greater => return None,
            }
        }
    }

    /// The digest of an entry that is the same file by device, inode, size and modification time, settled or not. Tells who
    /// wrote it, not that its bytes are still those. Ask for the path by [`Reader::find`] first.
    pub fn wrote(&self, path: &RelPath, stamp: &Stamp) -> Option<Digest> {
        let (head, cached, digest) = self.head.as_ref()?;
        let same = |stamp: &Stamp| (stamp.dev, stamp.ino, stamp.size, stamp.mtime);
        (head == path && same(cached) == same(stamp)).then_some(*digest)
    }

    /// What to tell when the cache was damaged.
    pub fn warning(&self) -> Option<String> {
        let path = self.damaged.as_ref()?;
        Some(format!("the stat cache `{}` is damaged and was not used; files were read again", path.display()))
    }

    fn read(&mut self) -> Option<(RelPath, Stamp, Digest)> {
        if self.at >= self.block.len() {
            match self.next_block() {
                Ok(true) => {}
                Ok(false) => {
                    self.file = None;
                    return None;
                }
                Err(_) => return self.give_up(),
            }
        }
        let entry = take_entry(&self.block[self.at..]);
        let Some((path, stamp, digest, length)) = entry else { return self.give_up() };
        self.at += length;
        Some((path, stamp, digest))
    }

    /// A cache is believed up to its first damaged block: every block has a crc32 of its own.
    fn give_up(&mut self) -> Option<(RelPath, Stamp, Digest)> {
        self.file = None;
        self.block.clear();
        self.damaged = Some(self.path.clone());
        None
    }

    /// Reads the next block, checked; `false` at the end.
    fn next_block(&mut self) -> io::Result<bool> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let mut head = [0; 8];
        file.read_exact(&mut head)?;
        let mut rest = &head[..];
        let (length, crc) = (take_u32(&mut rest) as usize, take_u32(&mut rest));
        if length > 2 * BLOCK {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.block.resize(length, 0);
        self.at = 0;
        file.read_exact(&mut self.block)?;
        if Crc32::of(&self.block) != Crc32(crc) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(length > 0)
    }
}

/// Writes the next cache; nothing is replaced before [`Writer::finish`]. Dropped without it, the temporary file is removed.
#[derive(Debug)]
pub(super) struct Writer {
    out: BufWriter<NamedTempFile>,
    block: Vec<u8>,
    path: PathBuf,
}

impl Writer {
    /// `now` is the time before the first file is read: an entry counts later only where its file was older than that by [`SAFE`], so a
    /// change during the reading shows. Makes the directories above.
    pub fn create(path: PathBuf, now: jiff::Timestamp) -> io::Result<Self> {
        let dir = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir)?;
        let mut out = BufWriter::with_capacity(BLOCK, NamedTempFile::new_in(dir)?);
        out.write_all(MAGIC)?;
        out.write_all(&now.as_second().to_le_bytes())?;
        out.write_all(&u32::try_from(now.subsec_nanosecond()).unwrap_or(0).to_le_bytes())?;
        Ok(Self { out, block: Vec::with_capacity(BLOCK + 8192), path })
    }

    /// Paths must come in tree order.
    pub fn add(&mut self, path: &RelPath, stamp: &Stamp, digest: &Digest) -> io::Result<()> {
        let block = &mut self.block;
        let length = u16::try_from(path.as_bytes().len()).expect("a path has at most 4,096 bytes");
        block.extend_from_slice(&length.to_le_bytes());
        block.extend_from_slice(path.as_bytes());
        for number in [stamp.dev, stamp.ino, stamp.size] {
            block.extend_from_slice(&number.to_le_bytes());
        }
        for time in [stamp.mtime, stamp.ctime] {
            block.extend_from_slice(&time.seconds.to_le_bytes());
            block.extend_from_slice(&time.nanos.to_le_bytes());
        }
        block.extend_from_slice(digest.as_bytes());
        if block.len() >= BLOCK { self.flush() } else { Ok(()) }
    }

    /// Puts the cache in place, in one piece. Not synced: after a loss of power an old, a whole or a damaged cache may be there, and a push
    /// goes well with each.
    pub fn finish(mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.flush()?;
        }
        self.flush()?;
        let file = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let length = u32::try_from(self.block.len()).expect("a block is small");
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(&Crc32::of(&self.block).0.to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }
}

/// One entry and its length; `None` where the bytes are no entry.
fn take_entry(bytes: &[u8]) -> Option<(RelPath, Stamp, Digest, usize)> {
    let length = usize::from(u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?));
    let mut rest = bytes.get(2 + length..FIXED + length)?;
    let path = RelPath::parse(&bytes[2..2 + length]).ok()?;
    let (dev, ino, size) = (take_u64(&mut rest), take_u64(&mut rest), take_u64(&mut rest));
    let mut time = || Time { seconds: take_i64(&mut rest), nanos: take_u32(&mut rest) };
    let (mtime, ctime) = (time(), time());
    let digest = Digest::from_bytes(rest.try_into().ok()?);
    Some((path, Stamp { dev, ino, size, mtime, ctime }, digest, FIXED + length))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (front, rest) = bytes.split_first_chunk().expect("the caller checked the length");
    *bytes = rest;
    *front
}

fn take_u32(bytes: &mut &[u8]) -> u32 {
    u32::from_le_bytes(take(bytes))
}

fn take_u64(bytes: &mut &[u8]) -> u64 {
    u64::from_le_bytes(take(bytes))
}

fn take_i64(bytes: &mut &[u8]) -> i64 {
    i64::from_le_bytes(take(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::digest::digest;

    fn stamp(n: u64) -> Stamp {
        let time = Time { seconds: 1_000, nanos: 5 };
        Stamp { dev: 1, ino: n, size: n, mtime: time, ctime: time }
    }

    fn name(n: u64) -> RelPath {
        RelPath::parse(format!("{n:06}").as_bytes()).unwrap()
    }

    fn written(path: &Path, at: i64) {
        let mut writer = Writer::create(path.to_owned(), jiff::Timestamp::from_second(at).unwrap()).unwrap();
        for n in 0..2_000 {
            writer.add(&name(n), &stamp(n), &digest(&n.to_le_bytes())).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn finds_what_did_not_change_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path(), "s", "d", &[]);
        written(&path, 1_003);
        let mut reader = Reader::open(&path);
        assert_eq!(reader.find(&RelPath::parse(b"000000/x").unwrap(), &stamp(0)), None);
        assert_eq!(reader.find(&name(1), &stamp(1)), Some(digest(&1_u64.to_le_bytes())));
        assert_eq!(reader.find(&name(5), &stamp(6)), None);
        assert_eq!(reader.find(&name(1_999), &stamp(1_999)), Some(digest(&1_999_u64.to_le_bytes())));
        assert_eq!(reader.find(&name(2_000), &stamp(2_000)), None);
        assert_eq!(reader.warning(), None);
        // Written within two seconds of the files' times: not settled.
        written(&path, 1_002);
        assert_eq!(Reader::open(&path).find(&name(1), &stamp(1)), None);
    }

    #[test]
    fn a_damaged_cache_is_not_used_from_there_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        written(&path, 2_000);
        let good = std::fs::read(&path).unwrap();
        let mut flipped = good.clone();
        flipped[good.len() - 500] ^= 1;
        for bytes in [&flipped[..], &good[..good.len() - 700], b"something else entirely..."] {
            std::fs::write(&path, bytes).unwrap();
            let mut reader = Reader::open(&path);
            reader.find(&name(0), &stamp(0));
            assert_eq!(reader.find(&name(1_999), &stamp(1_999)), None);
            assert!(reader.warning().is_some());
        }
    }
}
