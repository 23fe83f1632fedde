//! Trees: the golden file, round trips, and everything that is refused.

use super::*;
use crate::content::digest::{Digest, digest};
use crate::content::path::{Profile, RelPath};
use crate::content::versions::{Rng, Version};
use proptest::prelude::*;
use std::io::{BufRead, BufReader};

const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/tree-v1.jsonl");

fn path(bytes: impl AsRef<[u8]>) -> RelPath {
    RelPath::parse(bytes.as_ref()).unwrap()
}

fn file(at: &str) -> Entry {
    let (mtime, digest) = (Time { seconds: 1, nanos: 0 }, digest(b"x"));
    Entry { path: path(at), kind: Kind::File { size: 1, mode: 0o644, mtime, digest, hardlink: None } }
}

fn dir(at: &str) -> Entry {
    Entry { path: path(at), kind: Kind::Dir { mode: 0o755 } }
}

fn link(at: &str) -> Entry {
    Entry { path: path(at), kind: Kind::Symlink { mtime: Time::default(), target: b"t".to_vec() } }
}

fn hard(at: &str, first: &str) -> Entry {
    let mut entry = file(at);
    if let Kind::File { hardlink, .. } = &mut entry.kind {
        *hardlink = Some(path(first));
    }
    entry
}

fn write(profile: Profile, entries: &[Entry]) -> Result<Vec<u8>, Error> {
    let mut writer = TreeWriter::new(Vec::new(), profile)?;
    entries.iter().try_for_each(|entry| writer.write(entry))?;
    Ok(writer.finish()?.2)
}

fn read(bytes: &[u8]) -> Result<(Vec<Entry>, Digest), Error> {
    let mut reader = TreeReader::open(bytes)?;
    let entries = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((entries, reader.digest().expect("the end was reached")))
}

/// The lines of a tree whose rules the writer would refuse: header and body put together by hand.
fn by_hand(lines: &[Entry]) -> Vec<u8> {
    let mut out = b"{\"format\":\"dray-tree\",\"version\":1,\"names\":\"posix\"}\n".to_vec();
    for entry in lines {
        line::push_entry(&mut out, entry);
        out.push(b'\n');
    }
    out
}

#[test]
fn golden() {
    let mut reader = TreeReader::open(GOLDEN).unwrap();
    let entries: Vec<Entry> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 11);
    assert_eq!(reader.counts(), Counts { files: 6, dirs: 2, symlinks: 3, bytes: 33 });
    let half = Time { seconds: -1, nanos: 500_000_000 };
    assert!(matches!(entries[2].kind, Kind::File { mtime, mode: 0o600, .. } if mtime == half));
    assert_eq!(entries[7].path.as_bytes(), b"b/\x08\t\n\x0c\r\x01\x1f\x7f\"\\\xc3\xa9\xe5\x90\x8d");
    assert!(matches!(&entries[8].kind, Kind::Symlink { target, .. } if target == b"\xfe"));
    assert_eq!(entries[8].path.as_bytes(), b"b/\xff\"\n");
    assert!(matches!(&entries[10].kind, Kind::File { hardlink: Some(first), .. } if first.as_bytes() == b"\xff"));
    assert_eq!(write(Profile::Posix, &entries).unwrap(), GOLDEN);
    assert_eq!(reader.digest(), Some(digest(GOLDEN)));
}

#[test]
fn the_portable_profile_is_part_of_the_identity() {
    let posix = write(Profile::Posix, &[file("a")]).unwrap();
    let portable = write(Profile::Portable, &[file("a")]).unwrap();
    assert_ne!(digest(&posix), digest(&portable));
    assert_eq!(TreeReader::open(&portable[..]).unwrap().profile(), Profile::Portable);
}

#[test]
fn structure_that_is_refused_by_writer_and_reader_alike() {
    let cases: Vec<(Vec<Entry>, &str)> = vec![
        (vec![file("b"), file("a")], "bad_order"),
        (vec![file("a"), file("a")], "duplicate_path"),
        (vec![file("a"), dir("a")], "duplicate_path"),
        (vec![dir("a"), link("a")], "duplicate_path"),
        (vec![dir("a"), file("a/b"), file("a!"), file("a/c")], "bad_order"),
        (vec![link("d"), file("d/f")], "prefix_conflict"),
        (vec![file("d"), file("d/f")], "prefix_conflict"),
        (vec![file("d"), file("d/e/f")], "prefix_conflict"),
        (vec![dir("d"), link("d/e"), dir("d/e/f")], "prefix_conflict"),
        (vec![file("a/b")], "missing_parent"),
        (vec![dir("a"), file("b/c")], "missing_parent"),
        (vec![dir("a"), file("a/b/c")], "missing_parent"),
        (vec![dir("a"), dir("a/b"), file("a/b/c"), file("ab"), file("b/d")], "missing_parent"),
        (vec![hard("a", "a")], "bad_entry"),
        (vec![hard("a", "b")], "bad_entry"),
    ];
    for (entries, code) in cases {
        let written = write(Profile::Posix, &entries).unwrap_err();
        assert_eq!(written.code(), code, "{written}");
        let read = read(&by_hand(&entries)).unwrap_err();
        assert_eq!(read.code(), code, "{read}");
    }
    let fine = [dir("a"), dir("a/b"), file("a/b/c"), hard("a/d", "a/b/c"), file("a!"), dir("ab"), file("ab/c")];
    assert_eq!(read(&write(Profile::Posix, &fine).unwrap()).unwrap().0, fine);
}

#[test]
fn values_that_are_refused() {
    let with = |change: &dyn Fn(&mut Kind)| {
        let mut entry = file("a");
        change(&mut entry.kind);
        entry
    };
    let mode = |bits| {
        move |kind: &mut Kind| {
            if let Kind::File { mode, .. } = kind {
                *mode = bits
            }
        }
    };
    let at = |seconds, nanos| {
        move |kind: &mut Kind| {
            if let Kind::File { mtime, .. } = kind {
                *mtime = Time { seconds, nanos }
            }
        }
    };
    let mut cases = vec![
        (with(&mode(0o4755)), Fault::Mode),
        (with(&mode(0o1000)), Fault::Mode),
        (with(&mode(u32::MAX)), Fault::Mode),
        (with(&at(0, 1_000_000_000)), Fault::Time),
        (with(&at(i64::MAX, 0)), Fault::Time),
        (with(&at(i64::MIN, 0)), Fault::Time),
        (
            with(&|kind: &mut Kind| {
                if let Kind::File { size, .. } = kind {
                    *size = MAX_FILE_SIZE + 1
                }
            }),
            Fault::Size,
        ),
        (
            with(&|kind: &mut Kind| {
                if let Kind::File { size, .. } = kind {
                    *size = 0
                }
            }),
            Fault::EmptyDigest,
        ),
    ];
    for target in [&b""[..], b"a\0b", &[b'a'; 4096]] {
        let kind = Kind::Symlink { mtime: Time::default(), target: target.to_vec() };
        cases.push((Entry { path: path("a"), kind }, Fault::Target));
    }
    for (entry, expected) in cases {
        let error = write(Profile::Posix, std::slice::from_ref(&entry)).unwrap_err();
        assert!(matches!(error, Error::Value { fault, .. } if fault == expected), "{entry:?}");
    }
    // the sum of sizes stays within 63 bits
    let big = |at: String| {
        let mut entry = file(&at);
        if let Kind::File { size, .. } = &mut entry.kind {
            *size = MAX_FILE_SIZE;
        }
        entry
    };
    let many: Vec<Entry> = (0..1100).map(|number| big(format!("{number:04}"))).collect();
    assert!(matches!(write(Profile::Posix, &many), Err(Error::Value { fault: Fault::Size, .. })));
}

#[test]
fn a_refused_entry_may_be_left_out() {
    let mut writer = TreeWriter::new(Vec::new(), Profile::Posix).unwrap();
    writer.write(&file("a")).unwrap();
    writer.write(&file("a/b")).unwrap_err();
    writer.write(&file("0")).unwrap_err();
    writer.write(&file("b")).unwrap();
    let (digest, counts, bytes) = writer.finish().unwrap();
    assert_eq!(bytes, write(Profile::Posix, &[file("a"), file("b")]).unwrap());
    assert_eq!((digest, counts.files), (crate::content::digest::digest(&bytes), 2));
}

#[test]
fn what_only_the_portable_profile_refuses() {
    for (entries, code) in [
        (vec![file("a:b")], "not_portable"),
        (vec![file("x\u{1}")], "not_portable"),
        (vec![file("com1")], "not_portable"),
        (vec![file("x.")], "not_portable"),
        (vec![Entry { path: path(b"\xff"), kind: file("a").kind }], "not_portable"),
        (vec![dir("d"), file("d/A"), file("d/a")], "name_collision"),
        (vec![file("e\u{301}"), file("é")], "name_collision"),
    ] {
        assert_eq!(write(Profile::Portable, &entries).unwrap_err().code(), code);
        assert!(write(Profile::Posix, &entries).is_ok());
    }
}

#[test]
fn spellings_that_are_not_canonical() {
    let good = "{\"kind\":\"symlink\",\"path\":\"a\\u0001\",\"mtime\":\"1.000000000\",\"target\":\"b\"}";
    let tree =
        |line: &str| format!("{{\"format\":\"dray-tree\",\"version\":1,\"names\":\"posix\"}}\n{line}\n").into_bytes();
    read(&tree(good)).unwrap();
    for (from, to) in [
        ("\"kind\"", " \"kind\""),
        ("\\u0001", "\u{1}"),
        ("\\u0001", "\\u0061"),
        ("\\u0001", "\\u000a"),
        ("\\u0001", "\\u001F"),
        ("\\u0001", "\\/"),
        ("\\u0001", "\\ud83d\\ude00"),
        ("1.000000000", "01.000000000"),
        ("1.000000000", "1.0"),
        ("1.000000000", "1.00000000a"),
        ("1.000000000", "-0.000000000"),
        ("1.000000000", "+1.000000000"),
        ("1.000000000", ".000000000"),
        ("1.000000000", "9223372036854775808.000000000"),
        ("\"target\":\"b\"", "\"target_b64\":\"Yg==\""),
        ("\"target\":\"b\"", "\"target_b64\":\"/w\""),
        ("\"target\":\"b\"", "\"target_b64\":\"/x==\""),
        ("\"target\":\"b\"}", "\"target\":\"b\",\"x\":1}"),
        ("\"target\":\"b\"}", "\"target\":\"b\"} "),
        ("\"target\":\"b\"}", "\"target\":\"b\"}\r"),
        ("symlink", "fifo"),
        ("\"path\":\"a\\u0001\",\"mtime\":\"1.000000000\"", "\"mtime\":\"1.000000000\",\"path\":\"a\""),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good);
        let error = read(&tree(&bad)).unwrap_err();
        assert!(matches!(error, Error::Malformed { line: 2 }), "{bad}: {error}");
    }
    // raw bytes that are not UTF-8 where text should be
    let mut raw = tree(good);
    let at = raw.windows(6).position(|window| window == b"\\u0001").unwrap();
    raw.splice(at..at + 6, [0xff]);
    assert!(matches!(read(&raw), Err(Error::Malformed { line: 2 })));
}

#[test]
fn headers_and_cuts() {
    let tree = write(Profile::Posix, &[file("a")]).unwrap();
    for bad in
        [&b""[..], b"\n", b"{}\n", b"{\"format\":\"dray-tree\",\"version\":2,\"names\":\"posix\"}\n", &tree[..20]]
    {
        assert!(matches!(TreeReader::open(bad), Err(Error::Header)));
    }
    assert!(matches!(read(&tree[..tree.len() - 1]), Err(Error::CutOff { line: 2 })));
    // cut at a line's end it is another tree, with another digest
    let header = tree.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let (entries, other) = read(&tree[..header]).unwrap();
    assert!(entries.is_empty() && other != digest(&tree));
    // an empty tree is a tree
    assert_eq!(write(Profile::Posix, &[]).unwrap(), tree[..header]);
}

#[test]
fn a_line_without_end_is_refused_before_it_is_held() {
    let header = write(Profile::Posix, &[]).unwrap();
    let endless = BufReader::new(std::io::Read::chain(&header[..], std::io::repeat(b'a')));
    let mut reader = TreeReader::open(endless).unwrap();
    assert!(matches!(reader.next(), Some(Err(Error::TooLong { line: 2 }))));
    assert!(reader.next().is_none() && reader.digest().is_none());
    let nothing = BufReader::new(std::io::repeat(b'a'));
    assert!(matches!(TreeReader::open(nothing), Err(Error::Header)));
}

#[test]
fn an_entry_that_does_not_fit_leaves_nothing_behind() {
    let link = |name: &[u8], target: usize| {
        let kind = Kind::Symlink { mtime: Time::MIN, target: vec![b't'; target] };
        Entry { path: path(name), kind }
    };
    let entries = [Entry { path: path(b"d"), kind: Kind::Dir { mode: 0o755 } }, link(b"d/b", 3)];
    let wanted = write(Profile::Posix, &entries).unwrap();
    let mut writer = TreeWriter::within(Vec::new(), Profile::Posix, wanted.len() as u64).unwrap();
    writer.write(&entries[0]).unwrap();
    let before = writer.counts();
    for _ in 0..2 {
        assert!(matches!(writer.write(&link(b"d/a", 300)), Err(Error::TooLong { line: 3 })));
        assert_eq!(writer.counts(), before);
    }
    writer.write(&entries[1]).unwrap();
    assert_eq!(writer.finish().unwrap().2, wanted);
}

#[test]
fn the_longest_names_fit_a_line() {
    let long = [[b'\x01'; 255].as_slice(), b"/"].concat().repeat(16);
    let mut entries = Vec::new();
    for depth in 1..=15 {
        entries.push(Entry { path: path(&long[..depth * 256 - 1]), kind: Kind::Dir { mode: 0 } });
    }
    let last = path(&long[..16 * 256 - 1]);
    entries.push(Entry { path: last, kind: Kind::Symlink { mtime: Time::MIN, target: vec![1; MAX_TARGET] } });
    let bytes = write(Profile::Posix, &entries).unwrap();
    let longest = bytes.as_slice().lines().map(|line| line.unwrap().len()).max().unwrap();
    assert!(longest > 48_000 && (longest as u64) < MAX_LINE);
    assert_eq!(read(&bytes).unwrap().0, entries);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn round_trip(seed: u64) {
        let version = Version::new(seed, 60, 3);
        let bytes = version.tree();
        let mut reader = TreeReader::open(&bytes[..]).unwrap();
        for (expected, _) in &version.pairs {
            prop_assert_eq!(&reader.next().unwrap().unwrap(), expected);
        }
        prop_assert!(reader.next().is_none());
        prop_assert_eq!(reader.digest(), Some(digest(&bytes)));
    }

    /// Whatever the reader accepts is byte for byte what the writer writes.
    #[test]
    fn a_changed_byte_is_refused_or_canonical(seed: u64) {
        let mut rng = Rng(seed);
        let bytes = Version::new(seed, 12, 2).tree();
        for _ in 0..200 {
            let mut changed = bytes.clone();
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => changed[at] ^= 1 << rng.below(8),
                1 => { changed.remove(at); }
                _ => changed.insert(at, b"\"\\,0}{ \n/x"[rng.below(10) as usize]),
            }
            if let Ok((entries, digest)) = read(&changed) {
                prop_assert_eq!(write(Profile::Posix, &entries).unwrap(), changed.clone());
                prop_assert_eq!(digest, crate::content::digest::digest(&changed));
                prop_assert_ne!(&changed, &bytes);
            }
        }
    }

    #[test]
    fn times_are_decimal_numbers(seconds in Time::MIN.seconds..=Time::MAX.seconds, nanos in 0_u32..1_000_000_000) {
        let mut text = Vec::new();
        push_time(&mut text, Time { seconds, nanos });
        let text = String::from_utf8(text).unwrap();
        let (whole, fraction) = text.split_once('.').unwrap();
        let magnitude = whole.trim_start_matches('-').parse::<i128>().unwrap() * 1_000_000_000 + fraction.parse::<i128>().unwrap();
        let value = if whole.starts_with('-') { -magnitude } else { magnitude };
        prop_assert_eq!(value, i128::from(seconds) * 1_000_000_000 + i128::from(nanos));
        let mut cursor = crate::content::lines::Cursor::new(text.as_bytes());
        prop_assert_eq!(take_time(&mut cursor), Some(Time { seconds, nanos }));
    }
}
