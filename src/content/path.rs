//! Relative paths inside a tree: what may be one, how two compare, how one is shown.
//!
//! Names are bytes and are kept as they are; nothing here normalises or repairs. `RelPath` can only be made by
//! checking, so whoever holds one knows that it never leaves the directory it is joined to. What other systems could
//! not hold is the business of the portable profile and of `warnings`.

mod names;
#[cfg(test)]
mod tests;

pub use names::{MAX_OPEN_NAMES, NotPortable, Profile, TwinError, Twins, fold_key, portable, warnings};

use std::cmp::Ordering;
use std::fmt;

/// Longest name of one component, in bytes: what Linux file systems hold.
pub const MAX_NAME: usize = 255;
/// Longest whole path, in bytes.
pub const MAX_PATH: usize = 4096;
/// Most components in one path.
pub const MAX_DEPTH: usize = 256;

/// Why some bytes are not a path inside a tree. Always refused, in every profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("a path may not be empty")]
    Empty,
    #[error("a path in a tree is relative: take the leading `/` away")]
    Absolute,
    #[error("a path may not hold a NUL byte")]
    Nul,
    #[error("a path may not hold an empty name: take the doubled or trailing `/` away")]
    EmptyName,
    #[error("a path may not hold `.` or `..`: write where it leads")]
    Dots,
    #[error("a name of {length} bytes is longer than the limit of {MAX_NAME}: shorten it")]
    NameTooLong { length: usize },
    #[error("a path of {length} bytes is longer than the limit of {MAX_PATH}: shorten it")]
    TooLong { length: usize },
    #[error("a path of {depth} names is deeper than the limit of {MAX_DEPTH}: flatten it")]
    TooDeep { depth: usize },
}

/// A relative path of checked names, in bytes.
///
/// Invariants: not empty, no NUL, no leading, trailing or doubled `/`, no name `.` or `..`, within the three limits.
/// `Ord` is tree order: component by component by bytes, so a directory comes directly before all that it holds.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RelPath(Vec<u8>);

impl RelPath {
    /// Checks and copies `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, PathError> {
        check(bytes)?;
        Ok(Self(bytes.to_vec()))
    }

    /// Checks `bytes` and takes them over without a copy.
    pub fn from_vec(bytes: Vec<u8>) -> Result<Self, PathError> {
        check(&bytes)?;
        Ok(Self(bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path as text, where it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Takes over another path's bytes into this one's buffer.
    pub(in crate::content) fn assign(&mut self, other: &Self) {
        self.0.clone_from(&other.0);
    }

    /// The names, from the top.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> + Clone {
        self.0.split(|&byte| byte == b'/')
    }

    /// How many names the path has; at least one.
    pub fn depth(&self) -> usize {
        1 + self.0.iter().filter(|&&byte| byte == b'/').count()
    }

    /// The last name.
    pub fn name(&self) -> &[u8] {
        &self.0[self.parent_length().map_or(0, |length| length + 1)..]
    }

    /// The bytes of the parent's path; `None` at the top of the tree.
    pub fn parent_bytes(&self) -> Option<&[u8]> {
        self.parent_length().map(|length| &self.0[..length])
    }

    /// The parent; `None` at the top of the tree.
    pub fn parent(&self) -> Option<Self> {
        self.parent_bytes().map(|bytes| Self(bytes.to_vec()))
    }

    fn parent_length(&self) -> Option<usize> {
        self.0.iter().rposition(|&byte| byte == b'/')
    }

    /// `relative` (one name or several) below this path.
    pub fn join(&self, relative: &[u8]) -> Result<Self, PathError> {
        check(relative)?;
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + relative.len());
        bytes.extend_from_slice(&self.0);
        bytes.push(b'/');
        bytes.extend_from_slice(relative);
        Self::from_vec(bytes)
    }

    /// Whether this path lies below `ancestor` (a path does not lie below itself).
    pub fn is_below(&self, ancestor: &Self) -> bool {
        lies_below(&self.0, &ancestor.0)
    }

    /// What remains below `ancestor`; `None` where this path does not lie below it.
    pub fn strip(&self, ancestor: &Self) -> Option<Self> {
        self.is_below(ancestor).then(|| Self(self.0[ancestor.0.len() + 1..].to_vec()))
    }
}

impl Ord for RelPath {
    fn cmp(&self, other: &Self) -> Ordering {
        tree_order(&self.0, &other.0)
    }
}

impl PartialOrd for RelPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl std::str::FromStr for RelPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        Self::parse(text.as_bytes())
    }
}

impl TryFrom<Vec<u8>> for RelPath {
    type Error = PathError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, PathError> {
        Self::from_vec(bytes)
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(&self.0).fmt(f)
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelPath({})", escaped(&self.0))
    }
}

/// The one place where the invariants of [`RelPath`] stand. The limits come first, so a stranger's path costs no more than its bytes.
fn check(bytes: &[u8]) -> Result<(), PathError> {
    if bytes.is_empty() {
        return Err(PathError::Empty);
    }
    if bytes.len() > MAX_PATH {
        return Err(PathError::TooLong { length: bytes.len() });
    }
    if bytes[0] == b'/' {
        return Err(PathError::Absolute);
    }
    let mut depth = 0;
    for name in bytes.split(|&byte| byte == b'/') {
        depth += 1;
        match name {
            b"" => return Err(PathError::EmptyName),
            b"." | b".." => return Err(PathError::Dots),
            _ if name.len() > MAX_NAME => return Err(PathError::NameTooLong { length: name.len() }),
            _ if name.contains(&0) => return Err(PathError::Nul),
            _ => {}
        }
    }
    if depth > MAX_DEPTH {
        return Err(PathError::TooDeep { depth });
    }
    Ok(())
}

/// Tree order of two checked paths: as bytes, with `/` below every other byte.
pub(in crate::content) fn tree_order(a: &[u8], b: &[u8]) -> Ordering {
    let rank = |byte: u8| if byte == b'/' { 0 } else { byte };
    match a.iter().zip(b).find(|(x, y)| x != y) {
        Some((&x, &y)) => rank(x).cmp(&rank(y)),
        None => a.len().cmp(&b.len()),
    }
}

/// Whether `path` is `ancestor` followed by `/` and more.
pub(in crate::content) fn lies_below(path: &[u8], ancestor: &[u8]) -> bool {
    path.len() > ancestor.len() && path[ancestor.len()] == b'/' && path.starts_with(ancestor)
}

/// Whether a link at `path` with this `target` points out of the tree: it is absolute, or following it name by name
/// climbs above the top.
///
/// Lexical only: a target that passes through another link of the tree is judged as if that link were a directory.
pub fn symlink_escapes(path: &RelPath, target: &[u8]) -> bool {
    if target.first() == Some(&b'/') {
        return true;
    }
    let mut depth = path.depth() - 1;
    for name in target.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

/// Bytes as a person or a log may see them: what is not UTF-8 and ASCII's control characters as `\xNN`, other control and invisible
/// characters as `\u{N}`, a backslash doubled. No two different names look the same through escapes, and none can move a cursor.
pub fn escaped(bytes: &[u8]) -> impl fmt::Display + '_ {
    Escaped(bytes)
}

struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for run in self.0.utf8_chunks() {
            for letter in run.valid().chars() {
                match letter {
                    '\\' => f.write_str("\\\\")?,
                    '\0'..='\x1f' | '\x7f' => write!(f, "\\x{:02x}", u32::from(letter))?,
                    _ if is_invisible(letter) => write!(f, "\\u{{{:x}}}", u32::from(letter))?,
                    _ => f.write_char(letter)?,
                }
            }
            for byte in run.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Control, direction and zero-width characters, line and paragraph separators: what changes how the text around it
/// is shown, or shows nothing.
fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{80}'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}
