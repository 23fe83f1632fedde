//! The plan, carried out against made-up packs: every wanted byte once and right, every limit kept.

use super::*;
use crate::content::layout::{FileLayout, Line, Segment};
use crate::content::versions::{Rng, Version, object};
use proptest::prelude::*;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

struct Outcome {
    /// Per file: bytes, and how often each was covered.
    files: Vec<(Vec<u8>, Vec<u8>)>,
    completed: Vec<u64>,
    windows: Vec<Window>,
}

/// Carries the plan out. Only the pack index last asked for is ever at hand.
fn carry_out(version: &Version, files: &[(Arc<FileLayout>, Range<u64>)], limits: Limits) -> Result<Outcome, Error> {
    let objects: Vec<Vec<u8>> =
        version.packs.iter().zip(&version.data).map(|(index, data)| object(index, data)).collect();
    let mut outcome = Outcome { files: Vec::new(), completed: Vec::new(), windows: Vec::new() };
    let at_hand = Cell::new(None);
    let lookup = |pack: u32| (at_hand.get() == Some(pack)).then(|| Arc::clone(&version.packs[pack as usize]));
    let mut planner = Planner::new(limits);
    let mut next = files.iter();
    loop {
        match planner.step(&lookup)? {
            Step::NeedFile => match next.next() {
                Some((layout, range)) => {
                    planner.feed_range(outcome.files.len() as u64, Arc::clone(layout), range.clone());
                    outcome.files.push((vec![0xaa; layout.size as usize], vec![0; layout.size as usize]));
                }
                None => planner.close(),
            },
            Step::NeedIndex(pack) => {
                assert_ne!(at_hand.get(), Some(pack), "asks only for what is not at hand");
                at_hand.set(Some(pack));
            }
            Step::Window(window) => {
                apply(&window, &objects, &mut outcome);
                outcome.completed.extend(&window.completed);
                outcome.windows.push(window);
            }
            Step::Done => return Ok(outcome),
        }
    }
}

fn apply(window: &Window, objects: &[Vec<u8>], outcome: &mut Outcome) {
    for read in &window.reads {
        let bytes = &objects[read.pack as usize][read.range.start as usize..read.range.end as usize];
        for wanted in &read.chunks {
            let raw = &bytes[wanted.at.clone()];
            assert_eq!(crate::content::digest::digest(raw), wanted.entry.id);
            assert!(!wanted.places.is_empty());
            for place in &wanted.places {
                let raw = &raw[place.skip as usize..(place.skip + place.length) as usize];
                let at = place.offset as usize..place.offset as usize + raw.len();
                let (content, covered) = &mut outcome.files[place.file as usize];
                content[at.clone()].copy_from_slice(raw);
                covered[at].iter_mut().for_each(|times| *times += 1);
            }
        }
    }
    for hole in &window.holes {
        let at = hole.offset as usize..(hole.offset + hole.length) as usize;
        let (content, covered) = &mut outcome.files[hole.file as usize];
        content[at.clone()].fill(0);
        covered[at].iter_mut().for_each(|times| *times += 1);
    }
}

fn layouts(version: &Version) -> Vec<Arc<FileLayout>> {
    let file = |line: &Option<Line>| match line {
        Some(Line::File(layout)) => Some(Arc::new(layout.clone())),
        _ => None,
    };
    version.pairs.iter().filter_map(|(_, line)| file(line)).collect()
}

fn check_limits(window: &Window, limits: &Limits) {
    let places: usize = window.reads.iter().flat_map(|read| &read.chunks).map(|wanted| wanted.places.len()).sum();
    assert!(places + window.holes.len() <= limits.places.max(1));
    assert!(window.raw <= limits.window || places == 1, "{} raw bytes in {places} places", window.raw);
    let raw: u64 = window
        .reads
        .iter()
        .flat_map(|read| &read.chunks)
        .flat_map(|wanted| &wanted.places)
        .map(|place| u64::from(place.length))
        .sum();
    assert_eq!(raw, window.raw);
    for pair in window.reads.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        assert!((a.pack, a.range.end) <= (b.pack, b.range.start), "reads do not overlap");
        // two reads stay two only for a reason
        assert!(
            a.pack != b.pack
                || b.range.start - a.range.end > limits.gap
                || b.range.start + b.chunks[0].at.len() as u64 - a.range.start > limits.read
        );
    }
    for read in &window.reads {
        assert!(read.range.end - read.range.start <= limits.read || read.chunks.len() == 1);
        assert_eq!(read.chunks[0].at.start, 0);
        assert_eq!(read.chunks.last().unwrap().at.end as u64, read.range.end - read.range.start);
        for pair in read.chunks.windows(2) {
            assert!(pair[0].at.end <= pair[1].at.start && (pair[1].at.start - pair[0].at.end) as u64 <= limits.gap);
        }
    }
}

#[test]
fn a_chunk_in_several_places_is_read_once() {
    let version = Version::new(3, 40, 1);
    let layout = layouts(&version).remove(0);
    let whole = 0..layout.size;
    let files = vec![(Arc::clone(&layout), whole.clone()), (Arc::clone(&layout), whole)];
    let outcome = carry_out(&version, &files, Limits::default()).unwrap();
    assert_eq!(outcome.windows.len(), 1);
    let wanted: Vec<&Wanted> = outcome.windows[0].reads.iter().flat_map(|read| &read.chunks).collect();
    assert!(wanted.iter().all(|wanted| wanted.places.len() >= 2));
    assert_eq!(outcome.completed, [0, 1]);
}

#[test]
fn nothing_to_do_is_done_at_once() {
    let mut planner = Planner::new(Limits::default());
    assert_eq!(planner.step(&|_| None), Ok(Step::NeedFile));
    planner.close();
    assert_eq!(planner.step(&|_| None), Ok(Step::Done));
    assert_eq!(planner.step(&|_| None), Ok(Step::Done));
}

#[test]
fn layouts_that_do_not_fit_the_packs() {
    let version = Version::new(5, 60, 2);
    let good = layouts(&version).into_iter().find(|layout| layout.segments[0].pack.is_some()).unwrap();
    let plan = |change: fn(&mut FileLayout)| {
        let mut layout = FileLayout::clone(&good);
        layout.segments.truncate(1);
        layout.size = layout.segments[0].raw;
        change(&mut layout);
        let range = 0..layout.size;
        carry_out(&version, &[(Arc::new(layout), range)], Limits::default()).err()
    };
    assert_eq!(plan(|_| {}), None);
    let longer = plan(|layout| (layout.segments[0].raw, layout.size) = (layout.size + 1, layout.size + 1));
    assert!(matches!(longer, Some(Error::Disagrees { .. })));
    let shorter = plan(|layout| (layout.segments[0].raw, layout.size) = (layout.size - 1, layout.size - 1));
    assert!(matches!(shorter, Some(Error::Disagrees { .. })));
    let beyond = plan(|layout| {
        layout.segments[0] = Segment { first: 60_000, count: 2, ..layout.segments[0] };
    });
    assert!(matches!(beyond, Some(Error::NoSuchChunk { chunk: 60_000, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_wanted_byte_exactly_once(seed: u64, window in 1_u64..400_000, read in 1_u64..200_000, gap in 0_u64..70_000, places in 1_usize..40) {
        let limits = Limits { window, read, gap, places };
        let version = Version::new(seed, 40, 4);
        let mut rng = Rng(seed ^ 1);
        let files: Vec<_> = layouts(&version)
            .into_iter()
            .map(|layout| {
                // whole files and ranges of them
                let range = if rng.one_in(2) {
                    0..layout.size
                } else {
                    let start = rng.below(layout.size + 1);
                    start..start + rng.below(layout.size + 1 - start)
                };
                (layout, range)
            })
            .collect();
        let outcome = carry_out(&version, &files, limits).unwrap();
        outcome.windows.iter().for_each(|window| check_limits(window, &limits));
        prop_assert!(outcome.completed.iter().copied().eq(0..files.len() as u64));
        for ((layout, range), (content, covered)) in files.iter().zip(&outcome.files) {
            let expected = version.content(layout);
            let (start, end) = (range.start as usize, range.end as usize);
            prop_assert!(content[start..end] == expected[start..end]);
            // not compared byte by byte: a test build takes a second for that
            prop_assert!(covered[start..end] == vec![1; end - start]);
            prop_assert!(covered[..start] == vec![0; start] && covered[end..] == vec![0; covered.len() - end]);
            prop_assert!(content[..start] == vec![0xaa; start] && content[end..] == vec![0xaa; content.len() - end]);
        }
    }
}
