//! The workers of a pull: decode a window, write what is whole in it, prepare the rest.
//!
//! A file that lies whole in one window is hashed before it is written and gets its name here, so many are under way at once.
//! Where the disk is to be read back, the small files of a window are synced together: a sync for each would cost more than all else.
//! Pieces of larger files are written here too; their digest follows in order, in `finish`.

use super::Durability;
use super::dest::{Dest, Dirs, Missing, mode};
use super::file::{FileFacts, Run};
use super::large::{Finish, LargeFile, PRIVATE, Unfinished, create, fill_out, name, write_runs, write_unnamed};
use super::window::{Damage, Done, Ended, Fetched, FileJob, Proof, decode, hash_runs};
use crate::client::report::Item;
use crate::client::walk::errno_reason;
use crate::content::buffer::AlignedBuf;
use crate::content::codec::Decoder;
use crate::content::digest::Hasher;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// From this many files on, a window is synced as a whole.
const TOGETHER: usize = 4;
const REOPEN: OFlags = OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Where decoded bytes go.
#[derive(Debug, Clone)]
pub(in crate::client) enum Sink {
    Write(Arc<Dest>, Finish),
    /// Nowhere: the bytes are only proven, chunk by chunk and as whole files.
    Prove,
}

/// One worker's tools.
#[derive(Debug)]
pub(in crate::client) struct Writer {
    sink: Sink,
    dirs: Option<Dirs>,
    decoder: Decoder,
}

impl Writer {
    pub fn new(sink: Sink) -> Self {
        let dirs = match &sink {
            Sink::Write(dest, _) => Some(Dirs::new(Arc::clone(dest))),
            Sink::Prove => None,
        };
        Self { sink, dirs, decoder: Decoder::new() }
    }

    /// Decodes and writes one window.
    pub fn window(&mut self, fetched: Fetched) -> Done {
        let proof = match self.sink {
            Sink::Write(..) => Proof::File,
            Sink::Prove => Proof::Id,
        };
        let mut done = decode(fetched, &mut self.decoder, proof);
        let (mut ended, mut unproven) = (Vec::new(), Vec::new());
        for (number, job) in &done.job.files {
            let runs = done.runs.get(number).map_or(&[][..], Vec::as_slice);
            if !job.is_whole(runs) {
                if let Some(damage) = self.piece(job, runs, &done) {
                    ended.push((*number, damage));
                }
                continue;
            }
            match self.whole(job, runs, &done) {
                Whole::Ended(end) => ended.push((*number, end)),
                Whole::Written { temporary } => unproven.push((job, temporary)),
            }
        }
        self.prove(unproven, &mut ended);
        done.ended = ended;
        done
    }

    /// Writes a piece of a file that goes over several windows.
    fn piece(&mut self, job: &FileJob, runs: &[Run], done: &Done) -> Option<Ended> {
        let (Sink::Write(dest, _), Some(dirs)) = (&self.sink, &mut self.dirs) else { return None };
        if done.damage.contains_key(&job.number) {
            // Told where the file ends; nothing more of it need be written.
            return None;
        }
        let written = shared(dest, dirs, job).and_then(|file| file.write(runs, &done.job.slot).map_err(errno_reason));
        written.err().map(|reason| Ended::Failed(Item::new(job.path.as_bytes(), &reason)))
    }

    /// Proves and writes a file that lies whole in this window.
    fn whole(&mut self, job: &FileJob, runs: &[Run], done: &Done) -> Whole {
        if let Some(Damage { pack, why }) = done.damage.get(&job.number) {
            return Whole::Ended(Ended::Wrong { actual: None, pack: Some(*pack), why: why.clone() });
        }
        let mut hasher = Hasher::new();
        hash_runs(&mut hasher, runs, &done.job.slot);
        let actual = hasher.finalize();
        if actual != job.digest {
            let (actual, pack, why) = match guilty(job.number, done) {
                // Damage in the store: what became of the file's digest tells nothing further.
                Some(pack) => (None, Some(pack), "a chunk is not what its id says"),
                None => (Some(actual), None, "its digest differs"),
            };
            return Whole::Ended(Ended::Wrong { actual, pack, why: why.to_owned() });
        }
        let (Sink::Write(dest, how), Some(dirs)) = (&self.sink, &mut self.dirs) else {
            return Whole::Ended(Ended::Good(None));
        };
        match write(dest, dirs, job, runs, &done.job.slot, *how) {
            Ok(Written::Named(stamp)) => Whole::Ended(Ended::Good(Some(stamp))),
            Ok(Written::Temporary(temporary)) => Whole::Written { temporary },
            Err(error) => Whole::Ended(unfinished(job, error)),
        }
    }

    /// Syncs files, proves what the disk holds of them, and gives them their names.
    fn prove(&mut self, unproven: Vec<(&Arc<FileJob>, String)>, ended: &mut Vec<(u64, Ended)>) {
        let (Sink::Write(dest, how), Some(dirs)) = (&self.sink, &mut self.dirs) else { return };
        // A fault that this meets may be another file's, so then each is asked for itself.
        let together = unproven.len() >= TOGETHER && rustix::fs::syncfs(&dest.root).is_ok();
        for (job, temporary) in unproven {
            let proven = dirs.parent(&job.path, Missing::Fail).map_err(Unfinished::Io).and_then(|dir| {
                let file = rustix::fs::openat(dir, &*temporary, REOPEN, Mode::empty())?;
                if !together {
                    rustix::fs::fsync(&file)?;
                }
                name(&file, dir, &temporary, job, *how)
            });
            if proven.is_err() {
                discard(dirs, job, &temporary);
            }
            let end = proven.map_or_else(|error| unfinished(job, error), |stamp| Ended::Good(Some(stamp)));
            ended.push((job.number, end));
        }
    }
}

/// How far a whole file came.
enum Whole {
    Ended(Ended),
    /// It lies under its temporary name and is to be proven on the disk.
    Written {
        temporary: String,
    },
}

enum Written {
    Named(crate::client::walk::Stamp),
    Temporary(String),
}

fn unfinished(job: &FileJob, error: Unfinished) -> Ended {
    match error {
        Unfinished::Io(error) => Ended::Failed(Item::new(job.path.as_bytes(), &errno_reason(error))),
        Unfinished::ReadBack(actual) => {
            Ended::Wrong { actual: Some(actual), pack: None, why: "the disk gave back other bytes".to_owned() }
        }
    }
}

fn discard(dirs: &mut Dirs, job: &FileFacts, temporary: &str) {
    if let Ok(dir) = dirs.parent(&job.path, Missing::Fail) {
        let _: Result<(), Errno> = rustix::fs::unlinkat(dir, temporary, AtFlags::empty());
    }
}

fn write(
    dest: &Dest,
    dirs: &mut Dirs,
    job: &FileFacts,
    runs: &[Run],
    slot: &AlignedBuf,
    how: Finish,
) -> Result<Written, Unfinished> {
    let dir = dirs.parent(&job.path, Missing::Fail)?;
    if how.durability == Durability::Batch && dest.unnamed.load(Ordering::Relaxed) {
        match write_unnamed(dest, dir, job, runs, slot, how) {
            Ok(stamp) => return Ok(Written::Named(stamp)),
            // Whatever it is, the other way either works or says what is wrong.
            Err(error) => {
                tracing::debug!(%error, "no more files without a name in this pull");
                dest.unnamed.store(false, Ordering::Relaxed);
            }
        }
    }
    let own = match how.durability {
        Durability::Batch => mode(job.mode & how.mode_mask),
        Durability::ReadBack => PRIVATE,
    };
    let (file, temporary) = create(dest, dir, own)?;
    let filled = write_runs(&file, runs, slot).and_then(|()| fill_out(&file, job));
    let written = match (filled, how.durability) {
        (Err(error), _) => Err(Unfinished::Io(error)),
        (Ok(()), Durability::ReadBack) => return Ok(Written::Temporary(temporary)),
        (Ok(()), Durability::Batch) => name(&file, dir, &temporary, job, how).map(Written::Named),
    };
    if written.is_err() {
        let _: Result<(), Errno> = rustix::fs::unlinkat(dir, &*temporary, AtFlags::empty());
    }
    written
}

/// The pack with the chunk that is not what its id says, when the file's digest is not the tree's.
fn guilty(number: u64, done: &Done) -> Option<u32> {
    for read in &done.job.window.reads {
        for chunk in &read.chunks {
            for place in chunk.places.iter().filter(|place| place.file == number && place.length == chunk.entry.raw) {
                let run = done.runs.get(&number)?.iter().rfind(|run| run.offset <= place.offset)?;
                let start = run.at? + usize::try_from(place.offset - run.offset).ok()?;
                let raw = &done.job.slot[start..start + place.length as usize];
                if crate::content::digest::digest(raw) != chunk.entry.id {
                    return Some(read.pack);
                }
            }
        }
    }
    None
}

/// The shared temporary file of a job, made by whoever comes first.
fn shared<'j>(dest: &Arc<Dest>, dirs: &mut Dirs, job: &'j FileJob) -> Result<&'j LargeFile, String> {
    job.large.get_or_init(|| LargeFile::create(dest, dirs, job).map_err(errno_reason)).as_ref().map_err(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::crc::Crc32;
    use crate::content::digest::digest;
    use crate::content::layout::{FileLayout, Segment};
    use crate::content::path::RelPath;
    use crate::content::tree::Time;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names.into_iter().map(|name| name.into_string().unwrap()).collect()
    }

    /// Both ways to write a small file, over nothing and over another file, with one of its names elsewhere.
    #[test]
    fn a_file_without_a_name_and_one_with_a_temporary_one_end_alike() {
        let place = tempfile::tempdir().unwrap();
        let bytes = b"the bytes of a small file";
        let mut slot = AlignedBuf::new(bytes.len());
        slot.copy_from_slice(bytes);
        let run = Run { offset: 0, length: bytes.len() as u64, at: Some(0) };
        let how = Finish { durability: Durability::Batch, mode_mask: 0o777 };
        let segments = vec![Segment { pack: Some(0), first: 0, count: 1, raw: bytes.len() as u64 }];
        let (digest, size) = (digest(bytes), bytes.len() as u64);
        let layout = FileLayout { digest, size, crc: Crc32::of(bytes), profile: 0, segments, sha256: None };
        for unnamed in [true, false] {
            let path = place.path().join(format!("unnamed-{unnamed}"));
            let dest = Arc::new(Dest::open(&path, "5a".repeat(16)).unwrap());
            dest.unnamed.store(unnamed, Ordering::Relaxed);
            fs_err::create_dir(path.join("d")).unwrap();
            fs_err::write(path.join("d/there"), "another").unwrap();
            fs_err::hard_link(path.join("d/there"), path.join("d/its-other-name")).unwrap();
            let mut dirs = Dirs::new(Arc::clone(&dest));
            for name in ["d/new", "d/there"] {
                let job = FileFacts {
                    number: 0,
                    path: RelPath::parse(name.as_bytes()).unwrap(),
                    size,
                    mode: 0o640,
                    mtime: Time { seconds: 1_700_000_000, nanos: 123_456_789 },
                    digest,
                    layout: Arc::new(layout.clone()),
                };
                let written = write(&dest, &mut dirs, &job, &[run], &slot, how).unwrap();
                let Written::Named(stamp) = written else { panic!("{name} has its name") };
                let there = fs_err::metadata(path.join(name)).unwrap();
                assert_eq!(fs_err::read(path.join(name)).unwrap(), bytes);
                assert_eq!((there.permissions().mode() & 0o7777, there.nlink()), (0o640, 1));
                assert_eq!((there.mtime(), there.mtime_nsec()), (1_700_000_000, 123_456_789));
                assert_eq!((stamp.size, stamp.ino), (there.size(), there.ino()));
            }
            assert_eq!(fs_err::read(path.join("d/its-other-name")).unwrap(), b"another");
            assert_eq!(names(&path.join("d")), ["its-other-name", "new", "there"], "nothing temporary stays");
            let flags = OFlags::TMPFILE | OFlags::WRONLY;
            let can = rustix::fs::openat(&dest.root, ".", flags, Mode::RUSR).is_ok();
            assert_eq!(dest.unnamed.load(Ordering::Relaxed), unnamed && can, "it went the way it was meant to");
        }
    }
}
