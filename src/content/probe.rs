//! Is a chunk worth the CPU that compression costs?
//!
//! Two questions, cheapest first: do the byte values of a sample lean (order-0 entropy, about 2 microseconds), and if not, do 4 KiB of it
//! repeat themselves (a fast zstd level, about 5)? Where the answers were "no" for some chunks in a row, the dearer steps are taken for one
//! chunk in eight only. A wrong guess costs bytes or CPU, never correctness; the same chunk may be stored differently after
//! different neighbours, which the format allows.

use std::fmt;
use zstd::zstd_safe::CCtx;

/// Shorter chunks are compressed without asking: asking would cost as much.
const MIN_SAMPLE: usize = 1024;
/// A sample is four runs of 512 bytes, or of a quarter of a shorter chunk, spread evenly.
const WINDOWS: usize = 4;
const WINDOW: usize = 512;
/// How many bits per byte a sample must fall short of random bytes to be called leaning. Literals alone then save a fortieth.
const LEANING: f32 = 0.2;
const MATCH_SAMPLE: usize = 4096;
/// After so many refusals in a row, only every `SELDOM`th chunk is tried.
const PATIENCE: u32 = 4;
const SELDOM: u32 = 8;

/// What came of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Shrank,
    DidNot,
}

/// Chunks in a row for which a step was in vain.
#[derive(Debug, Default)]
struct Streak(u32);

impl Streak {
    /// True where the step should be taken for this chunk; where not, the chunk counts as refused.
    fn is_due(&mut self) -> bool {
        let due = self.0 < PATIENCE || self.0.is_multiple_of(SELDOM);
        if !due {
            self.0 += 1;
        }
        due
    }

    fn learn(&mut self, outcome: Outcome) {
        self.0 = match outcome {
            Outcome::Shrank => 0,
            // wraps to a multiple of SELDOM, past PATIENCE's start
            Outcome::DidNot => self.0.checked_add(1).unwrap_or(SELDOM),
        };
    }
}

pub(super) struct Probe {
    /// `n * log2(n)` for each count that a sample can have.
    weights: Box<[f32]>,
    /// Full compressions that did not pay although bytes leaned.
    compressions: Streak,
    /// Match searches that found nothing.
    searches: Streak,
    fast: CCtx<'static>,
    sink: Box<[u8]>,
}

impl Probe {
    /// `fast` compresses the samples: a level that finds matches and codes no literals.
    pub(super) fn new(fast: CCtx<'static>) -> Self {
        let weights = (0..=WINDOWS * WINDOW).map(|n| if n == 0 { 0.0 } else { n as f32 * (n as f32).log2() });
        Self {
            weights: weights.collect(),
            compressions: Streak::default(),
            searches: Streak::default(),
            fast,
            sink: vec![0; MATCH_SAMPLE].into(),
        }
    }

    /// Whether to compress `raw`. After a yes, say what came of it with [`learn`](Self::learn).
    pub(super) fn worth_trying(&mut self, raw: &[u8]) -> bool {
        if raw.len() < MIN_SAMPLE {
            true
        } else if self.shortfall(raw) > LEANING {
            self.compressions.is_due()
        } else if self.searches.is_due() {
            let found = self.repeats(raw);
            self.searches.learn(if found { Outcome::Shrank } else { Outcome::DidNot });
            found
        } else {
            false
        }
    }

    pub(super) fn learn(&mut self, raw_len: usize, outcome: Outcome) {
        if raw_len >= MIN_SAMPLE {
            self.compressions.learn(outcome);
        }
    }

    /// How many bits per byte a sample falls short of random bytes: the entropy of its byte values, corrected for how far random
    /// samples of this size fall short.
    fn shortfall(&self, raw: &[u8]) -> f32 {
        let window = WINDOW.min(raw.len() / WINDOWS);
        let step = (raw.len() - window) / (WINDOWS - 1);
        let [a, b, c, d]: [&[u8]; WINDOWS] = std::array::from_fn(|i| &raw[i * step..i * step + window]);
        // a table per window: increments of one table would wait for each other
        let mut counts = [[0u16; 256]; WINDOWS];
        for (((&a, &b), &c), &d) in a.iter().zip(b).zip(c).zip(d) {
            counts[0][usize::from(a)] += 1;
            counts[1][usize::from(b)] += 1;
            counts[2][usize::from(c)] += 1;
            counts[3][usize::from(d)] += 1;
        }
        let sum: f32 =
            (0..256).map(|i| self.weights[counts.iter().map(|table| usize::from(table[i])).sum::<usize>()]).sum();
        let n = (WINDOWS * window) as f32;
        let entropy = n.log2() - sum / n;
        let bias = 255.0 / (2.0 * n * std::f32::consts::LN_2);
        8.0 - entropy - bias
    }

    /// Whether the middle of `raw` holds matches worth at least a twentieth.
    fn repeats(&mut self, raw: &[u8]) -> bool {
        let len = raw.len().min(MATCH_SAMPLE);
        let start = (raw.len() - len) / 2;
        let room = len - len / 20;
        self.fast.compress2(&mut self.sink[..room], &raw[start..start + len]).is_ok()
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe")
            .field("compressions", &self.compressions)
            .field("searches", &self.searches)
            .finish_non_exhaustive()
    }
}
