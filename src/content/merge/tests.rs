//! The joined walk: agreement, every way to disagree, hard links, the parent cursor.

use super::*;
use crate::content::crc::Crc32;
use crate::content::digest::digest;
use crate::content::layout::{FileLayout, LayoutWriter, Line, Segment};
use crate::content::path::{Profile, RelPath};
use crate::content::tree::{Entry, Kind, Time, TreeReader, TreeWriter};
use crate::content::versions::Version;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn file(at: &str, hardlink: Option<&str>) -> Entry {
    let (mtime, digest, hardlink) = (Time::default(), digest(b"x"), hardlink.map(path));
    Entry { path: path(at), kind: Kind::File { size: 1, mode: 0o644, mtime, digest, hardlink } }
}

fn dir(at: &str) -> Entry {
    Entry { path: path(at), kind: Kind::Dir { mode: 0o755 } }
}

fn place() -> Line {
    Line::File(FileLayout {
        digest: digest(b"x"),
        size: 1,
        crc: Crc32::of(b"x"),
        profile: 1,
        segments: vec![Segment { pack: Some(0), first: 0, count: 1, raw: 1 }],
        sha256: None,
    })
}

fn time() -> Line {
    Line::Dir { mtime: Time::default() }
}

fn tree(entries: &[Entry]) -> Vec<u8> {
    let mut writer = TreeWriter::new(Vec::new(), Profile::Posix).unwrap();
    entries.iter().for_each(|entry| writer.write(entry).unwrap());
    writer.finish().unwrap().2
}

fn layout(lines: &[Line]) -> Vec<u8> {
    let mut writer = LayoutWriter::new(Vec::new(), &[digest(b"pack")]).unwrap();
    lines.iter().for_each(|line| writer.write(line).unwrap());
    writer.finish().unwrap().1
}

fn walk(entries: &[Entry], lines: &[Line]) -> Result<Summary, Error> {
    Merged::open(&tree(entries)[..], &layout(lines)[..])?.finish()
}

/// Both walks, as commit does them.
fn prove(entries: &[Entry], lines: &[Line]) -> Result<(), Error> {
    let summary = walk(entries, lines)?;
    let bytes = tree(entries);
    summary.links.prove(TreeReader::open(&bytes[..]).unwrap(), summary.tree)
}

#[test]
fn every_way_to_disagree() {
    let entries = [dir("d"), file("d/a", None), file("e", None)];
    let good = [time(), place(), place()];
    let summary = walk(&entries, &good).unwrap();
    assert_eq!((summary.counts.files, summary.counts.dirs, summary.counts.bytes), (2, 1, 2));
    assert_eq!((summary.tree, summary.layout), (digest(&tree(&entries)), digest(&layout(&good))));
    assert!(summary.links.is_empty());
    assert!(matches!(walk(&entries, &good[..2]), Err(Error::MissingLine { path: at }) if at == path("e")));
    let more = [time(), place(), place(), time()];
    assert!(matches!(walk(&entries, &more), Err(Error::TooManyLines { line: 6 })));
    let swapped = [place(), time(), place()];
    assert!(matches!(walk(&entries, &swapped), Err(Error::WrongLine { path: at, line: 3 }) if at == path("d")));
    let Line::File(mut other) = place() else { panic!("a file line") };
    other.digest = digest(b"y");
    let lying = [time(), Line::File(other), place()];
    assert!(matches!(walk(&entries, &lying), Err(Error::Disagree { path: at, .. }) if at == path("d/a")));
    let Line::File(mut other) = place() else { panic!("a file line") };
    (other.size, other.segments[0].raw) = (2, 2);
    let lying = [time(), Line::File(other), place()];
    assert!(matches!(walk(&entries, &lying), Err(Error::Disagree { layout_size: 2, .. })));
}

#[test]
fn an_error_met_on_the_way_is_not_forgotten() {
    let (tree, layout) = (tree(&[file("a", None), file("b", None)]), layout(&[place()]));
    let mut merged = Merged::open(&tree[..], &layout[..]).unwrap();
    assert!(merged.next().unwrap().is_ok());
    assert!(merged.next().unwrap().is_err());
    assert!(merged.next().is_none());
    assert!(merged.finish().is_err());
}

#[test]
fn hard_links_are_proven() {
    let fine = [file("a", None), file("b", Some("a")), dir("d"), file("d/c", Some("a"))];
    prove(&fine, &[place(), time()]).unwrap();
    let changed = |change: fn(&mut Kind)| {
        let mut entries = fine.clone();
        change(&mut entries[1].kind);
        prove(&entries, &[place(), time()])
    };
    for result in [
        changed(|kind| {
            if let Kind::File { size, .. } = kind {
                *size = 2
            }
        }),
        changed(|kind| {
            if let Kind::File { mode, .. } = kind {
                *mode = 0o600
            }
        }),
        changed(|kind| {
            if let Kind::File { mtime, .. } = kind {
                mtime.nanos = 1
            }
        }),
        changed(|kind| {
            if let Kind::File { digest: d, .. } = kind {
                *d = digest(b"y")
            }
        }),
    ] {
        assert!(matches!(result, Err(Error::HardLink { path: at, target }) if at == path("b") && target == path("a")));
    }
    let to_follower = [file("a", None), file("b", Some("a")), file("c", Some("b"))];
    assert!(matches!(prove(&to_follower, &[place()]), Err(Error::HardLink { target, .. }) if target == path("b")));
    let to_nothing = [file("b", Some("a"))];
    assert!(matches!(prove(&to_nothing, &[]), Err(Error::HardLink { .. })));
    let to_directory = [dir("a"), file("b", Some("a"))];
    assert!(matches!(prove(&to_directory, &[time()]), Err(Error::HardLink { .. })));
    // another tree for the second look is noticed
    let links = walk(&fine, &[place(), time()]).unwrap().links;
    let other = tree(&[file("a", None)]);
    let result = links.prove(TreeReader::open(&other[..]).unwrap(), digest(b"first"));
    assert!(matches!(result, Err(Error::Changed { .. })));
}

#[test]
fn groups_are_bounded() {
    let mut links = HardLinks::default();
    for number in 0..MAX_GROUPS {
        links.claim(&file("z", Some(&number.to_string()))).unwrap();
    }
    assert!(matches!(links.claim(&file("z", Some("x"))), Err(Error::TooManyGroups)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pairs_come_back_as_they_were(seed: u64) {
        let version = Version::new(seed, 60, 3);
        let (tree, layout) = (version.tree(), version.layout());
        let mut merged = Merged::open(&tree[..], &layout[..]).unwrap();
        let pairs: Vec<Pair> = merged.by_ref().map(Result::unwrap).collect();
        prop_assert_eq!(&pairs, &version.pairs);
        let summary = merged.finish().unwrap();
        prop_assert_eq!((summary.tree, summary.layout), (digest(&tree), digest(&layout)));
        summary.links.prove(TreeReader::open(&tree[..]).unwrap(), summary.tree).unwrap();
    }

    #[test]
    fn the_parent_cursor_is_a_look_up(old: u64, new: u64) {
        let (old, new) = (Version::new(old, 50, 2), Version::new(new, 50, 2));
        let oracle: BTreeMap<_, _> = old.pairs.iter().map(|pair| (pair.0.path.clone(), pair.clone())).collect();
        let (tree, layout) = (old.tree(), old.layout());
        let mut cursor = ParentCursor::new(Merged::open(&tree[..], &layout[..]).unwrap());
        for (entry, _) in &new.pairs {
            prop_assert_eq!(cursor.find(&entry.path).unwrap(), oracle.get(&entry.path));
            // asked again, answered again
            prop_assert_eq!(cursor.find(&entry.path).unwrap(), oracle.get(&entry.path));
        }
    }
}
