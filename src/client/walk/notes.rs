//! What a person should know about a tree before another system has to hold it: bounded lists, with counts.
//!
//! Nothing here changes or refuses anything: in the POSIX profile names are bytes and are kept.
//!
//! They end as warnings of the report. Tree order makes the examples the first of their kind, so two walks of one tree say the same.

use crate::content::path::{RelPath, fold_key, portable, symlink_escapes};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use super::names::Arena;

/// Examples kept of each kind.
const EXAMPLES: usize = 20;

/// One kind of remark: how many, and the first few. Memory is bounded by [`EXAMPLES`] paths.
#[derive(Debug, Default)]
struct Remark {
    count: u64,
    examples: Vec<String>,
}

impl Remark {
    fn add(&mut self, path: &RelPath) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(path.to_string());
        }
    }

    fn tell(&self, what: &str, into: &mut Vec<String>) {
        if self.count > 0 {
            let more = if self.count > self.examples.len() as u64 { ", ..." } else { "" };
            into.push(format!("{} {what}: `{}`{more}", self.count, self.examples.join("`, `")));
        }
    }
}

/// Remarks collected during a walk.
#[derive(Debug, Default)]
pub(super) struct Notes {
    not_portable: Remark,
    twins: Remark,
    outside: Remark,
    special_bits: Remark,
    rules: Remark,
    hasher: RandomState,
}

impl Notes {
    /// Looks at one entry's name.
    pub fn name(&mut self, path: &RelPath) {
        if portable(path).is_err() {
            self.not_portable.add(path);
        }
    }

    /// Looks for names in one directory that differ by case or Unicode normal form only. Asked only for directories whose names are in
    /// memory; keyed hashes stand for the names, so a chance collision could call two names twins, which costs a remark.
    pub fn siblings(&mut self, dir: Option<&RelPath>, names: &Arena) {
        let mut seen = HashSet::new();
        for name in names.iter() {
            let Some(key) = fold_key(name) else { continue };
            if !seen.insert(self.hasher.hash_one(key))
                && let Ok(path) = super::below(dir, name)
            {
                self.twins.add(&path);
            }
        }
    }

    /// A link out of the tree is pushed as text; staging refuses it unless the input allows it, and that is better known now.
    pub fn symlink(&mut self, path: &RelPath, target: &[u8]) {
        if symlink_escapes(path, target) {
            self.outside.add(path);
        }
    }

    /// A tree holds the nine permission bits only; setuid, setgid and sticky bits are dropped.
    pub fn mode(&mut self, path: &RelPath, mode: u32) {
        if mode & 0o7000 != 0 {
            self.special_bits.add(path);
        }
    }

    pub fn bad_rule(&mut self, path: &RelPath) {
        self.rules.add(path);
    }

    /// One sentence for each kind of remark.
    pub fn tell(&self, into: &mut Vec<String>) {
        self.not_portable.tell("names that Windows or macOS could not hold", into);
        self.twins.tell("names that differ from a sibling by case or Unicode form only", into);
        self.outside.tell("symlinks that point out of the tree (kept as text; staging refuses them)", into);
        self.special_bits.tell("files or directories whose setuid, setgid or sticky bit was not stored", into);
        self.rules.tell("`.drayignore` files with lines that are no pattern", into);
    }
}
