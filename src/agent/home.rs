//! The agent's directory on the node: what lies where, who owns it, and how it survives a crash.
//!
//! ```text
//! CACHE/            0711, one agent at a time (`lock` is held)
//!   key             Ed25519 key of this node, PKCS#8, 0600, made on first use
//!   instance        names this directory's agent to the service
//!   jobs/<job>-<lease epoch>/      a job's directory: each input under its `at`, and `out/`
//!   state/<staging>.json           what this agent has done for a staging, written atomically and synced
//!   state/<staging>.facts          one line a staged file: the cheap proof that it has not changed; `.facts-new` while written anew
//!   sealed/<job>-<lease epoch>/    outputs taken out of the job's reach
//!   kept/<job>-<lease epoch>/      what did not come home of an output; never deleted by the agent
//!   temp/  trash/
//! ```
//!
//! A job's directory without a state record is not ours to reuse: it is an error, never merged.
//!
//! Who may enter: CACHE and `jobs/` can be passed through but not listed (0711), so that a job under its own user reaches
//! its directory by path; everything else is the agent's alone. Directories are taken away by a rename into `trash/`, which
//! is atomic, and deleted there afterwards, so a killed agent leaves a whole directory or none under its old name.
//!
//! Order on the disk: a record is synced before the directory it speaks of is made, and removed after that directory has
//! gone. A crash between the two leaves a record without a directory, which is harmless, never the reverse.

use super::Error;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use fs_err as fs;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The directory, locked for this process.
///
/// Methods take `&self` and may run at once; each staging has one task only, which is what keeps writes of one record
/// apart.
#[derive(Debug)]
pub struct Home {
    root: PathBuf,
    /// Holds the lock as long as it is open.
    _lock: File,
}

/// How far a staging has come on this node.
///
/// ```text
/// (no record) -> Pulling <-> Ready          verified; lost or changed
///                either of them -> Returning -> (no record)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Files may be partly there.
    Pulling,
    /// Every file was verified; `receipt` says so.
    Ready,
    /// The lease is over; outputs are being brought home.
    Returning,
}

/// One staging's record.
///
/// The agent's memory of a staging, and its licence to touch the directory. Unknown fields make it unreadable: an older
/// agent must not drop what a newer one has recorded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub staging: String,
    pub job: String,
    /// Of the lease; with `job` it names the directories.
    pub epoch: u64,
    pub phase: Phase,
    /// Of the receipt; while there is none, the last that the service told of.
    pub ready_seq: u64,
    /// The signed envelope, kept so that a restarted agent says the same `ready` and not another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<serde_json::Value>,
    /// Logical bytes that are staged.
    pub bytes: u64,
    /// An output failed, or something of one could not be sealed: its bytes are only here. Said to nobody before it stands
    /// here, and what it says is set aside, never deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreturned: bool,
}

impl Home {
    /// Makes what is missing and takes the lock. The modes of what is there already are not changed, but for the root's.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let local = |source| Error::Local { path: root.to_owned(), source };
        if !root.exists() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(local)?;
        }
        let root = fs::canonicalize(root).map_err(local)?;
        fs::set_permissions(&root, PermissionsExt::from_mode(0o711)).map_err(local)?;
        for name in ["jobs", "state", "sealed", "temp", "trash"] {
            let path = root.join(name);
            let mode = if name == "jobs" { 0o711 } else { 0o700 };
            match std::fs::DirBuilder::new().mode(mode).create(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(local(error)),
                _ => {}
            }
        }
        let lock = File::options().create(true).truncate(false).write(true).mode(0o600).open(root.join("lock"));
        let lock = lock.map_err(local)?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::InUse { path: root.clone() })?;
        Ok(Self { root, _lock: lock })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path that is reported as ready. One for each lease: a job that is leased again never meets its old files.
    pub fn job_dir(&self, job: &str, epoch: u64) -> PathBuf {
        self.root.join("jobs").join(format!("{job}-{epoch}"))
    }

    /// Outputs by their number, out of the job's reach.
    pub fn sealed_dir(&self, job: &str, epoch: u64) -> PathBuf {
        self.root.join("sealed").join(format!("{job}-{epoch}"))
    }

    /// For working files of transfers. Nothing in it is needed after a restart.
    pub fn temp(&self) -> PathBuf {
        self.root.join("temp")
    }

    /// Written before the record says `Ready`, in place: while it is incomplete the record still says `Pulling`.
    pub fn facts(&self, staging: &str) -> PathBuf {
        self.root.join("state").join(format!("{staging}.facts"))
    }

    fn record_path(&self, staging: &str) -> PathBuf {
        self.root.join("state").join(format!("{staging}.json"))
    }

    /// Bytes free for this process on the directory's file system; 0 when it cannot be asked, which refuses a staging
    /// rather than fill a disk.
    pub fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.root).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// The node's key; made, synced and kept 0600 on first use.
    ///
    /// The private key never leaves this directory. Losing it means adding the node anew.
    pub fn key(&self) -> Result<Key, Error> {
        let path = self.root.join("key");
        let local = |source| Error::Local { path: path.clone(), source };
        match fs::read(&path) {
            Ok(bytes) => Key::from_pkcs8(&bytes).ok_or_else(|| Error::BadKey { path: path.clone() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let document = Ed25519KeyPair::generate_pkcs8(&aws_lc_rs::rand::SystemRandom::new())
                    .map_err(|_| Error::BadKey { path: path.clone() })?;
                write_synced(&path, document.as_ref(), 0o600).map_err(local)?;
                Key::from_pkcs8(document.as_ref()).ok_or_else(|| Error::BadKey { path: path.clone() })
            }
            Err(error) => Err(local(error)),
        }
    }

    /// Names the agent of this directory to the service, across restarts: the lock lets only one process speak at a time, so a restarted agent
    /// need not wait for its predecessor's place. `fresh` is used on first start.
    pub fn instance(&self, fresh: &str) -> Result<String, Error> {
        let path = self.root.join("instance");
        match fs::read_to_string(&path) {
            Ok(text) if !text.is_empty() && text.len() <= 64 => Ok(text),
            _ => {
                write_synced(&path, fresh.as_bytes(), 0o600).map_err(|source| Error::Local { path, source })?;
                Ok(fresh.to_owned())
            }
        }
    }

    /// Durable once it returns.
    ///
    /// Replaces the record as a whole: a crash leaves the old one or the new one.
    pub fn save(&self, record: &Record) -> Result<(), Error> {
        let path = self.record_path(&record.staging);
        let text = serde_json::to_vec(record).expect("strings and numbers serialise");
        write_synced(&path, &text, 0o600).map_err(|source| Error::Local { path, source })
    }

    /// `None` when there is none, or when it cannot be read. A directory that lies there without one is then refused, not
    /// reused.
    pub fn record(&self, staging: &str) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.record_path(staging)).ok()?).ok()
    }

    /// Every record, in no order.
    pub fn records(&self) -> Vec<Record> {
        let Ok(listing) = fs::read_dir(self.root.join("state")) else { return Vec::new() };
        listing
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
            .filter_map(|staging| self.record(&staging))
            .collect()
    }

    /// Where what did not come home waits for a person.
    ///
    /// By job and lease, as the directories it is filled from.
    pub fn kept_dir(&self, record: &Record) -> PathBuf {
        self.root.join("kept").join(format!("{}-{}", record.job, record.epoch))
    }

    /// Sets aside what a job wrote and what was sealed of it. May be repeated; where it fails, all of it is still in one place or the other.
    fn keep(&self, record: &Record) -> std::io::Result<()> {
        let kept = self.kept_dir(record);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&kept)?;
        let out = self.job_dir(&record.job, record.epoch).join("out");
        for (from, name) in [(out, "out"), (self.sealed_dir(&record.job, record.epoch), "sealed")] {
            match fs::rename(from, kept.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        File::open(&kept)?.sync_all()
    }

    /// Takes a staging's directories away and forgets it. What could not be returned is set aside first; while that fails, nothing is touched.
    /// The space is free once [`Self::empty_trash`] has run.
    ///
    /// The record goes last, so that an interrupted call is taken up again. May be repeated. `name` is new for each call:
    /// it becomes the name in `trash/`.
    pub fn forget(&self, record: &Record, name: &str) -> Result<(), Error> {
        if record.unreturned {
            self.keep(record).map_err(|source| Error::Local { path: self.kept_dir(record), source })?;
        }
        self.discard(&self.job_dir(&record.job, record.epoch), &format!("{name}-job"))?;
        self.discard(&self.sealed_dir(&record.job, record.epoch), &format!("{name}-sealed"))?;
        let facts = self.facts(&record.staging);
        for path in [new_facts(&facts), facts, self.record_path(&record.staging)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::Local { path, source: error });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Moves a directory to the trash; one that is not there is fine. `name` must be new.
    pub fn discard(&self, path: &Path, name: &str) -> Result<(), Error> {
        match fs::rename(path, self.root.join("trash").join(name)) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Local { path: path.to_owned(), source })
            }
            _ => Ok(()),
        }
    }

    /// Deletes what was thrown away, following no link. Blocking, minutes for a large tree. May run beside itself: what
    /// another run deletes first is only logged. What fails stays for the next run.
    pub fn empty_trash(&self) {
        let Ok(listing) = fs::read_dir(self.root.join("trash")) else { return };
        for entry in listing.flatten() {
            let path = entry.path();
            make_removable(&path);
            if let Err(error) = fs::remove_dir_all(&path) {
                tracing::warn!(%error, "cannot empty the trash; trying again later");
            }
        }
    }
}

/// Where facts are written anew beside those in use, to replace them as a whole.
pub fn new_facts(facts: &Path) -> PathBuf {
    facts.with_extension("facts-new")
}

/// Read-only directories hold their entries; give them back their write bit first. Links are not followed.
fn make_removable(path: &Path) {
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    if !meta.is_dir() {
        return;
    }
    if meta.permissions().mode() & 0o700 != 0o700 {
        let _ = fs::set_permissions(path, PermissionsExt::from_mode(0o700));
    }
    let Ok(listing) = fs::read_dir(path) else { return };
    for entry in listing.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_removable(&entry.path());
        }
    }
}

/// Written beside, synced, renamed over, directory synced: whole or not at all.
fn write_synced(path: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    let parent = path.parent().expect("a path below the home");
    let temporary = path.with_extension("new");
    let mut file = File::options().create(true).truncate(true).write(true).mode(mode).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(parent)?.sync_all()
}

/// The node's signing key.
///
/// Ed25519 (RFC 8032); `Debug` shows nothing of it.
pub struct Key(Ed25519KeyPair);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

impl Key {
    fn from_pkcs8(bytes: &[u8]) -> Option<Self> {
        Ed25519KeyPair::from_pkcs8(bytes).ok().map(Self)
    }

    /// Raw bytes, as the service enrols them.
    pub fn public(&self) -> [u8; 32] {
        self.0.public_key().as_ref().try_into().expect("an Ed25519 public key has 32 bytes")
    }

    /// A detached signature of 64 bytes.
    pub fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.0.sign(bytes).as_ref().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_has_one_agent_and_keeps_its_key_and_records() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = dir.path().join("cache");
        let home = Home::open(&root).expect("a fresh home");
        assert!(matches!(Home::open(&root), Err(Error::InUse { .. })));
        let public = home.key().expect("a key").public();
        let mode = std::fs::metadata(root.join("key")).expect("the key file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let record = Record {
            staging: "s".into(),
            job: "j".into(),
            epoch: 1,
            phase: Phase::Pulling,
            ready_seq: 0,
            receipt: None,
            bytes: 7,
            unreturned: false,
        };
        home.save(&record).expect("saved");
        drop(home);
        let home = Home::open(&root).expect("the lock went with the process");
        assert_eq!(home.key().expect("the same key").public(), public);
        assert_eq!(home.records().len(), 1);
    }

    #[test]
    fn forgetting_frees_read_only_trees_and_follows_no_link() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).expect("made");
        std::fs::write(outside.join("kept"), "x").expect("written");
        let home = Home::open(&dir.path().join("cache")).expect("a home");
        let record = done();
        home.save(&record).expect("saved");
        let job = home.job_dir("j", 1);
        std::fs::create_dir_all(job.join("deep")).expect("made");
        std::fs::write(job.join("deep/file"), "x").expect("written");
        std::os::unix::fs::symlink(&outside, job.join("link")).expect("linked");
        std::fs::set_permissions(job.join("deep"), PermissionsExt::from_mode(0o555)).expect("read-only");
        home.forget(&record, "t1").expect("forgotten");
        assert!(!job.exists() && home.records().is_empty());
        home.empty_trash();
        assert_eq!(std::fs::read_dir(home.root().join("trash")).expect("trash").count(), 0);
        assert!(outside.join("kept").exists());
    }

    #[test]
    fn what_could_not_be_returned_is_set_aside_or_stays() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let home = Home::open(&dir.path().join("cache")).expect("a home");
        home.save(&Record { unreturned: true, ..done() }).expect("saved");
        let record = home.record("s").expect("the record as a restarted agent reads it");
        let (job, sealed) = (home.job_dir("j", 1), home.sealed_dir("j", 1));
        std::fs::create_dir_all(job.join("out")).expect("made");
        std::fs::create_dir_all(&sealed).expect("made");
        std::fs::write(job.join("out/result"), "r").expect("written");
        std::fs::write(sealed.join("0"), "s").expect("written");
        let in_the_way = home.root().join("kept");
        std::fs::write(&in_the_way, "").expect("written");
        assert!(home.forget(&record, "t1").is_err());
        assert!(job.join("out/result").exists() && sealed.join("0").exists() && home.record("s").is_some());
        std::fs::remove_file(&in_the_way).expect("removed");
        home.forget(&record, "t2").expect("forgotten");
        home.empty_trash();
        assert!(!job.exists() && home.record("s").is_none());
        let kept = home.kept_dir(&record);
        assert!(kept.join("out/result").exists() && kept.join("sealed/0").exists());
    }

    fn done() -> Record {
        Record {
            staging: "s".into(),
            job: "j".into(),
            epoch: 1,
            phase: Phase::Ready,
            ready_seq: 1,
            receipt: None,
            bytes: 0,
            unreturned: false,
        }
    }
}
