//! Names that people type: datasets, and references to a version and a path within it.
//!
//! `DATASET[@VERSION][:PATH]`, the same for the command line, job files and the API. Nothing here looks anything up: a parsed
//! reference is well-formed, not existing. Dataset names never reach keys or headers of the store; they may still appear in
//! URLs and logs, so their alphabet is small.

use std::fmt;
use std::str::FromStr;

use crate::content::path::{PathError, RelPath};

/// Longest dataset name: four parts of 64 and three slashes.
pub const MAX_DATASET_NAME: usize = 4 * 64 + 3;
/// Fewest hex digits by which a version may be named. 32 bits: within one dataset two digests hardly ever share them, and
/// where they do, it is told ([`super::version::Unresolved::Ambiguous`]).
pub const MIN_DIGEST_PREFIX: usize = 8;

/// What is wrong with a name or reference.
/// Each text says how a good one looks; what was typed is quoted escaped and cut, so that it may go to a terminal or a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "`{0}` is no dataset name; use 1 to 4 parts like `warehouse/aisle-cams`, each of lower-case letters, digits, `.`, `_`, `-`, beginning with a letter or digit, 64 at most"
    )]
    Dataset(String),
    #[error(
        "`@{0}` names no version; use `@latest`, a number like `@v3`, or at least {MIN_DIGEST_PREFIX} lower-case hex digits of its digest"
    )]
    Version(String),
    #[error("the path after `:` cannot be used; give it relative to the dataset's root")]
    Path(#[source] PathError),
    #[error("`{0}` is not UTF-8 before the `:`; only the path may be")]
    NotText(String),
}

/// A dataset's name: 1 to 4 parts of `[a-z0-9][a-z0-9._-]{0,63}`, joined by `/`.
/// Lower case only: two names that some file system or person would take for one cannot both exist. No part begins with `.`,
/// so `..` is no name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatasetName(String);

impl DatasetName {
    pub fn parse(name: &str) -> Result<Self, Error> {
        let parts = name.split('/');
        if name.len() <= MAX_DATASET_NAME && parts.clone().count() <= 4 && parts.clone().all(is_part) {
            Ok(Self(name.to_owned()))
        } else {
            Err(Error::Dataset(shown(name.as_bytes())))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_part(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    part.len() <= 64
        && part.bytes().next().is_some_and(plain)
        && part.bytes().all(|b| plain(b) || matches!(b, b'.' | b'_' | b'-'))
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DatasetName {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self, Error> {
        Self::parse(name)
    }
}

impl AsRef<str> for DatasetName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// A version's number within its dataset, shown as `v3`. Numbers begin at 1 and are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionNumber(u64);

impl VersionNumber {
    pub const FIRST: Self = Self(1);

    /// `None` for 0 and for what a database cannot count.
    pub fn new(number: u64) -> Option<Self> {
        (number > 0 && i64::try_from(number).is_ok()).then_some(Self(number))
    }

    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for VersionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

/// The first hex digits of a tree digest; at least [`MIN_DIGEST_PREFIX`], so that it says which version is meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DigestPrefix(String);

impl DigestPrefix {
    pub fn parse(hex: &str) -> Option<Self> {
        let fits = (MIN_DIGEST_PREFIX..=64).contains(&hex.len());
        (fits && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))).then(|| Self(hex.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The lowest and the highest digest that begin so, both included.
    /// In the order of bytes, so that a database finds them by an index over the digest instead of a search in text.
    pub fn range(&self) -> ([u8; 32], [u8; 32]) {
        (self.filled(b'0'), self.filled(b'f'))
    }

    fn filled(&self, with: u8) -> [u8; 32] {
        let digit = |i: usize| {
            let hex = self.0.as_bytes().get(i).copied().unwrap_or(with);
            if hex.is_ascii_digit() { hex - b'0' } else { hex - b'a' + 10 }
        };
        std::array::from_fn(|i| digit(2 * i) << 4 | digit(2 * i + 1))
    }
}

/// Which version of a dataset is meant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Selector {
    /// The newest complete one.
    #[default]
    Latest,
    Number(VersionNumber),
    /// The newest one whose digest begins so.
    Digest(DigestPrefix),
}

impl FromStr for Selector {
    type Err = Error;

    /// What stands after the `@`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |digits: &str| {
            let canonical = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
            digits.parse().ok().filter(|_| canonical).and_then(VersionNumber::new).map(Self::Number)
        };
        let selector = match text {
            "latest" => Some(Self::Latest),
            _ => match text.strip_prefix('v') {
                Some(digits) => number(digits),
                None => DigestPrefix::parse(text).map(Self::Digest),
            },
        };
        selector.ok_or_else(|| Error::Version(shown(text.as_bytes())))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Number(number) => number.fmt(f),
            Self::Digest(prefix) => f.write_str(&prefix.0),
        }
    }
}

/// `DATASET[@VERSION][:PATH]`, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRef {
    pub dataset: DatasetName,
    /// [`Selector::Latest`] where nothing is said.
    pub version: Selector,
    /// `None` is the root.
    pub path: Option<RelPath>,
}

impl DatasetRef {
    /// Parses what a person typed. The path may be any bytes and may itself hold `@` and `:`; one trailing slash is forgiven.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let (before, path) = match text.iter().position(|b| *b == b':') {
            Some(colon) => (&text[..colon], &text[colon + 1..]),
            None => (text, &[][..]),
        };
        let before = std::str::from_utf8(before).map_err(|_| Error::NotText(shown(before)))?;
        let (dataset, version) = match before.split_once('@') {
            Some((dataset, version)) => (dataset, version.parse()?),
            None => (before, Selector::Latest),
        };
        let dataset = DatasetName::parse(dataset)?;
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let path = if path.is_empty() { None } else { Some(RelPath::parse(path).map_err(Error::Path)?) };
        Ok(Self { dataset, version, path })
    }
}

impl FromStr for DatasetRef {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text.as_bytes())
    }
}

impl fmt::Display for DatasetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.dataset, self.version)?;
        match &self.path {
            Some(path) => write!(f, ":{path}"),
            None => Ok(()),
        }
    }
}

/// Text for an error message: escaped, and cut where it is long.
fn shown(text: &[u8]) -> String {
    let cut = &text[..text.len().min(80)];
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("{}{dots}", cut.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        DatasetRef::from_str(text).unwrap().to_string()
    }

    #[test]
    fn references_are_read_as_people_write_them() {
        assert_eq!(parsed("warehouse/aisle-cams"), "warehouse/aisle-cams@latest");
        assert_eq!(parsed("w/t@v3"), "w/t@v3");
        assert_eq!(parsed("w@latest:a/b.mov"), "w@latest:a/b.mov");
        assert_eq!(parsed("w/t:a@b:c"), "w/t@latest:a@b:c", "the path may hold what separates the rest");
        assert_eq!(parsed("w/t@0123abcd:sub/"), "w/t@0123abcd:sub");
        assert_eq!(DatasetRef::from_str("w/t:").unwrap().path, None);
        let raw = DatasetRef::parse(b"w/t@v1:\xff\xfe").unwrap();
        assert_eq!(raw.path.unwrap().as_bytes(), b"\xff\xfe");
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for name in ["", "/", "a/", "/a", "a//b", "A", "a b", "a/b/c/d/e", ".a", "-a", "a/../b", "ä", "a\0", "a\n"] {
            assert!(matches!(DatasetName::parse(name), Err(Error::Dataset(_))), "{name:?}");
        }
        assert!(DatasetName::parse(&"a".repeat(65)).is_err());
        assert!(DatasetName::parse(&["a".repeat(64).as_str(); 4].join("/")).is_ok());
        for version in [
            "",
            "v0",
            "v",
            "v01",
            "v-1",
            "v+1",
            "3",
            "0123abc",
            "0123ABCD",
            "V3",
            "Latest",
            "v99999999999999999999",
            &"a".repeat(65),
        ] {
            assert!(matches!(version.parse::<Selector>(), Err(Error::Version(_))), "{version:?}");
        }
        for path in ["w:/abs", "w:a/../b", "w:.", "w:a//b", "w:a/\0"] {
            assert!(matches!(DatasetRef::from_str(path), Err(Error::Path(_))), "{path:?}");
        }
        assert!(matches!(DatasetRef::parse(b"\xff@v1"), Err(Error::NotText(_))));
    }

    #[test]
    fn messages_never_carry_control_characters() {
        let error = DatasetName::parse("a\u{1b}]0;x\u{7}").unwrap_err().to_string();
        assert!(!error.chars().any(char::is_control), "{error}");
        assert!(DatasetName::parse(&"x ".repeat(10_000)).unwrap_err().to_string().len() < 400);
    }

    #[test]
    fn a_digest_prefix_spans_exactly_what_begins_with_it() {
        let (low, high) = DigestPrefix::parse("0123456789a").unwrap().range();
        assert_eq!(low[..6], [0x01, 0x23, 0x45, 0x67, 0x89, 0xa0]);
        assert_eq!(high[..6], [0x01, 0x23, 0x45, 0x67, 0x89, 0xaf]);
        assert!(low[6..].iter().all(|b| *b == 0) && high[6..].iter().all(|b| *b == 0xff));
        let whole = "ab".repeat(32);
        let (low, high) = DigestPrefix::parse(&whole).unwrap().range();
        assert_eq!((low, high), ([0xab; 32], [0xab; 32]));
    }
}
