//! Hard-link groups: the first member met in tree order stands for the others.
//!
//! Only inodes with more than one name are remembered, and forgotten when all their names were met. The table is bounded in
//! bytes; what does not fit is stored as files of their own, which costs no bytes in the store (their chunks are equal).
//!
//! Why the first in tree order: a reader of the tree then always meets the bytes before the names that share them.

use super::What;
use crate::content::path::RelPath;
use std::collections::HashMap;

/// Bytes of all groups, paths included.
const MAX_BYTES: usize = 16 << 20;
/// About what a row of the table costs besides its path.
const PER_GROUP: usize = 96;

#[derive(Debug, Default)]
pub(super) struct LinkTable {
    groups: HashMap<(u64, u64), Group>,
    held: usize,
    overflowed: u64,
}

#[derive(Debug)]
struct Group {
    first: RelPath,
    /// Names of the inode that were not met yet.
    left: u64,
}

impl LinkTable {
    /// What a regular file's name is: the first of its inode, or a further one. To be asked once a name, in tree order. `inode` is device
    /// and inode number, `names` the link count at the look.
    ///
    /// A group whose other names lie outside the walk stays in the table to the end.
    pub fn meet(&mut self, inode: (u64, u64), names: u64, path: &RelPath) -> What {
        if names < 2 {
            return What::File { leads: false };
        }
        if let Some(group) = self.groups.get_mut(&inode) {
            let first = group.first.clone();
            group.left -= 1;
            let last = group.left == 0;
            if last {
                self.held -= PER_GROUP + first.as_bytes().len();
                self.groups.remove(&inode);
            }
            return What::HardLink { first, last };
        }
        let cost = PER_GROUP + path.as_bytes().len();
        if self.held + cost > MAX_BYTES {
            self.overflowed += 1;
            return What::File { leads: false };
        }
        self.held += cost;
        self.groups.insert(inode, Group { first: path.clone(), left: names - 1 });
        What::File { leads: true }
    }

    /// Members that were met while the table was full.
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_forgotten_when_all_its_names_were_met() {
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        let mut table = LinkTable::default();
        let further = |first: &str, last| What::HardLink { first: path(first), last };
        assert_eq!(table.meet((1, 7), 1, &path("single")), What::File { leads: false });
        assert_eq!(table.meet((1, 7), 3, &path("a")), What::File { leads: true });
        assert_eq!(table.meet((2, 7), 2, &path("other device")), What::File { leads: true });
        assert_eq!(table.meet((1, 7), 3, &path("b")), further("a", false));
        assert_eq!(table.meet((1, 7), 3, &path("c")), further("a", true));
        assert_eq!(table.groups.len(), 1);
        assert_eq!(table.held, PER_GROUP + "other device".len());
    }
}
