//! Archives without a reader: lengths, ranges, names, golden digests. Independent readers are asked in `tests/it`.

use super::names::{Changed, zip_name};
use super::*;
use crate::content::crc::Crc32;
use crate::content::digest::digest;
use crate::content::layout::{FileLayout, Line};
use crate::content::merge::{self, Pair};
use crate::content::path::RelPath;
use crate::content::tree::Kind;
use crate::content::versions::{Rng, Version};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;

fn source(version: &Version) -> impl Source + use<> {
    let pairs = version.pairs.clone();
    move || Ok(pairs.clone().into_iter().map(Ok::<Pair, merge::Error>))
}

fn bytes<S: Source>(version: &Version, archive: &Archive<S>, range: Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in archive.parts(range).unwrap() {
        match part.unwrap() {
            Part::Bytes(run) => bytes.extend(run),
            Part::File { layout, range } => {
                assert!(!range.is_empty());
                bytes.extend_from_slice(&version.content(&layout)[range.start as usize..range.end as usize]);
            }
        }
    }
    bytes
}

#[test]
fn golden() {
    let version = Version::new(20_261_130, 80, 4);
    let made: String = [Format::Zip, Format::Tar]
        .map(|format| {
            let archive = Archive::measure(format, source(&version)).unwrap();
            let bytes = bytes(&version, &archive, 0..archive.length());
            format!("{format:?} {} {} {}\n", archive.length(), digest(&bytes), archive.etag())
        })
        .concat();
    assert_eq!(made, include_str!("../../../tests/golden/archive-v1.txt"));
}

#[test]
fn an_empty_tree_is_an_archive() {
    let nothing = || Ok(std::iter::empty::<Result<Pair, merge::Error>>());
    let zip = Archive::measure(Format::Zip, nothing).unwrap();
    assert_eq!(zip.length(), 22);
    let tar = Archive::measure(Format::Tar, nothing).unwrap();
    assert_eq!(tar.length(), 1024);
    assert_ne!(zip.etag(), tar.etag());
}

#[test]
fn ranges_outside_are_refused() {
    let version = Version::new(1, 10, 1);
    let archive = Archive::measure(Format::Tar, source(&version)).unwrap();
    assert!(matches!(archive.parts(0..archive.length() + 1), Err(Error::Range { .. })));
    #[expect(clippy::reversed_empty_ranges, reason = "what a careless caller might pass")]
    let backwards = archive.parts(5..4);
    assert!(matches!(backwards, Err(Error::Range { .. })));
    assert_eq!(archive.parts(7..7).unwrap().count(), 0);
}

#[test]
fn the_etag_follows_names_times_modes_and_bytes_but_not_places() {
    let version = Version::new(2, 40, 2);
    for format in [Format::Zip, Format::Tar] {
        let etag = |pairs: Vec<Pair>| {
            let source = move || Ok(pairs.clone().into_iter().map(Ok::<Pair, merge::Error>));
            Archive::measure(format, source).unwrap().etag()
        };
        let original = etag(version.pairs.clone());
        let changed = |change: &dyn Fn(&mut Pair)| {
            let mut pairs = version.pairs.clone();
            let at = pairs.iter().position(|(entry, _)| entry.has_bytes()).unwrap();
            change(&mut pairs[at]);
            etag(pairs)
        };
        let mode = changed(&|pair| {
            if let Kind::File { mode, .. } = &mut pair.0.kind {
                *mode ^= 0o100
            }
        });
        let bytes = changed(&|pair| {
            if let Some(Line::File(layout)) = &mut pair.1 {
                layout.digest = digest(b"other")
            }
        });
        let name = changed(&|pair| pair.0.path = RelPath::parse(b"0").unwrap());
        for other in [mode, bytes, name] {
            assert_ne!(other, original);
        }
        let crc = changed(&|pair| {
            if let Some(Line::File(layout)) = &mut pair.1 {
                layout.crc.0 ^= 1
            }
        });
        assert_ne!(crc, original);
        let moved = changed(&|pair| {
            if let Some(Line::File(layout)) = &mut pair.1 {
                layout.segments.clear()
            }
        });
        assert_eq!(moved, original);
    }
}

#[test]
fn a_source_that_changes_is_noticed() {
    let version = Version::new(2, 40, 2);
    for format in [Format::Zip, Format::Tar] {
        let walks = std::cell::Cell::new(0);
        let pairs = version.pairs.clone();
        // measured whole, then one entry short
        let source = || {
            walks.set(walks.get() + 1);
            let short = usize::from(walks.get() > 1);
            Ok(pairs[..pairs.len() - short].iter().cloned().map(Ok::<Pair, merge::Error>))
        };
        let archive = Archive::measure(format, source).unwrap();
        let last = archive.parts(0..archive.length()).unwrap().last().unwrap();
        assert!(matches!(last, Err(Error::Changed)));
    }
}

#[test]
fn names_that_a_zip_cannot_hold() {
    for (path, expected) in [
        (&b"plain"[..], "plain"),
        ("é\u{202e}:*?".as_bytes(), "é\u{202e}:*?"),
        (b"100%20off", "100%20off"),
        (b"50%", "50%"),
        (b"a\\b", "a%5Cb"),
        (b"a\nb\x7f", "a%0Ab%7F"),
        (b"caf\xe9/x", "caf%E9/x"),
        (b"caf%E9/x", "caf%25E9/x"),
        (b"%25", "%2525"),
        (b"%0a", "%0a"),
        (b"\xc3\xa9\xff", "é%FF"),
    ] {
        let path = RelPath::parse(path).unwrap();
        let (name, changed) = zip_name(&path);
        assert_eq!(std::str::from_utf8(&name).unwrap(), expected);
        assert_eq!(changed == Changed::Yes, *name != *path.as_bytes());
    }
}

proptest! {
    #[test]
    fn two_names_stay_two(a in "[%0-9A-E\\\\\n]{1,6}", b in "[%0-9A-E\\\\\n]{1,6}", high: bool) {
        let [mut a, b] = [a.into_bytes(), b.into_bytes()];
        if high {
            a.push(0xe9);
        }
        prop_assume!(a != b);
        let name = |bytes: &[u8]| zip_name(&RelPath::parse(bytes).unwrap()).0.into_owned();
        prop_assert_ne!(name(&a), name(&b));
    }
}

#[test]
fn lengths_are_those_of_the_headers() {
    use super::member::{Body, Member};
    use super::outline::{head_length, push_head};
    use super::zip::{central_length, push_central};
    use crate::content::tree::Time;
    let mut rng = Rng(9);
    let mut sizes = [0, 1, 511, 512, u64::from(u32::MAX) - 1, u64::from(u32::MAX), 0o77_777_777_777, 1 << 33, 1 << 40]
        .into_iter()
        .cycle();
    let layout = layout_of(1);
    for step in 0..3000_usize {
        let mut path = vec![b'p'; 1 + step % 250];
        match rng.below(4) {
            0 => path[0] = b'\\',
            1 => path[0] = 0xff,
            2 => path.splice(..1, "é".bytes()).for_each(drop),
            _ => {}
        }
        let path = RelPath::parse(&path).unwrap();
        let body = match rng.below(6) {
            0 => Body::Dir,
            1 => Body::Empty,
            2 => Body::Symlink(vec![b't'; 1 + rng.below(300) as usize]),
            3 => Body::HardLink(path.clone()),
            _ => Body::File(Arc::new(FileLayout { size: sizes.next().unwrap(), ..layout.clone() })),
        };
        let seconds = [0, -1, 1 << 31, 1 << 33, (1 << 31) - 1][rng.below(5) as usize];
        let mtime = Time { seconds, nanos: rng.below(2) as u32 };
        let member = Member { path, mode: 0o644, mtime, body };
        for format in [Format::Zip, Format::Tar] {
            let mut head = Vec::new();
            push_head(&mut head, format, &member);
            assert_eq!(head.len() as u64, head_length(format, &member), "{format:?} {member:?}");
        }
        for offset in [0, u64::from(u32::MAX) - 1, u64::from(u32::MAX), 1 << 40] {
            let mut record = Vec::new();
            push_central(&mut record, &member, offset);
            assert_eq!(record.len() as u64, central_length(&member, offset));
        }
    }
}

fn layout_of(size: u64) -> FileLayout {
    FileLayout { digest: digest(b""), size, crc: Crc32(7), profile: 1, segments: Vec::new(), sha256: None }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_range_is_a_slice_of_the_whole(seed: u64) {
        let version = Version::new(seed, 40, 3);
        let mut rng = Rng(seed);
        for format in [Format::Zip, Format::Tar] {
            let archive = Archive::measure(format, source(&version)).unwrap();
            let whole = bytes(&version, &archive, 0..archive.length());
            prop_assert_eq!(whole.len() as u64, archive.length());
            for _ in 0..12 {
                let start = rng.below(archive.length());
                let end = start + rng.below(archive.length() + 1 - start);
                // near the end too, where the directory is
                let start = if rng.one_in(2) { start } else { archive.length() - rng.below(3000).min(archive.length()) };
                let end = end.max(start);
                prop_assert_eq!(&bytes(&version, &archive, start..end)[..], &whole[start as usize..end as usize]);
            }
        }
    }
}
