//! Packs made, streamed in any pieces, cut, flipped and forged; and the golden pack.

use super::*;
use crate::content::codec::{self, Codec, Encoder};
use crate::content::crc::Crc32;
use crate::content::digest::{Digest, digest};
use crate::content::samples::{floats, json, noise};
use data_encoding::{HEXLOWER, Specification};
use proptest::prelude::*;

/// The object and its index, as a client makes them.
fn build(chunks: &[Vec<u8>]) -> (Vec<u8>, PackIndex) {
    let (mut encoder, mut frames, mut entries) = (Encoder::new(), Vec::new(), Vec::new());
    for raw in chunks {
        let from = frames.len();
        let codec = encoder.encode(raw, &mut frames);
        let stored = (frames.len() - from) as u32;
        entries.push(ChunkEntry { id: digest(raw), stored, raw: raw.len() as u32, crc: Crc32::of(raw), codec });
    }
    let index = PackIndex::new(entries).unwrap();
    ([index.encode(), frames].concat(), index)
}

fn small() -> (Vec<u8>, PackIndex) {
    build(&[noise(1, 300), json(2, 900), vec![b'x'; 40], json(3, 200), noise(4, 1)])
}

fn verify(id: PackId, pieces: &[&[u8]]) -> Result<PackIndex, Error> {
    let mut verifier = PackVerifier::new(id);
    for piece in pieces {
        verifier.push(piece)?;
    }
    verifier.finish()
}

/// Header and index with these bytes for rows, sealed as if they were honest.
fn forge(count: u32, rows: &[u8]) -> Vec<u8> {
    let mut bytes =
        [b"DRAYPK\x01\0\0\0".as_slice(), &count.to_le_bytes(), &(rows.len() as u32 + 32).to_le_bytes(), &[0; 46], rows]
            .concat();
    let seal = digest(&bytes);
    bytes.extend_from_slice(seal.as_bytes());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn round_trips_in_any_pieces(
        chunks in prop::collection::vec((0..4u8, any::<u64>(), 1..20_000usize), 1..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let raws: Vec<Vec<u8>> = chunks.into_iter().map(|(kind, seed, len)| match kind {
            0 => noise(seed, len),
            1 => json(seed, len),
            2 => floats(seed, len),
            _ => vec![seed as u8; len],
        }).collect();
        let (bytes, index) = build(&raws);
        prop_assert_eq!(index.pack_bytes(), bytes.len() as u64);
        prop_assert_eq!(index.raw_bytes(), raws.iter().map(|raw| raw.len() as u64).sum::<u64>());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&verify(index.id(), &pieces).unwrap(), &index);
        let mut decoder = codec::Decoder::new();
        for (i, (entry, raw)) in index.entries().iter().zip(&raws).enumerate() {
            let range = index.frame(i);
            let stored = &bytes[range.start as usize..range.end as usize];
            let decoded = decoder.decode(entry.codec, stored, entry.raw).unwrap();
            prop_assert_eq!(decoded, raw.as_slice());
            prop_assert!(verify_chunk(entry, decoded).is_ok());
        }
    }

    #[test]
    fn any_flip_is_refused(bit in any::<prop::sample::Index>(), piece in 1..2000usize) {
        let (mut bytes, index) = build(&[noise(1, 300), vec![b'x'; 40], noise(4, 1)]);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        prop_assert!(verify(index.id(), &pieces).is_err());
        // a reader that does not know the id refuses whatever is wrong with header and index
        let head = HEADER_BYTES + index.index_bytes() as usize;
        prop_assert_eq!(PackIndex::decode(&bytes[..head]).is_err(), bit / 8 < head);
    }
}

/// zstd has bits that nothing reads (padding in its tables). A flip of such a bit, and no other, passes, and the chunk is still proven.
#[test]
fn a_flip_is_refused_or_changes_no_chunk() {
    let (bytes, index) = small();
    let mut passed = 0;
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let Ok(found) = verify(index.id(), &[&flipped]) else { continue };
        assert_eq!(found, index);
        let hit = (0..index.entries().len()).find(|&i| index.frame(i).contains(&(bit as u64 / 8))).unwrap();
        assert_eq!(index.entries()[hit].codec, Codec::Zstd, "bit {bit}");
        passed += 1;
    }
    assert!(passed < 40, "{passed} bits do not matter");
}

#[test]
fn every_cut_is_refused_and_so_is_every_tail() {
    let (bytes, index) = small();
    for len in 0..bytes.len() {
        assert_eq!(verify(index.id(), &[&bytes[..len]]), Err(Error::Truncated { received: len as u64 }));
    }
    assert_eq!(verify(index.id(), &[&bytes, &[]]), Ok(index.clone()));
    assert_eq!(verify(index.id(), &[&bytes, b"!"]), Err(Error::Trailing));
    assert_eq!(verify(index.id(), &[&[bytes.as_slice(), b"!"].concat()]), Err(Error::Trailing));
    let head = HEADER_BYTES + index.index_bytes() as usize;
    for len in 0..head {
        assert_eq!(PackIndex::decode(&bytes[..len]), Err(Error::Truncated { received: len as u64 }));
    }
    assert_eq!(PackIndex::decode(&bytes[..=head]), Err(Error::Trailing));
}

#[test]
fn a_refusal_is_final() {
    let (bytes, index) = small();
    let mut verifier = PackVerifier::new(digest(b"another"));
    let another = Error::Id { expected: digest(b"another"), actual: index.id() };
    assert_eq!(verifier.push(&bytes), Err(another));
    assert_eq!(verifier.index(), None);
    assert_eq!(verifier.push(&[]), Err(Error::Refused));
    assert_eq!(verifier.finish(), Err(Error::Refused));
}

/// B19 and its kin: an honest index over dishonest frames, each field in turn.
#[test]
fn a_chunk_that_is_not_its_id_is_named() {
    let raw = noise(1, 5000);
    let honest = ChunkEntry { id: digest(&raw), stored: 5000, raw: 5000, crc: Crc32::of(&raw), codec: Codec::Raw };
    let fault = |entry: ChunkEntry, frame: &[u8]| {
        let index = PackIndex::new(vec![entry]).unwrap();
        match verify(index.id(), &[&index.encode(), frame]) {
            Err(Error::Chunk { id, source }) if id == entry.id => source,
            other => panic!("{other:?}"),
        }
    };
    let poisoned = noise(2, 5000);
    assert_eq!(fault(honest, &poisoned), ChunkFault::Digest { actual: digest(&poisoned) });
    let crc = Crc32(honest.crc.0 ^ 1);
    assert_eq!(fault(ChunkEntry { crc, ..honest }, &raw), ChunkFault::Crc { expected: crc, actual: honest.crc });
    assert!(matches!(
        fault(ChunkEntry { codec: Codec::Zstd, ..honest }, &raw),
        ChunkFault::Codec(codec::Error::NotAFrame)
    ));
    assert_eq!(verify_chunk(&honest, &raw), Ok(()));
    assert!(verify_chunk(&ChunkEntry { crc, ..honest }, &raw).is_err());
    assert!(verify_chunk(&honest, &poisoned).is_err());
    let short = ChunkFault::Length { expected: 5000, actual: 4999 };
    assert_eq!(verify_chunk(&honest, &raw[1..]), Err(Error::Chunk { id: honest.id, source: short }));
}

#[test]
fn headers_are_held_against_the_limits_before_anything_is_allocated() {
    let (bytes, index) = small();
    let header: [u8; HEADER_BYTES] = *bytes.first_chunk().unwrap();
    assert_eq!(index_bytes(&header), Ok(index.index_bytes()));
    let with = |at: usize, new: &[u8]| {
        let mut header = header;
        header[at..at + new.len()].copy_from_slice(new);
        index_bytes(&header).unwrap_err()
    };
    assert_eq!(with(0, b"ustar\0"), Error::NotAPack);
    for version in [0, 2, 255] {
        assert_eq!(with(6, &[version]), Error::Version { version });
    }
    for reserved in (7..10).chain(18..64) {
        assert_eq!(with(reserved, &[1]), Error::Reserved, "{reserved}");
    }
    // B29
    for count in [0u32, 65_537, u32::MAX] {
        assert_eq!(with(10, &count.to_le_bytes()), Error::Count { count: count.into() });
    }
    for found in [0u32, 32, 4 << 20, u32::MAX] {
        let expected = index.index_bytes();
        assert_eq!(with(14, &found.to_le_bytes()), Error::IndexLength { found: found.into(), count: 5, expected });
    }
    // a refused header is refused when its last byte comes, not later
    let mut verifier = PackVerifier::new(index.id());
    let mut wrong = header;
    wrong[63] = 1;
    assert_eq!(verifier.push(&wrong[..63]), Ok(()));
    assert_eq!(verifier.push(&wrong[63..]), Err(Error::Reserved));
}

/// B30: rows that lie about lengths, in an index whose digest is right.
#[test]
fn rows_are_held_against_the_limits() {
    let row = |stored: u32, raw: u32, codec: u8| {
        [[7; 32].as_slice(), &stored.to_le_bytes(), &raw.to_le_bytes(), &[0; 4], &[codec]].concat()
    };
    let refused = |bad: Vec<u8>| {
        let bytes = forge(2, &[row(10, 10, 0), bad].concat());
        match PackIndex::decode(&bytes) {
            Err(Error::Row { row: 1, source }) => source,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(row(10, 10, 2)), codec::Error::UnknownCodec { codec: 2 });
    for raw in [0, 96 * 1024 + 1, u32::MAX] {
        assert_eq!(refused(row(raw, raw, 0)), codec::Error::RawLength { raw });
        assert_eq!(refused(row(1, raw, 1)), codec::Error::RawLength { raw });
    }
    for (stored, codec) in [(9, 0), (11, 0), (0, 0), (0, 1), (11, 1), (u32::MAX, 1)] {
        assert_eq!(refused(row(stored, 10, codec)), codec::Error::StoredLength { stored: stored as usize, raw: 10 });
    }
    // what a reader refuses, a writer cannot make
    let entry = ChunkEntry { id: digest(b""), stored: 5, raw: 4, crc: Crc32(0), codec: Codec::Zstd };
    assert!(matches!(PackIndex::new(vec![entry]), Err(Error::Row { row: 0, .. })));
    let wrong = Digest::from_bytes([0; 32]);
    let mut bytes = forge(1, &row(10, 10, 0));
    let at = bytes.len() - 32;
    let actual = digest(&bytes[..at]);
    bytes[at..].fill(0);
    assert_eq!(PackIndex::decode(&bytes), Err(Error::IndexDigest { written: wrong, actual }));
}

/// B31: 65,536 chunks and not one more.
#[test]
fn counts() {
    assert_eq!(PackIndex::new(Vec::new()), Err(Error::Count { count: 0 }));
    let entry = ChunkEntry { id: digest(b"x"), stored: 96 * 1024, raw: 96 * 1024, crc: Crc32(1), codec: Codec::Raw };
    assert_eq!(PackIndex::new(vec![entry; MAX_CHUNKS + 1]), Err(Error::Count { count: 65_537 }));
    let index = PackIndex::new(vec![entry; MAX_CHUNKS]).unwrap();
    assert_eq!(index.raw_bytes(), 6 << 30);
    assert_eq!(index.frame(MAX_CHUNKS - 1).end, index.pack_bytes());
    let bytes = index.encode();
    assert_eq!(PackIndex::decode(&bytes).unwrap(), index);
    assert_eq!(bytes.len() as u64, 64 + index.index_bytes());
}

/// A pack written once and kept. If this fails, packs that teams already hold could no longer be read: make a new version instead.
#[test]
fn golden() {
    let mut hex = Specification::new();
    hex.symbols.push_str("0123456789abcdef");
    hex.ignore.push('\n');
    let bytes = hex.encoding().unwrap().decode(include_bytes!("../../../tests/golden/pack-v1.hex")).unwrap();
    let id = "8ae59075e1e1bbd00714f8d9bef8f502e6a2d70c193ce594aeadeec9551ee864".parse().unwrap();
    let index = verify(id, &[&bytes]).unwrap();
    let raws = [noise(1, 300), json(2, 900), vec![b'x'; 40], json(3, 200), noise(4, 1)];
    let found: Vec<_> = index.entries().iter().map(|entry| (entry.id, entry.raw, entry.crc)).collect();
    let expected: Vec<_> = raws.iter().map(|raw| (digest(raw), raw.len() as u32, Crc32::of(raw))).collect();
    assert_eq!(found, expected);
    let codecs: Vec<Codec> = index.entries().iter().map(|entry| entry.codec).collect();
    assert_eq!(codecs, [Codec::Raw, Codec::Zstd, Codec::Raw, Codec::Zstd, Codec::Raw]);
    // written anew from its rows it is the same, byte for byte
    let head = index.encode();
    assert_eq!(HEXLOWER.encode(&head), HEXLOWER.encode(&bytes[..head.len()]));
    assert_eq!(PackIndex::new(index.entries().to_vec()).unwrap().id(), id);
}
