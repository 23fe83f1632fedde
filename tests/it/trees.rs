//! Trees survive a push and a pull: every kind of entry and every odd name, and nothing that is not theirs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use dray::client::push::{PushOptions, push};
use dray::client::verify::{Verify, VerifyOptions, verify};

use crate::support::TestService;
use crate::support::client::{assert_same, context, noise, pull_to, push_dir, set_clock};

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
}

fn touch(path: &Path, seconds: i64, nanos: i64) {
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// C1 to C6, C9 to C12, B7, B11: one tree with everything in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_entry_comes_back() {
    let service = TestService::sqlite().await;
    set_clock(&service);
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    let at = |name: &str| tree.join(name);
    fs::create_dir_all(at("raw/day1")).unwrap();
    fs::create_dir_all(at("empty")).unwrap();
    fs::create_dir_all(at("deep/1/2/3/4/5")).unwrap();
    for (name, length) in
        [("a.bin", 5), ("raw/none", 0), ("raw/day1/two", 70_000), ("big.bin", 9 << 20), ("deep/1/2/3/4/5/x", 200_000)]
    {
        fs::write(at(name), noise(length as u64, length)).unwrap();
    }
    fs::write(at("words.txt"), "the same words again\n".repeat(40_000)).unwrap();
    fs::write(at("run.sh"), "#!/bin/sh\necho ok\n").unwrap();
    mode(&at("run.sh"), 0o755);
    fs::write(at("read-only"), "r").unwrap();
    mode(&at("read-only"), 0o444);
    fs::write(at("before-1970"), "old").unwrap();
    touch(&at("before-1970"), -1_000_000, 123_456_789);
    touch(&at("a.bin"), 1_772_323_200, 123_456_789);
    for name in [
        "a b.bin",
        "a+b.bin",
        "a%20b.bin",
        "#h?q&x=1.bin",
        "100%.bin",
        "~t'(1)*!.bin",
        "trail",
        "trail.",
        "trail ",
        " lead",
        "-rf",
        "caf\u{e9}.mov",
        "cafe\u{301}.mov",
        "A.txt",
        "a.txt",
        "甲.mov",
        "乙.mov",
        "05 Reminisc\u{a0}.flac",
        "new\nline",
        "tab\there",
    ] {
        fs::write(at(name), name).unwrap();
    }
    let long = OsStr::from_bytes(b"\xe0\xbd\x96").to_owned();
    let long: Vec<u8> = long.as_bytes().repeat(85);
    fs::create_dir_all(tree.join(OsStr::from_bytes(&long)).join(OsStr::from_bytes(&long))).unwrap();
    fs::write(tree.join(OsStr::from_bytes(&long)).join(OsStr::from_bytes(&long)).join("f"), "f").unwrap();
    fs::write(tree.join(OsStr::from_bytes(b"odd-\xff\xfe")), "bytes").unwrap();
    symlink(".", at("loop")).unwrap();
    symlink("../raw", at("deep/up")).unwrap();
    symlink("nowhere", at("broken")).unwrap();
    symlink("/etc/passwd", at("out")).unwrap();
    touch(&at("out"), 1_600_000_000, 7);
    fs::hard_link(at("big.bin"), at("raw/again.bin")).unwrap();
    fs::hard_link(at("big.bin"), at("zz-third.bin")).unwrap();
    mode(&at("raw"), 0o750);
    mode(&at("empty"), 0o555);
    touch(&at("empty"), 1_500_000_000, 1);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(at("sock")).unwrap();

    let report = push_dir(&context, "trees/all", &tree).await;
    drop(socket);
    let skipped: Vec<_> = report.skipped.iter().map(|item| (item.path.as_str(), item.reason.as_str())).collect();
    assert_eq!(skipped, [("pipe", "fifo"), ("sock", "socket")]);
    assert_eq!((report.failed_count, report.incomplete, report.reference.as_deref()), (0, false, Some("trees/all@v1")));
    assert!(report.warnings.iter().any(|text| text.contains("point out of the tree")), "{:?}", report.warnings);
    assert!(report.warnings.iter().any(|text| text.contains("case or Unicode")), "{:?}", report.warnings);

    let dest = scratch.join("dest");
    let pulled = pull_to(&context, "trees/all", &dest).await;
    assert_eq!(
        (pulled.files, pulled.dirs, pulled.symlinks, pulled.bytes),
        (report.files, report.dirs, report.symlinks, report.bytes)
    );
    assert_eq!((pulled.failed_count, pulled.outside_links, &pulled.selected_digest), (0, 1, &report.digest));
    fs::remove_file(at("pipe")).unwrap();
    fs::remove_file(at("sock")).unwrap();
    assert_same(&tree, &dest);
    // C7: one inode for a group, as `du` would see.
    assert_eq!(dest.join("big.bin").metadata().unwrap().nlink(), 3);

    let options =
        |what| VerifyOptions { reference: "trees/all".to_owned(), path: None, what, memory: 128 << 20, temp_dir: None };
    let stored = verify(&context, options(Verify::Stored)).await.unwrap();
    assert!(stored.is_equal() && stored.files == report.files, "{stored:?}");
    let here = verify(&context, options(Verify::Directory(dest.clone()))).await.unwrap();
    assert!(here.is_equal(), "{here:?}");
    fs::write(dest.join("A.txt"), "a.Txt").unwrap();
    fs::remove_file(dest.join("trail.")).unwrap();
    fs::write(dest.join("more"), "").unwrap();
    mode(&dest.join("run.sh"), 0o700);
    let here = verify(&context, options(Verify::Directory(dest))).await.unwrap();
    let names = |list: &[dray::client::push::Item]| {
        list.iter().map(|item| format!("{} {}", item.path, item.reason)).collect::<Vec<_>>()
    };
    assert_eq!(names(&here.differs), ["A.txt digest", "run.sh mode"]);
    assert_eq!(
        (names(&here.missing), names(&here.extra)),
        (vec!["trail. missing".to_owned()], vec!["more file".to_owned()])
    );
}

/// C8, B70: holes cost neither time nor bytes, and come back as holes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sparse_files_stay_sparse() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    fs::create_dir(&tree).unwrap();
    let file = fs::File::create(tree.join("s.img")).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"END", 600 << 20).unwrap();
    file.write_all_at(&noise(1, 300_000), (100 << 20) + 77).unwrap();
    fs::File::create(tree.join("all-hole")).unwrap().set_len(5 << 20).unwrap();
    let small = fs::File::create(tree.join("small")).unwrap();
    small.set_len(300_001).unwrap();
    small.write_all_at(b"x", 1).unwrap();
    let report = push_dir(&context, "trees/sparse", &tree).await;
    assert!(report.sent_bytes < 1 << 20, "{} bytes sent", report.sent_bytes);
    let dest = scratch.join("dest");
    pull_to(&context, "trees/sparse", &dest).await;
    assert_same(&tree, &dest);
    let blocks = dest.join("s.img").metadata().unwrap().blocks() * 512;
    assert!(blocks < 2 << 20, "{blocks} bytes on disk");
}

/// Several paths go by their names, one file by its own; a file can be pulled to any name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_several_paths() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    fs::create_dir_all(scratch.join("d/sub")).unwrap();
    fs::write(scratch.join("d/sub/x"), "x").unwrap();
    fs::write(scratch.join("one.bin"), noise(3, 3 << 20)).unwrap();
    let paths = vec![scratch.join("one.bin"), scratch.join("d")];
    let report = push(&context, PushOptions::new("trees/two", paths)).await.unwrap();
    assert_eq!((report.files, report.dirs), (2, 2));
    pull_to(&context, "trees/two", &scratch.join("both")).await;
    assert_eq!(fs::read(scratch.join("both/d/sub/x")).unwrap(), b"x");
    assert_eq!(fs::read(scratch.join("both/one.bin")).unwrap(), noise(3, 3 << 20));
}
