//! Paging of every listing: a bounded number of items, and a cursor that is the last item's sort key.
//!
//! A page asks the database for one row more than it shows, so that `next` is absent exactly on the last page. Cursors are
//! opaque to callers; a made-up one leads to an odd place of the caller's own listing and nowhere else.

use super::error::Error;
use crate::api::teams::{Page, PageQuery};

/// A caller's wish, checked: the limit is within bounds, the cursor short enough and without NUL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paging {
    /// The last sort key already seen; empty at the start. Not proven: use cases treat it as any text of the caller.
    pub after: String,
    limit: usize,
}

impl Paging {
    const MOST: u32 = 1_000;
    const USUAL: u32 = 100;

    pub fn new(query: &PageQuery) -> Result<Self, Error> {
        let limit = query.limit.unwrap_or(Self::USUAL);
        if !(1..=Self::MOST).contains(&limit) {
            return Err(Error::invalid(
                "limit",
                format!("{limit} is not between 1 and 1000"),
                "ask for 1 to 1000 items",
            ));
        }
        let after = query.cursor.clone().unwrap_or_default();
        if after.len() > 512 || after.contains('\0') {
            return Err(Error::invalid("cursor", "no page ends there", "use `next` of the page before, as it is"));
        }
        Ok(Self { after, limit: limit as usize })
    }

    /// How many rows to ask the database for: one more than will be shown.
    pub fn rows(&self) -> u32 {
        u32::try_from(self.limit + 1).expect("at most 1001")
    }

    /// The page out of those rows; `key` is an item's sort key, by which the rows were ordered and the next page begins.
    pub fn page<T>(&self, mut items: Vec<T>, key: impl Fn(&T) -> String) -> Page<T> {
        let more = items.len() > self.limit;
        items.truncate(self.limit);
        let next = if more { items.last().map(key) } else { None };
        Page { items, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_is_absent_exactly_on_the_last_page() {
        let paging = Paging::new(&PageQuery { cursor: None, limit: Some(2) }).unwrap();
        assert_eq!(paging.rows(), 3);
        let page = paging.page(vec![1, 2, 3], ToString::to_string);
        assert_eq!((page.items, page.next.as_deref()), (vec![1, 2], Some("2")));
        assert_eq!(paging.page(vec![1, 2], ToString::to_string).next, None);
    }

    #[test]
    fn limits_are_bounded() {
        for limit in [0, 1_001, u32::MAX] {
            assert!(Paging::new(&PageQuery { cursor: None, limit: Some(limit) }).is_err());
        }
        assert!(Paging::new(&PageQuery { cursor: Some("a\0".into()), limit: None }).is_err());
    }
}
