//! What the fuzz targets in `fuzz/` run, callable from plain tests too.
//!
//! Each function takes any bytes and must return: a panic, a hang or an unbounded allocation is the finding. Built only for tests and with
//! `--cfg fuzzing`.

use super::chunker::{End, MAX_CHUNK, Piece, Splitter};
use super::codec::{Codec, Decoder};
use super::digest::{Digest, digest};
use super::pack::{HEADER_BYTES, PackIndex, PackVerifier, index_bytes, verify_chunk};

/// Header and index of a pack. What decodes must encode to the same bytes.
pub fn pack_index(data: &[u8]) {
    for bytes in [data.to_vec(), resealed(data).0] {
        if let Ok(index) = PackIndex::decode(&bytes) {
            assert_eq!(index.encode(), bytes, "one index has two forms");
            assert_eq!(index.frame(index.entries().len() - 1).end, index.pack_bytes());
        }
    }
}

/// A whole pack, streamed: the first byte says in which pieces. However they fall, the verdict is the same.
pub fn pack_stream(data: &[u8]) {
    let Some((&piece, data)) = data.split_first() else { return };
    let (bytes, id) = resealed(data);
    let verdict = |piece: usize| {
        let mut verifier = PackVerifier::new(id);
        bytes.chunks(piece).try_for_each(|part| verifier.push(part))?;
        verifier.finish()
    };
    let whole = verdict(bytes.len().max(1));
    assert_eq!(whole.is_ok(), verdict(usize::from(piece) + 1).is_ok(), "the verdict depends on the pieces");
    if let Ok(index) = whole {
        let mut decoder = Decoder::new();
        for (i, entry) in index.entries().iter().enumerate() {
            let range = index.frame(i);
            let stored = &bytes[range.start as usize..range.end as usize];
            let raw = decoder.decode(entry.codec, stored, entry.raw).expect("it was proven");
            verify_chunk(entry, raw).expect("it was proven");
        }
    }
}

/// One stored chunk: four bytes of declared raw length, then the frame.
pub fn codec_decode(data: &[u8]) {
    let Some((length, stored)) = data.split_first_chunk() else { return };
    let raw_len = u32::from_le_bytes(*length) % (MAX_CHUNK as u32 + 2);
    let mut decoder = Decoder::new();
    for codec in [Codec::Raw, Codec::Zstd] {
        if let Ok(raw) = decoder.decode(codec, stored, raw_len) {
            assert_eq!(raw.len(), raw_len as usize);
        }
    }
}

/// A file, cut at once and cut as it comes in reads of one size.
pub fn chunker(data: &[u8]) {
    let Some((read, file)) = data.split_first_chunk() else { return };
    let read = usize::from(u16::from_le_bytes(*read)) + 1;
    let cuts = |read: usize| {
        let (mut splitter, mut ends, mut from, mut to) = (Splitter::new(), Vec::new(), 0, 0);
        while from < file.len() {
            let end = if to == file.len() { End::Yes } else { End::No };
            match splitter.next(&file[from..to], end) {
                Some(Piece::Chunk(len)) => {
                    assert!((1..=MAX_CHUNK).contains(&len));
                    from += len;
                    ends.push(from);
                }
                Some(Piece::Hole(len)) => from += len as usize,
                None => to = file.len().min(to + read),
            }
        }
        ends
    };
    assert_eq!(cuts(read), cuts(file.len().max(1)));
}

/// The bytes with the index's digest put right, so that what lies behind it is reached; and the id that a verifier should expect.
fn resealed(data: &[u8]) -> (Vec<u8>, Digest) {
    let mut bytes = data.to_vec();
    let length = bytes.first_chunk::<HEADER_BYTES>().and_then(|header| index_bytes(header).ok());
    let end = length.map_or(0, |length| HEADER_BYTES + length as usize);
    let id = match bytes.get(..end).and_then(<[u8]>::split_last_chunk::<32>) {
        Some((hashed, _)) => digest(hashed),
        None => digest(b""),
    };
    if (HEADER_BYTES + 32..=bytes.len()).contains(&end) {
        bytes[end - 32..end].copy_from_slice(id.as_bytes());
    }
    (bytes, id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::codec::Encoder;
    use crate::content::crc::Crc32;
    use crate::content::pack::ChunkEntry;
    use crate::content::samples::{json, noise};
    use proptest::prelude::*;

    /// An honest pack of two chunks: what the fuzzer's first corpus holds.
    fn seed() -> Vec<u8> {
        let (mut encoder, mut frames, mut entries) = (Encoder::new(), Vec::new(), Vec::new());
        for raw in [noise(1, 100), json(2, 600)] {
            let from = frames.len();
            let codec = encoder.encode(&raw, &mut frames);
            let stored = (frames.len() - from) as u32;
            entries.push(ChunkEntry { id: digest(&raw), stored, raw: raw.len() as u32, crc: Crc32::of(&raw), codec });
        }
        let index = PackIndex::new(entries).unwrap();
        [index.encode(), frames].concat()
    }

    #[test]
    fn the_seed_reaches_the_end_of_each_target() {
        let pack = seed();
        let (bytes, id) = resealed(&pack);
        assert_eq!(bytes, pack);
        let mut verifier = PackVerifier::new(id);
        verifier.push(&bytes).unwrap();
        let index = verifier.finish().unwrap();
        pack_stream(&[&[7], pack.as_slice()].concat());
        pack_index(&pack[..index.frame(0).start as usize]);
        let frame = &pack[index.frame(1).start as usize..];
        assert!(Decoder::new().decode(Codec::Zstd, frame, 600).is_ok());
        codec_decode(&[&600u32.to_le_bytes(), frame].concat());
        chunker(&noise(3, 200_000));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn mutations_are_survived(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>(), keep in any::<bool>()) {
            let mut pack = seed();
            for (at, byte) in edits {
                let at = at.index(pack.len());
                pack[at] = byte;
            }
            if !keep {
                pack.truncate(cut.index(pack.len() + 1));
            }
            let tail = pack.len().min(256);
            pack_index(&pack[..tail]);
            pack_stream(&pack);
            pack_stream(&[&[9], pack.as_slice()].concat());
            codec_decode(&[&600u32.to_le_bytes(), &pack[tail.min(186)..]].concat());
        }

        #[test]
        fn noise_is_survived(data in prop::collection::vec(any::<u8>(), 0..400)) {
            pack_index(&data);
            pack_stream(&data);
            codec_decode(&data);
            chunker(&data);
        }
    }
}
