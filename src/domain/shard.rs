//! The one rule by which the files of an input are dealt to shards, for stagings and pulls alike.
//!
//! ```text
//! hash of the path    0 ......................................... 65,535
//! weight              |  3 |     | 10 |  1 |    ...        | 7 |   |       bytes of a bucket's files, and a block for each
//! shards of 3         1111111111111111|2222222222222222|33333333333333     cut where the weights say, in equal parts
//! ```
//!
//! Balanced by bytes: no shard has more than its part and the heaviest bucket, which is the largest file where files are few. Stable: a file's
//! place on the line is its path's alone, so files that come or go move the cuts a little and leave all files away from a cut where they were.
//! Everybody who knows the same files deals the same. Two walks: the first weighs, the second asks. Memory does not grow with the files.

use crate::content::digest::digest;

/// Places on the line: the first 16 bits of the BLAKE3 of a path, so shards finer than this cannot be cut.
const BUCKETS: usize = 1 << 16;
/// What a file weighs beside its bytes, so that empty ones are dealt too: the block that a file system gives it.
const BLOCK: u64 = 4096;
/// Most shards of one input: one for each place on the line.
pub const MAX_SHARDS: u32 = 65_536;

/// The `i`-th of `n` parts of an input's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// 1-based.
    pub index: u32,
    pub of: u32,
}

impl Shard {
    /// Reads `i/n`; `None` unless `1 <= i <= n <= MAX_SHARDS`.
    pub fn parse(text: &str) -> Option<Self> {
        let (index, of) = text.split_once('/')?;
        let plain = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        if !plain(index) || !plain(of) {
            return None;
        }
        let (index, of) = (index.parse().ok()?, of.parse().ok()?);
        (1 <= index && index <= of && of <= MAX_SHARDS).then_some(Self { index, of })
    }
}

/// The weights of an input's files, gathered in a first walk.
/// By bucket; 512 KiB, however many files there are.
#[derive(Debug, Clone)]
pub struct Weights(Vec<u64>);

impl Default for Weights {
    fn default() -> Self {
        Self(vec![0; BUCKETS])
    }
}

impl Weights {
    /// A file or symlink by its path below the input's root. A hard link weighs like a file: it is one where its first name is dealt elsewhere.
    /// Order does not matter; a path added twice weighs twice.
    pub fn add(&mut self, path: &[u8], bytes: u64) {
        if let Some(weight) = self.0.get_mut(usize::from(bucket(path))) {
            *weight = weight.saturating_add(bytes.saturating_add(BLOCK));
        }
    }

    /// The stretch of the line that is the shard's. The parts of all shards of one `of` cover the line without overlapping,
    /// so every path has exactly one shard, also one that was never added.
    pub fn part(&self, shard: Shard) -> Part {
        let total = self.0.iter().map(|weight| u128::from(*weight)).sum::<u128>().max(1);
        let (mut before, mut first, mut end) = (0_u128, 0, 0);
        for weight in &self.0 {
            // The middle of a bucket decides, so that the shards on both sides of a cut are off by half a bucket at most.
            let middle = 2 * before + u128::from(*weight);
            before += u128::from(*weight);
            let owner = middle * u128::from(shard.of) / (2 * total) + 1;
            first += u32::from(owner < u128::from(shard.index));
            end += u32::from(owner <= u128::from(shard.index));
        }
        // Empty buckets behind the last file are nobody's otherwise.
        Part { first, end: if shard.index == shard.of { u32::MAX } else { end } }
    }
}

/// A shard's stretch of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    first: u32,
    end: u32,
}

impl Part {
    /// `path` as it was given to [`Weights::add`]: below the input's root, not below the version's.
    pub fn has(self, path: &[u8]) -> bool {
        (self.first..self.end).contains(&u32::from(bucket(path)))
    }
}

fn bucket(path: &[u8]) -> u16 {
    let [low, high, ..] = *digest(path).as_bytes();
    u16::from_le_bytes([low, high])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shards_are_read_strictly() {
        assert_eq!(Shard::parse("3/8"), Some(Shard { index: 3, of: 8 }));
        for bad in ["0/8", "9/8", "3", "+3/8", " 3/8", "3/8/1", "3/0", "1/65537", "-1/3"] {
            assert_eq!(Shard::parse(bad), None, "{bad}");
        }
    }

    fn weighed(files: &[(String, u64)]) -> Weights {
        let mut weights = Weights::default();
        files.iter().for_each(|(path, bytes)| weights.add(path.as_bytes(), *bytes));
        weights
    }

    fn owner(weights: &Weights, of: u32, path: &str) -> u32 {
        let owners: Vec<u32> =
            (1..=of).filter(|index| weights.part(Shard { index: *index, of }).has(path.as_bytes())).collect();
        assert_eq!(owners.len(), 1, "`{path}` of {of}: {owners:?}");
        owners[0]
    }

    fn files() -> impl Strategy<Value = Vec<(String, u64)>> {
        let bytes = prop_oneof![Just(0_u64), 0..100_000_u64, 0..10_000_000_000_u64];
        proptest::collection::btree_map("[a-z]{1,8}", bytes, 1..60).prop_map(|files| files.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_file_has_one_shard_and_no_shard_more_than_its_part_and_a_file(files in files(), of in 1_u32..9) {
            let weights = weighed(&files);
            let mut sums = vec![0_u64; of as usize];
            for (path, bytes) in &files {
                sums[owner(&weights, of, path) as usize - 1] += bytes + BLOCK;
            }
            let part = sums.iter().sum::<u64>() / u64::from(of);
            let heaviest = weights.0.iter().max().copied().unwrap();
            prop_assert!(sums.iter().all(|sum| *sum <= part + heaviest + 1), "{sums:?}, {part} and {heaviest}");
        }
    }

    #[test]
    fn a_file_that_comes_moves_few_others() {
        let files: Vec<_> = (0..4_000).map(|n| (format!("clip-{n}.mp4"), 1_000_000 + n * 1_000)).collect();
        let mut more = files.clone();
        more.extend((0..40).map(|n| (format!("later-{n}.mp4"), 2_000_000)));
        let (before, after) = (weighed(&files), weighed(&more));
        let parts = |weights: &Weights| (1..=8).map(|index| weights.part(Shard { index, of: 8 })).collect::<Vec<_>>();
        let (before, after) = (parts(&before), parts(&after));
        let owner = |parts: &[Part], path: &str| parts.iter().position(|part| part.has(path.as_bytes())).unwrap();
        let moved = files.iter().filter(|(path, _)| owner(&before, path) != owner(&after, path)).count();
        assert!(moved < 80, "{moved} of 4,000 moved when 40 came");
    }
}
