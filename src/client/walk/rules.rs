//! What is left out: `--exclude` patterns and `.drayignore` files, both in gitignore syntax; and what alone is taken: globs.
//!
//! Only a file of the name `.drayignore` is read for rules. A `.gitignore` is data like any other file: it never drops a
//! team's data. An excluded directory is not entered.
//!
//! Precedence, as git has it: the last pattern that fits within one set of rules, and the nearest set that says anything. Patterns see
//! paths relative to the directory of their set, as bytes.

use crate::client::TransferError;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fd::OwnedFd;
use rustix::fs::Mode;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Name of the file that holds rules for its directory and below.
pub(super) const FILE: &[u8] = b".drayignore";
/// Longest rule file that is read.
/// A larger one is a failed item: going on without its rules would send what was meant to stay.
pub(super) const MAX_FILE: u64 = 1 << 20;

/// Reads the rule file of a directory, if there is one. A link or anything but a regular file is no rule file.
///
/// Gives the rules and the lines that are no pattern. An error means that there are rules which could not be read.
pub(super) fn read(dir: &OwnedFd) -> io::Result<Option<(Rules, Vec<String>)>> {
    let file = match rustix::fs::openat(dir, FILE, super::READ, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::from(Errno::FBIG));
    }
    Ok(Some(Rules::parse(&text)))
}

/// What a rule says about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Take,
    Leave,
    /// No pattern fits: the next set is asked.
    Silent,
}

/// One set of rules, relative to one directory.
#[derive(Debug)]
pub(super) struct Rules(Gitignore);

impl Rules {
    /// Reads the lines of a rule file. Lines that are no pattern are returned for a warning.
    pub fn parse(text: &[u8]) -> (Self, Vec<String>) {
        let mut builder = GitignoreBuilder::new("");
        let mut bad = Vec::new();
        for line in String::from_utf8_lossy(text).lines() {
            if builder.add_line(None, line).is_err() {
                bad.push(line.to_owned());
            }
        }
        (Self(builder.build().unwrap_or_else(|_| Gitignore::empty())), bad)
    }

    /// Patterns from the command line: a bad one is an error.
    pub fn given(patterns: &[String]) -> Result<Self, TransferError> {
        let bad = |pattern: &str| TransferError::BadPattern { pattern: pattern.to_owned() };
        let mut builder = GitignoreBuilder::new("");
        for pattern in patterns {
            builder.add_line(None, pattern).map_err(|_| bad(pattern))?;
        }
        builder.build().map(Self).map_err(|_| bad(&patterns.join(" ")))
    }

    /// `path` is relative to the rules' own directory. Only the path itself is judged, not those above: an excluded directory is not
    /// entered, so nothing below it is ever asked about.
    pub fn say(&self, path: &[u8], is_dir: bool) -> Verdict {
        match self.0.matched(Path::new(OsStr::from_bytes(path)), is_dir) {
            Match::None => Verdict::Silent,
            Match::Ignore(_) => Verdict::Leave,
            Match::Whitelist(_) => Verdict::Take,
        }
    }
}

/// Globs of which one must match; `*` stays within a component, `**` crosses.
#[derive(Debug)]
pub struct Globs(Option<GlobSet>);

impl Globs {
    /// No glob at all means that everything matches.
    pub fn new(globs: &[String]) -> Result<Self, TransferError> {
        if globs.is_empty() {
            return Ok(Self(None));
        }
        let bad = |pattern: &str| TransferError::BadPattern { pattern: pattern.to_owned() };
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(GlobBuilder::new(glob).literal_separator(true).build().map_err(|_| bad(glob))?);
        }
        set.build().map(|set| Self(Some(set))).map_err(|_| bad(&globs.join(" ")))
    }

    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    pub fn matches(&self, path: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|set| set.is_match(Path::new(OsStr::from_bytes(path))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gitignore_syntax_holds() {
        let (rules, bad) = Rules::parse(b"*.tmp\n!keep.tmp\n/build/\n# a comment\n");
        assert!(bad.is_empty());
        assert_eq!(rules.say(b"a/b.tmp", false), Verdict::Leave);
        assert_eq!(rules.say(b"a/keep.tmp", false), Verdict::Take);
        assert_eq!(rules.say(b"build", true), Verdict::Leave);
        assert_eq!(rules.say(b"build", false), Verdict::Silent);
        assert_eq!(rules.say(b"a/build", true), Verdict::Silent);
        assert_eq!(rules.say(b"odd-\xff.tmp", false), Verdict::Leave);
    }

    #[test]
    fn globs_keep_to_components() {
        let globs = Globs::new(&["detections/**".to_owned(), "*.csv".to_owned()]).unwrap();
        assert!(globs.matches(b"detections/a/b.json") && globs.matches(b"x.csv"));
        assert!(!globs.matches(b"other/x.csv") && !globs.matches(b"detections"));
        assert!(Globs::new(&["a[".to_owned()]).is_err());
        assert!(Globs::new(&[]).unwrap().matches(b"anything"));
    }
}
