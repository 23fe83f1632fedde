//! CRC-32 as zip has it (ISO-HDLC), and its algebra.
//!
//! A file's crc is combined from its chunks' and holes' without touching bytes, so a zip's headers can be written before its data is
//! read. It guards no content; digests do that.

use serde::{Deserialize, Serialize};

/// The polynomial, bits reversed. A crc is a polynomial over GF(2) whose bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// x^(2^n) modulo the polynomial; repeats after 32, since the order of x is 2^32 - 1.
const POWERS: [u32; 32] = powers();

/// CRC-32 of some bytes; of none it is 0. In JSON a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Crc32(pub u32);

impl Crc32 {
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc_fast::crc32_iso_hdlc(bytes))
    }

    /// The crc of `self`'s bytes followed by `next_len` bytes whose crc is `next`. About half a microsecond, whatever the length.
    #[must_use]
    pub fn combine(self, next: Self, next_len: u64) -> Self {
        if self.0 == 0 {
            // Of no bytes above all: zero times anything is zero.
            return next;
        }
        Self(shifted(self.0, next_len) ^ next.0)
    }

    /// The crc of `len` zero bytes, without touching any.
    #[must_use]
    pub fn zeros(len: u64) -> Self {
        Self(!shifted(u32::MAX, len))
    }
}

/// `crc` times x^(8 * `len`): what `len` zero bytes make of a register.
fn shifted(crc: u32, len: u64) -> u32 {
    let mut factor = 1 << 31;
    let mut rest = len;
    // bit n of `len` stands for 2^n bytes, so for x^(2^(n+3))
    let mut n = 3;
    while rest != 0 {
        if rest & 1 == 1 {
            factor = product(POWERS[n % 32], factor);
        }
        rest >>= 1;
        n += 1;
    }
    product(factor, crc)
}

/// The product of two polynomials, modulo the polynomial.
const fn product(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    let mut bit = 1u32 << 31;
    while bit != 0 {
        if a & bit != 0 {
            sum ^= b;
        }
        bit >>= 1;
        b = if b & 1 == 1 { (b >> 1) ^ POLYNOMIAL } else { b >> 1 };
    }
    sum
}

const fn powers() -> [u32; 32] {
    let mut table = [1 << 30; 32];
    let mut n = 1;
    while n < 32 {
        table[n] = product(table[n - 1], table[n - 1]);
        n += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_answers() {
        assert_eq!(Crc32::of(b"123456789"), Crc32(0xcbf4_3926));
        assert_eq!(Crc32::of(b""), Crc32::default());
        assert_eq!(Crc32::zeros(0), Crc32(0));
        assert_eq!(serde_json::to_string(&Crc32(7)).unwrap(), "7");
    }

    #[test]
    fn zeros_of_every_scale() {
        for len in [1usize, 2, 3, 63, 64, 4095, 65_536, 1_000_003] {
            assert_eq!(Crc32::zeros(len as u64), Crc32::of(&vec![0; len]), "{len}");
        }
        // no length is too long: halves of a huge run agree with the whole
        let half = u64::MAX / 2;
        assert_eq!(Crc32::zeros(half).combine(Crc32::zeros(half), half), Crc32::zeros(half * 2));
    }

    proptest! {
        #[test]
        fn combined_equals_whole(a in prop::collection::vec(any::<u8>(), 0..3000), b in prop::collection::vec(any::<u8>(), 0..3000)) {
            let whole = [a.as_slice(), b.as_slice()].concat();
            prop_assert_eq!(Crc32::of(&a).combine(Crc32::of(&b), b.len() as u64), Crc32::of(&whole));
        }
    }
}
