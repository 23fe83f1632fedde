//! The cuts against a scalar oracle that follows the definition and shares no code with the splitter; streaming, holes, edits, golden.

use super::*;
use crate::content::digest::digest;
use crate::content::samples::{Random, json, noise};
use proptest::prelude::*;
use std::collections::HashSet;
use std::fmt::Write;

/// MinCDC hash-4 by its definition: the earliest end whose last 4 bytes, hashed, are least.
fn oracle_cut(data: &[u8]) -> usize {
    if data.len() <= 32 * 1024 {
        return data.len();
    }
    let hash = |end: usize| {
        let window = u32::from_le_bytes(data[end - 4..end].try_into().unwrap());
        window.wrapping_mul(0x915f_77f5).wrapping_add(0x3463_6463)
    };
    (32 * 1024..=data.len().min(96 * 1024)).min_by_key(|&end| hash(end)).unwrap()
}

/// The pieces of a whole file, holes joined.
fn oracle(file: &[u8]) -> Vec<Piece> {
    let is_hole =
        |start: usize| file.len() >= start + 65_536 && file[start..start + 65_536].iter().all(|&byte| byte == 0);
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < file.len() {
        if at % 65_536 == 0 && is_hole(at) {
            join(&mut pieces, Piece::Hole(65_536));
            at += 65_536;
            continue;
        }
        let end = (at + 1..file.len())
            .filter(|start| start % 65_536 == 0)
            .find(|&start| is_hole(start))
            .unwrap_or(file.len());
        let len = oracle_cut(&file[at..end]);
        pieces.push(Piece::Chunk(len));
        at += len;
    }
    pieces
}

fn join(pieces: &mut Vec<Piece>, piece: Piece) {
    match (pieces.last_mut(), piece) {
        (Some(Piece::Hole(before)), Piece::Hole(len)) => *before += len,
        _ => pieces.push(piece),
    }
}

fn len_of(piece: Piece) -> usize {
    match piece {
        Piece::Chunk(len) => len,
        Piece::Hole(len) => len as usize,
    }
}

/// Shows the file in reads of the given sizes, never more than `ENOUGH` plus one read, as a client does.
fn split(file: &[u8], reads: &[usize]) -> Vec<Piece> {
    let (mut splitter, mut pieces, mut reads) = (Splitter::new(), Vec::new(), reads.iter().cycle());
    let (mut from, mut to) = (0, 0);
    loop {
        let end = if to == file.len() { End::Yes } else { End::No };
        match splitter.next(&file[from..to], end) {
            Some(piece) => {
                join(&mut pieces, piece);
                from += len_of(piece);
                assert!(from <= to, "a piece reaches past what was shown");
                assert_eq!(splitter.offset(), from as u64);
            }
            None if from == file.len() => return pieces,
            None => {
                assert!(to - from < ENOUGH, "no answer for {} unread bytes", to - from);
                assert_eq!(end, End::No, "no answer at the end");
                to = file.len().min(to + reads.next().unwrap());
            }
        }
    }
}

/// Files with holes, near-holes, repeated patterns and noise, at odd offsets.
fn files() -> impl Strategy<Value = Vec<u8>> {
    let part = (0..6u8, 1..4usize, -3..4isize, any::<u64>()).prop_map(|(kind, blocks, off, seed)| {
        let len = (blocks * HOLE_BLOCK).saturating_add_signed(off * 7);
        match kind {
            0 | 1 => vec![0; len],
            2 => vec![seed as u8; len / 2],
            3 => json(seed, len / 2),
            4 => noise(seed, len % 5000 + seed as usize % 3),
            _ => noise(seed, len),
        }
    });
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_reads_give_the_oracles_cuts(file in files(), reads in prop::collection::vec(1..150_000usize, 1..8)) {
        let expected = oracle(&file);
        prop_assert_eq!(expected.iter().map(|&piece| len_of(piece)).sum::<usize>(), file.len());
        prop_assert_eq!(&split(&file, &[usize::MAX / 2]), &expected);
        prop_assert_eq!(&split(&file, &reads), &expected);
    }

    /// What SEEK_HOLE tells, be it all, some or none of the zero blocks, changes nothing.
    #[test]
    fn skipped_holes_cut_as_shown_ones(file in files(), hints in any::<u64>()) {
        let skipped = |block: usize| {
            let bytes = &file[block * HOLE_BLOCK..];
            bytes.len() >= HOLE_BLOCK && bytes[..HOLE_BLOCK].iter().all(|&byte| byte == 0) && hints >> (block % 64) & 1 == 1
        };
        let (mut splitter, mut pieces, mut at) = (Splitter::new(), Vec::new(), 0);
        while at < file.len() {
            if at % HOLE_BLOCK == 0 && skipped(at / HOLE_BLOCK) {
                splitter.skip_hole(HOLE_BLOCK as u64);
                join(&mut pieces, Piece::Hole(HOLE_BLOCK as u64));
                at += HOLE_BLOCK;
                continue;
            }
            let stop = (at / HOLE_BLOCK + 1..=file.len() / HOLE_BLOCK).find(|&block| skipped(block)).map_or(file.len(), |block| block * HOLE_BLOCK);
            while at < stop {
                let piece = splitter.next(&file[at..stop], End::Yes).unwrap();
                join(&mut pieces, piece);
                at += len_of(piece);
            }
        }
        prop_assert_eq!(pieces, oracle(&file));
    }
}

#[test]
fn edges() {
    let mut splitter = Splitter::new();
    assert_eq!(splitter.next(&[], End::No), None);
    assert_eq!(splitter.next(&[], End::Yes), None);
    for len in [
        1,
        3,
        4,
        MIN_CHUNK - 1,
        MIN_CHUNK,
        MIN_CHUNK + 1,
        HOLE_BLOCK - 1,
        MAX_CHUNK - 1,
        MAX_CHUNK,
        MAX_CHUNK + 1,
        2 * MAX_CHUNK,
    ] {
        for file in [noise(len as u64, len), vec![0; len], vec![7; len]] {
            assert_eq!(split(&file, &[1000]), oracle(&file), "{len}");
        }
    }
    // a partial last block is data, however zero it is
    assert_eq!(split(&vec![0; HOLE_BLOCK + 5], &[5000]), [Piece::Hole(65_536), Piece::Chunk(5)]);
    // ties: the earliest end wins
    assert_eq!(split(&vec![7; MAX_CHUNK], &[5000]), [Piece::Chunk(MIN_CHUNK); 3]);
}

#[test]
fn hole_ranges_shrink_to_whole_blocks() {
    assert_eq!(whole_blocks(0..65_536), 0..65_536);
    assert_eq!(whole_blocks(1..200_000), 65_536..196_608);
    assert!(whole_blocks(1..131_071).is_empty());
    assert!(whole_blocks(u64::MAX - 1..u64::MAX).is_empty());
}

#[test]
fn an_insertion_changes_few_chunks() {
    let file = noise(11, 3 << 20);
    let ids = |file: &[u8]| {
        let mut at = 0;
        let chunk = |piece| {
            at += len_of(piece);
            digest(&file[at - len_of(piece)..at])
        };
        split(file, &[ENOUGH]).into_iter().map(chunk).collect::<HashSet<_>>()
    };
    let before = ids(&file);
    let edited = [&file[..1_000_001], b"a clapperboard", &file[1_000_001..]].concat();
    let new = ids(&edited).difference(&before).count();
    assert!((1..=6).contains(&new), "{new} of {} chunks are new", before.len());
}

/// The cuts of a fixed file, by value. If this fails, the format has changed: every team's dedup would start anew. Do not mend the golden
/// file; make a new profile.
#[test]
fn golden() {
    let mut file =
        [noise(1, 500_000), json(2, 300_000), vec![0; 400_000], noise(3, 100_000), vec![9; 250_000]].concat();
    let mut random = Random(4);
    file.extend((0..200_000).map(|_| (random.next() % 3) as u8));
    let (mut text, mut at) = (String::new(), 0);
    for piece in split(&file, &[ENOUGH]) {
        let bytes = &file[at..at + len_of(piece)];
        match piece {
            Piece::Chunk(len) => writeln!(text, "chunk {len} {}", digest(bytes)).unwrap(),
            Piece::Hole(len) => writeln!(text, "hole {len}").unwrap(),
        }
        at += bytes.len();
    }
    assert_eq!(text, include_str!("../../../tests/golden/chunker-v1.txt"), "actual:\n{text}");
}
