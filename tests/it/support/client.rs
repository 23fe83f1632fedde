//! The real client against a test's service: contexts, trees to push, and a strict comparison of two trees.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dray::client::api::{Api, Options, parse_urls};
use dray::client::progress::Silent;
use dray::client::pull::{PullOptions, PullReport, pull};
use dray::client::push::{PushOptions, PushReport, push};
use dray::client::{Context, TransferError};
use dray::clock::{Clock, RandomIds, SystemClock};
use tokio_util::sync::CancellationToken;

use super::service::TestService;

/// Sets the service's clock to the machine's, since the client compares file times with it.
pub fn set_clock(service: &TestService) {
    service.clock.set(SystemClock.now());
}

/// A context that speaks to the service itself.
pub fn context(service: &TestService) -> Context {
    context_at(service, &service.url)
}

/// A context that speaks to this URL, a proxy's for example.
pub fn context_at(service: &TestService, url: &str) -> Context {
    let clock: Arc<dyn Clock> = service.clock.clone();
    let options = Options { stall_timeout: Duration::from_secs(5), clock: Arc::clone(&clock), ..Options::default() };
    let api = Api::new(parse_urls(url).unwrap(), service.admin.clone().into(), options).unwrap();
    let cancel = CancellationToken::new();
    Context {
        api: api.cancelled_by(cancel.clone()),
        clock,
        ids: Arc::new(RandomIds),
        reporter: Arc::new(Silent),
        cancel,
    }
}

/// Pushes one directory.
pub async fn push_dir(context: &Context, dataset: &str, dir: &Path) -> PushReport {
    push(context, PushOptions::new(dataset, vec![dir.to_owned()])).await.unwrap()
}

/// Pulls with options changed from the default.
pub async fn pull_with(
    context: &Context,
    reference: &str,
    dest: &Path,
    change: impl FnOnce(&mut PullOptions),
) -> Result<PullReport, TransferError> {
    let mut options = PullOptions::new(reference, dest.to_owned());
    change(&mut options);
    pull(context, options).await
}

pub async fn pull_to(context: &Context, reference: &str, dest: &Path) -> PullReport {
    pull_with(context, reference, dest, |_| {}).await.unwrap()
}

/// Bytes that look random and are the same every time.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    super::data::noise(seed, length)
}

/// Everything about a tree that a pull must give back.
pub fn facts(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut waiting: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        let mut names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        for path in names {
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            let meta = path.symlink_metadata().unwrap();
            let kind = meta.file_type();
            let time = format!("{}.{:09}", meta.mtime(), meta.mtime_nsec());
            let fact = if kind.is_dir() {
                waiting.push(path.clone());
                format!("dir {:o} {time}", meta.mode() & 0o7777)
            } else if kind.is_symlink() {
                format!("link {:?} {time}", std::fs::read_link(&path).unwrap())
            } else if kind.is_fifo() || kind.is_socket() {
                continue;
            } else {
                let digest = dray::content::digest::digest(&std::fs::read(&path).unwrap());
                let first = inodes.entry(meta.ino()).or_insert_with(|| name.clone()).clone();
                format!("file {:o} {time} {} {digest} {first:?} {}", meta.mode() & 0o777, meta.len(), meta.nlink())
            };
            found.insert(name, fact);
        }
    }
    found
}

/// Fails unless both trees hold the same names, kinds, modes, times, bytes, link texts and hard-link groups.
pub fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (facts(one), facts(other));
    for (name, fact) in &one {
        assert_eq!(Some(fact), other.get(name), "at {:?}", String::from_utf8_lossy(name));
    }
    assert_eq!(one.len(), other.len(), "more names on the other side");
}
