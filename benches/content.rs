//! What the byte-level half of `content` costs: `cargo bench --bench content -- [--mib N] [PATH [LATER ...]]`.
//!
//! Steps one by one over data in memory (PATH's first N MiB; a file or a directory), then PATH and each LATER version whole, as a push does
//! without a service: read, cut, hash, know, encode. One thread; steps are medians of five; CPU seconds as the kernel counts them for
//! this thread. Without PATH, noise (as footage is to us) and JSON are made. Not a test: it fails on nothing.
#![expect(clippy::print_stdout, reason = "a benchmark's output is its report")]

use dray::content::buffer::{AlignedBuf, Window};
use dray::content::chunker::{ENOUGH, End, Piece, Splitter};
use dray::content::codec::{Codec, Encoder};
use dray::content::crc::Crc32;
use dray::content::digest::{Digest, digest};
use dray::content::pack::{ChunkEntry, MAX_CHUNKS, PackIndex, PackVerifier};
use std::collections::HashSet;
use std::fs;
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

const GIB: f64 = (1u64 << 30) as f64;
const MIB: usize = 1 << 20;
const ROUNDS: usize = 5;
const PACK: usize = 64 * MIB;

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let (mut paths, mut mib) = (Vec::new(), 512);
    while let Some(arg) = args.next() {
        if arg == "--mib" {
            mib = args.next().and_then(|n| n.parse().ok()).expect("--mib takes a number");
        } else {
            paths.push(PathBuf::from(arg));
        }
    }
    if let Some(path) = paths.first() {
        let files = list(path);
        reading(&files, mib * MIB);
        run(&path.display().to_string(), &load(&files, mib * MIB));
    } else {
        run("noise", &[noise(mib.min(256) * MIB)]);
        run("json, files of 12 KB", &(0..mib.min(128) * 80).map(json).collect::<Vec<_>>());
    }
    let mut known = HashSet::new();
    for path in &paths {
        ingest(path, &mut known);
    }
}

/// A whole version as a push takes it; what `known` holds costs no encoding.
fn ingest(path: &Path, known: &mut HashSet<Digest>) {
    let files = list(path);
    let (mut window, mut encoder, mut out) = (Window::new(ENOUGH, MIB), Encoder::new(), Vec::with_capacity(MIB));
    let (mut bytes, mut new, mut stored, mut chunks) = (0, 0, 0, 0);
    let (wall, cpu) = (Instant::now(), cpu_seconds());
    for file in &files {
        let (mut splitter, mut file) = (Splitter::new(), fs::File::open(file).expect("it was listed"));
        window.clear();
        let mut end = End::No;
        while end == End::No {
            let read = file.read(window.space()).expect("it can be read");
            window.filled(read);
            if read == 0 {
                end = End::Yes;
            }
            while let Some(piece) = splitter.next(window.unread(), end) {
                let len = match piece {
                    Piece::Chunk(len) => len,
                    Piece::Hole(len) => {
                        window.consume(usize::try_from(len).expect("64-bit"));
                        continue;
                    }
                };
                let raw = &window.unread()[..len];
                chunks += 1;
                if known.insert(digest(raw)) {
                    new += len;
                    out.clear();
                    black_box(Crc32::of(raw));
                    stored += if encoder.shrink(raw, &mut out) == Codec::Raw { len } else { out.len() };
                }
                window.consume(len);
            }
        }
        bytes += usize::try_from(splitter.offset()).expect("64-bit");
    }
    let (wall, cpu) = (wall.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let mib = |bytes: usize| bytes as f64 / MIB as f64;
    println!("\n{} whole: {} files, {:.0} MiB, {chunks} chunks", path.display(), files.len(), mib(bytes));
    println!(
        "{:.2} GB/s, {:.0} files/s, {:.3} CPU s/GiB",
        bytes as f64 / wall / 1e9,
        files.len() as f64 / wall,
        cpu / (bytes as f64 / GIB)
    );
    println!(
        "new {:.0} MiB ({:.1} %), stored {:.0} MiB ({:.4})",
        mib(new),
        new as f64 / bytes as f64 * 100.0,
        mib(stored),
        stored as f64 / bytes as f64
    );
}

/// One line per step, and what the steps come to.
fn run(name: &str, files: &[Vec<u8>]) {
    let bytes: usize = files.iter().map(Vec::len).sum();
    println!("\n{name}: {} files, {:.1} MiB", files.len(), bytes as f64 / MIB as f64);
    println!("{:<34} {:>8} {:>14}", "step", "GB/s", "CPU s/GiB");
    let chunks =
        measure("cut (MinCDC, holes)", bytes, || files.iter().flat_map(|file| cut(file)).collect::<Vec<&[u8]>>());
    measure("BLAKE3 per chunk", bytes, || chunks.iter().map(|chunk| digest(chunk)).filter(|id| id.is_sample()).count());
    measure("crc32 per chunk", bytes, || {
        chunks.iter().fold(Crc32(0), |crc, chunk| crc.combine(Crc32::of(chunk), chunk.len() as u64))
    });
    let (frames, stored) = measure("encode (probe, zstd)", bytes, || encode_all(&chunks));
    measure("packs built (hash, crc, encode)", bytes, || {
        build(&chunks, |_, frames, index| drop(black_box((frames.len(), index))))
    });
    let mut packs = Vec::new();
    build(&chunks, |head, frames, index| packs.push((head, frames.to_vec(), index)));
    measure("packs verified", bytes, || {
        for (head, frames, index) in &packs {
            let mut verifier = PackVerifier::new(index.id());
            let pieces = head.chunks(MIB).chain(frames.chunks(MIB));
            pieces.for_each(|piece| verifier.push(piece).expect("an honest pack"));
            black_box(verifier.finish().expect("a whole pack"));
        }
    });
    println!(
        "{} chunks of {:.1} KiB, {frames} as zstd frames; stored {:.1} MiB ({:.4})",
        chunks.len(),
        bytes as f64 / 1024.0 / chunks.len() as f64,
        stored as f64 / MIB as f64,
        stored as f64 / bytes as f64
    );
}

/// The chunks of one file; holes carry nothing.
fn cut(file: &[u8]) -> Vec<&[u8]> {
    let (mut splitter, mut chunks, mut at) = (Splitter::new(), Vec::new(), 0);
    while let Some(piece) = splitter.next(&file[at..], End::Yes) {
        match piece {
            Piece::Chunk(len) => {
                chunks.push(&file[at..at + len]);
                at += len;
            }
            Piece::Hole(len) => at += usize::try_from(len).expect("the file is in memory"),
        }
    }
    chunks
}

fn encode_all(chunks: &[&[u8]]) -> (usize, usize) {
    let (mut encoder, mut out) = (Encoder::new(), Vec::with_capacity(MIB));
    chunks.iter().fold((0, 0), |(frames, stored), raw| {
        out.clear();
        match encoder.shrink(raw, &mut out) {
            Codec::Raw => (frames, stored + raw.len()),
            Codec::Zstd => (frames + 1, stored + out.len()),
        }
    })
}

/// Packs of 64 MiB, each shown to `sink`: header and index, frames, and the index again.
fn build(chunks: &[&[u8]], mut sink: impl FnMut(Vec<u8>, &[u8], PackIndex)) {
    let (mut encoder, mut entries, mut frames) = (Encoder::new(), Vec::new(), Vec::with_capacity(PACK));
    let length = |n: usize| u32::try_from(n).expect("a chunk is at most 96 KiB");
    for (i, raw) in chunks.iter().enumerate() {
        let from = frames.len();
        let codec = encoder.encode(raw, &mut frames);
        entries.push(ChunkEntry {
            id: digest(raw),
            stored: length(frames.len() - from),
            raw: length(raw.len()),
            crc: Crc32::of(raw),
            codec,
        });
        if frames.len() > PACK - 96 * 1024 || entries.len() == MAX_CHUNKS || i + 1 == chunks.len() {
            let index = PackIndex::new(std::mem::take(&mut entries)).expect("within the limits");
            sink(index.encode(), &frames, index);
            frames.clear();
        }
    }
}

/// `read` of the largest file to a page's start, and to where a fresh `Vec` of this size lies.
fn reading(files: &[PathBuf], most: usize) {
    let Some(file) = files.iter().max_by_key(|file| fs::metadata(file).map_or(0, |meta| meta.len())) else { return };
    let bytes = usize::try_from(fs::metadata(file).map_or(0, |meta| meta.len())).expect("64-bit").min(most);
    println!("\nreads of 1 MiB, {}: {:.1} MiB", file.display(), bytes as f64 / MIB as f64);
    let read = |name: &str, buffer: &mut [u8]| {
        measure(name, bytes, || {
            let mut source = fs::File::open(file).expect("it was listed").take(bytes as u64);
            while source.read(buffer).expect("it can be read") > 0 {}
        });
    };
    let mut buffer = AlignedBuf::new(MIB + 16);
    read("read to a page's start", &mut buffer[..MIB]);
    read("read to 16 bytes after it", &mut buffer[16..]);
}

fn measure<T>(name: &str, bytes: usize, mut step: impl FnMut() -> T) -> T {
    let mut results: Vec<(f64, f64)> = Vec::new();
    loop {
        let (wall, cpu) = (Instant::now(), cpu_seconds());
        let value = black_box(step());
        results.push((wall.elapsed().as_secs_f64(), cpu_seconds() - cpu));
        if results.len() < ROUNDS {
            continue;
        }
        let median = |of: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = results.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[ROUNDS / 2]
        };
        let (wall, cpu) = (median(|r| r.0), median(|r| r.1));
        println!("{name:<34} {:>8.2} {:>14.3}", bytes as f64 / wall / 1e9, cpu / (bytes as f64 / GIB));
        return value;
    }
}

/// CPU time of this thread; not a number where the kernel does not say.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).map_or(f64::NAN, |ns| ns / 1e9)
}

fn list(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_path_buf()];
    }
    let mut entries: Vec<PathBuf> =
        fs::read_dir(path).expect("a readable directory").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    entries.iter().flat_map(|path| list(path)).collect()
}

fn load(files: &[PathBuf], most: usize) -> Vec<Vec<u8>> {
    let mut left = most;
    let take = |file: &PathBuf| {
        let mut bytes = Vec::new();
        fs::File::open(file).expect("it was listed").take(left as u64).read_to_end(&mut bytes).expect("it can be read");
        left -= bytes.len();
        bytes
    };
    files.iter().map(take).filter(|bytes| !bytes.is_empty()).collect()
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()
    };
    (0..len / 8).flat_map(|_| next()).collect()
}

fn json(seed: usize) -> Vec<u8> {
    let row = |i: usize| {
        format!("{{\"id\":{i},\"bbox\":[{},{},40,60],\"category\":\"pallet\"}}\n", i * 7919 % 1920, i * 104_729 % 1080)
    };
    (seed * 200..seed * 200 + 200).map(row).collect::<String>().into_bytes()
}
