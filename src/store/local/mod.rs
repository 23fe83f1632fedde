//! A store in a directory of this machine.
//!
//! ```text
//! DIR/packs/<team>/<pack> ...      objects, by key
//! DIR/tmp/<pid>-<n>                being written; the same file system, so that a rename publishes them
//! ```
//!
//! An object is written to `tmp/`, synced, renamed to its key without replacing anything, and its directory is synced, with
//! those above it where that was not done before; only then is it acknowledged. A crash leaves files in `tmp/` only, removed
//! at the next start once they are a day old.
//!
//! Folders are 0700 and files 0600: the service's user alone reads the bytes of teams. All disk work runs on the blocking
//! pool; a panic there goes on in the caller. A call that is dropped may still finish its step there: it leaves nothing, or the whole object.
//!
//! Several processes may write here at once, since names in `tmp/` are made with `O_EXCL` and published without replacing.
//! What the file system must give: rename or hard link within it that is atomic, and a sync that is honest.

mod buffers;
mod reader;
mod writer;

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use fs_err as fs;
use jiff::{SignedDuration, Timestamp};
use rustix::fs::RenameFlags;
use tokio::sync::mpsc;

use self::buffers::Buffers;
pub(super) use self::writer::LocalWriter;
use super::keys::{Key, Kind, Prefix};
use super::{Error, Length, Meta, PutMode, Result, Stored, Stream};

/// Temporary files older than this belong to a process that died.
///
/// Counted from their last write, at [`Local::open`] only. A younger one may belong to a process that writes at this moment.
const STALE: SignedDuration = SignedDuration::from_hours(24);
/// Entries of a listing that wait for their reader.
///
/// Bounds the memory of a listing whose reader is slow; the walk blocks its thread meanwhile.
const LISTED_AHEAD: usize = 256;

/// Folders that are remembered as durable.
///
/// A folder for each team and kind, and one for each version's references; forgotten ones are synced once more.
const ROOTED: usize = 4096;

/// No list of objects and no cache of them: the directory is the truth, so what another process or an operator does is seen
/// at once.
#[derive(Debug)]
pub(super) struct Local {
    /// Canonical, so that a working directory or a symlink that changes later moves nothing.
    root: PathBuf,
    /// Names of this process in `tmp/` count up from here.
    next_temp: AtomicU64,
    buffers: Arc<Buffers>,
    /// Folders whose own names are known to be durable, up to the root.
    rooted: Mutex<HashSet<PathBuf>>,
    #[cfg(test)]
    faults: Mutex<Option<(Step, rustix::io::Errno)>>,
    #[cfg(test)]
    synced: Mutex<Vec<PathBuf>>,
}

/// A disk's free bytes, and whether it is one.
pub(super) struct Space {
    /// Bytes that an unprivileged process may still use.
    pub free: u64,
    /// tmpfs or ramfs: a restart of the machine loses everything.
    pub in_memory: bool,
}

/// Where a write can fail; tests make it fail at each.
///
/// In the order of a write. Whatever fails, the contract is the same: no acknowledgement and no file left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Write,
    Sync,
    Publish,
    SyncFolder,
}

impl Local {
    /// Makes the directory where it is missing, clears stale files out of `tmp/`, and syncs the root. `now` is compared
    /// with their times.
    pub(super) async fn open(root: PathBuf, now: Timestamp) -> Result<Self> {
        blocking(move || {
            let at = |error: io::Error| Error::disk(format!("open {}", root.display()), error);
            folders().recursive(true).create(&root).map_err(at)?;
            let root = fs::canonicalize(&root).map_err(at)?;
            let local = Self {
                next_temp: AtomicU64::new(0),
                buffers: Arc::default(),
                rooted: Mutex::default(),
                #[cfg(test)]
                faults: Mutex::default(),
                #[cfg(test)]
                synced: Mutex::default(),
                root,
            };
            let temp = local.temp();
            folders().recursive(true).create(&temp).map_err(at)?;
            remove_stale(&temp, now).map_err(at)?;
            sync_folder(&local.root).map_err(at)?;
            Ok(local)
        })
        .await
    }

    pub(super) fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn temp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.root.join(key.as_str())
    }

    /// `Overwrite` is atomic too: a reader sees the old bytes or the new ones, never a mixture.
    pub(super) async fn put_small(self: &Arc<Self>, key: &Key, bytes: Bytes, mode: PutMode) -> Result<Stored> {
        let (local, key) = (Arc::clone(self), key.clone());
        blocking(move || {
            let temp = TempFile::create(&local)?;
            local
                .step(Step::Write)
                .and_then(|()| io::Write::write_all(&mut &*temp.file, &bytes))
                .map_err(|error| temp.failed("write", error))?;
            temp.publish(&key, mode)?;
            Ok(Stored { bytes: bytes.len() as u64, e_tag: None, checksum: None })
        })
        .await
    }

    pub(super) async fn writer(self: &Arc<Self>, key: &Key, length: Length) -> Result<LocalWriter> {
        let local = Arc::clone(self);
        let temp = blocking(move || TempFile::create(&local)).await?;
        Ok(LocalWriter::new(temp, key.clone(), length))
    }

    pub(super) async fn get(
        self: &Arc<Self>,
        key: &Key,
        range: Option<std::ops::Range<u64>>,
    ) -> Result<(Meta, Stream<Bytes>)> {
        let (path, key, buffers) = (self.path(key), key.clone(), Arc::clone(&self.buffers));
        blocking(move || reader::open(&path, &key, range, buffers)).await
    }

    /// Whatever is no regular file (a folder, a symlink) is no object.
    pub(super) async fn head(&self, key: &Key) -> Result<Meta> {
        let (path, key) = (self.path(key), key.clone());
        blocking(move || match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => Ok(meta(&found)),
            Ok(_) => Err(Error::NotFound { key }),
            Err(error) if is_missing(&error) => Err(Error::NotFound { key }),
            Err(error) => Err(Error::disk("head", error)),
        })
        .await
    }

    /// The folder is synced, so that a deleted object does not come back after a power cut. Folders of teams stay; they are
    /// few.
    pub(super) async fn delete(&self, key: &Key) -> Result<()> {
        let (path, key, root) = (self.path(key), key.clone(), self.root.clone());
        blocking(move || {
            match fs::remove_file(&path) {
                Ok(()) => sync_folder(parent(&path)).map_err(|error| Error::disk("delete", error))?,
                Err(error) if is_missing(&error) => return Ok(()),
                Err(error) => return Err(Error::disk("delete", error)),
            }
            if key.kind() == Kind::Probe {
                // each run has a folder of its own, which nobody else uses
                path.ancestors()
                    .skip(1)
                    .take_while(|folder| *folder != root && fs::remove_dir(folder).is_ok())
                    .for_each(drop);
            }
            match fs::symlink_metadata(&path) {
                Err(error) if is_missing(&error) => Ok(()),
                Err(error) => Err(Error::disk("check that it is gone", error)),
                Ok(_) => Err(Error::Corrupt { key, detail: "it is still there after it was deleted".into() }),
            }
        })
        .await
    }

    /// A walk on the blocking pool that waits for its reader and ends when the reader goes away.
    pub(super) fn list(&self, prefix: Prefix) -> Stream<(Key, Meta)> {
        let (tx, rx) = mpsc::channel(LISTED_AHEAD);
        let (root, folder) = (self.root.clone(), self.root.join(prefix.folder()));
        let walk = tokio::task::spawn_blocking(move || {
            if let Err(Some(error)) = walk(&root, &folder, &tx) {
                // a reader that went away needs no error
                let _ = tx.blocking_send(Err(Error::disk("list", error)));
            }
        });
        Box::pin(futures::stream::unfold((rx, Some(walk)), |(mut rx, mut walk)| async move {
            if let Some(item) = rx.recv().await {
                return Some((item, (rx, walk)));
            }
            // the end of the channel is the end of the walk, unless the walk panicked
            match walk.take()?.await {
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                _ => None,
            }
        }))
    }

    /// What is left on the disk. Blocks for a moment.
    pub(super) fn space(&self) -> Result<Space> {
        let failed = |error: rustix::io::Errno| Error::disk("ask for free space", error.into());
        let found = rustix::fs::statvfs(&self.root).map_err(failed)?;
        // the magic numbers of tmpfs and ramfs
        let in_memory = matches!(rustix::fs::statfs(&self.root).map_err(failed)?.f_type, 0x0102_1994 | 0x8584_58f6);
        Ok(Space { free: found.f_bavail.saturating_mul(found.f_frsize), in_memory })
    }

    /// Makes `folder` and what is missing above it. Not synced: that is for [`Self::keep_name`], since somebody else may make
    /// it at the same time.
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        // a folder that was taken away and is made anew is not the one that was synced
        lock(&self.rooted).clear();
        folders().recursive(true).create(folder)
    }

    /// Makes the name of an object durable, and the names of the folders it lies in: whoever made them may not have synced
    /// them yet. Each folder's own name once for each process.
    fn keep_name(&self, path: &Path) -> io::Result<()> {
        let folder = parent(path);
        self.sync_folder(folder)?;
        if lock(&self.rooted).contains(folder) {
            return Ok(());
        }
        folder
            .ancestors()
            .take_while(|folder| **folder != *self.root)
            .try_for_each(|folder| self.sync_folder(parent(folder)))?;
        let mut rooted = lock(&self.rooted);
        if rooted.len() >= ROOTED {
            rooted.clear();
        }
        rooted.insert(folder.to_owned());
        Ok(())
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        #[cfg(test)]
        lock(&self.synced).push(folder.to_owned());
        sync_folder(folder)
    }

    /// Does nothing but in tests, where it fails when told to.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "only tests make a step fail"))]
    fn step(&self, step: Step) -> io::Result<()> {
        #[cfg(test)]
        if let Some((at, errno)) = *self.faults.lock().unwrap()
            && at == step
        {
            return Err(errno.into());
        }
        let _ = step;
        Ok(())
    }
}

/// A file in `tmp/`, removed when dropped before it was published.
///
/// Exactly one of two ends: `publish`, which consumes it, or removal by `drop`. While it lives nobody else touches its
/// path.
#[derive(Debug)]
struct TempFile {
    local: Arc<Local>,
    /// Shared with a batch that is being written when the writer is dropped.
    file: Arc<std::fs::File>,
    path: PathBuf,
    published: bool,
}

impl TempFile {
    fn create(local: &Arc<Local>) -> Result<Self> {
        loop {
            let n = local.next_temp.fetch_add(1, Ordering::Relaxed);
            let path = local.temp().join(format!("{}-{n}", std::process::id()));
            match local
                .step(Step::Create)
                .and_then(|()| std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path))
            {
                Ok(file) => return Ok(Self { local: Arc::clone(local), file: Arc::new(file), path, published: false }),
                // left by an earlier process of the same number
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::disk(format!("create {}", path.display()), error)),
            }
        }
    }

    /// Syncs the file, gives it its name without replacing anything (or replacing, if told so), and syncs that name.
    ///
    /// The order matters: a name that points to unsynced bytes would survive a power cut that its bytes do not. After a failed
    /// sync the file is never synced again, since the kernel reports lost pages once only; it is removed.
    fn publish(mut self, key: &Key, mode: PutMode) -> Result<()> {
        let local = Arc::clone(&self.local);
        local.step(Step::Sync).and_then(|()| self.file.sync_data()).map_err(|error| self.failed("sync", error))?;
        let path = local.path(key);
        let rename = || local.step(Step::Publish).and_then(|()| rename(&self.path, &path, mode));
        let renamed = match rename() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                local.make_folder(parent(&path)).and_then(|()| rename())
            }
            other => other,
        };
        match renamed {
            Ok(()) => self.published = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::AlreadyExists { key: key.clone() });
            }
            Err(error) => return Err(self.failed("name", error)),
        }
        local.step(Step::SyncFolder).and_then(|()| local.keep_name(&path)).map_err(|error| {
            if mode == PutMode::Create {
                // nobody was told of it, and its name may not survive: better gone
                let _ = std::fs::remove_file(&path);
            }
            self.failed("sync the folder of", error)
        })
    }

    /// [`Error::NoSpace`] or [`Error::Disk`], naming the step and the temporary path.
    fn failed(&self, doing: &str, error: io::Error) -> Error {
        Error::disk(format!("{doing} {}", self.path.display()), error)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.published {
            // what cannot be removed now is removed as stale at a later start
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Renames within one file system; `Create` never replaces.
///
/// `renameat2` with `RENAME_NOREPLACE`, since `rename` replaces silently and a look beforehand can be raced.
fn rename(from: &Path, to: &Path, mode: PutMode) -> io::Result<()> {
    if mode == PutMode::Overwrite {
        return std::fs::rename(from, to);
    }
    match rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, RenameFlags::NOREPLACE) {
        // a file system without it (NFS, some FUSE): a hard link never replaces either
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => link(from, to),
        other => Ok(other?),
    }
}

/// The object is visible from the link on: what is left in `tmp/` when the old name cannot be removed is removed as stale at
/// a later start.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::hard_link(from, to)?;
    let _ = std::fs::remove_file(from);
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes folders that only the service's own user can enter: teams' bytes are not for everybody on the machine.
fn folders() -> std::fs::DirBuilder {
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// Whether the error says that nothing has this name.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Makes the entries of a folder durable: a file's own sync does not cover its name.
fn sync_folder(folder: &Path) -> io::Result<()> {
    std::fs::File::open(folder)?.sync_all()
}

fn parent(path: &Path) -> &Path {
    path.parent().expect("an object's path is the root and a key of several parts")
}

/// Files from the future are young. One that cannot be removed fails the opening: the disk is then not ours to use.
fn remove_stale(temp: &Path, now: Timestamp) -> io::Result<()> {
    for entry in fs::read_dir(temp)? {
        let entry = entry?;
        let found = entry.metadata()?;
        if found.is_file() && modified(&found).is_some_and(|at| now.duration_since(at) > STALE) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Sends every object below `folder`; `Err(None)` when nobody listens any more.
fn walk(root: &Path, folder: &Path, tx: &mpsc::Sender<Result<(Key, Meta)>>) -> Result<(), Option<io::Error>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        // deleted under way, or never made: nothing to list
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Some(error)),
    };
    for entry in entries {
        let entry = entry.map_err(Some)?;
        let kind = entry.file_type().map_err(Some)?;
        let path = entry.path();
        if kind.is_dir() {
            walk(root, &path, tx)?;
            continue;
        }
        let key = path.strip_prefix(root).ok().and_then(Path::to_str).and_then(|name| name.parse().ok());
        let (true, Some(key)) = (kind.is_file(), key) else { continue };
        match entry.metadata() {
            Ok(found) => tx.blocking_send(Ok((key, meta(&found)))).map_err(|_| None)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Some(error)),
        }
    }
    Ok(())
}

/// The tag is inode, time and length: it changes with every publication, without reading a byte. No checksum is kept.
fn meta(found: &std::fs::Metadata) -> Meta {
    let stamp = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    Meta {
        size: found.len(),
        e_tag: Some(format!("\"{:x}-{stamp:x}-{:x}\"", found.ino(), found.len())),
        modified: modified(found),
        checksum: None,
    }
}

fn modified(found: &std::fs::Metadata) -> Option<Timestamp> {
    found.modified().ok().and_then(|at| Timestamp::try_from(at).ok())
}

/// Runs disk work where it may block. A panic in it goes on in the caller.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    joined(tokio::task::spawn_blocking(work)).await
}

/// A task that was cancelled means that the runtime ends. Whether its step was done is unknown.
async fn joined<T>(task: tokio::task::JoinHandle<Result<T>>) -> Result<T> {
    match task.await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::Unavailable {
            detail: "the service is shutting down".into(),
            settled: super::Settled::Unknown,
            source: None,
        }),
    }
}

#[cfg(test)]
mod tests;
