//! What the fuzz targets for trees, layouts and paths run, callable from plain tests too.
//!
//! As in [`fuzz`](super::fuzz): any bytes must return. What a reader accepts must be what the writer writes.

use super::layout::{LayoutReader, LayoutWriter};
use super::merge::Merged;
use super::path::{RelPath, Twins, escaped, fold_key, portable, symlink_escapes, warnings};
use super::tree::{TreeReader, TreeWriter};

/// A whole tree.
pub fn tree(data: &[u8]) {
    let Ok(mut reader) = TreeReader::open(data) else { return };
    let mut writer = TreeWriter::new(Vec::new(), reader.profile()).expect("a header fits");
    for entry in &mut reader {
        let Ok(entry) = entry else { return };
        writer.write(&entry).expect("the writer takes what the reader takes");
    }
    let counts = reader.counts();
    let written = writer.finish().expect("a Vec takes all");
    assert_eq!(written.2, data, "one tree has two forms");
    assert_eq!((reader.digest(), counts), (Some(written.0), written.1));
}

/// A whole layout.
pub fn layout(data: &[u8]) {
    let Ok(mut reader) = LayoutReader::open(data) else { return };
    let mut writer = LayoutWriter::new(Vec::new(), reader.packs()).expect("the writer takes what the reader takes");
    for line in &mut reader {
        let Ok(line) = line else { return };
        writer.write(&line).expect("the writer takes what the reader takes");
    }
    let written = writer.finish().expect("a Vec takes all");
    assert_eq!(written.1, data, "one layout has two forms");
    assert_eq!(reader.digest(), Some(written.0));
}

/// A tree and a layout, parted by the first NUL, walked together and proven.
pub fn merged(data: &[u8]) {
    let mut halves = data.splitn(2, |&byte| byte == 0);
    let (tree, layout) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
    let Ok(summary) = Merged::open(tree, layout).and_then(Merged::finish) else { return };
    if let Ok(reader) = TreeReader::open(tree) {
        let _ = summary.links.prove(reader, summary.tree);
    }
}

/// Two paths, parted by the first NUL.
pub fn path(data: &[u8]) {
    let mut halves = data.splitn(2, |&byte| byte == 0);
    let (first, second) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
    assert!(!escaped(data).to_string().chars().any(char::is_control));
    let Ok(path) = RelPath::parse(first) else { return };
    assert_eq!(path.as_bytes(), first);
    symlink_escapes(&path, second);
    assert_eq!(portable(&path).is_ok(), warnings(&path).is_empty());
    if let Some(key) = fold_key(path.name()) {
        assert_eq!(fold_key(key.as_bytes()), Some(key), "a key is its own key");
    }
    let Ok(other) = RelPath::parse(second) else { return };
    assert_eq!(path.cmp(&other), path.components().cmp(other.components()), "tree order is by components");
    assert!(path.join(second).is_ok_and(|joined| joined.is_below(&path)) || first.len() + second.len() >= 255);
    let mut twins = Twins::new();
    let _ = twins.add(&path).and_then(|()| twins.add(&other));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::versions::{Rng, Version};

    /// A short run on every machine: real bytes, and real bytes changed here and there.
    #[test]
    fn short_run() {
        for seed in 0..40 {
            let mut rng = Rng(seed);
            let version = Version::new(seed, 20, 2);
            let (tree_bytes, layout_bytes) = (version.tree(), version.layout());
            let both = [&tree_bytes[..], b"\0", &layout_bytes].concat();
            let names = [version.pairs[0].0.path.as_bytes(), b"\0", version.pairs[1].0.path.as_bytes()].concat();
            type Target = fn(&[u8]);
            let targets: [(Target, Vec<u8>); 4] =
                [(tree, tree_bytes), (layout, layout_bytes), (merged, both), (path, names)];
            for (target, bytes) in targets {
                target(&bytes);
                for _ in 0..100 {
                    let mut changed = bytes.clone();
                    for _ in 0..=rng.below(3) {
                        let at = rng.below(changed.len() as u64) as usize;
                        changed[at] = rng.next() as u8;
                    }
                    target(&changed);
                }
            }
        }
    }
}
