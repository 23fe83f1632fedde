//! Chance that can be repeated: a seed that is printed, and set by `DRAY_TEST_SEED`.

use std::hash::{BuildHasher, Hasher};

/// xorshift64*: small, seeded, good enough to choose moments and bytes.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Prints the seed under the test's name.
    pub fn new(test: &str) -> Self {
        let given = super::env("DRAY_TEST_SEED").and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| std::collections::hash_map::RandomState::new().build_hasher().finish()) | 1;
        eprintln!("{test}: DRAY_TEST_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One of these.
    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let at = self.below(choices.len() as u64);
        &choices[usize::try_from(at).unwrap()]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        blake3::Hasher::new().update(&self.next().to_le_bytes()).finalize_xof().fill(&mut out);
        out
    }
}
