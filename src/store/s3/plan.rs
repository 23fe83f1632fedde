//! How an object is cut into parts, decided from its size before the first byte is sent.
//!
//! Stores allow 10,000 parts (some 1,000), 5 GiB a part and 5 TiB an object, and some want all parts but the last equal. So the
//! part size is fixed at the start and grows with the announced size; what cannot fit is refused at once.

use crate::store::Length;

const MIB: u64 = 1 << 20;
/// Objects up to this size are sent by one plain PUT.
///
/// One request instead of several, and the only kind that can carry a condition. It bounds what is kept to be sent again.
pub(super) const SINGLE: u64 = 16 * MIB;
/// The smallest part; stores want at least 5 MiB.
const PART: u64 = 8 * MIB;
/// The part size where the object's size is not known.
///
/// With 10,000 parts 156 GiB can be written without being told beforehand.
const PART_UNKNOWN: u64 = 16 * MIB;
/// S3's own limits on parts and objects; a store with smaller ones refuses by itself.
const MAX_PART: u64 = 5 << 30;
const MAX_OBJECT: u64 = 5 << 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// One PUT.
    Single,
    /// Parts of `size` bytes, the last one shorter, `most` of them at most.
    Parts { size: u64, most: u64 },
    /// One PUT if it turns out to be small, else such parts.
    Undecided { size: u64, most: u64 },
}

/// An object too large for the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLarge {
    pub most: u64,
}

/// Parts are whole MiB, at least 8, and no larger than `max_parts` makes them. `TooLarge` comes before anything is sent.
pub(super) fn plan(length: Length, max_parts: u32) -> Result<Plan, TooLarge> {
    let most = u64::from(max_parts.max(1));
    let size = match length {
        Length::Unknown => return Ok(Plan::Undecided { size: PART_UNKNOWN, most }),
        Length::Exact(bytes) if bytes <= SINGLE => return Ok(Plan::Single),
        Length::Exact(bytes) => bytes,
    };
    let limit = MAX_OBJECT.min(most.saturating_mul(MAX_PART));
    if size > limit {
        return Err(TooLarge { most: limit });
    }
    let part = size.div_ceil(most).next_multiple_of(MIB).max(PART);
    Ok(Plan::Parts { size: part.min(MAX_PART), most })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(bytes: u64, max_parts: u32) -> (u64, u64) {
        match plan(bytes.into(), max_parts).unwrap() {
            Plan::Parts { size, .. } => (size, bytes.div_ceil(size)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_size_fits_or_is_refused_before_the_first_byte() {
        assert_eq!(plan(0.into(), 10_000), Ok(Plan::Single));
        assert_eq!(plan(SINGLE.into(), 10_000), Ok(Plan::Single));
        assert_eq!(parts(SINGLE + 1, 10_000), (8 * MIB, 3));
        assert_eq!(parts(64 * MIB, 10_000), (8 * MIB, 8));
        for max_parts in [1_000, 10_000] {
            for bytes in [60 << 30, (49 << 30) + 1, 8 * MIB * 10_000, 8 * MIB * 10_000 + 1, 4 << 40] {
                let (size, count) = parts(bytes, max_parts);
                assert!(count <= u64::from(max_parts) && size <= MAX_PART && size % MIB == 0, "{bytes} {max_parts}");
            }
        }
        assert_eq!(parts(MAX_OBJECT, 1_024), (MAX_PART, 1_024));
        assert!(parts(MAX_OBJECT, 10_000).1 <= 10_000);
        assert_eq!(plan((MAX_OBJECT + 1).into(), 10_000), Err(TooLarge { most: MAX_OBJECT }));
        assert_eq!(plan((6 << 30).into(), 1), Err(TooLarge { most: MAX_PART }));
        assert_eq!(plan(MAX_OBJECT.into(), 1_000), Err(TooLarge { most: 1_000 * MAX_PART }));
        assert_eq!(plan(Length::Unknown, 1_000), Ok(Plan::Undecided { size: PART_UNKNOWN, most: 1_000 }));
    }
}
