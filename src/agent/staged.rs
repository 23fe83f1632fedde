//! What exactly is staged: the inputs' trees, the tree of the job's directory that they make, and the cheap proof that its files have
//! not changed since they were verified.
//!
//! Facts are taken after verification, one line a file, and compared by directory handles that follow no link: size, mtime, ctime and
//! inode. Where those differ the file is read and hashed again; only its digest decides. Memory is bounded by path depth.
//!
//! Files in a job's directory are meant to be read, and nothing keeps a job with the right user from changing them: that is
//! what the looks are for. They prove regular files only; what a job adds, and links and directories, are not looked at.

use super::home::{self, Home};
use super::report::is_refusal;
use crate::api::jobs::{InputSpec, Job, JobInput, StagingError};
use crate::client::api::route;
use crate::client::pull::{Depth, Parts, is_part};
use crate::client::transfer::Target;
use crate::client::{Context, Error as ClientError};
use crate::content::codec::MAX_WINDOW;
use crate::content::digest::{Digest, Hasher};
use crate::content::tree::{Counts, Kind, TreeReader};
use crate::domain::job::OUT;
use crate::domain::selection::{Input, OutsideLinks, Picker, Selection, staged_tree};
use data_encoding::BASE64;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Largest tree document taken from the service, compressed.
///
/// A service that sends for ever fills no disk. The largest trees that are made are far smaller.
const MAX_DOCUMENT: u64 = 8 << 30;

/// The inputs' trees, in unlinked temporary files.
///
/// Compressed, as the service stores them; each use decodes them again from the begin. Gone when dropped, and after a
/// crash.
#[derive(Debug)]
pub struct Trees(Vec<(Selection, File)>);

/// Why the trees could not be had or read.
///
/// Decides between telling the service `failed`, which is for good, and another attempt.
#[derive(Debug)]
pub enum Fault {
    /// The staging fails for this.
    ///
    /// The code is part of the API: schedulers act on it.
    Staging(StagingError),
    /// The service or the disk is to blame; trying again may help.
    Transient(ClientError),
}

fn fault(code: &str, detail: impl std::fmt::Display) -> Fault {
    Fault::Staging(StagingError { code: code.to_owned(), detail: detail.to_string() })
}

/// Whether an input allows what it must allow; the rest of its choices, compiled.
pub fn selection(input: &JobInput) -> Result<Selection, Fault> {
    let InputSpec { at, include, exclude, shard, allow_outside_links, allow_incomplete, .. } = &input.spec;
    if input.version.incomplete && !allow_incomplete {
        let reference = &input.version.reference;
        return Err(fault(
            "incomplete_input",
            format!("`{reference}` is incomplete; push it again, or say `allow_incomplete = true` on the input"),
        ));
    }
    let links = if *allow_outside_links { OutsideLinks::Keep } else { OutsideLinks::Refuse };
    let declared = Input { at, subtree: input.path.as_bytes(), include, exclude, shard: shard.as_deref(), links };
    Selection::new(&declared).map_err(|error| fault("bad_input", error))
}

/// Fetches every input's tree.
///
/// In the order of the job's inputs. Where shards are asked for, each tree is gone over once more to deal them. Nothing is
/// checked against a digest here: the pull verifies each version itself, and the service holds the receipt against its own
/// trees.
pub async fn fetch(context: &Context, home: &Home, job: &Job) -> Result<Trees, Fault> {
    let mut trees = Vec::with_capacity(job.inputs.len());
    for input in &job.inputs {
        let selection = selection(input)?;
        let path = route(&["v1", "versions", &input.version.id, "tree"], &[]);
        let local = |source| ClientError::Local { path: home.temp(), source };
        let mut file = tempfile::tempfile_in(home.temp()).map_err(|error| Fault::Transient(local(error)))?;
        let mut download = context.api.get_stream(Target::Service(&path), None).await.map_err(refused_or_transient)?;
        while let Some(part) = download.next().await.map_err(refused_or_transient)? {
            if download.position() > MAX_DOCUMENT {
                return Err(fault("bad_tree", format!("the tree of `{}` is too large", input.version.reference)));
            }
            file.write_all(&part).map_err(|error| Fault::Transient(local(error)))?;
        }
        trees.push((selection, file));
    }
    let weighing = tokio::task::spawn_blocking(move || {
        let weigh = |(selection, file): (Selection, File)| {
            let weighed = if selection.needs_weighing() { selection.weigh(reader(&file)?) } else { Ok(selection) };
            Ok((weighed.map_err(io::Error::other)?, file))
        };
        trees.into_iter().map(weigh).collect::<io::Result<_>>()
    });
    let weighed = weighing.await.map_err(|error| fault("broken", error))?;
    Ok(Trees(weighed.map_err(|error| fault("bad_tree", error))?))
}

/// Reads a tree from its begin.
///
/// The window is bounded as for every frame of ours, so that a forged document cannot ask for more memory. One reader of a
/// file at a time: its position is shared by all.
fn reader(file: &File) -> io::Result<TreeReader<impl BufRead + use<>>> {
    let mut file = file.try_clone()?;
    file.rewind()?;
    let mut decoder = zstd::Decoder::new(file)?;
    decoder.window_log_max(MAX_WINDOW.ilog2())?;
    TreeReader::open(BufReader::with_capacity(1 << 16, decoder)).map_err(io::Error::other)
}

/// A refusal would be the same next time.
fn refused_or_transient(error: ClientError) -> Fault {
    match error {
        ClientError::Refused(problem) if is_refusal(&problem) => {
            Fault::Staging(StagingError { code: problem.code, detail: problem.detail })
        }
        other => Fault::Transient(other),
    }
}

impl Trees {
    fn open(&self) -> io::Result<Vec<(Selection, TreeReader<impl BufRead>)>> {
        self.0.iter().map(|(selection, file)| Ok((selection.clone(), reader(file)?))).collect()
    }

    /// Digest and counts of the job's directory, as the inputs declare it and before a byte of it is there. Blocking.
    ///
    /// By the rule of `domain::selection`, which the service uses too, over the same trees: so both come to one digest, which the receipt states.
    /// Links that lead outside are refused here unless the input allows them.
    pub fn staged(&self) -> Result<(Digest, Counts), Fault> {
        let readers = self.open().map_err(|error| fault("bad_tree", error))?;
        staged_tree(readers).map_err(|error| match error {
            crate::domain::selection::Error::OutsideLink { .. } => fault("outside_links", error),
            crate::domain::selection::Error::NoSuchPath(_) => fault("no_such_path", error),
            other => fault("bad_tree", other),
        })
    }

    /// Writes one line for every file as it lies on the disk now, synced. Gives their number. Blocking.
    ///
    /// Fails when a file is not there with the size it should have (`changed`). Call it after the pulls have verified every
    /// file and before `ready` is recorded: what happens to a file from now on is noticed. A file changed between its
    /// verification and this call with its size kept is not.
    pub fn write_facts(&self, job_dir: &Path, to: &Path) -> Result<u64, Fault> {
        let local = |error: io::Error| fault("local_io", error);
        let dir = File::open(job_dir).map_err(local)?;
        let mut out = BufWriter::new(File::create(to).map_err(local)?);
        let mut files = 0;
        for (selection, reader) in self.open().map_err(local)? {
            let mut picker = Picker::new(&selection);
            let mut placed = Vec::new();
            let mut write = |placed: &mut Vec<crate::domain::selection::Placed>| -> Result<(), Fault> {
                for item in placed.drain(..) {
                    let Kind::File { size, digest, .. } = item.entry.kind else { continue };
                    let path = item.entry.path.as_bytes();
                    let fact = Fact::of(&dir, path, digest).map_err(|error| {
                        fault(
                            "local_io",
                            format!("`{}` cannot be seen after it was verified: {error}", item.entry.path),
                        )
                    })?;
                    if fact.size != size {
                        let text =
                            format!("`{}` has {} bytes after it was verified with {size}", item.entry.path, fact.size);
                        return Err(fault("changed", text));
                    }
                    write_fact(&mut out, &fact).map_err(local)?;
                    files += 1;
                }
                Ok(())
            };
            for entry in reader {
                let entry = entry.map_err(|error| fault("bad_tree", error))?;
                picker.push(&entry, &mut placed).map_err(|error| fault("bad_tree", error))?;
                write(&mut placed)?;
            }
            picker.finish(&mut placed).map_err(|error| fault("bad_tree", error))?;
            write(&mut placed)?;
        }
        out.into_inner().map_err(|error| local(error.into_error()))?.sync_all().map_err(local)?;
        Ok(files)
    }
}

/// One file as it was when it had been verified.
///
/// A change of content changes ctime, which no ordinary call can set back; that is why size and mtime alone do not do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fact {
    /// Base64 of the path below the job's directory.
    path: String,
    digest: Digest,
    size: u64,
    /// Seconds and nanoseconds.
    mtime: (i64, i64),
    ctime: (i64, i64),
    inode: u64,
}

/// `openat2` below `dir`, following no link in any component: a job that puts a link in place of a directory gains nothing.
/// Needs Linux 5.6. `O_NONBLOCK`, so that a pipe put in a file's place does not hang the agent.
fn open_beneath(dir: impl AsFd, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // openat2 refuses O_PATH together with O_NONBLOCK, which only matters where bytes are read.
    let wait = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | wait;
    Ok(rustix::fs::openat2(dir, std::ffi::OsStr::from_bytes(path), flags, Mode::empty(), resolve)?)
}

impl Fact {
    /// By handle, without reading the file: it needs no right to its bytes.
    fn of(dir: impl AsFd, path: &[u8], digest: Digest) -> io::Result<Self> {
        let handle = open_beneath(dir, path, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&handle)?;
        Ok(Self {
            path: BASE64.encode(path),
            digest,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            ctime: (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
            inode: stat.st_ino,
        })
    }

    /// Whether the file's bytes still are what they were, read from the disk.
    fn holds_by_digest(&self, dir: impl AsFd, path: &[u8]) -> io::Result<bool> {
        let file = File::from(open_beneath(dir, path, OFlags::RDONLY)?);
        if !file.metadata()?.is_file() {
            return Ok(false);
        }
        let mut reader = file.take(self.size + 1);
        let mut buffer = crate::content::buffer::AlignedBuf::new(1 << 20);
        let (mut hasher, mut length) = (Hasher::new(), 0);
        loop {
            let read = reader.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            length += read as u64;
            hasher.update(&buffer[..read]);
        }
        Ok(length == self.size && hasher.finalize() == self.digest)
    }
}

/// What a look at the staged files found.
///
/// Only `Lost` takes `ready` back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing has changed.
    Same,
    /// Times or inodes differ, the bytes do not: it still is ready. The facts have been taken anew, so that the next look
    /// need not read these files again.
    Touched,
    /// At least one file is lost or damaged.
    Lost,
}

/// Compares the disk with the facts. Blocking; a `stat` for each file, and a whole read of those that differ.
///
/// An error means that it could not be found out, which callers take as lost. Stops at the first lost file. One look at a
/// time for one staging.
pub fn look(job_dir: &Path, facts: &Path) -> io::Result<Look> {
    let dir = match File::open(job_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Look::Lost),
        other => other?,
    };
    let mut anew: Option<io::Result<BufWriter<File>>> = None;
    let mut same = 0;
    for line in BufReader::new(File::open(facts)?).lines() {
        let line = line?;
        let Ok(fact) = serde_json::from_str::<Fact>(&line) else { return Ok(Look::Lost) };
        let Ok(path) = BASE64.decode(fact.path.as_bytes()) else { return Ok(Look::Lost) };
        match Fact::of(&dir, &path, fact.digest) {
            Ok(now) if now == fact => match &mut anew {
                Some(anew) => add_fact(anew, &fact),
                None => same += 1,
            },
            // taken before the bytes are read: a change after that differs from it
            Ok(now) if now.size == fact.size && fact.holds_by_digest(&dir, &path)? => {
                add_fact(anew.get_or_insert_with(|| first_facts(facts, same)), &now);
            }
            _ => return Ok(Look::Lost),
        }
    }
    let Some(anew) = anew else { return Ok(Look::Same) };
    if let Err(error) = anew.and_then(|anew| replace_facts(anew, facts)) {
        // not known to be lost, only read again by the next look
        tracing::warn!(facts = %facts.display(), %error, "facts of staged files cannot be taken anew");
    }
    Ok(Look::Touched)
}

/// Begins new facts with the first `count` of the old ones.
fn first_facts(facts: &Path, count: usize) -> io::Result<BufWriter<File>> {
    let mut anew = BufWriter::new(File::create(home::new_facts(facts))?);
    for line in BufReader::new(File::open(facts)?).lines().take(count) {
        anew.write_all(line?.as_bytes())?;
        anew.write_all(b"\n")?;
    }
    Ok(anew)
}

/// After an error nothing more is added.
fn add_fact(anew: &mut io::Result<BufWriter<File>>, fact: &Fact) {
    if let Ok(out) = anew
        && let Err(error) = write_fact(out, fact)
    {
        *anew = Err(error);
    }
}

/// The old facts or the new ones lie there, never a part.
fn replace_facts(anew: BufWriter<File>, facts: &Path) -> io::Result<()> {
    anew.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    std::fs::rename(home::new_facts(facts), facts)
}

fn write_fact(out: &mut impl Write, fact: &Fact) -> io::Result<()> {
    serde_json::to_writer(&mut *out, fact)?;
    out.write_all(b"\n")
}

/// Removes what a killed pull left half-written below the job's directory, `out/` excepted. Follows no link. Blocking.
///
/// Whichever pull's, since the directory is this staging's alone. Without this they would be left in a directory that is
/// said to hold the inputs and nothing else.
pub fn remove_parts(job_dir: &Path) -> io::Result<()> {
    let dir = match File::open(job_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    Parts { wanted: &is_part, depth: Depth::All, spare: OUT.as_bytes() }.remove(dir.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::digest::digest;

    fn facts_of(dir: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
        std::fs::write(dir.join(name), bytes).expect("written");
        let handle = File::open(dir).expect("opened");
        let fact = Fact::of(&handle, name.as_bytes(), digest(bytes)).expect("a fact");
        let facts = dir.with_extension("facts");
        std::fs::write(&facts, serde_json::to_vec(&fact).expect("json")).expect("written");
        facts
    }

    #[test]
    fn a_touched_file_is_proven_by_its_digest_and_a_changed_one_is_lost() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let dir = root.path().join("job");
        std::fs::create_dir(&dir).expect("made");
        let facts = facts_of(&dir, "a", b"hello");
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Same);
        std::fs::write(dir.join("b"), b"hello").expect("written");
        std::fs::rename(dir.join("b"), dir.join("a")).expect("renamed");
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Touched);
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Same, "it is read once");
        std::fs::write(dir.join("a"), b"hellO").expect("written");
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Lost);
        std::fs::remove_file(dir.join("a")).expect("removed");
        std::os::unix::fs::symlink("/etc/hostname", dir.join("a")).expect("linked");
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Lost);
    }

    #[test]
    fn facts_taken_anew_keep_every_file() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let dir = root.path().join("job");
        std::fs::create_dir(&dir).expect("made");
        let facts = root.path().join("s.facts");
        let lines = ["a", "b", "c"].iter().flat_map(|name| {
            let line = std::fs::read(facts_of(&dir, name, name.as_bytes())).expect("a line");
            line.into_iter().chain([b'\n'])
        });
        std::fs::write(&facts, lines.collect::<Vec<_>>()).expect("written");
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Same);
        std::fs::write(dir.join("b"), b"b").expect("written");
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Touched);
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Same);
        assert_eq!(std::fs::read_to_string(&facts).expect("read").lines().count(), 3);
        // where they cannot be taken anew, nothing is lost for it
        std::fs::create_dir(home::new_facts(&facts)).expect("in the way");
        std::fs::write(dir.join("c"), b"c").expect("written");
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Touched);
        std::fs::write(dir.join("c"), b"C").expect("written");
        assert_eq!(look(&dir, &facts).expect("looked"), Look::Lost);
    }

    #[test]
    fn half_written_files_are_removed_but_for_the_jobs_own() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let job = root.path().join("job");
        for (dir, name) in [("in", ".dray-1.part"), ("out", ".dray-1.part")] {
            std::fs::create_dir_all(job.join(dir)).expect("made");
            std::fs::write(job.join(dir).join(name), "x").expect("written");
        }
        remove_parts(&job).expect("removed");
        assert!(!job.join("in/.dray-1.part").exists() && job.join("out/.dray-1.part").exists());
        remove_parts(&root.path().join("absent")).expect("nothing to do");
    }
}
