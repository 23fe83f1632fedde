//! One window of a pull on its way: planned, fetched, decoded into its buffer.
//!
//! The wanted bytes of each file lie in the buffer as the runs they are in the file, large ones at the same place within a page
//! as in the file, since the kernel copies those several times faster. Chunks are proven as they are decoded where
//! the digest of their file does not follow at once; a damaged chunk damages the files it belongs to and nothing else.

use crate::client::report::Item;
use crate::content::buffer::{AlignedBuf, PAGE};
use crate::content::codec::{Codec, Decoder};
use crate::content::crc::Crc32;
use crate::content::digest::{Digest, Hasher};
use crate::content::pack::verify_chunk;
use crate::content::plan::{Place, Read, Wanted, Window};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

use super::file::{FileFacts, Run};
use super::large::LargeFile;

/// Runs of at least this length lie in the buffer as in the file.
const ALIGN_FROM: u64 = 16 << 10;
/// Zeros that holes are hashed from.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A file on its way.
#[derive(Debug)]
pub(in crate::client) struct FileJob {
    pub facts: FileFacts,
    /// Where a file that does not fit into one window is written.
    pub large: OnceLock<Result<LargeFile, String>>,
}

impl FileJob {
    /// Its part, where an earlier pull began it.
    pub fn resumed(&self) -> Option<&LargeFile> {
        self.large.get().and_then(|large| large.as_ref().ok()).filter(|file| file.resumed)
    }
}

impl Deref for FileJob {
    type Target = FileFacts;

    fn deref(&self) -> &FileFacts {
        &self.facts
    }
}

/// A window with all that is known about it.
#[derive(Debug)]
pub(in crate::client) struct Job {
    /// Counts from 0 without gaps.
    pub number: u64,
    pub window: Window,
    /// Files with a part in this window, by number.
    pub files: BTreeMap<u64, Arc<FileJob>>,
    pub slot: AlignedBuf,
}

/// The bytes of a job's reads, in the order of the reads.
#[derive(Debug)]
pub(in crate::client) struct Fetched {
    pub job: Job,
    /// Or why they could not be had.
    pub parts: Vec<Result<Got, String>>,
}

/// What a read gave.
#[derive(Debug)]
pub(in crate::client) enum Got {
    /// The range of the pack, in pieces as it came.
    Range(Vec<Bytes>),
    /// Each of its chunks, raw and proven.
    Chunks(Vec<Bytes>),
}

/// What is wrong with a file's bytes.
#[derive(Debug, Clone)]
pub(in crate::client) struct Damage {
    pub pack: u32,
    pub why: String,
}

/// How a file of a window ended.
#[derive(Debug)]
pub(in crate::client) enum Ended {
    /// Whole and in place.
    Good(Option<crate::client::walk::Stamp>),
    /// Its bytes are not what the tree says.
    Wrong { actual: Option<Digest>, pack: Option<u32>, why: String },
    /// The file system would not have it.
    Failed(Item),
}

/// A window after decoding and writing.
#[derive(Debug)]
pub(in crate::client) struct Done {
    pub job: Job,
    /// Each file's runs, in order.
    pub runs: BTreeMap<u64, Vec<Run>>,
    pub damage: HashMap<u64, Damage>,
    /// Files that lie in this window as wholes.
    pub ended: Vec<(u64, Ended)>,
}

/// How chunks are proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::client) enum Proof {
    /// By nothing yet where a chunk lies in files that are whole in their window: their digests are taken next, and where one differs the
    /// chunk is found by its id. Else by crc32, since the digest of a larger file comes when the bytes are gone.
    File,
    /// By chunk id as well.
    Id,
}

/// Room a buffer needs for a window of `raw` bytes.
pub(in crate::client) fn room(raw: u64) -> usize {
    usize::try_from(raw + raw / 4).unwrap_or(usize::MAX) + (2 << 20)
}

/// Where every run of the window lies in the buffer; `None` when the buffer is too small, which no honest plan makes it.
pub(in crate::client) fn lay_out(window: &Window, room: usize) -> Option<BTreeMap<u64, Vec<Run>>> {
    let mut runs: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
    let places = window.reads.iter().flat_map(|read| &read.chunks).flat_map(|chunk| &chunk.places);
    for place in places {
        let run = Run { offset: place.offset, length: u64::from(place.length), at: Some(0) };
        runs.entry(place.file).or_default().push(run);
    }
    for hole in &window.holes {
        runs.entry(hole.file).or_default().push(Run { offset: hole.offset, length: hole.length, at: None });
    }
    let mut free = 0_usize;
    for runs in runs.values_mut() {
        runs.sort_unstable_by_key(|run| run.offset);
        runs.dedup_by(|next, last| {
            let joins = last.at.is_some() == next.at.is_some() && last.offset + last.length == next.offset;
            if joins {
                last.length += next.length;
            }
            joins
        });
        for run in runs.iter_mut().filter(|run| run.at.is_some()) {
            let at = if run.length >= ALIGN_FROM {
                let within = usize::try_from(run.offset % PAGE as u64).expect("less than a page");
                free = free.next_multiple_of(PAGE);
                free + within
            } else {
                free.next_multiple_of(64)
            };
            run.at = Some(at);
            free = at + usize::try_from(run.length).ok()?;
        }
    }
    (free <= room).then_some(runs)
}

/// The buffer's range for `length` bytes at `offset` of a file.
fn locate(runs: &[Run], offset: u64, length: u32) -> Option<Range<usize>> {
    let at = runs.partition_point(|run| run.offset <= offset).checked_sub(1)?;
    let run = runs[at];
    let start = run.at? + usize::try_from(offset - run.offset).ok()?;
    Some(start..start + length as usize)
}

/// Decodes all chunks of a window to where they belong.
pub(in crate::client) fn decode(fetched: Fetched, decoder: &mut Decoder, proof: Proof) -> Done {
    let Fetched { mut job, parts } = fetched;
    let mut damage = HashMap::new();
    let Some(runs) = lay_out(&job.window, job.slot.len()) else {
        for number in job.files.keys() {
            damage.insert(*number, Damage { pack: 0, why: "its layout does not fit its window".to_owned() });
        }
        return Done { job, runs: BTreeMap::new(), damage, ended: Vec::new() };
    };
    let is_whole = |(number, runs): &(&u64, &Vec<Run>)| job.files.get(number).is_some_and(|file| file.is_whole(runs));
    let whole: HashSet<u64> = runs.iter().filter(is_whole).map(|(number, _)| *number).collect();
    let mut scratch = Vec::new();
    for (read, parts) in job.window.reads.iter().zip(&parts) {
        let parts = match parts {
            Ok(Got::Range(parts)) => parts,
            Ok(Got::Chunks(chunks)) => {
                for (chunk, raw) in read.chunks.iter().zip(chunks) {
                    if let Err(why) = put(chunk, raw, &runs, &mut job.slot) {
                        note(&mut damage, read, chunk, why);
                    }
                }
                continue;
            }
            Err(why) => {
                read.chunks.iter().for_each(|chunk| note(&mut damage, read, chunk, why));
                continue;
            }
        };
        let mut cursor = Parts { parts, part: 0, start: 0 };
        for chunk in &read.chunks {
            let proven_whole = |place: &Place| place.length == chunk.entry.raw && whole.contains(&place.file);
            let proof = match proof {
                Proof::Id => Some(Proof::Id),
                Proof::File => (!chunk.places.iter().all(proven_whole)).then_some(Proof::File),
            };
            if let Err(why) = one(chunk, &mut cursor, decoder, proof, &runs, &mut job.slot, &mut scratch) {
                note(&mut damage, read, chunk, &why);
            }
        }
    }
    Done { job, runs, damage, ended: Vec::new() }
}

fn note(damage: &mut HashMap<u64, Damage>, read: &Read, chunk: &Wanted, why: &str) {
    for place in &chunk.places {
        damage.entry(place.file).or_insert_with(|| Damage { pack: read.pack, why: why.to_owned() });
    }
}

/// Puts a proven chunk into its places.
fn put(chunk: &Wanted, raw: &[u8], runs: &BTreeMap<u64, Vec<Run>>, slot: &mut AlignedBuf) -> Result<(), &'static str> {
    for place in &chunk.places {
        let runs = runs.get(&place.file).map_or(&[][..], Vec::as_slice);
        let range = locate(runs, place.offset, place.length).ok_or("it has no place")?;
        let skip = place.skip as usize;
        slot[range].copy_from_slice(&raw[skip..skip + place.length as usize]);
    }
    Ok(())
}

/// Decodes one chunk, proves it and puts it into its places.
fn one(
    chunk: &Wanted,
    parts: &mut Parts<'_>,
    decoder: &mut Decoder,
    proof: Option<Proof>,
    runs: &BTreeMap<u64, Vec<Run>>,
    slot: &mut AlignedBuf,
    scratch: &mut Vec<u8>,
) -> Result<(), String> {
    let entry = &chunk.entry;
    let mut ranges = Vec::with_capacity(chunk.places.len());
    for place in &chunk.places {
        let runs = runs.get(&place.file).map_or(&[][..], Vec::as_slice);
        let range = locate(runs, place.offset, place.length).ok_or("it has no place")?;
        ranges.push((range, place.skip as usize));
    }
    // Most chunks are wanted whole in one place: raw ones are copied once, from the network's buffer to the file's.
    let whole = ranges.iter().position(|(range, _)| range.len() == entry.raw as usize);
    let raw: &[u8] = match (entry.codec, whole) {
        (Codec::Raw, Some(whole)) => {
            let range = ranges.swap_remove(whole).0;
            parts.copy(&chunk.at, &mut slot[range.clone()])?;
            scratch.clear();
            if !ranges.is_empty() {
                scratch.extend_from_slice(&slot[range.clone()]);
            }
            &slot[range]
        }
        (codec, _) => {
            let stored = parts.slice(&chunk.at, scratch)?;
            let raw = decoder.decode(codec, stored, entry.raw).map_err(|error| error.to_string())?;
            for (range, skip) in &ranges {
                slot[range.clone()].copy_from_slice(&raw[*skip..*skip + range.len()]);
            }
            ranges.clear();
            raw
        }
    };
    match proof {
        None => {}
        Some(Proof::File) if Crc32::of(raw) != entry.crc => return Err("a chunk's crc32 differs".to_owned()),
        Some(Proof::File) => {}
        Some(Proof::Id) => verify_chunk(entry, raw).map_err(|error| error.to_string())?,
    }
    for (range, skip) in ranges {
        let length = range.len();
        slot[range].copy_from_slice(&scratch[skip..skip + length]);
    }
    Ok(())
}

/// The bytes of one read, in pieces, walked forward.
struct Parts<'a> {
    parts: &'a [Bytes],
    part: usize,
    /// Where in the read that part begins.
    start: usize,
}

impl Parts<'_> {
    fn seek(&mut self, at: usize) -> Result<usize, String> {
        while let Some(part) = self.parts.get(self.part) {
            if at < self.start + part.len() {
                return Ok(at - self.start);
            }
            self.start += part.len();
            self.part += 1;
        }
        Err("its bytes did not come".to_owned())
    }

    fn copy(&mut self, range: &Range<usize>, to: &mut [u8]) -> Result<(), String> {
        let mut done = 0;
        while done < to.len() {
            let from = self.seek(range.start + done)?;
            let part = &self.parts[self.part][from..];
            let now = part.len().min(to.len() - done);
            to[done..done + now].copy_from_slice(&part[..now]);
            done += now;
        }
        Ok(())
    }

    /// The bytes in one piece: where they lie, or copied together in `scratch`.
    fn slice<'s>(&'s mut self, range: &Range<usize>, scratch: &'s mut Vec<u8>) -> Result<&'s [u8], String> {
        let from = self.seek(range.start)?;
        if self.parts[self.part].len() - from >= range.len() {
            return Ok(&self.parts[self.part][from..from + range.len()]);
        }
        scratch.resize(range.len(), 0);
        self.copy(range, scratch)?;
        Ok(scratch)
    }
}

/// Hashes a file's runs, zeros for holes.
pub(in crate::client) fn hash_runs(hasher: &mut Hasher, runs: &[Run], slot: &AlignedBuf) {
    for run in runs {
        match run.at {
            Some(at) => hasher.update(&slot[at..at + usize::try_from(run.length).expect("a run fits its buffer")]),
            None => {
                let mut left = run.length;
                while left > 0 {
                    let now = left.min(ZEROS.len() as u64);
                    hasher.update(&ZEROS[..usize::try_from(now).expect("at most the zeros' length")]);
                    left -= now;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::codec::Encoder;
    use crate::content::digest::digest;
    use crate::content::layout::FileLayout;
    use crate::content::pack::ChunkEntry;
    use crate::content::path::RelPath;
    use crate::content::plan::Hole;
    use crate::content::tree::Time;

    fn job(window: Window) -> Job {
        let slot = AlignedBuf::new(room(window.raw));
        Job { number: 0, window, files: BTreeMap::new(), slot }
    }

    fn wanted(raw: &[u8], frames: &mut Vec<u8>, places: Vec<Place>) -> Wanted {
        let start = frames.len();
        let codec = Encoder::new().encode(raw, frames);
        let length = |n: usize| u32::try_from(n).unwrap();
        let entry = ChunkEntry {
            id: digest(raw),
            stored: length(frames.len() - start),
            raw: length(raw.len()),
            crc: Crc32::of(raw),
            codec,
        };
        Wanted { chunk: 0, entry, at: start..frames.len(), places }
    }

    fn sample(flip: Option<usize>) -> (Done, Vec<u8>, Vec<u8>) {
        let noise: Vec<u8> = (0..40_000_u32).map(|n| digest(&n.to_le_bytes()).as_bytes()[0]).collect();
        let text = b"the same words again and again ".repeat(1_000);
        let mut frames = Vec::new();
        let place =
            |file, offset, length: usize| Place { file, offset, skip: 0, length: u32::try_from(length).unwrap() };
        let chunks = vec![
            wanted(&noise, &mut frames, vec![place(1, 65_536 + 100, noise.len()), place(2, 0, noise.len())]),
            wanted(&text, &mut frames, vec![place(1, 65_536 + 100 + noise.len() as u64, text.len())]),
        ];
        if let Some(flip) = flip {
            frames[flip] ^= 1;
        }
        let window = Window {
            reads: vec![Read { pack: 7, range: 0..frames.len() as u64, chunks }],
            holes: vec![Hole { file: 1, offset: 100, length: 65_536 }],
            raw: (2 * noise.len() + text.len()) as u64,
            completed: vec![1, 2],
        };
        // Cut at odd places, as the network does.
        let parts = vec![Ok(Got::Range(frames.chunks(777).map(Bytes::copy_from_slice).collect()))];
        (decode(Fetched { job: job(window), parts }, &mut Decoder::new(), Proof::Id), noise, text)
    }

    #[test]
    fn chunks_land_in_their_runs() {
        let (done, noise, text) = sample(None);
        assert!(done.damage.is_empty(), "{:?}", done.damage);
        let runs = &done.runs[&1];
        assert_eq!((runs.len(), runs[0].at), (2, None));
        assert_eq!(runs[1].at.unwrap() % PAGE, (65_536 + 100) % PAGE);
        let mut hasher = Hasher::new();
        hash_runs(&mut hasher, runs, &done.job.slot);
        let whole = [&[0; 65_536][..], &noise, &text].concat();
        assert_eq!(hasher.finalize(), digest(&whole));
        let mut second = Hasher::new();
        hash_runs(&mut second, &done.runs[&2], &done.job.slot);
        assert_eq!(second.finalize(), digest(&noise));
    }

    fn file(number: u64, size: usize) -> Arc<FileJob> {
        let digest = digest(b"");
        let size = size as u64;
        let layout = FileLayout { digest, size, crc: Crc32(0), profile: 0, segments: Vec::new(), sha256: None };
        let (path, mtime) = (RelPath::parse(b"f").unwrap(), Time { seconds: 0, nanos: 0 });
        let facts = FileFacts { number, path, size, mode: 0, mtime, digest, layout: Arc::new(layout) };
        Arc::new(FileJob { facts, large: OnceLock::new() })
    }

    /// The crc32 is asked where the whole file's digest cannot be: for a piece of a larger file, also where a whole one has the chunk as well.
    #[test]
    fn a_whole_file_is_left_to_its_digest_and_a_piece_is_not() {
        let (noise, rest) = (vec![1_u8; 5_000], vec![2_u8; 3_000]);
        let damaged = |flip: usize, others: &[u64]| {
            let mut frames = Vec::new();
            let place =
                |file, length: usize| Place { file, offset: 0, skip: 0, length: u32::try_from(length).unwrap() };
            let shared = std::iter::once(&1).chain(others).map(|file| place(*file, noise.len())).collect();
            let mut chunks =
                vec![wanted(&noise, &mut frames, shared), wanted(&rest, &mut frames, vec![place(3, rest.len())])];
            // What a decoder does not see.
            chunks[flip].entry.crc.0 ^= 1;
            let read = Read { pack: 7, range: 0..frames.len() as u64, chunks };
            let raw = (noise.len() * (1 + others.len()) + rest.len()) as u64;
            let mut job = job(Window { reads: vec![read], holes: Vec::new(), raw, completed: vec![1] });
            // 1 is whole in this window; 2 and 3 go on in the next.
            job.files = [file(1, noise.len()), file(2, noise.len() + 1), file(3, rest.len() + 1)]
                .map(|file| (file.number, file))
                .into();
            let parts = vec![Ok(Got::Range(vec![frames.into()]))];
            let done = decode(Fetched { job, parts }, &mut Decoder::new(), Proof::File);
            let mut damaged: Vec<u64> = done.damage.into_keys().collect();
            damaged.sort_unstable();
            damaged
        };
        assert_eq!(damaged(0, &[]), [0; 0]);
        assert_eq!(damaged(0, &[2]), [1, 2]);
        assert_eq!(damaged(1, &[]), [3]);
    }

    #[test]
    fn a_damaged_chunk_damages_its_files_only() {
        let (done, ..) = sample(Some(5));
        assert_eq!(done.damage.len(), 2);
        assert_eq!(done.damage[&2].pack, 7);
        let (done, noise, _) = sample(Some(40_010));
        assert!(done.damage.contains_key(&1) && !done.damage.contains_key(&2));
        let mut second = Hasher::new();
        hash_runs(&mut second, &done.runs[&2], &done.job.slot);
        assert_eq!(second.finalize(), digest(&noise));
    }
}
