//! Paths: what is refused, order against an oracle, what a person sees, portable names and twins.

use super::*;
use proptest::prelude::*;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

#[test]
fn what_no_tree_may_hold() {
    let long_name = vec![b'a'; 256];
    let long_path = [b"aaaaaaa/".repeat(512), b"a".to_vec()].concat();
    let deep = [b"a/".repeat(299), b"a".to_vec()].concat();
    let cases: [(&[u8], PathError); 14] = [
        (b"", PathError::Empty),
        (b"/abs", PathError::Absolute),
        (b"//srv/share", PathError::Absolute),
        (b"a/../../etc/passwd", PathError::Dots),
        (b"..", PathError::Dots),
        (b".", PathError::Dots),
        (b"a/./b", PathError::Dots),
        (b"a/", PathError::EmptyName),
        (b"a//b", PathError::EmptyName),
        (b"a\0b", PathError::Nul),
        (&long_name, PathError::NameTooLong { length: 256 }),
        (&long_path, PathError::TooLong { length: 4097 }),
        (&deep, PathError::TooDeep { depth: 300 }),
        (b"\0", PathError::Nul),
    ];
    for (bytes, expected) in cases {
        assert_eq!(RelPath::parse(bytes).unwrap_err(), expected, "{}", escaped(bytes));
        assert_eq!(RelPath::from_vec(bytes.to_vec()).unwrap_err(), expected);
    }
}

#[test]
fn what_the_posix_profile_keeps() {
    for bytes in [&b"a\\b"[..], b"C:x", b"f::$DATA", b"\x01", b"\xff", b"...", b"..a", b" ", b"con", b"x."] {
        assert_eq!(RelPath::parse(bytes).unwrap().as_bytes(), bytes);
    }
    assert!(RelPath::parse(&[b'a'; 255]).is_ok());
    assert!(RelPath::parse(&[b"a/".repeat(255), b"a".to_vec()].concat()).is_ok());
}

#[test]
fn the_parts_of_a_path() {
    let deep = path("a/bc/d");
    assert_eq!(deep.depth(), 3);
    assert_eq!(deep.name(), b"d");
    assert_eq!(deep.parent(), Some(path("a/bc")));
    assert_eq!(path("a").parent(), None);
    assert_eq!(path("a").name(), b"a");
    assert_eq!(deep.components().collect::<Vec<_>>(), [&b"a"[..], b"bc", b"d"]);
    assert_eq!(path("a").join(b"bc/d"), Ok(deep.clone()));
    assert_eq!(path("a").join(b"../b"), Err(PathError::Dots));
    assert_eq!(path("a").join(b"/b"), Err(PathError::Absolute));
    assert!(deep.is_below(&path("a")) && deep.is_below(&path("a/bc")));
    assert!(!deep.is_below(&path("a/b")) && !deep.is_below(&deep));
    assert_eq!(deep.strip(&path("a")), Some(path("bc/d")));
    assert_eq!(deep.strip(&path("b")), None);
}

#[test]
fn what_a_person_sees() {
    let shown = |bytes: &[u8]| escaped(bytes).to_string();
    assert_eq!(shown(b"plain name"), "plain name");
    assert_eq!(shown(b"a\nb\x1b[2J"), "a\\x0ab\\x1b[2J");
    assert_eq!(shown(b"\xff\xc3\xa9"), "\\xffé");
    assert_eq!(shown(b"\\xff"), "\\\\xff");
    assert_eq!(shown("a\u{202e}b\u{200b}\u{85}".as_bytes()), "a\\u{202e}b\\u{200b}\\u{85}");
}

#[test]
fn links_that_leave_the_tree() {
    let cases: [(&str, &[u8], bool); 10] = [
        ("a", b"b", false),
        ("a", b"..", true),
        ("a", b"/etc", true),
        ("d/a", b"../b", false),
        ("d/a", b"../../b", true),
        ("d/a", b"x/../../b", false),
        ("d/a", b"x/../../../b", true),
        ("d/a", b"./.././/..", true),
        ("d/e/a", b"../../..", true),
        ("d/e/a", b"../..", false),
    ];
    for (at, target, expected) in cases {
        assert_eq!(symlink_escapes(&path(at), target), expected, "{at} -> {}", escaped(target));
    }
}

#[test]
fn names_another_system_could_not_hold() {
    let refused: [(&[u8], NotPortable); 18] = [
        (b"a\\b", NotPortable::Character('\\')),
        (b"C:x", NotPortable::Character(':')),
        (b"f::$DATA", NotPortable::Character(':')),
        (b"what?", NotPortable::Character('?')),
        (b"d/x\x01", NotPortable::Control),
        (b"x\x7f", NotPortable::Control),
        (b"\xff", NotPortable::NotUtf8),
        (b"CON", NotPortable::Device),
        (b"con", NotPortable::Device),
        (b"aux.txt", NotPortable::Device),
        (b"d/nul.tar.gz", NotPortable::Device),
        ("COM¹".as_bytes(), NotPortable::Device),
        (b"lpt9.log", NotPortable::Device),
        (b"prn .x", NotPortable::Device),
        (b"conin$", NotPortable::Device),
        (b"trail.", NotPortable::TrailingDotOrSpace),
        (b"trail ", NotPortable::TrailingDotOrSpace),
        (b"d /x", NotPortable::TrailingDotOrSpace),
    ];
    for (bytes, expected) in refused {
        let path = RelPath::parse(bytes).unwrap();
        assert_eq!(portable(&path), Err(expected), "{path}");
        assert!(warnings(&path).contains(&expected), "{path}");
    }
    for bytes in ["com", "com10", "console", "a.con", "nulls", "é", " lead", "a.b", "COM¹x", ".hidden"] {
        assert_eq!(portable(&path(bytes)), Ok(()), "{bytes}");
        assert!(warnings(&path(bytes)).is_empty(), "{bytes}");
    }
    let several = RelPath::parse(b"a:./\x01/a:.").unwrap();
    let expected = [NotPortable::Character(':'), NotPortable::TrailingDotOrSpace, NotPortable::Control];
    assert_eq!(warnings(&several), expected);
}

#[test]
fn twins_in_one_directory() {
    let pairs = [("A", "a"), ("é", "e\u{301}"), ("É", "é"), ("ß", "SS"), ("ẞ", "ss"), ("Σ", "ς"), ("K", "\u{212a}")];
    for (first, second) in pairs {
        let mut twins = Twins::new();
        assert_eq!(twins.add(&path(first)), Ok(()));
        assert_eq!(twins.add(&path(second)), Err(TwinError::Twin), "{first} {second}");
        assert_eq!(fold_key(first.as_bytes()), fold_key(second.as_bytes()));
    }
    // the same names in different directories are none, and a directory is forgotten when the walk leaves it
    let mut twins = Twins::new();
    for distinct in ["a", "a/x", "a/y", "a/y/X", "b", "b/X", "b/Y", "c", "X"] {
        assert_eq!(twins.add(&path(distinct)), Ok(()), "{distinct}");
    }
    assert_eq!(twins.add(&path("x")), Err(TwinError::Twin));
    assert_eq!(twins.add(&RelPath::parse(b"\xff").unwrap()), Ok(()));
}

#[test]
fn a_directory_too_wide_for_the_twin_check_is_refused() {
    let mut twins = Twins::new();
    for number in 0..MAX_OPEN_NAMES {
        twins.add(&path(&format!("{number:07}"))).unwrap();
    }
    assert_eq!(twins.add(&path("x")), Err(TwinError::TooManyNames));
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // few letters, so that prefixes, slashes and dots meet often
    proptest::collection::vec(
        prop_oneof![Just(b'/'), Just(b'.'), Just(b'a'), Just(b'!'), Just(0xff), any::<u8>()],
        0..12,
    )
}

proptest! {
    #[test]
    fn order_is_component_by_component(a in bytes(), b in bytes()) {
        let (Ok(a), Ok(b)) = (RelPath::parse(&a), RelPath::parse(&b)) else { return Ok(()) };
        let oracle = a.components().collect::<Vec<_>>().cmp(&b.components().collect());
        prop_assert_eq!(a.cmp(&b), oracle);
    }

    #[test]
    fn what_is_accepted_stays_below_its_root(bytes in bytes()) {
        let Ok(path) = RelPath::parse(&bytes) else { return Ok(()) };
        prop_assert_eq!(path.as_bytes(), &bytes[..]);
        // follow it by hand
        let mut stack: Vec<&[u8]> = Vec::new();
        for name in bytes.split(|&byte| byte == b'/') {
            prop_assert!(!name.is_empty() && name != b"." && name != b".." && !name.contains(&0));
            stack.push(name);
        }
        prop_assert_eq!(stack.len(), path.depth());
    }

    #[test]
    fn different_names_look_different(a in bytes(), b in bytes()) {
        prop_assume!(a != b);
        prop_assert_ne!(escaped(&a).to_string(), escaped(&b).to_string());
        prop_assert!(!escaped(&a).to_string().chars().any(char::is_control));
    }
}
