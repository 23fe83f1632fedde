//! What a selection stages: rules by example, and the properties every selection keeps.

use super::*;
use crate::content::digest::digest;
use crate::content::tree::Time;
use proptest::prelude::*;

const T: Time = Time { seconds: 1_700_000_000, nanos: 0 };

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn dir(at: &str) -> Entry {
    Entry { path: path(at), kind: Kind::Dir { mode: 0o750 } }
}

fn file(at: &str) -> Entry {
    let kind = Kind::File { size: 3, mode: 0o644, mtime: T, digest: digest(b"abc"), hardlink: None };
    Entry { path: path(at), kind }
}

fn hard(at: &str, first: &str) -> Entry {
    let kind = Kind::File { size: 3, mode: 0o644, mtime: T, digest: digest(b"abc"), hardlink: Some(path(first)) };
    Entry { path: path(at), kind }
}

fn symlink(at: &str, target: &str) -> Entry {
    Entry { path: path(at), kind: Kind::Symlink { mtime: T, target: target.as_bytes().to_vec() } }
}

fn version() -> Vec<Entry> {
    vec![
        dir("a"),
        dir("a/empty"),
        file("a/one.mp4"),
        file("a/two.mp4"),
        dir("b"),
        dir("b/c"),
        file("b/c/three.mp4"),
        file("b/notes.txt"),
        hard("b/two-again.mp4", "a/two.mp4"),
        symlink("z", "a/one.mp4"),
    ]
}

#[derive(Default)]
struct Wish {
    subtree: &'static str,
    include: &'static [&'static str],
    exclude: &'static [&'static str],
    shard: Option<&'static str>,
}

fn selection(wish: &Wish) -> Selection {
    let owned = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect::<Vec<_>>();
    let (include, exclude) = (owned(wish.include), owned(wish.exclude));
    let input = Input {
        at: "in/x",
        subtree: wish.subtree.as_bytes(),
        include: &include,
        exclude: &exclude,
        shard: wish.shard,
        links: OutsideLinks::Refuse,
    };
    Selection::new(&input).unwrap()
}

fn picked(selection: &Selection, entries: &[Entry]) -> Result<Vec<Placed>, Error> {
    let (mut picker, mut out) = (Picker::new(selection), Vec::new());
    for entry in entries {
        picker.push(entry, &mut out)?;
    }
    picker.finish(&mut out)?;
    Ok(out)
}

fn names(wish: &Wish) -> Vec<String> {
    picked(&selection(wish), &version()).unwrap().iter().map(|placed| placed.entry.path.to_string()).collect()
}

#[test]
fn everything_lies_under_at() {
    let all = names(&Wish::default());
    assert_eq!(all.len(), version().len() + 1);
    assert_eq!(all[0], "in/x");
    assert!(all[1..].iter().all(|name| name.starts_with("in/x/")));
    assert!(selection(&Wish::default()).is_whole());
}

#[test]
fn include_and_exclude_pick_by_entry_or_by_a_directory_above_it() {
    assert_eq!(
        names(&Wish { include: &["a/**"], ..Wish::default() }),
        ["in/x", "in/x/a", "in/x/a/one.mp4", "in/x/a/two.mp4"]
    );
    assert_eq!(
        names(&Wish { include: &["a"], ..Wish::default() }),
        names(&Wish { include: &["a/**"], ..Wish::default() })
    );
    assert_eq!(names(&Wish { include: &["*.mp4"], ..Wish::default() }), ["in/x"], "a star stays within one component");
    let deep = names(&Wish { include: &["**/three.mp4"], ..Wish::default() });
    assert_eq!(deep, ["in/x", "in/x/b", "in/x/b/c", "in/x/b/c/three.mp4"]);
    let without = names(&Wish { exclude: &["b", "z"], ..Wish::default() });
    assert_eq!(without, ["in/x", "in/x/a", "in/x/a/empty", "in/x/a/one.mp4", "in/x/a/two.mp4"]);
    assert_eq!(
        names(&Wish { include: &["a"], exclude: &["**/two.*"], ..Wish::default() }),
        ["in/x", "in/x/a", "in/x/a/one.mp4"]
    );
}

#[test]
fn a_subtree_is_put_at_the_place_itself() {
    assert_eq!(
        names(&Wish { subtree: "b", include: &["c"], ..Wish::default() }),
        ["in/x", "in/x/c", "in/x/c/three.mp4"]
    );
    assert_eq!(names(&Wish { subtree: "b/notes.txt", ..Wish::default() }), ["in/x"]);
    let placed = picked(&selection(&Wish { subtree: "b/two-again.mp4", ..Wish::default() }), &version()).unwrap();
    assert_eq!(placed[0].data_of, Some(path("a/two.mp4")));
    for missing in ["nope", "z", "a/one"] {
        let refused = picked(&selection(&Wish { subtree: missing, ..Wish::default() }), &version());
        assert!(matches!(refused, Err(Error::NoSuchPath(_))), "{missing}");
    }
}

#[test]
fn a_hard_link_is_one_only_with_its_first_member() {
    let of = |wish: &Wish| {
        let placed = picked(&selection(wish), &version()).unwrap();
        let found = placed.into_iter().find(|placed| placed.entry.path.to_string() == "in/x/b/two-again.mp4").unwrap();
        let Kind::File { hardlink, .. } = found.entry.kind else { panic!() };
        (hardlink.map(|path| path.to_string()), found.data_of.map(|path| path.to_string()))
    };
    assert_eq!(of(&Wish::default()), (Some("in/x/a/two.mp4".to_owned()), None));
    assert_eq!(of(&Wish { exclude: &["a"], ..Wish::default() }), (None, Some("a/two.mp4".to_owned())));
}

#[test]
fn links_out_of_what_is_staged_are_refused_unless_kept() {
    for (at, target) in [("l", "/etc/passwd"), ("l", "../x"), ("d/l", "../../x"), ("d/l", "a/../../../x")] {
        let mut entries = vec![];
        if at.contains('/') {
            entries.push(dir("d"));
        }
        entries.push(symlink(at, target));
        let mut wish = selection(&Wish::default());
        assert!(matches!(picked(&wish, &entries), Err(Error::OutsideLink { .. })), "{at} -> {target}");
        wish.links = OutsideLinks::Keep;
        assert!(picked(&wish, &entries).is_ok());
    }
    assert!(picked(&selection(&Wish::default()), &[dir("d"), symlink("d/l", "../x")]).is_ok());
    // within the version, but out of the staged subtree
    let below = selection(&Wish { subtree: "d", ..Wish::default() });
    assert!(matches!(picked(&below, &[dir("d"), symlink("d/l", "../x")]), Err(Error::OutsideLink { .. })));
}

fn tree_of(entries: &[Entry]) -> Vec<u8> {
    let mut writer = TreeWriter::new(Vec::new(), Profile::Posix).unwrap();
    entries.iter().for_each(|entry| writer.write(entry).unwrap());
    writer.finish().unwrap().2
}

#[test]
fn the_staged_tree_joins_all_inputs_in_any_order() {
    let bytes = tree_of(&version());
    let read = || TreeReader::open(&bytes[..]).unwrap();
    let at = |at: &str| {
        let input = Input { at, subtree: b"", include: &[], exclude: &[], shard: None, links: OutsideLinks::Refuse };
        Selection::new(&input).unwrap()
    };
    let (digest, counts) =
        staged_tree(vec![(at("in/y"), read()), (at("in/x"), read()), (at("model"), read())]).unwrap();
    let again = staged_tree(vec![(at("model"), read()), (at("in/x"), read()), (at("in/y"), read())]).unwrap();
    assert_eq!((digest, counts), again);
    assert_eq!(counts.files, 3 * 5);
    assert_eq!(counts.bytes, 3 * 12, "each hard-link group once");
    assert_eq!(counts.dirs, 3 * 4 + 4, "the places and their parent");
    let alone = staged_tree(vec![(at("in/x"), read())]).unwrap();
    assert_ne!(alone.0, digest);
}

fn globs() -> impl Strategy<Value = Vec<String>> {
    let one = prop_oneof![
        Just("a".to_owned()),
        Just("a/**".to_owned()),
        Just("**/*.mp4".to_owned()),
        Just("b/*".to_owned()),
        Just("**/two*".to_owned()),
        Just("z".to_owned()),
    ];
    proptest::collection::vec(one, 0..3)
}

proptest! {
    #[test]
    fn shards_part_the_files_and_every_tree_is_valid(include in globs(), exclude in globs(), of in 1u32..5) {
        let pick = |shard: Option<String>| {
            let input = Input {
                at: "x", subtree: b"", include: &include, exclude: &exclude, shard: shard.as_deref(), links: OutsideLinks::Refuse,
            };
            let chosen = Selection::new(&input).unwrap();
            let bytes = tree_of(&version());
            // the writer checks order, parents and duplicates of what was placed
            staged_tree(vec![(chosen.clone(), TreeReader::open(&bytes[..]).unwrap())]).unwrap();
            let placed = picked(&chosen, &version()).unwrap();
            placed.into_iter().filter(|p| !matches!(p.entry.kind, Kind::Dir { .. })).map(|p| p.entry.path).collect::<Vec<_>>()
        };
        let whole = pick(None);
        let mut parts: Vec<RelPath> = (1..=of).flat_map(|index| pick(Some(format!("{index}/{of}")))).collect();
        parts.sort();
        prop_assert_eq!(parts, whole);
    }
}
