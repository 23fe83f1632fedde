//! Sizes and periods with their units written out: `64MiB`, `1h30m`.
//!
//! A bare number is refused, since nobody knows whether `30` means seconds or minutes; so is a unit that is not known.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// Text that is no size or period. Holds the text, for a person to find it: neither is ever a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("`{0}` is no size; write a whole number and a unit, like `64MiB` (B, KiB, MiB, GiB, TiB; kB, MB, GB, TB)")]
    Size(String),
    #[error("`{0}` is no period; write whole numbers with units, like `30s` or `1h30m` (ms, s, m, h, d)")]
    Period(String),
}

/// Largest first and powers of two before powers of ten, so that a value is shown by the unit in which it is most likely written.
const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Milliseconds, largest first.
const PERIODS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Size {
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }
}

impl Period {
    pub const fn seconds(count: u64) -> Self {
        Self(Duration::from_secs(count))
    }

    pub const fn hours(count: u64) -> Self {
        Self(Duration::from_secs(count * 3_600))
    }
}

impl FromStr for Size {
    type Err = Error;

    /// One number, one unit, spaces between them allowed; no fractions. What does not fit 64 bits is refused.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Size(text.to_owned());
        let (number, unit) = text.split_at(digits(text));
        let factor = SIZES.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(wrong)?.1;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number.checked_mul(factor).map(Self).ok_or_else(wrong)
    }
}

impl FromStr for Period {
    type Err = Error;

    /// Numbers with units, added up, in any order. A unit follows its number at once; spaces may stand between the pairs.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Period(text.to_owned());
        let mut rest = text;
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (number, tail) = rest.split_at(digits(rest));
            let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
            let factor = PERIODS.iter().find(|(name, _)| *name == &tail[..end]).ok_or_else(wrong)?.1;
            let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)?;
            total = total.checked_add(part).ok_or_else(wrong)?;
            rest = tail[end..].trim_start();
        }
        if text.is_empty() { Err(wrong()) } else { Ok(Self(Duration::from_millis(total))) }
    }
}

fn digits(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())
}

impl fmt::Display for Size {
    /// By the largest unit that divides it, so it reads back as the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = SIZES.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        let (unit, factor) = whole.copied().unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl fmt::Display for Period {
    /// To the millisecond, which is all that can be written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, factor) in PERIODS {
            if rest >= factor {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

macro_rules! as_text {
    ($target:ident) => {
        impl Serialize for $target {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $target {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}
as_text!(Size);
as_text!(Period);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_periods_say_their_unit() {
        assert_eq!("64MiB".parse(), Ok(Size(64 << 20)));
        assert_eq!("20 MB".parse(), Ok(Size(20_000_000)));
        assert_eq!("1h30m".parse(), Ok(Period::seconds(5_400)));
        assert_eq!("7d".parse(), Ok(Period::hours(168)));
        assert_eq!("250ms".parse(), Ok(Period(Duration::from_millis(250))));
        for wrong in ["", "64", "MiB", "64 mib", "1.5GiB", "-1B", "99999999TiB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
        for wrong in ["", "30", "s", "1w", "1h30", "-5s", "99999999999999999d"] {
            assert!(wrong.parse::<Period>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_shown_parses_back() {
        for size in [0, 1, 1_000, 1_024, 1_500, 64 << 20, 5_000_000_000] {
            assert_eq!(Size(size).to_string().parse(), Ok(Size(size)));
        }
        for millis in [0, 1, 999, 1_000, 61_000, 86_400_000, 90_061_001] {
            let period = Period(Duration::from_millis(millis));
            assert_eq!(period.to_string().parse(), Ok(period));
        }
        assert_eq!(Period::hours(36).to_string(), "1d12h");
    }
}
