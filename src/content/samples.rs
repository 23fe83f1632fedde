//! Bytes for the tests of this room: the same on every machine, with no generator that a crate's update could change.
//!
//! Golden files hang on these functions; changing one changes them all.

/// SplitMix64, written out because golden files depend on it.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Bytes as footage has them: nothing to compress.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Bytes as annotations have them: lines of JSON.
pub(crate) fn json(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(len + 128);
    while bytes.len() < len {
        let (id, x, y) = (random.next() % 100_000, random.next() % 1920, random.next() % 1080);
        bytes.extend_from_slice(
            format!("{{\"image_id\":{id},\"category\":\"pallet\",\"bbox\":[{x}.5,{y}.25,40,60]}}\n").as_bytes(),
        );
    }
    bytes.truncate(len);
    bytes
}

/// Bytes as small weights have them: 32-bit floats near zero.
pub(crate) fn floats(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(len + 4);
    while bytes.len() < len {
        let sum: f32 = (0..4).map(|_| (random.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum();
        bytes.extend_from_slice(&sum.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
