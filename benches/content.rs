//! What the byte-level half of `content` costs on given or generated data: `cargo bench --bench content -- [PATH] [--mib N]`.
//!
//! One thread, data in memory, median of five; CPU seconds as the kernel counts them for this thread. PATH is a file or a directory;
//! without it one corpus of noise (as footage is to us) and one of JSON are made. Not a test: it fails on nothing.
#![expect(clippy::print_stdout, reason = "a benchmark's output is its report")]

use dray::content::buffer::AlignedBuf;
use dray::content::chunker::{End, Piece, Splitter};
use dray::content::codec::{Codec, Encoder};
use dray::content::crc::Crc32;
use dray::content::digest::digest;
use dray::content::pack::{ChunkEntry, PackIndex, PackVerifier};
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
    let (mut path, mut mib) = (None, 512);
    while let Some(arg) = args.next() {
        if arg == "--mib" {
            mib = args.next().and_then(|n| n.parse().ok()).expect("--mib takes a number");
        } else {
            path = Some(PathBuf::from(arg));
        }
    }
    match path {
        Some(path) => {
            let files = list(&path);
            reading(&files, mib * MIB);
            run(&path.display().to_string(), &load(&files, mib * MIB));
        }
        None => {
            run("noise", &[noise(mib.min(256) * MIB)]);
            run(
                "json, files of 12 KB",
                &vec![(); mib.min(128) * 80].iter().enumerate().map(|(i, ())| json(i)).collect::<Vec<_>>(),
            );
        }
    }
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
    let packs = measure("all of it: packs built", bytes, || build(&chunks));
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

/// Packs of 64 MiB: header and index, frames, and the index again.
fn build(chunks: &[&[u8]]) -> Vec<(Vec<u8>, Vec<u8>, PackIndex)> {
    let (mut encoder, mut packs) = (Encoder::new(), Vec::new());
    let (mut entries, mut frames) = (Vec::new(), Vec::with_capacity(PACK));
    for (i, raw) in chunks.iter().enumerate() {
        let from = frames.len();
        let codec = encoder.encode(raw, &mut frames);
        let length = |n: usize| u32::try_from(n).expect("a chunk is at most 96 KiB");
        entries.push(ChunkEntry {
            id: digest(raw),
            stored: length(frames.len() - from),
            raw: length(raw.len()),
            crc: Crc32::of(raw),
            codec,
        });
        if frames.len() > PACK - 96 * 1024 || entries.len() == 65_536 || i + 1 == chunks.len() {
            let index = PackIndex::new(std::mem::take(&mut entries)).expect("within the limits");
            packs.push((index.encode(), std::mem::replace(&mut frames, Vec::with_capacity(PACK)), index));
        }
    }
    packs
}

/// `read` of the files into a page's start and into what a plain `Vec` gives.
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
    read("read into AlignedBuf", &mut AlignedBuf::new(MIB));
    read("read into a Vec", &mut vec![0; MIB]);
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
