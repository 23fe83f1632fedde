//! The walk on real directories: every kind of entry, every oddity of names.

use super::*;
use crate::content::path::escaped;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn walk(options: WalkOptions) -> (Vec<String>, Vec<String>, Vec<String>, Vec<String>) {
    let mut walk = Walk::open(&options).expect("roots open");
    let (mut found, mut skipped, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(step) = walk.next() {
        match step {
            Step::Found(entry) => {
                let what = match &entry.what {
                    What::Dir => "d".to_owned(),
                    What::File { .. } => format!("f{}", entry.stamp.size),
                    What::HardLink { first, .. } => format!("h:{first}"),
                    What::Symlink(target) => format!("l:{}", escaped(target)),
                };
                found.push(format!("{} {what}", entry.path));
            }
            Step::Skipped(item) => skipped.push(format!("{} {}", item.path, item.reason)),
            Step::Failed(item) => failed.push(format!("{} {}", item.path, item.reason)),
        }
    }
    (found, skipped, failed, walk.warnings())
}

fn of(dir: &Path) -> WalkOptions {
    WalkOptions { paths: vec![dir.to_owned()], ..WalkOptions::default() }
}

#[test]
fn a_tree_comes_in_tree_order_with_all_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("a/b/f"), "123").unwrap();
    fs::write(at("a.txt"), "1").unwrap();
    fs::hard_link(at("a/b/f"), at("a/z")).unwrap();
    symlink(".", at("loop")).unwrap();
    symlink("nowhere", at("broken")).unwrap();
    symlink("../../etc", at("out")).unwrap();
    fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"odd-\xff")), "").unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(at("sock")).unwrap();
    let (found, skipped, failed, warnings) = walk(of(dir.path()));
    drop(socket);
    let want = [
        "a d",
        "a/b d",
        "a/b/f f3",
        "a/z h:a/b/f",
        "a.txt f1",
        "broken l:nowhere",
        "empty d",
        "loop l:.",
        "odd-\\xff f0",
        "out l:../../etc",
    ];
    assert_eq!(found, want);
    assert_eq!(skipped, ["pipe fifo", "sock socket"]);
    assert!(failed.is_empty());
    assert!(
        warnings.iter().any(|text| text.contains("point out of the tree") && text.contains("`out`")),
        "{warnings:?}"
    );
}

#[test]
fn only_drayignore_and_exclude_leave_anything_out() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("sub/cache")).unwrap();
    for (name, text) in [
        (".gitignore", "*"),
        (".drayignore", "*.tmp\ncache/\n"),
        ("sub/.drayignore", "!keep.tmp\n"),
        ("a.tmp", ""),
        ("b.log", ""),
        ("data", ""),
        ("sub/keep.tmp", ""),
        ("sub/other.tmp", ""),
        ("sub/cache/x", ""),
    ] {
        fs::write(at(name), text).unwrap();
    }
    let (found, ..) = walk(WalkOptions { exclude: vec!["*.log".to_owned()], ..of(dir.path()) });
    assert_eq!(
        found,
        [".drayignore f13", ".gitignore f1", "data f0", "sub d", "sub/.drayignore f10", "sub/keep.tmp f0"]
    );
}

#[test]
fn rule_files_may_be_ignored() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".drayignore"), "*\n").unwrap();
    fs::write(dir.path().join("a.tmp"), "").unwrap();
    let (found, ..) = walk(WalkOptions { rule_files: RuleFiles::Ignore, ..of(dir.path()) });
    assert_eq!(found, [".drayignore f2", "a.tmp f0"]);
}

/// A directory that fails is no entry, nor are those above it, where only what lies below them was wanted.
#[test]
fn include_takes_no_directory_for_what_failed_below_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("bad/below")).unwrap();
    fs::create_dir_all(at("some/bad")).unwrap();
    let too_long = vec![b'#'; usize::try_from(rules::MAX_FILE).unwrap() + 1];
    fs::write(at("bad/below/.drayignore"), &too_long).unwrap();
    fs::write(at("some/bad/.drayignore"), &too_long).unwrap();
    fs::write(at("some/x.csv"), "").unwrap();
    let (found, _, failed, _) = walk(WalkOptions { include: vec!["**/*.csv".to_owned()], ..of(dir.path()) });
    assert_eq!(found, ["some d", "some/x.csv f0"]);
    assert_eq!(failed, ["bad/below/.drayignore errno_27", "some/bad/.drayignore errno_27"]);
}

#[test]
fn include_takes_matches_and_the_directories_above_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("logs/day")).unwrap();
    fs::create_dir_all(at("none/at/all")).unwrap();
    fs::write(at("logs/day/x.csv"), "").unwrap();
    fs::write(at("logs/day/x.txt"), "").unwrap();
    fs::write(at("top.csv"), "").unwrap();
    let (found, ..) = walk(WalkOptions { include: vec!["**/*.csv".to_owned()], ..of(dir.path()) });
    assert_eq!(found, ["logs d", "logs/day d", "logs/day/x.csv f0", "top.csv f0"]);
}

#[test]
fn several_roots_go_by_base_name_and_equal_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("x/same")).unwrap();
    fs::create_dir_all(at("y")).unwrap();
    fs::write(at("y/same"), "12").unwrap();
    fs::write(at("x/same/f"), "1").unwrap();
    fs::write(at("b"), "").unwrap();
    symlink(at("b"), at("a-link")).unwrap();
    let (found, ..) = walk(WalkOptions { paths: vec![at("x/same"), at("b"), at("a-link")], ..WalkOptions::default() });
    assert_eq!(found, ["a-link f0", "b f0", "same d", "same/f f1"]);
    let (found, ..) = walk(of(&at("y/same")));
    assert_eq!(found, ["same f2"]);
    let both = WalkOptions { paths: vec![at("x/same"), at("y/same")], ..WalkOptions::default() };
    assert!(matches!(Walk::open(&both), Err(TransferError::EqualNames { name }) if name == "same"));
    assert!(matches!(Walk::open(&of(&at("missing"))), Err(TransferError::Source { .. })));
}

#[test]
fn special_bits_are_dropped_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tool");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).unwrap();
    let mut walk = Walk::open(&of(dir.path())).unwrap();
    let Some(Step::Found(entry)) = walk.next() else { panic!("an entry is found") };
    assert_eq!(entry.mode, 0o755);
    assert!(walk.next().is_none());
    assert!(walk.warnings()[0].contains("setuid"));
}
