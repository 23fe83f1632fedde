//! Selections: against an oracle that decides entry by entry, and with every pair still holding together.

use super::*;
use crate::content::layout::LayoutWriter;
use crate::content::merge::Merged;
use crate::content::path::Profile;
use crate::content::tree::{TreeReader, TreeWriter};
use crate::content::versions::Version;
use proptest::prelude::*;

fn select(version: &Version, root: Option<RelPath>, keep: impl Fn(&RelPath) -> bool) -> Vec<Pair> {
    let pairs = || version.pairs.iter().cloned().map(Ok);
    let selection = Selection::survey(root, Directories::Picked, keep, pairs()).unwrap();
    selection.select(pairs()).map(Result::unwrap).collect()
}

/// A selection is a version of its own: it can be written, read, and its hard links proven.
fn holds_together(version: &Version, pairs: &[Pair]) {
    let mut tree = TreeWriter::new(Vec::new(), Profile::Posix).unwrap();
    let mut layout = LayoutWriter::new(Vec::new(), &version.ids()).unwrap();
    for (entry, line) in pairs {
        tree.write(entry).unwrap();
        line.iter().for_each(|line| layout.write(line).unwrap());
    }
    let (tree, layout) = (tree.finish().unwrap().2, layout.finish().unwrap().1);
    let summary = Merged::open(&tree[..], &layout[..]).unwrap().finish().unwrap();
    summary.links.prove(TreeReader::open(&tree[..]).unwrap(), summary.tree).unwrap();
}

#[test]
fn all_is_all() {
    let version = Version::new(1, 60, 3);
    assert_eq!(select(&version, None, |_| true), version.pairs);
    assert!(select(&version, None, |_| false).is_empty());
}

#[test]
fn one_file_comes_out_under_its_base_name() {
    let version = Version::new(1, 60, 3);
    let wanted = version.pairs.iter().find(|(entry, _)| entry.path.depth() > 1 && entry.has_bytes()).unwrap();
    let picked = select(&version, Some(wanted.0.path.clone()), |_| true);
    assert_eq!(picked.len(), 1);
    assert_eq!(picked[0].0.path.as_bytes(), wanted.0.path.name());
    assert_eq!((&picked[0].0.kind, &picked[0].1), (&wanted.0.kind, &wanted.1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_is_picked_and_nothing_else(seed: u64, salt: u8, subtree: bool) {
        let version = Version::new(seed, 60, 3);
        let root = version.pairs.iter().filter(|(entry, _)| matches!(entry.kind, Kind::Dir { .. })).nth(salt as usize % 3);
        let root = root.filter(|_| subtree).map(|(entry, _)| entry.path.clone());
        let keep = |path: &RelPath| !crate::content::digest::digest(&[path.as_bytes(), &[salt]].concat()).as_bytes()[0].is_multiple_of(3);
        let picked = select(&version, root.clone(), keep);
        holds_together(&version, &picked);
        let inside = |path: &RelPath| match &root {
            Some(root) => path.strip(root),
            None => Some(path.clone()),
        };
        let kept: Vec<RelPath> = version.pairs.iter().filter_map(|(entry, _)| inside(&entry.path).filter(|path| keep(path))).collect();
        let expected: Vec<(RelPath, &Entry)> = version
            .pairs
            .iter()
            .filter_map(|(entry, _)| Some((inside(&entry.path)?, entry)))
            .filter(|(path, _)| kept.iter().any(|kept| kept == path || kept.is_below(path)))
            .collect();
        prop_assert_eq!(picked.len(), expected.len());
        for ((entry, line), (path, original)) in picked.iter().zip(expected) {
            prop_assert_eq!(&entry.path, &path);
            // same bytes and values, wherever a hard link now leads
            match (&entry.kind, &original.kind) {
                (Kind::File { size: a, digest: x, .. }, Kind::File { size: b, digest: y, .. }) => {
                    prop_assert_eq!((a, x), (b, y));
                    prop_assert_eq!(line.is_some(), entry.has_bytes());
                }
                (a, b) => prop_assert_eq!(a, b),
            }
        }
    }
}
