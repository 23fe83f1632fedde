//! What other systems could not hold: the portable profile, the warnings, and twins in one directory.
//!
//! The default profile keeps names as they are and only warns; a team's portable profile refuses. Nothing here changes
//! a name. Twins are names of one directory that a file system which folds case or normalises would take for one.

use super::RelPath;
use crate::content::digest::Hasher;
use std::collections::HashSet;
use unicode_normalization::UnicodeNormalization;

/// Which names a tree may hold; written in its header, so it belongs to its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Names are bytes, kept as they are.
    #[default]
    Posix,
    /// Only names that Linux, macOS and Windows all hold, each distinct on each of them.
    Portable,
}

impl Profile {
    /// The word in the header.
    pub fn word(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Portable => "portable",
        }
    }
}

/// Why another system could not hold a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotPortable {
    #[error("it is not UTF-8")]
    NotUtf8,
    #[error("it holds a control character")]
    Control,
    #[error("it holds `{0}`, which Windows does not allow in a name")]
    Character(char),
    #[error("it is a device name on Windows")]
    Device,
    #[error("it ends in a dot or a space, which Windows drops")]
    TrailingDotOrSpace,
}

/// Whether every name of `path` can be held by Linux, macOS and Windows alike; the first reason where not.
pub fn portable(path: &RelPath) -> Result<(), NotPortable> {
    path.components().try_for_each(|name| match faults(name).next() {
        Some(fault) => Err(fault),
        None => Ok(()),
    })
}

/// Every reason why another system could not hold `path`, each once, in the order of its names.
pub fn warnings(path: &RelPath) -> Vec<NotPortable> {
    let mut found = Vec::new();
    for fault in path.components().flat_map(faults) {
        if !found.contains(&fault) {
            found.push(fault);
        }
    }
    found
}

fn faults(name: &[u8]) -> impl Iterator<Item = NotPortable> {
    let text = std::str::from_utf8(name).ok();
    let not_utf8 = text.is_none().then_some(NotPortable::NotUtf8);
    let text = text.unwrap_or_default();
    let control = text.chars().any(char::is_control).then_some(NotPortable::Control);
    let character = text
        .chars()
        .find(|letter| matches!(letter, '\\' | ':' | '<' | '>' | '"' | '|' | '?' | '*'))
        .map(NotPortable::Character);
    let device = is_device(text).then_some(NotPortable::Device);
    let trailing = text.ends_with(['.', ' ']).then_some(NotPortable::TrailingDotOrSpace);
    [not_utf8, control, character, device, trailing].into_iter().flatten()
}

/// `CON`, `aux.txt`, `COM¹.log`: Windows takes these for devices whatever follows the first dot.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end_matches(' ').to_uppercase();
    if matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$") {
        return true;
    }
    stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT")).is_some_and(|rest| {
        let mut letters = rest.chars();
        matches!(letters.next(), Some('0'..='9' | '¹' | '²' | '³')) && letters.next().is_none()
    })
}

/// The key under which two names of one directory are twins: canonical normalisation, and case folded by lower,
/// upper and lower again (so that `ß`, `ẞ` and `ss` meet, as on APFS). `None` where the name is not UTF-8.
///
/// It errs on the side of calling two names twins: `ı` and `i` meet too.
pub fn fold_key(name: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(name).ok()?;
    if text.is_ascii() {
        return Some(text.to_ascii_lowercase());
    }
    let folded = text.nfd().flat_map(char::to_lowercase).flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    Some(folded.collect::<String>().nfd().collect())
}

/// Most names that [`Twins`] remembers at once: those of all directories between the top and the current path.
/// 16 bytes each, so about 40 MB at the limit.
pub const MAX_OPEN_NAMES: usize = 1_000_000;

/// What [`Twins`] refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TwinError {
    #[error("another name in the same directory differs only in case or Unicode form: rename one of them")]
    Twin,
    #[error("its directory and those above it hold more than {MAX_OPEN_NAMES} names: split them up")]
    TooManyNames,
}

/// Finds names of one directory that differ only in case or Unicode form, over paths in tree order.
///
/// Memory: a 16-byte fingerprint for each name seen in the *open* directories (those on the way to the current path),
/// at most [`MAX_OPEN_NAMES`]; a directory's names are forgotten when the walk leaves it. It cannot say which name
/// came first: who needs the pair walks again and compares [`fold_key`]s.
#[derive(Debug, Default)]
pub struct Twins {
    levels: Vec<HashSet<[u8; 16]>>,
    names: usize,
}

impl Twins {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next path in tree order. Names that are not UTF-8 have no twins.
    pub fn add(&mut self, path: &RelPath) -> Result<(), TwinError> {
        let depth = path.depth();
        while self.levels.len() > depth {
            self.names -= self.levels.pop().map_or(0, |level| level.len());
        }
        self.levels.resize_with(depth, HashSet::new);
        let Some(key) = fold_key(path.name()) else { return Ok(()) };
        if self.names >= MAX_OPEN_NAMES {
            return Err(TwinError::TooManyNames);
        }
        let mut hasher = Hasher::new();
        hasher.update(key.as_bytes());
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        if !self.levels[depth - 1].insert(fingerprint) {
            return Err(TwinError::Twin);
        }
        self.names += 1;
        Ok(())
    }
}
