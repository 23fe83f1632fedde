//! Pulls: resumed, repaired, never outside DEST, never a wrong byte under a file's name.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dray::client::TransferError;
use dray::client::pull::{Durability, LocalFiles, OutsideLinks};
use dray::client::push::{Item, PushOptions, push};
use dray::client::verify::{Verify, VerifyOptions, verify};
use dray::content::digest::{Digest, digest};
use dray::content::path::RelPath;
use dray::domain::shard::Shard;

use crate::support::TestService;
use crate::support::binary::Served;
use crate::support::client::{assert_same, context, noise, pull_to, pull_with, push_dir, set_clock};

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _ = fs::remove_file(&path);
    fs::write(path, bytes).unwrap();
}

fn sample(tree: &Path) {
    write(tree, "big", &noise(1, 20 << 20));
    (0..60).for_each(|n| write(tree, &format!("d{}/{n}", n % 7), &noise(n, 3_000 + 997 * n as usize)));
    write(tree, "d1/empty", b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_right_is_kept_and_what_is_not_is_asked_about() {
    let service = TestService::sqlite().await;
    set_clock(&service);
    let (context, scratch) = (context(&service), service.scratch());
    let (tree, dest) = (scratch.join("tree"), scratch.join("dest"));
    sample(&tree);
    push_dir(&context, "pull/keep", &tree).await;
    let first = pull_to(&context, "pull/keep", &dest).await;
    assert_eq!(first.reused_bytes, 0);
    // Missing: fetched again; the rest is read and kept.
    fs::remove_file(dest.join("d3/10")).unwrap();
    let second = pull_to(&context, "pull/keep", &dest).await;
    assert_eq!(second.bytes - second.reused_bytes, 3_000 + 9_970);
    assert!(second.fetched_bytes < 200_000, "{}", second.fetched_bytes);
    // Differing, and no pull is known to have written it: nothing is changed.
    fs::write(dest.join("d2/9"), b"mine").unwrap();
    fs::remove_file(dest.join("d3/10")).unwrap();
    let refused = pull_with(&context, "pull/keep", &dest, |_| {}).await.unwrap_err();
    let TransferError::WouldOverwrite { count: 1, paths, .. } = &refused else { panic!("{refused}") };
    assert_eq!((paths[0].as_str(), refused.code()), ("d2/9", "would_overwrite"));
    assert_eq!(fs::read(dest.join("d2/9")).unwrap(), b"mine");
    assert!(!dest.join("d3/10").exists());
    pull_with(&context, "pull/keep", &dest, |options| options.overwrite = true).await.unwrap();
    assert_same(&tree, &dest);
}

/// A newer version replaces what an earlier pull wrote, and only that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_replaces_what_a_pull_wrote() {
    let service = TestService::sqlite().await;
    set_clock(&service);
    let (context, scratch) = (context(&service), service.scratch());
    let (tree, dest, cache) = (scratch.join("tree"), scratch.join("dest"), scratch.join("cache"));
    sample(&tree);
    symlink("big", tree.join("link")).unwrap();
    push_dir(&context, "pull/newer", &tree).await;
    let with_record = |options: &mut dray::client::pull::PullOptions| options.cache_dir = Some(cache.clone());
    pull_with(&context, "pull/newer", &dest, with_record).await.unwrap();
    write(&tree, "d2/9", b"another content");
    write(&tree, "d1/empty", b"not empty any more");
    fs::remove_file(tree.join("link")).unwrap();
    symlink("d2", tree.join("link")).unwrap();
    push_dir(&context, "pull/newer", &tree).await;
    let newer = pull_with(&context, "pull/newer", &dest, with_record).await.unwrap();
    assert_eq!(newer.bytes - newer.reused_bytes, 15 + 18);
    assert_same(&tree, &dest);
    fs::write(dest.join("d2/9"), b"the user's own.").unwrap();
    write(&tree, "d2/9", b"and a third one");
    push_dir(&context, "pull/newer", &tree).await;
    let refused = pull_with(&context, "pull/newer", &dest, with_record).await.unwrap_err();
    assert_eq!(refused.code(), "would_overwrite");
}

/// Further names of a hard link are a pull's where it made them, and a stranger's where it did not, however many names the file has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_further_names_of_a_pulls_own_are_replaced() {
    let service = TestService::sqlite().await;
    set_clock(&service);
    let (context, scratch) = (context(&service), service.scratch());
    let (tree, dest, cache) = (scratch.join("tree"), scratch.join("dest"), scratch.join("cache"));
    let with_record = |options: &mut dray::client::pull::PullOptions| options.cache_dir = Some(cache.clone());
    let version = async |bytes: &[u8]| {
        write(&tree, "a", bytes);
        let _ = fs::remove_file(tree.join("b"));
        fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
        push_dir(&context, "pull/further", &tree).await;
    };
    let refused = async || {
        let refused = pull_with(&context, "pull/further", &dest, with_record).await.unwrap_err();
        let TransferError::WouldOverwrite { count: 1, paths, .. } = &refused else { panic!("{refused}") };
        assert_eq!(paths, &["b"]);
        assert_eq!(fs::read(dest.join("b")).unwrap(), b"precious");
    };
    let strangers = || {
        write(&scratch, "strangers", b"precious");
        let _ = fs::remove_file(dest.join("b"));
        fs::create_dir_all(&dest).unwrap();
        fs::hard_link(scratch.join("strangers"), dest.join("b")).unwrap();
    };
    version(b"one").await;
    strangers();
    refused().await;
    fs::remove_file(dest.join("b")).unwrap();
    pull_with(&context, "pull/further", &dest, with_record).await.unwrap();
    assert_same(&tree, &dest);
    version(b"the second").await;
    pull_with(&context, "pull/further", &dest, with_record).await.unwrap();
    assert_same(&tree, &dest);
    // A pull that was killed before it came to the links: the first name is new, the further one still as the last pull made it.
    version(b"and a third").await;
    fs::remove_file(dest.join("a")).unwrap();
    fs::copy(tree.join("a"), dest.join("a")).unwrap();
    pull_with(&context, "pull/further", &dest, with_record).await.unwrap();
    assert_same(&tree, &dest);
    version(b"the last").await;
    strangers();
    refused().await;
}

/// C14: read-only files and directories of an earlier pull are no obstacle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_targets_are_no_obstacle() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let (tree, dest) = (scratch.join("tree"), scratch.join("dest"));
    write(&tree, "ro/file", b"one");
    fs::set_permissions(tree.join("ro/file"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(tree.join("ro"), fs::Permissions::from_mode(0o555)).unwrap();
    push_dir(&context, "pull/ro", &tree).await;
    pull_to(&context, "pull/ro", &dest).await;
    pull_to(&context, "pull/ro", &dest).await;
    assert_same(&tree, &dest);
}

/// T1, T2, B9: DEST may be a link; below it no link is followed and nothing outside is touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_outside_dest_is_touched() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let (tree, outside) = (scratch.join("tree"), scratch.join("outside"));
    write(&tree, "sub/file", b"data");
    write(&outside, "file", b"precious");
    push_dir(&context, "pull/links", &tree).await;
    fs::create_dir(scratch.join("real")).unwrap();
    symlink("real", scratch.join("dest")).unwrap();
    pull_to(&context, "pull/links", &scratch.join("dest")).await;
    assert_eq!(fs::read(scratch.join("real/sub/file")).unwrap(), b"data");
    // A planted link in the place of a directory.
    let trap = scratch.join("trap");
    fs::create_dir(&trap).unwrap();
    symlink(&outside, trap.join("sub")).unwrap();
    for overwrite in [false, true] {
        let refused =
            pull_with(&context, "pull/links", &trap, |options| options.overwrite = overwrite).await.unwrap_err();
        assert_eq!(refused.code(), "in_the_way", "{refused}");
    }
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"precious");
    // A planted link in the place of a file is replaced itself, when the caller says so.
    let trap = scratch.join("trap2");
    fs::create_dir_all(trap.join("sub")).unwrap();
    symlink(outside.join("file"), trap.join("sub/file")).unwrap();
    assert_eq!(pull_with(&context, "pull/links", &trap, |_| {}).await.unwrap_err().code(), "would_overwrite");
    pull_with(&context, "pull/links", &trap, |options| options.overwrite = true).await.unwrap();
    assert!(trap.join("sub/file").symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"precious");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_or_a_part_is_put_at_dest() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    sample(&tree);
    fs::hard_link(tree.join("big"), tree.join("d2/alias")).unwrap();
    symlink("/etc", tree.join("d2/out")).unwrap();
    push_dir(&context, "pull/parts", &tree).await;
    let path = |text: &str| Some(RelPath::parse(text.as_bytes()).unwrap());
    let one = scratch.join("some-name");
    let report =
        pull_with(&context, "pull/parts@v1", &one, |options| options.select.path = path("d4/11")).await.unwrap();
    assert_eq!((report.files, fs::read(&one).unwrap()), (1, fs::read(tree.join("d4/11")).unwrap()));
    // A subtree whose hard link leads out of it gets the bytes.
    let sub = scratch.join("sub");
    let report = pull_with(&context, "pull/parts", &sub, |options| options.select.path = path("d2")).await.unwrap();
    assert!(report.selected_digest != report.digest && report.outside_links == 1);
    assert_eq!(fs::read(sub.join("alias")).unwrap(), noise(1, 20 << 20));
    assert!(sub.join("9").exists() && !sub.join("d2").exists());
    let globbed = scratch.join("globbed");
    let shard = |n| {
        pull_with(&context, "pull/parts", Box::leak(Box::new(scratch.join(format!("shard{n}")))), move |options| {
            options.select.shard = Some(Shard { index: n, of: 3 });
        })
    };
    pull_with(&context, "pull/parts", &globbed, |options| options.select.include = vec!["d[12]/*".to_owned()])
        .await
        .unwrap();
    assert!(globbed.join("d1/1").exists() && globbed.join("d2/9").exists() && !globbed.join("d3").exists());
    let dealt = [shard(1).await.unwrap().files, shard(2).await.unwrap().files, shard(3).await.unwrap().files];
    assert_eq!(dealt.iter().sum::<u64>(), 63, "{dealt:?}");
    let missing =
        pull_with(&context, "pull/parts", &one, |options| options.select.path = path("no/such")).await.unwrap_err();
    assert_eq!(missing.code(), "no_such_path");
    let refused =
        pull_with(&context, "pull/parts", &scratch.join("r"), |options| options.outside_links = OutsideLinks::Refuse)
            .await;
    assert_eq!(refused.unwrap_err().code(), "outside_links");
}

#[derive(Debug)]
struct Cache(PathBuf, Digest);

impl LocalFiles for Cache {
    fn open(&self, wanted: &Digest, _: u64) -> Option<fs::File> {
        (*wanted == self.1).then(|| fs::File::open(&self.0).unwrap())
    }
}

/// What an agent asks for: read back from the disk, files of this machine used and never trusted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_back_and_local_files() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    sample(&tree);
    push_dir(&context, "pull/agent", &tree).await;
    let wanted = digest(&noise(1, 20 << 20));
    for (name, bytes, local) in [("good", noise(1, 20 << 20), 20 << 20), ("poisoned", noise(2, 20 << 20), 0)] {
        let cached = scratch.join(format!("cached-{name}"));
        fs::write(&cached, bytes).unwrap();
        let dest = scratch.join(name);
        let report = pull_with(&context, "pull/agent", &dest, |options| {
            options.durability = Durability::ReadBack;
            options.local = Some(Arc::new(Cache(cached, wanted)));
        });
        assert_eq!(report.await.unwrap().local_bytes, local, "{name}");
        assert_same(&tree, &dest);
    }
    let (open, modes) = (scratch.join("open"), [0o666, 0o777, 0o640, 0o400]);
    for mode in modes {
        let path = tree.join(format!("{mode:o}"));
        fs::write(&path, "small").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    push_dir(&context, "pull/agent", &tree).await;
    pull_with(&context, "pull/agent", &open, |_| {}).await.unwrap();
    let set = |mode: &u32| open.join(format!("{mode:o}")).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(modes.each_ref().map(set), modes, "whatever the umask takes away when a file is made");
    let masked = scratch.join("masked");
    fs::set_permissions(tree.join("big"), fs::Permissions::from_mode(0o666)).unwrap();
    push_dir(&context, "pull/agent", &tree).await;
    pull_with(&context, "pull/agent", &masked, |options| options.mode_mask = 0o755).await.unwrap();
    assert_eq!(masked.join("big").metadata().unwrap().permissions().mode() & 0o777, 0o644);
}

fn stored_packs(service: &TestService) -> Vec<PathBuf> {
    let mut packs = Vec::new();
    let mut waiting = vec![service.data().to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.components().any(|part| part.as_os_str() == "packs") {
                packs.push(path);
            }
        }
    }
    packs
}

/// B2, G3: bytes that went bad in the store never get a file's name, and are named down to the pack.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_the_store_is_typed_and_named() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    sample(&tree);
    push_dir(&context, "pull/damaged", &tree).await;
    let packs = stored_packs(&service);
    assert!(!packs.is_empty());
    let largest = packs.iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = fs::read(largest).unwrap();
    let at = bytes.len() - 100_000;
    bytes[at] ^= 1;
    fs::set_permissions(largest, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(largest, bytes).unwrap();
    let dest = scratch.join("dest");
    let error = pull_with(&context, "pull/damaged", &dest, |_| {}).await.unwrap_err();
    assert!(matches!(error, TransferError::BadPack { .. } | TransferError::DigestMismatch { .. }), "{error}");
    // Everything else is there and right; the damaged file is absent, and so is every temporary name.
    let want = crate::support::client::facts(&tree);
    let got = crate::support::client::facts(&dest);
    let missing: Vec<_> = want.keys().filter(|name| !got.contains_key(*name)).collect();
    assert_eq!(missing.len(), 1, "{missing:?}");
    for (name, fact) in &got {
        assert_eq!(want.get(name), Some(fact), "{:?}", String::from_utf8_lossy(name));
    }
    let options = VerifyOptions {
        reference: "pull/damaged".to_owned(),
        path: None,
        what: Verify::Stored,
        memory: 64 << 20,
        temp_dir: None,
    };
    let report = verify(&context, options).await.unwrap();
    assert_eq!(report.unreadable.len(), 1, "{report:?}");
    assert_eq!(report.unreadable[0].path.as_bytes(), missing[0].as_slice());
}

/// Where a file is damaged, what an older version left at its name gets no further name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_further_name_is_given_to_old_bytes() {
    let service = TestService::sqlite().await;
    set_clock(&service);
    let (context, scratch) = (context(&service), service.scratch());
    let (tree, dest, cache) = (scratch.join("tree"), scratch.join("dest"), scratch.join("cache"));
    let with_record = |options: &mut dray::client::pull::PullOptions| options.cache_dir = Some(cache.clone());
    write(&tree, "a", &noise(1, 300_000));
    push_dir(&context, "pull/old", &tree).await;
    pull_with(&context, "pull/old", &dest, with_record).await.unwrap();
    let before = stored_packs(&service);
    write(&tree, "a", &noise(2, 300_000));
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    push_dir(&context, "pull/old", &tree).await;
    for pack in stored_packs(&service).iter().filter(|pack| !before.contains(pack)) {
        let mut bytes = fs::read(pack).unwrap();
        let at = bytes.len() - 100_000;
        bytes[at] ^= 1;
        fs::set_permissions(pack, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(pack, bytes).unwrap();
    }
    let error = pull_with(&context, "pull/old", &dest, with_record).await.unwrap_err();
    assert!(matches!(error, TransferError::BadPack { .. } | TransferError::DigestMismatch { .. }), "{error}");
    assert_eq!(fs::read(dest.join("a")).unwrap(), noise(1, 300_000));
    assert!(!dest.join("b").exists());
}

/// A rule file says what a push takes, not what a version holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_verified_whatever_its_rule_files_say() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let (tree, dest) = (scratch.join("tree"), scratch.join("dest"));
    write(&tree, ".drayignore", b"*.tmp\n*.log\n");
    write(&tree, "sub/taken.tmp", b"taken");
    write(&tree, "sub/left.log", b"left");
    let options = PushOptions { exclude: vec!["!*.tmp".to_owned()], ..PushOptions::new("pull/rules", vec![tree]) };
    push(&context, options).await.unwrap();
    pull_to(&context, "pull/rules", &dest).await;
    let verified = async || {
        let what = Verify::Directory(dest.clone());
        let options =
            VerifyOptions { reference: "pull/rules".to_owned(), path: None, what, memory: 64 << 20, temp_dir: None };
        verify(&context, options).await.unwrap()
    };
    let equal = verified().await;
    assert!(equal.is_equal(), "{equal:?}");
    write(&dest, "sub/more.tmp", b"more");
    fs::remove_file(dest.join("sub/taken.tmp")).unwrap();
    let report = verified().await;
    let paths = |list: &[Item]| list.iter().map(|item| item.path.clone()).collect::<Vec<_>>();
    assert_eq!((paths(&report.extra), report.extra_count), (vec!["sub/more.tmp".to_owned()], 1));
    assert_eq!((paths(&report.missing), report.missing_count), (vec!["sub/taken.tmp".to_owned()], 1));
    assert_eq!((report.differs_count, report.unreadable_count), (0, 0), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_pull_leaves_no_piece_behind() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    sample(&tree);
    push_dir(&context, "pull/cancel", &tree).await;
    let dest = scratch.join("dest");
    let slow = pull_with(&context, "pull/cancel", &dest, |options| {
        options.limit = dray::client::rate::Limit::Fixed(2_000_000);
        options.memory = 64 << 20;
    });
    let cancel = context.cancel.clone();
    let running = async {
        while !dest.exists() {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    };
    let (ended, ()) = tokio::join!(slow, running);
    assert_eq!(ended.unwrap_err().code(), "interrupted");
    let names = crate::support::client::facts(&dest);
    assert!(names.keys().all(|name| !name.windows(6).any(|part| part == b".dray-")), "{:?}", names.keys());
    let again = crate::support::client::context(&service);
    pull_to(&again, "pull/cancel", &dest).await;
    assert_same(&tree, &dest);
}

/// Temporary files of pulls killed by `SIGKILL` are gone after the next pull, wherever they lay; files that only look like them are not.
#[test]
fn rests_of_killed_pulls_are_removed_by_the_next() {
    let served = Served::start();
    let (tree, dest) = (served.dir.path().join("tree"), served.dir.path().join("dest"));
    write(&tree, "big/clip.mp4", &noise(7, 12 << 20));
    let push = |tree: &Path| served.json(["push", tree.to_str().unwrap(), "--to", "w/t"]);
    push(&tree);
    fs::remove_dir_all(tree.join("big")).unwrap();
    write(&tree, "small", b"the second version");
    push(&tree);
    let parts = || -> Vec<String> {
        let Ok(listing) = fs::read_dir(dest.join("big")) else { return Vec::new() };
        let names = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(".dray-") && name.ends_with(".part")).collect()
    };
    let mut seen = Vec::new();
    for round in 1..=2 {
        let slow = ["pull", "w/t@v1", dest.to_str().unwrap(), "--limit-rate", "4M", "--memory", "32M"];
        let mut pull = served.command().args(slow).stderr(std::process::Stdio::null()).spawn().unwrap();
        while parts().iter().all(|part| seen.contains(part)) {
            assert!(pull.try_wait().unwrap().is_none(), "the pull ended before it could be killed");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        pull.kill().unwrap();
        pull.wait().unwrap();
        assert_eq!(parts().len(), 1, "round {round}: what the one before left is gone");
        seen = parts();
    }
    let outside = served.dir.path().join("outside");
    write(&outside, &seen[0], b"not below DEST");
    symlink(&outside, dest.join("elsewhere")).unwrap();
    write(&dest, "big/.dray-0-0.part", b"the user's");
    served.json(["pull", "w/t@v2", dest.to_str().unwrap()]);
    assert_eq!(parts(), [".dray-0-0.part"]);
    assert!(outside.join(&seen[0]).exists());
    assert_eq!(fs::read(dest.join("small")).unwrap(), b"the second version");
}

/// A pull killed in the middle of one large file goes on there: what it had written is proven and not fetched again, damage in it is.
#[test]
fn a_large_file_goes_on_where_its_pull_was_killed() {
    let served = Served::start();
    let (tree, dest) = (served.dir.path().join("tree"), served.dir.path().join("dest"));
    let size = 48_u64 << 20;
    write(&tree, "deep/clip.mp4", &noise(7, usize::try_from(size).unwrap()));
    served.json(["push", tree.to_str().unwrap(), "--to", "w/t"]);
    let part = || {
        let listing = fs::read_dir(dest.join("deep")).ok()?;
        let mut paths = listing.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|end| end == "part"))
    };
    let written = || part().and_then(|part| fs::metadata(part).ok()).map_or(0, |part| part.len());
    let slow = ["pull", "w/t", dest.to_str().unwrap(), "--limit-rate", "24M", "--memory", "32M"];
    let mut pull = served.command().args(slow).stderr(std::process::Stdio::null()).spawn().unwrap();
    while written() < size / 2 {
        assert!(pull.try_wait().unwrap().is_none(), "the pull ended before it could be killed");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    pull.kill().unwrap();
    pull.wait().unwrap();
    let left = part().unwrap();
    let mut bytes = fs::read(&left).unwrap();
    bytes[1 << 20] ^= 1;
    fs::write(&left, bytes).unwrap();
    let report = served.json(["pull", "w/t", dest.to_str().unwrap(), "--memory", "32M"]);
    let fetched = report["fetched_bytes"].as_u64().unwrap();
    assert!((1..=size * 3 / 4).contains(&fetched), "{fetched} of {size} fetched");
    assert!(part().is_none(), "nothing half-written stays");
    assert_same(&tree, &dest);
    let again = served.json(["pull", "w/t", dest.to_str().unwrap()]);
    assert_eq!(again["fetched_bytes"], 0);
}
