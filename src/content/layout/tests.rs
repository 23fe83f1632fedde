//! Layouts: the golden file, round trips, the rules of segments, and sums against packs.

use super::*;
use crate::content::crc::Crc32;
use crate::content::digest::{Digest, digest};
use crate::content::pack::PackId;
use crate::content::tree::Time;
use crate::content::versions::{Rng, Version};
use proptest::prelude::*;
use std::io::BufReader;

const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/layout-v1.jsonl");

fn pack(number: u32) -> PackId {
    digest(&number.to_le_bytes())
}

fn run(pack: u32, first: u32, count: u32, raw: u64) -> Segment {
    Segment { pack: Some(pack), first, count, raw }
}

fn hole(raw: u64) -> Segment {
    Segment { pack: None, first: 0, count: 0, raw }
}

fn file(segments: &[Segment]) -> FileLayout {
    FileLayout {
        digest: digest(b"f"),
        size: segments.iter().map(|segment| segment.raw).sum(),
        crc: Crc32(1),
        profile: 1,
        segments: segments.to_vec(),
        sha256: None,
    }
}

fn write(packs: &[PackId], lines: &[Line]) -> Result<Vec<u8>, Error> {
    let mut writer = LayoutWriter::new(Vec::new(), packs)?;
    lines.iter().try_for_each(|line| writer.write(line))?;
    Ok(writer.finish()?.1)
}

fn read(bytes: &[u8]) -> Result<(Vec<PackId>, Vec<Line>, Digest), Error> {
    let mut reader = LayoutReader::open(bytes)?;
    let lines = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((reader.packs().to_vec(), lines, reader.digest().expect("the end was reached")))
}

#[test]
fn golden() {
    let (packs, lines, digest_read) = read(GOLDEN).unwrap();
    assert_eq!(packs, [Digest::from_bytes([0; 32]), Digest::from_bytes([1; 32])]);
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0], Line::Dir { mtime: Time { seconds: 1_700_000_000, nanos: 0 } });
    let Line::File(first) = &lines[1] else { panic!("a file line") };
    assert_eq!((first.digest, first.crc), (digest(b"hello world"), Crc32::of(b"hello world")));
    assert_eq!(lines[3], Line::Dir { mtime: Time { seconds: -1, nanos: 999_999_999 } });
    let Line::File(last) = &lines[4] else { panic!("a file line") };
    assert_eq!(last.segments, [hole(131_072), run(1, 0, 1, 11)]);
    assert_eq!(write(&packs, &lines).unwrap(), GOLDEN);
    assert_eq!(digest_read, digest(GOLDEN));
}

#[test]
fn segments_that_are_refused() {
    let block = 65_536;
    let wrong_sum = FileLayout { size: 9, ..file(&[run(0, 0, 1, 10)]) };
    let cases = [
        (file(&[run(2, 0, 1, 10)]), Fault::Pack),
        (file(&[run(u32::MAX, 0, 1, 10)]), Fault::Pack),
        (file(&[run(0, 0, 0, 10)]), Fault::Chunks),
        (file(&[run(0, 65_535, 2, 10)]), Fault::Chunks),
        (file(&[run(0, u32::MAX, u32::MAX, 10)]), Fault::Chunks),
        (file(&[run(0, 0, 3, 2)]), Fault::Raw),
        (file(&[run(0, 0, 1, 98_305)]), Fault::Raw),
        (file(&[hole(block - 1)]), Fault::Hole),
        (file(&[run(0, 0, 1, 5), hole(block)]), Fault::Hole),
        (file(&[run(0, 0, 1, 5), Segment { count: 1, ..hole(block) }]), Fault::Hole),
        (file(&[run(0, 0, 1, 5), hole(0)]), Fault::Hole),
        (file(&[hole(block), hole(block)]), Fault::Unjoined),
        (file(&[run(0, 0, 1, 5), run(0, 1, 1, 5)]), Fault::Unjoined),
        (wrong_sum, Fault::Sum),
        (file(&[]), Fault::Size),
        (FileLayout { size: 5, ..file(&[]) }, Fault::Sum),
        (FileLayout { profile: 2, ..file(&[run(0, 0, 1, 5)]) }, Fault::Profile),
        (FileLayout { size: u64::MAX, ..file(&[run(0, 0, 1, 5)]) }, Fault::Size),
    ];
    for (file, expected) in cases {
        assert_eq!(file.check(2), Err(expected), "{file:?}");
        let packs = [pack(0), pack(1)];
        let written = write(&packs, &[Line::File(file.clone())]).unwrap_err();
        assert!(matches!(written, Error::Line { source, .. } if source == expected));
        let mut by_hand = write(&packs, &[]).unwrap();
        line::push_line(&mut by_hand, &Line::File(file));
        by_hand.push(b'\n');
        let read = read(&by_hand).unwrap_err();
        assert!(matches!(read, Error::Line { line: 4, source } if source == expected), "{read}");
    }
    let strange = Line::Dir { mtime: Time { seconds: 0, nanos: 1_000_000_000 } };
    assert!(matches!(write(&[], &[strange]), Err(Error::Line { source: Fault::Time, .. })));
    for fine in [
        file(&[run(0, 0, 1, 5), run(1, 1, 1, 5)]),
        file(&[run(0, 0, 1, 5), run(0, 2, 1, 5)]),
        file(&[run(0, 1, 1, 5), run(0, 0, 1, 5)]),
        file(&[hole(block), run(0, 0, 1, block), hole(2 * block), run(0, 1, 1, 1)]),
        file(&[run(0, 65_535, 1, 98_304)]),
    ] {
        assert_eq!(fine.check(2), Ok(()));
    }
}

#[test]
fn push_joins_what_can_be_one() {
    let mut joined = file(&[]);
    for segment in [run(0, 0, 1, 5), run(0, 1, 2, 7), hole(65_536), hole(65_536), run(0, 3, 1, 1), run(1, 4, 1, 1)] {
        joined.push(segment);
    }
    assert_eq!(joined.segments, [run(0, 0, 3, 12), hole(131_072), run(0, 3, 1, 1), run(1, 4, 1, 1)]);
}

#[test]
fn pack_lists() {
    assert!(matches!(LayoutWriter::new(Vec::new(), &[pack(1), pack(2), pack(1)]), Err(Error::DuplicatePack { .. })));
    let too_many = vec![pack(1); MAX_PACKS + 1];
    assert!(matches!(LayoutWriter::new(Vec::new(), &too_many), Err(Error::TooManyPacks { .. })));
    let header = |count: u64| format!("{{\"format\":\"dray-layout\",\"version\":1,\"packs\":{count}}}\n").into_bytes();
    assert!(matches!(LayoutReader::open(&header(u64::MAX)[..]), Err(Error::TooManyPacks { packs: u64::MAX })));
    // a count alone allocates nothing and is not believed
    assert!(matches!(LayoutReader::open(&header(1_000_000)[..]), Err(Error::CutOff { line: 2 })));
    let twice = [header(2), write(&[pack(1)], &[]).unwrap()[46..].repeat(2)].concat();
    assert!(matches!(LayoutReader::open(&twice[..]), Err(Error::DuplicatePack { .. } | Error::Line { .. })));
    for bad in [&b""[..], b"{}\n", b"{\"format\":\"dray-layout\",\"version\":1,\"packs\":01}\n"] {
        assert!(matches!(LayoutReader::open(bad), Err(Error::Header)));
    }
}

#[test]
fn a_line_without_end_is_refused_within_its_limit() {
    let header = write(&[], &[]).unwrap();
    let mut reader =
        LayoutReader::open(BufReader::new(std::io::Read::chain(&header[..], std::io::repeat(b'[')))).unwrap();
    assert!(matches!(reader.next(), Some(Err(Error::TooLong { line: 2 }))));
    assert!(reader.next().is_none() && reader.digest().is_none());
}

#[test]
fn the_most_scattered_file_fits_a_line_and_no_more_is_taken() {
    let packs = [pack(0), pack(1)];
    let scattered = |count: usize| {
        let segments: Vec<Segment> = (0..count as u32).map(|n| run(n % 2, 65_000 - n % 60_000, 1, 98_304)).collect();
        Line::File(file(&segments))
    };
    let most = scattered(MAX_SEGMENTS);
    let bytes = write(&packs, std::slice::from_ref(&most)).unwrap();
    assert_eq!(read(&bytes).unwrap().1, [most]);
    let more = scattered(MAX_SEGMENTS + 1);
    assert!(matches!(write(&packs, &[more]), Err(Error::Line { source: Fault::TooManySegments, .. })));
}

#[test]
fn sums_against_the_packs() {
    let version = Version::new(7, 60, 4);
    let mut files = 0;
    for layout in version.pairs.iter().filter_map(|(_, line)| match line {
        Some(Line::File(layout)) => Some(layout),
        _ => None,
    }) {
        files += 1;
        let sum = |layout: &FileLayout| {
            let mut sums = Sums::new();
            for segment in &layout.segments {
                sums.add(segment, segment.pack.map(|pack| &*version.packs[pack as usize]))?;
            }
            sums.check(layout)
        };
        assert_eq!(sum(layout), Ok(()));
        assert_eq!(sum(&FileLayout { crc: Crc32(layout.crc.0 ^ 1), ..layout.clone() }), Err(Fault::Crc));
        assert_eq!(sum(&FileLayout { size: layout.size + 1, ..layout.clone() }), Err(Fault::Sum));
        let mut longer = layout.clone();
        longer.segments[0].raw += 1;
        if longer.segments[0].pack.is_some() {
            assert_eq!(sum(&longer), Err(Fault::Raw));
            longer.segments[0].count = 60_000;
            assert_eq!(sum(&longer), Err(Fault::Chunks));
        }
    }
    assert!(files > 10);
}

#[test]
fn the_same_place_in_two_layouts() {
    let (a, b) = (file(&[run(0, 0, 1, 5), run(1, 3, 1, 5)]), file(&[run(1, 0, 1, 5), run(0, 3, 1, 5)]));
    let (here, there) = ([pack(0), pack(1)], [pack(1), pack(0)]);
    assert!(same_place(&a, &here, &b, &there));
    assert!(!same_place(&a, &here, &b, &here));
    assert!(!same_place(&a, &here, &a, &here[..1]));
    assert!(!same_place(&a, &[], &a, &[]));
    assert!(!same_place(&a, &here, &FileLayout { crc: Crc32(2), ..b }, &there));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn round_trip(seed: u64) {
        let version = Version::new(seed, 60, 4);
        let bytes = version.layout();
        let (packs, lines, digest_read) = read(&bytes).unwrap();
        prop_assert_eq!(packs, version.ids());
        prop_assert!(lines.iter().eq(version.pairs.iter().filter_map(|(_, line)| line.as_ref())));
        prop_assert_eq!(digest_read, digest(&bytes));
    }

    /// Whatever the reader accepts is byte for byte what the writer writes.
    #[test]
    fn a_changed_byte_is_refused_or_canonical(seed: u64) {
        let mut rng = Rng(seed);
        let bytes = Version::new(seed, 12, 2).layout();
        for _ in 0..200 {
            let mut changed = bytes.clone();
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => changed[at] ^= 1 << rng.below(8),
                1 => { changed.remove(at); }
                _ => changed.insert(at, b"\"-,0}{ \n]9"[rng.below(10) as usize]),
            }
            if let Ok((packs, lines, _)) = read(&changed) {
                prop_assert_eq!(write(&packs, &lines).unwrap(), changed);
            }
        }
    }
}
