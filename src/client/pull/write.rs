//! The workers of a pull: decode a window, write what is whole in it, prepare the rest.
//!
//! A file that lies whole in one window is hashed before it is written and gets its name here, so many are under way at once.
//! Pieces of larger files are written here too; their digest follows in order, in `finish`.

use super::dest::{Dest, Dirs, Missing};
use super::file::{FileFacts, Run};
use super::large::{Finish, LargeFile, Unfinished, create, name, write_runs};
use super::window::{Damage, Done, Ended, Fetched, FileJob, Proof, decode, hash_runs};
use crate::client::report::Item;
use crate::client::walk::errno_reason;
use crate::content::codec::Decoder;
use crate::content::digest::Hasher;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::sync::Arc;

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
            Sink::Write(..) => Proof::Crc,
            Sink::Prove => Proof::Id,
        };
        let mut done = decode(fetched, &mut self.decoder, proof);
        let mut ended = Vec::new();
        for (number, job) in &done.job.files {
            let runs = done.runs.get(number).map_or(&[][..], Vec::as_slice);
            if !is_whole(job, runs) {
                if let Some(damage) = self.piece(job, runs, &done) {
                    ended.push((*number, damage));
                }
                continue;
            }
            ended.push((*number, self.whole(job, runs, &done)));
        }
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
    fn whole(&mut self, job: &FileJob, runs: &[Run], done: &Done) -> Ended {
        if let Some(Damage { pack, why }) = done.damage.get(&job.number) {
            return Ended::Wrong { actual: None, pack: Some(*pack), why: why.clone() };
        }
        let mut hasher = Hasher::new();
        hash_runs(&mut hasher, runs, &done.job.slot);
        let actual = hasher.finalize();
        if actual != job.digest {
            let pack = guilty(job.number, done);
            return Ended::Wrong { actual: Some(actual), pack, why: "its digest differs".to_owned() };
        }
        let (Sink::Write(dest, how), Some(dirs)) = (&self.sink, &mut self.dirs) else { return Ended::Good(None) };
        let written = write(dest, dirs, job, runs, done, *how);
        match written {
            Ok(stamp) => Ended::Good(Some(stamp)),
            Err(Unfinished::Io(error)) => Ended::Failed(Item::new(job.path.as_bytes(), &errno_reason(error))),
            Err(Unfinished::ReadBack(actual)) => {
                Ended::Wrong { actual: Some(actual), pack: None, why: "the disk gave back other bytes".to_owned() }
            }
        }
    }
}

fn write(
    dest: &Dest,
    dirs: &mut Dirs,
    job: &FileFacts,
    runs: &[Run],
    done: &Done,
    how: Finish,
) -> Result<crate::client::walk::Stamp, Unfinished> {
    let dir = dirs.parent(&job.path, Missing::Fail)?;
    let (file, temporary) = create(dest, dir)?;
    let written = write_runs(&file, runs, &done.job.slot)
        .map_err(Unfinished::Io)
        .and_then(|()| name(&file, dir, &temporary, job, how));
    if written.is_err() {
        let _: Result<(), Errno> = rustix::fs::unlinkat(dir, &*temporary, AtFlags::empty());
    }
    written
}

/// Whether the runs are all of the file.
pub(in crate::client) fn is_whole(job: &FileFacts, runs: &[Run]) -> bool {
    runs.first().is_some_and(|first| first.offset == 0) && runs.iter().map(|run| run.length).sum::<u64>() == job.size
}

/// The pack with the chunk that is not what its id says, when all crc32s were right and the file's digest was not.
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
