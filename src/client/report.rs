//! The documents that transfers end with, and the lists in them.
//!
//! Plain values: nothing here knows how they come about. Lists are bounded, with counts beside them; paths are escaped for
//! people and logs, and given whole in base64 where they are not UTF-8.
//!
//! The field names are the `--json` face of the command line and may only be added to.

use crate::content::path::escaped;
use serde::Serialize;

/// One entry that did not go along, and why. Paths are escaped for people and logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    pub path: String,
    /// Base64 of the path's bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<String>,
    /// A stable word, for example `fifo`, `permission_denied`, `changed`, `vanished`.
    /// `errno_N` for a fault of the file system that has no word here. `verify` of a stored version says in words what is damaged.
    pub reason: String,
}

impl Item {
    /// `path` is shown escaped, and given whole in base64 where it is not UTF-8.
    pub fn new(path: &[u8], reason: &str) -> Self {
        let path_b64 = std::str::from_utf8(path).is_err().then(|| data_encoding::BASE64.encode(path));
        Self { path: escaped(path).to_string(), path_b64, reason: reason.to_owned() }
    }
}

/// The one rule of such lists: all are counted, and kept up to [`PushReport::MAX_ITEMS`].
pub(super) fn list<T>(items: &mut Vec<T>, count: &mut u64, item: T) {
    *count += 1;
    if items.len() < PushReport::MAX_ITEMS {
        items.push(item);
    }
}

/// A list that ends at [`PushReport::MAX_ITEMS`], and how many there were in all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub items: Vec<Item>,
    pub count: u64,
}

impl Listed {
    /// Counts it, and keeps it while there is room.
    pub fn push(&mut self, item: Item) {
        list(&mut self.items, &mut self.count, item);
    }

    /// Whether the list names all there were.
    pub fn is_whole(&self) -> bool {
        self.count == self.items.len() as u64
    }
}

/// The `push` document of the command line, field for field.
///
/// Counts are of what is in the tree, whether or not it had to be sent; `sent_bytes`, `stored_bytes` and `reused_bytes` are of this run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PushReport {
    /// `warehouse/aisle-cams@v3`; absent after a dry run.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    pub version: Option<String>,
    /// UUID of the version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// Tree digest.
    pub digest: String,
    /// Regular files, further names of hard links included.
    pub files: u64,
    pub dirs: u64,
    pub symlinks: u64,
    /// Logical bytes of the tree; each group of hard links once.
    pub bytes: u64,
    /// Chunks that the layout's lines name, repeats counted.
    pub chunks: u64,
    /// Request body bytes of packs, tree and layout, retries included.
    pub sent_bytes: u64,
    /// Bytes of the packs this push added.
    pub stored_bytes: u64,
    /// Logical bytes that were there already.
    pub reused_bytes: u64,
    /// At most [`PushReport::MAX_ITEMS`]; the counts say how many there were.
    pub skipped: Vec<Item>,
    pub failed: Vec<Item>,
    /// Some item failed, so the version lacks it; marked so in the service too. Skipped items do not count.
    pub incomplete: bool,
    /// Wall time of the whole push, waiting for the commit included.
    pub seconds: f64,
    pub skipped_count: u64,
    pub failed_count: u64,
    /// The tree equals the newest version's: no new version was made.
    pub unchanged: bool,
    pub dry_run: bool,
    pub warnings: Vec<String>,
}

impl PushReport {
    /// Longest list of skipped, of failed, and of warned-about entries that is kept.
    pub const MAX_ITEMS: usize = 10_000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_and_its_count_does_not() {
        let mut listed = Listed::default();
        (0..PushReport::MAX_ITEMS).for_each(|_| listed.push(Item::new(b"a", "vanished")));
        assert!(listed.is_whole());
        listed.push(Item::new(b"b", "vanished"));
        assert_eq!((listed.items.len() as u64 + 1, listed.is_whole()), (listed.count, false));
    }
}
