//! Disks that fill up under a pull: it says so, leaves no half file, and goes on when there is room. Needs root, for small file systems.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::support::binary::{Served, wait};
use crate::support::client::assert_same;
use crate::support::dice::Dice;
use crate::support::fault_proxy::{Fault, FaultProxy, Rule};

const LIMIT: Duration = Duration::from_secs(120);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A small file system of the test's own. Unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf, size: &str) -> Self {
        fs_err::create_dir(&path).unwrap();
        let disk = Self(path);
        disk.run("mount", &["-t", "tmpfs", "-o", size, "dray-test"]);
        disk
    }

    fn resize(&self, size: &str) {
        self.run("mount", &["-o", &format!("remount,{size}")]);
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let done = Command::new(program).args(arguments).arg(&self.0).output().unwrap();
        assert!(done.status.success(), "this test mounts a small file system and needs root: {done:?}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Whatever stands under a name of the tree is whole, and nothing else is there.
fn assert_whole_or_absent(tree: &Path, dest: &Path) -> usize {
    let mut whole = 0;
    let mut waiting = vec![dest.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs_err::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let original = tree.join(path.strip_prefix(dest).unwrap());
            if path.is_dir() {
                assert!(original.is_dir(), "{} is left over", path.display());
                waiting.push(path);
            } else {
                let same = fs_err::read(&original).is_ok_and(|bytes| bytes == fs_err::read(&path).unwrap());
                assert!(same, "{} is left over or not whole", path.display());
                whole += 1;
            }
        }
    }
    whole
}

/// B40: the disk fills up in the middle of a pull. It says so, leaves no half file, and goes on when there is room.
#[test]
fn a_pull_onto_a_full_disk_leaves_whole_files_and_goes_on_when_there_is_room() {
    let mut dice = Dice::new("a full disk");
    let served = Served::start();
    let place = served.dir.path();
    let (many, large) = (place.join("many"), place.join("large"));
    // More blocks than bytes: that it does not fit is seen only when it is written.
    for number in 0..6_000 {
        let dir = many.join(format!("d{}", number % 40));
        fs_err::create_dir_all(&dir).unwrap();
        fs_err::write(dir.join(number.to_string()), dice.bytes(200)).unwrap();
    }
    fs_err::create_dir_all(&large).unwrap();
    for number in 0..4 {
        fs_err::write(large.join(format!("{number}.mp4")), dice.bytes(10 << 20)).unwrap();
    }
    for (name, tree) in [("many", &many), ("large", &large)] {
        served.json(["push", text(tree), "--to", &format!("b40/{name}")]);
        let disk = SmallDisk::mount(place.join(format!("disk-{name}")), "size=12m");
        let (dest, reference) = (disk.0.join("dest"), format!("b40/{name}"));
        for _ in 0..2 {
            let ran = served.run(["pull", &reference, text(&dest), "--json"]);
            assert_eq!((ran.code, &ran.document()["error"]["code"]), (1, &json!("no_space")), "{name}: {ran:?}");
            let error = &ran.document()["error"];
            assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("make room")), "{error}");
            assert!(error["data"]["needed_bytes"].as_u64() > error["data"]["free_bytes"].as_u64(), "{error}");
            if dest.exists() {
                assert_whole_or_absent(tree, &dest);
            }
        }
        disk.resize("size=96m");
        served.json(["pull", &reference, text(&dest)]);
        assert_same(tree, &dest);
    }
}

/// B40, where somebody else takes the room: the disk fills up while one large file is being written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_others_fill_during_a_pull_is_told_the_same_way() {
    let mut dice = Dice::new("others fill the disk");
    let served = Served::start();
    let place = served.dir.path();
    let tree = place.join("tree");
    fs_err::create_dir(&tree).unwrap();
    fs_err::write(tree.join("a.mp4"), dice.bytes(3 << 20)).unwrap();
    fs_err::write(tree.join("film.mp4"), dice.bytes(40 << 20)).unwrap();
    served.json(["push", text(&tree), "--to", "b40/others"]);
    let disk = SmallDisk::mount(place.join("disk"), "size=60m");
    let dest = disk.0.join("dest");
    // The second read of a pack is held back until the room is gone.
    let proxy = FaultProxy::start(&served.url).await;
    proxy.on(Rule::new("GET", "/v1/packs/").skip(1).times(1).does(Fault::Hang));
    let mut command = served.command();
    command.args(["pull", "b40/others", text(&dest), "--json"]).env("DRAY_URL", proxy.url());
    command.env("DRAY_STALL_TIMEOUT", "3s").stdout(Stdio::piped()).stderr(Stdio::piped());
    let pull = command.spawn().unwrap();
    tokio::time::timeout(LIMIT, proxy.wait(|seen| seen.fault.is_some(), 1)).await.expect("reads of packs");
    let mut others = fs_err::File::create(disk.0.join("others")).unwrap();
    let filled = std::io::copy(&mut std::io::repeat(1), &mut others).unwrap_err();
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    let ran = wait(pull, LIMIT);
    assert_eq!((ran.code, &ran.document()["error"]["code"]), (1, &json!("no_space")), "{ran:?}");
    assert_whole_or_absent(&tree, &dest);
    drop(others);
    fs_err::remove_file(disk.0.join("others")).unwrap();
    served.json(["pull", "b40/others", text(&dest)]);
    assert_same(&tree, &dest);
}
