//! Stage-out: what a job declared to bring back, taken out of its reach, pushed, and its directory cleared away.
//!
//! An output is first *sealed*: its regular files are hard-linked (copied where that cannot be) into a directory that only
//! the agent can enter, and synced. Nothing is opened through a link: every step goes by a directory handle with
//! `O_NOFOLLOW`. Links that leave the output, files whose other names belong to somebody else, pipes, sockets and devices
//! are refused by name; no byte of them is read. Sealed outputs survive a restart and are pushed by the same road as a
//! team's data.

use super::home::{Home, Phase, Record};
use super::report::{OutputFacts, Unheard, Voice, is_refusal};
use super::stage_in::Ended;
use crate::api::jobs::{OutputSpec, OutputState, SkippedEntry, StagingError, StagingState, WorkReturn};
use crate::api::uploads::OutputOf;
use crate::client::push::{PushOptions, PushReport, push};
use crate::client::{Error as ClientError, Exit, TransferError};
use crate::content::path::{RelPath, symlink_escapes};
use crate::domain::job::glob_set;
use fs_err as fs;
use globset::GlobSet;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Most refused entries that are reported; further ones are left out of the report.
const MAX_SKIPPED: usize = 1_000;
const MAX_DEPTH: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// One ended staging to bring home.
///
/// `work.outputs` names what is due; outputs that have reached their end before are not in it.
#[derive(Debug)]
pub struct StageOut {
    pub home: Arc<Home>,
    pub voice: Arc<Voice>,
    pub work: WorkReturn,
    pub memory: u64,
}

impl StageOut {
    /// Brings every due output home and clears the directory away. Ends early only when the agent stops or the service refuses.
    pub async fn run(self) -> Ended {
        match self.bring_home().await {
            Ok(()) => {}
            Err(Unheard::Stopped) => return Ended::Dropped,
            Err(Unheard::Refused(problem)) => {
                tracing::warn!(staging = %self.voice.staging, code = problem.code, detail = problem.detail, "the service refused a return");
                return Ended::Refused;
            }
        }
        let home = Arc::clone(&self.home);
        if let Err(error) = tokio::task::spawn_blocking(move || home.empty_trash()).await {
            tracing::error!(%error, "emptying the trash broke");
        }
        Ended::Returned
    }

    async fn bring_home(&self) -> Result<(), Unheard> {
        let known = self.home.record(&self.work.staging.id);
        let mut record = Record { phase: Phase::Returning, ..known.clone().unwrap_or_else(|| self.record()) };
        if known.is_some()
            && let Err(error) = self.home.save(&record)
        {
            tracing::error!(%error, "cannot record a return");
        }
        for name in &self.work.outputs {
            if let Some(spec) = self.work.job.spec.output.iter().find(|spec| spec.name == *name) {
                self.bring(spec, &mut record).await?;
            }
        }
        match known {
            Some(_) => self.take_away(&record).await?,
            None => self.leave(&record),
        }
        self.voice.say(&self.voice.report(StagingState::Released)).await?;
        Ok(())
    }

    fn record(&self) -> Record {
        Record {
            staging: self.work.staging.id.clone(),
            job: self.work.job.id.clone(),
            epoch: self.work.lease.epoch,
            phase: Phase::Returning,
            ready_seq: self.work.staging.ready_seq,
            receipt: None,
            bytes: 0,
            unreturned: false,
        }
    }

    /// Clears the directories away, however often that takes: what could not be brought home is never deleted, so it stays until it can be set aside.
    ///
    /// Ends only when it is done or the agent stops: `released` is said after it.
    async fn take_away(&self, record: &Record) -> Result<(), Unheard> {
        let kept = self.home.kept_dir(record);
        let mut pause = FIRST_PAUSE;
        loop {
            match self.home.forget(record, &self.voice.context.ids.uuid().to_string()) {
                Ok(()) if record.unreturned => {
                    tracing::error!(path = %kept.display(), "an output failed; what the job wrote is kept there");
                    return Ok(());
                }
                Ok(()) => return Ok(()),
                Err(error) => {
                    let path = self.home.job_dir(&record.job, record.epoch);
                    let why = super::chain(&error);
                    tracing::error!(path = %path.display(), why, "an ended staging cannot be taken away; it stays, trying again");
                }
            }
            self.rest(&mut pause).await?;
        }
    }

    /// A directory without a record is not ours to take away.
    fn leave(&self, record: &Record) {
        let path = self.home.job_dir(&record.job, record.epoch);
        if path.exists() {
            tracing::warn!(path = %path.display(), "not in this agent's records, so it stays; look at it and move it away");
        }
        if !record.unreturned
            && let Err(error) = self.home.discard(
                &self.home.sealed_dir(&record.job, record.epoch),
                &format!("{}-sealed", self.voice.context.ids.uuid()),
            )
        {
            tracing::error!(%error, "cannot take sealed outputs away");
        }
    }

    async fn rest(&self, pause: &mut Duration) -> Result<(), Unheard> {
        tokio::select! {
            () = self.voice.context.cancel.cancelled() => return Err(Unheard::Stopped),
            () = tokio::time::sleep(*pause) => *pause = (*pause * 2).min(LONGEST_PAUSE),
        }
        Ok(())
    }

    /// Says that an output failed. First it stands on the disk: once it is said, nobody asks for the output again, and a restarted agent must know.
    async fn failed(
        &self,
        spec: &OutputSpec,
        record: &mut Record,
        error: StagingError,
        facts: OutputFacts,
    ) -> Result<(), Unheard> {
        record.unreturned = true;
        let mut pause = FIRST_PAUSE;
        while self.home.record(&record.staging).is_some()
            && let Err(error) = self.home.save(record)
        {
            let why = super::chain(&error);
            tracing::error!(output = spec.name, why, "an output failed, and that cannot be recorded; trying again");
            self.rest(&mut pause).await?;
        }
        let facts = OutputFacts { error: Some(error), ..facts };
        self.voice.output(&spec.name, OutputState::Failed, facts).await
    }

    async fn bring(&self, spec: &OutputSpec, record: &mut Record) -> Result<(), Unheard> {
        let voice = &self.voice;
        voice.output(&spec.name, OutputState::Sealing, OutputFacts::default()).await?;
        let out = self.home.job_dir(&self.work.job.id, self.work.lease.epoch).join("out");
        // An output's name is checked at submit; a directory of its own all the same, by position.
        let number = self.work.job.spec.output.iter().position(|other| other.name == spec.name).unwrap_or(0);
        let sealed = self.home.sealed_dir(&self.work.job.id, self.work.lease.epoch).join(number.to_string());
        let globs = spec.path.clone();
        let into = sealed.clone();
        let done = tokio::task::spawn_blocking(move || seal(&out, &into, &globs)).await;
        let found = match done.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(found) => found,
            Err(error) => {
                let error = StagingError { code: "seal_failed".to_owned(), detail: error.to_string() };
                return self.failed(spec, record, error, OutputFacts::default()).await;
            }
        };
        if found.files == 0 {
            let facts = OutputFacts { skipped: found.skipped, ..OutputFacts::default() };
            return voice.output(&spec.name, OutputState::Missing, facts).await;
        }
        voice.output(&spec.name, OutputState::Sealed, found.facts()).await?;
        voice.output(&spec.name, OutputState::Storing, found.facts()).await?;
        match self.push(spec, &sealed).await? {
            Ok(report) => {
                let facts = OutputFacts {
                    files: report.files,
                    bytes: report.bytes,
                    version: report.version_id,
                    ..found.facts()
                };
                voice.output(&spec.name, OutputState::Stored, facts).await
            }
            Err(error) => {
                let error = StagingError { code: error.code().to_owned(), detail: error.to_string() };
                self.failed(spec, record, error, found.facts()).await
            }
        }
    }

    /// Pushes until it is stored or refused; a line that is down is waited for.
    async fn push(&self, spec: &OutputSpec, sealed: &Path) -> Result<Result<PushReport, TransferError>, Unheard> {
        let context = &self.voice.context;
        let mut options = PushOptions::new(spec.to.clone(), vec![sealed.to_owned()]);
        options.memory = self.memory;
        options.temp_dir = Some(self.home.temp());
        options.output = Some(OutputOf {
            job: self.work.job.id.clone(),
            lease_epoch: self.work.lease.epoch,
            name: spec.name.clone(),
        });
        let mut pause = FIRST_PAUSE;
        loop {
            match push(context, options.clone()).await {
                Err(error) if error.exit() == Exit::Interrupted => return Err(Unheard::Stopped),
                Err(TransferError::Api(error)) if is_transient(&error) => {
                    tracing::warn!(staging = %self.voice.staging, output = spec.name, %error, "an output is interrupted; trying again");
                }
                done => return Ok(done),
            }
            tokio::select! {
                () = context.cancel.cancelled() => return Err(Unheard::Stopped),
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }
}

fn is_transient(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(problem) => !is_refusal(problem),
        other => other.exit() == Exit::Network,
    }
}

/// What was sealed.
#[derive(Debug, Default)]
struct Found {
    files: u64,
    bytes: u64,
    skipped: Vec<SkippedEntry>,
}

impl Found {
    /// Said with every later state of the output.
    fn facts(&self) -> OutputFacts {
        OutputFacts { files: self.files, bytes: self.bytes, skipped: self.skipped.clone(), ..OutputFacts::default() }
    }

    fn skip(&mut self, path: &RelPath, reason: &str) {
        if self.skipped.len() < MAX_SKIPPED {
            self.skipped.push(SkippedEntry { path: path.to_string(), reason: reason.to_owned() });
        }
    }
}

/// Links or copies what matches into `sealed`, synced. Blocking.
///
/// May be repeated: what is sealed already stays. A missing `out/` is an output without files. A hard link shares the file
/// with the job's name for it, so the job must have ended. Symlinks within the output are made anew as text.
fn seal(out: &Path, sealed: &Path, globs: &[String]) -> io::Result<Found> {
    let globs = glob_set(globs).map_err(io::Error::other)?;
    fs::create_dir_all(sealed)?;
    let mut found = Found::default();
    let from = match open_dir(rustix::fs::CWD, out.as_os_str()) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    let owner = rustix::fs::fstat(&from)?.st_uid;
    let sealer = Sealer { globs: &globs, owner };
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
}

impl Sealer<'_> {
    fn directory(&self, dir: &OwnedFd, into: &Path, path: Option<&RelPath>, found: &mut Found) -> io::Result<()> {
        if path.is_some_and(|path| path.components().count() >= MAX_DEPTH) {
            return Ok(());
        }
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
            let Ok(below) = below else { continue };
            self.entry(dir, OsStr::from_bytes(name), into, &below, found)?;
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
                        found.skip(path, "unreadable");
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
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::EXIST) => return Ok(()),
            Err(_) => {}
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut from = File::from(rustix::fs::openat(dir, name, flags, Mode::empty())?);
        let temporary = place.with_extension("dray-seal");
        let mut to = File::create(&temporary)?;
        io::copy(&mut from, &mut to)?;
        let meta = from.metadata()?;
        to.set_permissions(meta.permissions())?;
        to.set_modified(meta.modified()?)?;
        fs::rename(&temporary, place)
    }
}

/// The sealed path of an entry, its directories made.
fn place(into: &Path, path: &RelPath) -> io::Result<std::path::PathBuf> {
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
}
