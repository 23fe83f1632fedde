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
fn one_tree_is_open_at_a_time() {
    struct Opened<'a>(&'a [u8], &'a std::cell::Cell<usize>);
    impl std::io::Read for Opened<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(out)
        }
    }
    impl Drop for Opened<'_> {
        fn drop(&mut self) {
            self.1.set(self.1.get() - 1);
        }
    }
    let (bytes, open) = (tree_of(&version()), std::cell::Cell::new(0));
    let tree = |at: &str| {
        let input = Input { at, subtree: b"", include: &[], exclude: &[], shard: None, links: OutsideLinks::Refuse };
        let (bytes, open) = (&bytes[..], &open);
        let opens = move || {
            open.set(open.get() + 1);
            assert_eq!(open.get(), 1);
            TreeReader::open(std::io::BufReader::new(Opened(bytes, open))).map_err(Error::Tree)
        };
        (Selection::new(&input).unwrap(), opens)
    };
    let staged = staged_tree_of(["b", "a", "c/d"].map(tree).into()).unwrap();
    assert_eq!((staged.1.files, open.get()), (3 * 5, 0));
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

/// Files in two levels of directories; some are further names of earlier ones, some directories stay empty.
fn made(files: &[(u8, u8, u8)]) -> Vec<Entry> {
    let mut entries = std::collections::BTreeMap::new();
    for (a, b, name) in files {
        let (top, deep) = (path(&format!("d{}", a % 3)), path(&format!("d{}/e{}", a % 3, b % 3)));
        let at =
            path(&format!("{deep}/{}", ["one.mp4", "two.mp4", "notes.txt", "two-again.mp4"][usize::from(name % 4)]));
        for dir in [top, deep] {
            entries.insert(dir.clone(), Entry { path: dir, kind: Kind::Dir { mode: 0o750 } });
        }
        if name % 5 > 0 {
            let kind = Kind::File { size: 3, mode: 0o644, mtime: T, digest: digest(b"abc"), hardlink: None };
            entries.insert(at.clone(), Entry { path: at, kind });
        }
    }
    let mut first = None;
    let mut entries: Vec<Entry> = entries.into_values().collect();
    for (number, entry) in entries.iter_mut().enumerate() {
        if let Kind::File { hardlink, .. } = &mut entry.kind {
            match &first {
                Some(first) if number % 2 == 0 => *hardlink = Some(RelPath::clone(first)),
                _ => first = Some(entry.path.clone()),
            }
        }
    }
    entries
}

/// What a pull of the same choice brings, by the walk that pulls use.
fn pulled(rule: &Rule, entries: &[Entry]) -> Vec<Entry> {
    use crate::content::layout::{FileLayout, Line};
    let line = |entry: &Entry| match &entry.kind {
        Kind::File { size, digest, hardlink: None, .. } => {
            let (crc, sha256) = (crate::content::crc::Crc32::of(b"abc"), None);
            Some(Line::File(FileLayout { digest: *digest, size: *size, crc, profile: 1, segments: Vec::new(), sha256 }))
        }
        _ => None,
    };
    let pairs = || entries.iter().map(|entry| Ok((entry.clone(), line(entry))));
    let keep = |path: &RelPath| rule.takes(path.as_bytes());
    let chosen = crate::content::select::Selection::survey(None, rule.directories(), keep, pairs()).unwrap();
    chosen.select(pairs()).map(|pair| pair.unwrap().0).collect()
}

proptest! {
    #[test]
    fn a_staging_and_a_pull_choose_the_same(
        include in globs(),
        exclude in globs(),
        shard in proptest::option::of((1u32..4, 0u32..3)),
        files in proptest::collection::vec(any::<(u8, u8, u8)>(), 0..40),
    ) {
        let entries = made(&files);
        let shard = shard.map(|(index, more)| Shard { index, of: index + more });
        let text = shard.map(|shard| format!("{}/{}", shard.index, shard.of));
        let input = Input {
            at: "x", subtree: b"", include: &include, exclude: &exclude, shard: text.as_deref(), links: OutsideLinks::Refuse,
        };
        let bytes = tree_of(&entries);
        let chosen = Selection::new(&input).unwrap().weigh(TreeReader::open(&bytes[..]).unwrap()).unwrap();
        let mut rule = Rule::new(&include, &exclude).unwrap();
        if let Some(shard) = shard {
            let sized = entries.iter().filter_map(|entry| Some(Ok((entry.path.as_bytes().to_vec(), weight(&entry.kind)?))));
            rule = rule.sharded::<Error>(shard, sized).unwrap();
        }
        let under = |entry: Entry| {
            let at = path("x");
            let kind = match entry.kind {
                Kind::File { size, mode, mtime, digest, hardlink } => {
                    let hardlink = hardlink.map(|first| at.join(first.as_bytes()).unwrap());
                    Kind::File { size, mode, mtime, digest, hardlink }
                }
                other => other,
            };
            Entry { path: at.join(entry.path.as_bytes()).unwrap(), kind }
        };
        let staged: Vec<Entry> = picked(&chosen, &entries).unwrap().into_iter().map(|placed| placed.entry).skip(1).collect();
        let pulled: Vec<Entry> = pulled(&rule, &entries).into_iter().map(under).collect();
        prop_assert_eq!(&staged, &pulled);
        // the writer checks order, parents, links and duplicates
        staged_tree(vec![(chosen, TreeReader::open(&bytes[..]).unwrap())]).unwrap();
    }

    #[test]
    fn shards_part_the_files(include in globs(), exclude in globs(), of in 1u32..5) {
        let pick = |shard: Option<String>| {
            let input = Input {
                at: "x", subtree: b"", include: &include, exclude: &exclude, shard: shard.as_deref(), links: OutsideLinks::Refuse,
            };
            let bytes = tree_of(&version());
            let chosen = Selection::new(&input).unwrap().weigh(TreeReader::open(&bytes[..]).unwrap()).unwrap();
            let placed = picked(&chosen, &version()).unwrap();
            placed.into_iter().filter(|p| !matches!(p.entry.kind, Kind::Dir { .. })).map(|p| p.entry.path).collect::<Vec<_>>()
        };
        let whole = pick(None);
        let mut parts: Vec<RelPath> = (1..=of).flat_map(|index| pick(Some(format!("{index}/{of}")))).collect();
        parts.sort();
        prop_assert_eq!(parts, whole);
    }
}

#[test]
fn a_shard_is_not_guessed() {
    let unweighed = selection(&Wish { shard: Some("1/2"), ..Wish::default() });
    assert!(unweighed.needs_weighing());
    assert!(matches!(picked(&unweighed, &version()), Err(Error::NotWeighed)));
}
