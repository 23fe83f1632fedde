//! Round trips, what the probe decides, and every frame that a stranger could send instead of an honest one.
#![expect(clippy::indexing_slicing, reason = "a panic is how a test fails")]

use super::*;
use crate::content::samples::{floats, json, noise};
use proptest::prelude::*;

fn encode(raw: &[u8]) -> (Codec, Vec<u8>) {
    let mut out = Vec::new();
    (Encoder::new().encode(raw, &mut out), out)
}

fn decode(stored: &[u8], raw_len: u32) -> Result<Vec<u8>, Error> {
    Decoder::new().decode(Codec::Zstd, stored, raw_len).map(<[u8]>::to_vec)
}

/// An honest frame of 4,000 bytes of JSON, and those.
fn honest() -> (Vec<u8>, Vec<u8>) {
    let raw = json(1, 4000);
    let (codec, frame) = encode(&raw);
    assert_eq!(codec, Codec::Zstd);
    // magic, single segment with a 2-byte content size: the offsets that the tests below patch
    assert_eq!(frame[..7], [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0xa0, 0x0e]);
    (frame, raw)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn round_trips(chunks in prop::collection::vec((0..5u8, any::<u64>(), 1..MAX_CHUNK), 1..12)) {
        let (mut encoder, mut decoder, mut out) = (Encoder::new(), Decoder::new(), Vec::new());
        for (kind, seed, len) in chunks {
            let raw = match kind {
                0 => noise(seed, len),
                1 => json(seed, len),
                2 => floats(seed, len),
                3 => vec![seed as u8; len],
                _ => noise(seed, len.min(80)),
            };
            let from = out.len();
            let codec = encoder.encode(&raw, &mut out);
            let stored = &out[from..];
            prop_assert!(stored.len() <= raw.len());
            prop_assert_eq!(decoder.decode(codec, stored, raw.len() as u32).unwrap(), raw.as_slice());
            prop_assert!(decoder.raw.len() <= MAX_CHUNK);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(stored in prop::collection::vec(any::<u8>(), 0..300), raw_len in 0..400u32, headed in any::<bool>()) {
        let stored = if headed { [&MAGIC, stored.as_slice()].concat() } else { stored };
        let mut decoder = Decoder::new();
        for codec in [Codec::Raw, Codec::Zstd] {
            if let Ok(raw) = decoder.decode(codec, &stored, raw_len) {
                prop_assert_eq!(raw.len(), raw_len as usize);
            }
        }
    }
}

#[test]
fn a_raw_chunk_is_passed_through_where_it_lies() {
    let raw = noise(1, 70_000);
    let mut decoder = Decoder::new();
    assert_eq!(decoder.decode(Codec::Raw, &raw, 70_000).unwrap().as_ptr(), raw.as_ptr());
    assert_eq!(decoder.raw.capacity(), 0);
    for wrong in [69_999, 70_001] {
        assert_eq!(decoder.decode(Codec::Raw, &raw, wrong), Err(Error::StoredLength { stored: 70_000, raw: wrong }));
    }
}

#[test]
fn the_probe_tells_footage_from_text() {
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    // a long run of footage must not blind it for the text that follows
    for seed in 0..50 {
        assert_eq!(encoder.shrink(&noise(seed, AVERAGE), &mut out), Codec::Raw);
    }
    assert!(out.is_empty(), "`shrink` left bytes for a raw chunk");
    for (raw, most) in [
        (json(1, AVERAGE), 0.3),
        (floats(2, AVERAGE), 0.96),
        (vec![5; AVERAGE], 0.01),
        (json(3, 2000), 0.5),
        (json(4, 200), 0.97),
    ] {
        let from = out.len();
        assert_eq!(encoder.shrink(&raw, &mut out), Codec::Zstd, "{} bytes like {:?}", raw.len(), &raw[..9]);
        let ratio = (out.len() - from) as f64 / raw.len() as f64;
        assert!(ratio < most, "{ratio}");
    }
    // too small to pay, and bytes whose values do not lean but which repeat themselves
    assert_eq!(encode(&[b'a'; 63]).0, Codec::Raw);
    assert_eq!(encode(&noise(5, 1500).repeat(40)).0, Codec::Zstd);
}

const AVERAGE: usize = 64 * 1024;

#[test]
fn a_streak_of_misses_ends_with_the_next_hit() {
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    let repeating = noise(7, 1500).repeat(40);
    for seed in 0..20 {
        assert_eq!(encoder.shrink(&noise(seed, AVERAGE), &mut out), Codec::Raw);
    }
    // only one chunk in eight is searched for matches now; the first that is found ends that
    let tries = (1..=9).find(|_| encoder.shrink(&repeating, &mut out) == Codec::Zstd);
    assert!(tries.is_some_and(|tries| tries <= 8), "{tries:?}");
    for _ in 0..10 {
        assert_eq!(encoder.shrink(&repeating, &mut out), Codec::Zstd);
    }
}

#[test]
fn lengths_that_may_not_be_declared() {
    let (frame, raw) = honest();
    assert_eq!(decode(&frame, 4000).unwrap(), raw);
    for raw in [0, MAX_CHUNK as u32 + 1, u32::MAX] {
        assert_eq!(decode(&frame, raw), Err(Error::RawLength { raw }));
    }
    for raw in [3999, 4001, 96 * 1024] {
        assert_eq!(decode(&frame, raw), Err(Error::ContentSize { declared: Some(4000), raw }));
    }
    assert_eq!(decode(&frame, 20), Err(Error::StoredLength { stored: frame.len(), raw: 20 }));
    assert_eq!(decode(&[], 20), Err(Error::StoredLength { stored: 0, raw: 20 }));
}

/// B25: the frame says 4,000 bytes, its blocks hold a megabyte.
#[test]
fn a_bomb_ends_at_the_declared_size() {
    let mut bomb = Vec::new();
    bomb.extend_from_slice(&[0x28, 0xb5, 0x2f, 0xfd, 0x60, 0xa0, 0x0e]);
    for block in 0..16u32 {
        // an RLE block of 64 KiB: size << 3 | type 1 << 1 | last
        bomb.extend_from_slice(&((65_536 << 3) | 2 | u32::from(block == 15)).to_le_bytes()[..3]);
        bomb.push(0);
    }
    let mut decoder = Decoder::new();
    assert!(matches!(decoder.decode(Codec::Zstd, &bomb, 4000), Err(Error::Damaged { .. })));
    assert!(decoder.raw.capacity() <= 4000);
}

/// B26: a window of 2 TiB, and the first that is over the limit.
#[test]
fn a_huge_window_is_refused_by_its_header() {
    let with_window = |descriptor: u8| [&MAGIC[..], &[0x40, descriptor, 0xa0, 0x0e], &[1, 0, 0]].concat();
    for (descriptor, window) in [(31 << 3, 1 << 41), (13 << 3 | 1, (8 << 20) + (1 << 20)), (14 << 3, 16 << 20)] {
        assert_eq!(decode(&with_window(descriptor), 4000), Err(Error::Window { window }));
    }
    // 8 MiB is allowed; this frame then fails for being empty
    assert!(!matches!(decode(&with_window(13 << 3), 4000), Err(Error::Window { .. })));
}

/// B27: what follows the frame, and what it names.
#[test]
fn only_one_plain_frame() {
    let (frame, _) = honest();
    let (len, twice) = (frame.len(), [frame.as_slice(), &frame].concat());
    assert_eq!(
        decode(&[frame.as_slice(), b"!"].concat(), 4000),
        Err(Error::FrameLength { frame: len, stored: len + 1 })
    );
    assert_eq!(decode(&twice, 4000), Err(Error::FrameLength { frame: len, stored: 2 * len }));
    for flag in [1, 2, 3, 4, 8, 16] {
        let mut flagged = frame.clone();
        flagged[4] |= flag;
        assert_eq!(decode(&flagged, 4000), Err(Error::FrameFlags), "{flag}");
    }
    let sizeless = [&MAGIC[..], &[0, 0], &frame[7..]].concat();
    assert_eq!(decode(&sizeless, 4000), Err(Error::ContentSize { declared: None, raw: 4000 }));
}

/// B28: a skippable frame that says 2 GiB follow, alone and before an honest one; and the magic of an older zstd.
#[test]
fn no_other_frames() {
    let (frame, _) = honest();
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0x80];
    for bytes in [
        skippable.to_vec(),
        [&skippable[..4], &[0; 4], &frame].concat(),
        [&[0x27], &frame[1..]].concat(),
        frame[..4].to_vec(),
    ] {
        assert_eq!(decode(&bytes, 4000), Err(Error::NotAFrame));
    }
}

#[test]
fn every_cut_and_every_flip_is_an_error_or_harmless() {
    let (frame, raw) = honest();
    for len in 0..frame.len() {
        assert!(decode(&frame[..len], 4000).is_err(), "{len}");
    }
    // zstd has bits that nothing reads (padding in its tables), so a few flips leave the content as it was
    let mut harmless = 0;
    for bit in 0..frame.len() * 8 {
        let mut flipped = frame.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(decoded) = decode(&flipped, 4000) {
            // other content is for the digest to find; it must only be as long as declared
            assert_eq!(decoded.len(), 4000);
            harmless += usize::from(decoded == raw);
        }
    }
    assert!(harmless * 100 < frame.len() * 8, "{harmless} bits of this frame do not matter");
}

#[test]
fn unknown_codecs_are_refused() {
    assert_eq!(Codec::try_from(0), Ok(Codec::Raw));
    assert_eq!(Codec::try_from(1), Ok(Codec::Zstd));
    for codec in 2..=255 {
        assert_eq!(Codec::try_from(codec), Err(Error::UnknownCodec { codec }));
    }
}
