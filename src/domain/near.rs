//! What was probably meant: the names nearest to one that does not exist.
//!
//! Pure, bounded: of names longer than [`MAX_NAME`] only the beginning is compared, so one candidate costs at most
//! `MAX_NAME` squared steps. For hints only; nothing is ever done because of a name that was merely near.

/// Bytes of a name that are looked at.
pub const MAX_NAME: usize = 256;

/// Up to `most` of the candidates, nearest first, equal distances by name; none that is further away than a third of the
/// longer name plus one, unless one of the two contains the other.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>, most: usize) -> Vec<&'a str> {
    let mut found: Vec<(usize, &str)> = candidates
        .into_iter()
        .filter_map(|candidate| {
            let distance = distance(name.as_bytes(), candidate.as_bytes());
            let limit = name.len().max(candidate.len()).min(MAX_NAME) / 3 + 1;
            let is_part = !name.is_empty() && (candidate.contains(name) || name.contains(candidate));
            (distance <= limit || is_part).then_some((distance, candidate))
        })
        .collect();
    found.sort_unstable();
    found.truncate(most);
    found.into_iter().map(|(_, candidate)| candidate).collect()
}

/// Insertions, deletions and substitutions of bytes between two names (Levenshtein), one row of the table at a time.
fn distance(left: &[u8], right: &[u8]) -> usize {
    let (left, right) = (left.get(..MAX_NAME).unwrap_or(left), right.get(..MAX_NAME).unwrap_or(right));
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut diagonal = i;
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
        for (j, b) in right.iter().enumerate() {
            let (above, before) = (row[j + 1], row[j]);
            row[j + 1] = (above + 1).min(before + 1).min(diagonal + usize::from(a != b));
            diagonal = above;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first_and_the_far_not_at_all() {
        let names = ["warehouse/aisle-cams", "warehouse/aisle-cam", "models/picker", "w"];
        assert_eq!(nearest("warehouse/aisle-camz", names, 3), ["warehouse/aisle-cam", "warehouse/aisle-cams", "w"]);
        assert_eq!(nearest("zzz", names, 3), Vec::<&str>::new());
        assert_eq!(nearest("", names, 3), ["w"]);
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(distance(b"", b"abc"), 3);
        assert_eq!(distance(b"abc", b"abc"), 0);
    }
}
