//! `DATASET[@V][:PATH]`, as every verb that reads a version takes it. Pure.
//!
//! The dataset and version parts go to the service as they are; the path is checked here, as bytes.
//!
//! The first `:` divides, so a path may hold further ones; names of datasets cannot. Why bytes: files come from disks whose
//! names need not be UTF-8, and what was pushed must be reachable.

use crate::content::path::RelPath;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A version, or a file or subtree of it.
///
/// Well formed, not known to exist: the service resolves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// `DATASET[@V]`.
    pub version: String,
    /// Absent for the whole version.
    ///
    /// Checked: no `..`, no absolute path; a slash at the end is cut off.
    pub path: Option<RelPath>,
}

impl Reference {
    /// For clap: takes the argument's bytes, since a path need not be UTF-8.
    pub fn parse(argument: &OsStr) -> Result<Self, String> {
        let bytes = argument.as_bytes();
        let (version, path) = match bytes.iter().position(|byte| *byte == b':') {
            Some(colon) => (&bytes[..colon], Some(&bytes[colon + 1..])),
            None => (bytes, None),
        };
        let version = std::str::from_utf8(version).map_err(|_| "the dataset's name is not UTF-8".to_owned())?;
        if version.is_empty() || version.starts_with('@') {
            return Err("write `DATASET`, `DATASET@V` or `DATASET@V:PATH`".to_owned());
        }
        let trimmed = path.map(|path| path.strip_suffix(b"/").unwrap_or(path)).filter(|path| !path.is_empty());
        let path = trimmed.map(RelPath::parse).transpose().map_err(|error| error.to_string())?;
        Ok(Self { version: version.to_owned(), path })
    }

    /// The part before `@`.
    pub fn dataset(&self) -> &str {
        self.version.split_once('@').map_or(&self.version, |(dataset, _)| dataset)
    }

    /// Whether a version is named.
    ///
    /// `@latest` counts too, although it moves.
    pub fn is_pinned(&self) -> bool {
        self.version.contains('@')
    }
}

/// A clap parser for [`Reference`] over raw argument bytes.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceParser;

impl clap::builder::TypedValueParser for ReferenceParser {
    type Value = Reference;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Reference, clap::Error> {
        Reference::parse(value).map_err(|why| {
            let name = argument.map(ToString::to_string).unwrap_or_default();
            let shown = super::output::clean(&value.to_string_lossy());
            let text = format!("invalid value '{shown}' for '{name}': {why}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, text).with_cmd(command)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart() {
        let parse = |text: &str| Reference::parse(OsStr::new(text));
        let whole = parse("w/t").unwrap();
        assert_eq!((whole.version.as_str(), whole.path.is_none(), whole.is_pinned()), ("w/t", true, false));
        let part = parse("w/t@v3:a:b/c/").unwrap();
        assert_eq!((part.version.as_str(), part.dataset()), ("w/t@v3", "w/t"));
        assert_eq!(part.path.unwrap().as_bytes(), b"a:b/c");
        assert_eq!(parse("w/t:").unwrap().path, None);
        for bad in ["", "@v1", ":x", "w/t:../x", "w/t:/x", "w/t:a//b"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_need_not_be_utf8() {
        let parsed = Reference::parse(OsStr::from_bytes(b"w/t:\xff")).unwrap();
        assert_eq!(parsed.path.unwrap().as_bytes(), b"\xff");
    }
}
