//! Made-up versions for the tests of this room: names of every kind, real bytes, packs that hold them.
//!
//! Everything follows from a seed, so a failure is found again by its seed.

use super::codec::Codec;
use super::crc::Crc32;
use super::digest::{Digest, digest};
use super::layout::{FileLayout, LayoutWriter, Line, Segment};
use super::merge::Pair;
use super::pack::{ChunkEntry, PackId, PackIndex};
use super::path::{Profile, RelPath};
use super::tree::{Entry, Kind, Time, TreeWriter};
use std::sync::Arc;

/// Splitmix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

const NAMES: [&[u8]; 20] = [
    b"a",
    b"a!",
    b"a.",
    b"A",
    b"ab",
    b"-x",
    b" lead",
    b"trail ",
    b"\x01ctl",
    b"quo\"te",
    b"back\\slash",
    b"new\nline",
    "é".as_bytes(),
    "e\u{301}".as_bytes(),
    b"\xff\xfe",
    b"caf\xe9",
    b"%41%C3",
    b"con.txt",
    "名前".as_bytes(),
    b"\x7f",
];

/// A whole version in memory.
pub(super) struct Version {
    pub(super) pairs: Vec<Pair>,
    pub(super) packs: Vec<Arc<PackIndex>>,
    /// Raw bytes by pack and chunk.
    pub(super) data: Vec<Vec<Vec<u8>>>,
}

impl Version {
    /// About `entries` entries, over `packs` packs.
    pub(super) fn new(seed: u64, entries: usize, packs: usize) -> Self {
        let mut rng = Rng(seed);
        let mut data: Vec<Vec<Vec<u8>>> = Vec::new();
        for _ in 0..packs {
            let chunks = 1 + rng.below(8);
            data.push((0..chunks).map(|_| chunk(&mut rng)).collect());
        }
        let packs = data.iter().map(|chunks| Arc::new(index(chunks))).collect();
        let mut version = Self { pairs: Vec::new(), packs, data };
        let mut left = entries;
        version.fill(&mut rng, None, &mut left, 0);
        version
    }

    pub(super) fn ids(&self) -> Vec<PackId> {
        self.packs.iter().map(|pack| pack.id()).collect()
    }

    pub(super) fn tree(&self) -> Vec<u8> {
        let mut writer = TreeWriter::new(Vec::new(), Profile::Posix).unwrap();
        for (entry, _) in &self.pairs {
            writer.write(entry).unwrap();
        }
        writer.finish().unwrap().2
    }

    pub(super) fn layout(&self) -> Vec<u8> {
        let mut writer = LayoutWriter::new(Vec::new(), &self.ids()).unwrap();
        for line in self.pairs.iter().filter_map(|(_, line)| line.as_ref()) {
            writer.write(line).unwrap();
        }
        writer.finish().unwrap().1
    }

    pub(super) fn content(&self, layout: &FileLayout) -> Vec<u8> {
        let mut bytes = Vec::new();
        for segment in &layout.segments {
            match segment.pack {
                None => bytes.resize(bytes.len() + segment.raw as usize, 0),
                Some(pack) => {
                    for chunk in segment.first..segment.first + segment.count {
                        bytes.extend_from_slice(&self.data[pack as usize][chunk as usize]);
                    }
                }
            }
        }
        bytes
    }

    fn fill(&mut self, rng: &mut Rng, parent: Option<&RelPath>, left: &mut usize, depth: u32) {
        let mut names: Vec<Vec<u8>> = NAMES.iter().filter(|_| rng.one_in(2)).map(|name| name.to_vec()).collect();
        // at the top, as many as are still missing
        while parent.is_none() && names.len() < *left {
            names.push(format!("{:08x}", rng.next()).into_bytes());
        }
        names.sort_unstable();
        names.dedup();
        for name in names {
            if *left == 0 {
                return;
            }
            *left -= 1;
            let path = match parent {
                Some(parent) => parent.join(&name).unwrap(),
                None => RelPath::parse(&name).unwrap(),
            };
            match rng.below(6) {
                0 if depth < 5 => {
                    let kind = Kind::Dir { mode: 0o700 | rng.below(0o100) as u32 };
                    self.pairs.push((Entry { path: path.clone(), kind }, Some(Line::Dir { mtime: time(rng) })));
                    self.fill(rng, Some(&path), left, depth + 1);
                }
                1 => {
                    let kind = Kind::Symlink { mtime: time(rng), target: NAMES[rng.below(20) as usize].to_vec() };
                    self.pairs.push((Entry { path, kind }, None));
                }
                _ => {
                    let pair = self.file(rng, path);
                    self.pairs.push(pair);
                }
            }
        }
    }

    fn file(&self, rng: &mut Rng, path: RelPath) -> Pair {
        let firsts: Vec<&Entry> = self
            .pairs
            .iter()
            .map(|(entry, _)| entry)
            .filter(|entry| matches!(entry.kind, Kind::File { hardlink: None, .. }))
            .collect();
        if rng.one_in(5) && !firsts.is_empty() {
            let first = firsts[rng.below(firsts.len() as u64) as usize];
            let mut kind = first.kind.clone();
            if let Kind::File { hardlink, .. } = &mut kind {
                *hardlink = Some(first.path.clone());
            }
            return (Entry { path, kind }, None);
        }
        let layout = (!rng.one_in(6)).then(|| self.place(rng));
        let (size, digest) = layout.as_ref().map_or((0, digest(b"")), |layout| (layout.size, layout.digest));
        let kind = Kind::File { size, mode: rng.below(0o1000) as u32, mtime: time(rng), digest, hardlink: None };
        (Entry { path, kind }, layout.map(Line::File))
    }

    fn place(&self, rng: &mut Rng) -> FileLayout {
        let mut layout = FileLayout {
            digest: Digest::from_bytes([0; 32]),
            size: 0,
            crc: Crc32::default(),
            profile: 1,
            segments: Vec::new(),
            sha256: rng.one_in(4).then_some([7; 32]),
        };
        for _ in 0..=rng.below(3) {
            let segment = if layout.size.is_multiple_of(65_536) && rng.one_in(3) {
                Segment { pack: None, first: 0, count: 0, raw: 65_536 * (1 + rng.below(2)) }
            } else {
                let pack = rng.below(self.packs.len() as u64);
                let chunks = &self.data[pack as usize];
                let first = rng.below(chunks.len() as u64);
                let count = 1 + rng.below(chunks.len() as u64 - first);
                let raw = chunks[first as usize..(first + count) as usize].iter().map(|chunk| chunk.len() as u64).sum();
                Segment { pack: Some(pack as u32), first: first as u32, count: count as u32, raw }
            };
            layout.size += segment.raw;
            layout.push(segment);
        }
        let content = self.content(&layout);
        layout.digest = digest(&content);
        layout.crc = Crc32::of(&content);
        layout
    }
}

/// Small, or exactly a block so that holes may follow.
fn chunk(rng: &mut Rng) -> Vec<u8> {
    let length = if rng.one_in(4) { 65_536 } else { 1 + rng.below(300) as usize };
    (0..length).map(|_| rng.next() as u8).collect()
}

fn time(rng: &mut Rng) -> Time {
    let seconds = match rng.below(5) {
        0 => -(rng.below(100_000_000_000) as i64) / 2,
        1 => Time::MAX.seconds,
        _ => rng.below(4_000_000_000) as i64,
    };
    Time { seconds, nanos: if rng.one_in(2) { 0 } else { rng.below(1_000_000_000) as u32 } }.clamped()
}

/// The index of a pack of raw chunks.
pub(super) fn index(chunks: &[Vec<u8>]) -> PackIndex {
    let entry = |raw: &Vec<u8>| ChunkEntry {
        id: digest(raw),
        stored: raw.len() as u32,
        raw: raw.len() as u32,
        crc: Crc32::of(raw),
        codec: Codec::Raw,
    };
    PackIndex::new(chunks.iter().map(entry).collect()).unwrap()
}

/// The whole object of a pack of raw chunks.
pub(super) fn object(index: &PackIndex, chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = index.encode();
    chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
    bytes
}
