//! `dray diff`: what changed between two versions, from their trees alone.
//!
//! Both trees are walked once, side by side, in tree order; nothing is kept but the two entries at hand.
//!
//! Trees name content by digest, so no file's bytes are fetched. With one REF, the version before it is the older side.
//! Exit 0 with and without differences; exit 1 means that it could not be found out.

use super::browse::{EntryDocument, blocking, is_within};
use super::error::Error;
use super::output::{Array, Format};
use super::reference::{Reference, ReferenceParser};
use super::session::Session;
use super::units::{count, size};
use crate::api::datasets::Version;
use crate::client::TransferError;
use crate::client::api::Api;
use crate::client::stored::{self, TreeSource};
use crate::content::path::RelPath;
use crate::content::tree::{Entry, Kind};
use serde::Serialize;
use std::cmp::Ordering;
use std::io::{self, Write};
use std::iter::Peekable;

/// Show what changed from one version to another
#[derive(Debug, clap::Args)]
pub struct DiffArgs {
    /// `DATASET[@V][:PATH]`; alone it is compared with the version before it. A path on either side holds for both
    #[arg(value_name = "REF", value_parser = ReferenceParser)]
    first: Reference,
    /// The newer side
    #[arg(value_name = "REF", value_parser = ReferenceParser)]
    second: Option<Reference>,
}

/// How an entry differs.
///
/// In the order of the closing counts, which are kept by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Added,
    Removed,
    /// Another kind, other bytes or another link target.
    Modified,
    /// The same bytes; another mode, time or hard link.
    Metadata,
}

/// A stable document for scripts: the newer entry's fields (the older one's of what was removed), and `was` where both
/// exist.
#[derive(Debug, Serialize)]
struct Row {
    change: Change,
    #[serde(flatten)]
    entry: EntryDocument,
    /// The entry as it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<EntryDocument>,
}

pub async fn run(session: &Session, args: DiffArgs) -> Result<(), Error> {
    let path = one_path(&args)?;
    let api = session.api()?;
    let (old, new) = match &args.second {
        Some(second) => {
            (stored::resolve(&api, &args.first.version).await?, stored::resolve(&api, &second.version).await?)
        }
        None => {
            let new = stored::resolve(&api, &args.first.version).await?;
            (before(&api, &new).await?, new)
        }
    };
    let (old, new) = (TreeSource::open(&api, &old).await?, TreeSource::open(&api, &new).await?);
    let format = session.format;
    blocking(move || {
        let wanted = |entry: &Result<Entry, TransferError>| {
            entry.as_ref().map_or(true, |entry| is_within(&entry.path, path.as_ref()))
        };
        let (old, new) = (old.entries()?.filter(wanted), new.entries()?.filter(wanted));
        let mut array = Array::new(io::BufWriter::new(io::stdout()));
        let mut out = io::BufWriter::new(io::stdout());
        let mut counts = [0_u64; 4];
        walk(old.peekable(), new.peekable(), |change, entry, was| {
            counts[change as usize] += 1;
            match format {
                Format::Json => array.item(&Row { change, entry: entry.into(), was: was.map(Into::into) })?,
                Format::Human => human(&mut out, change, entry, was)?,
            }
            Ok(())
        })?;
        match format {
            Format::Json => _ = array.end()?,
            Format::Human => {
                let [added, removed, modified, metadata] = counts.map(count);
                writeln!(out, "{added} added, {removed} removed, {modified} modified, {metadata} only mode or time")?;
                out.flush()?;
            }
        }
        Ok(())
    })
    .await
}

/// Both sides are compared below one path: entries of two different ones have no names in common.
fn one_path(args: &DiffArgs) -> Result<Option<RelPath>, Error> {
    let second = args.second.as_ref().and_then(|second| second.path.as_ref());
    match (&args.first.path, second) {
        (Some(first), Some(second)) if first != second => Err(Error::Usage {
            what: format!("`{first}` and `{second}` are two different paths"),
            hint: "compare one path of two versions, or two versions as a whole",
        }),
        (first, second) => Ok(second.or(first.as_ref()).cloned()),
    }
}

/// The version before `version` in its dataset.
///
/// Versions are listed newest first, so it is the next one listed. One that was deleted in between is passed over.
async fn before(api: &Api, version: &Version) -> Result<Version, Error> {
    let mut cursor = None;
    let mut found = false;
    loop {
        let page =
            api.page::<Version>(&["v1", "versions"], &[("dataset", &version.dataset)], cursor.as_deref()).await?;
        for older in page.items {
            if found {
                return Ok(older);
            }
            found = older.id == version.id;
        }
        cursor = page.next;
        if cursor.is_none() {
            return Err(Error::Absent {
                what: format!("`{}` has no version before it", version.reference),
                hint: "name two versions: `dray diff OLD NEW`",
            });
        }
    }
}

type Side<I> = Peekable<I>;

/// Walks two sorted streams and tells every difference.
///
/// Both must be in tree order, as every tree is. An error on either side ends it at once: what follows could not be told
/// apart.
fn walk<A, B>(
    mut old: Side<A>,
    mut new: Side<B>,
    mut tell: impl FnMut(Change, &Entry, Option<&Entry>) -> Result<(), Error>,
) -> Result<(), Error>
where
    A: Iterator<Item = Result<Entry, TransferError>>,
    B: Iterator<Item = Result<Entry, TransferError>>,
{
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return Ok(()),
            (Some(Err(_)), _) | (_, None) => Ordering::Less,
            (_, Some(Err(_))) | (None, _) => Ordering::Greater,
            (Some(Ok(old)), Some(Ok(new))) => old.path.cmp(&new.path),
        };
        match order {
            Ordering::Less => {
                if let Some(entry) = old.next() {
                    tell(Change::Removed, &entry?, None)?;
                }
            }
            Ordering::Greater => {
                if let Some(entry) = new.next() {
                    tell(Change::Added, &entry?, None)?;
                }
            }
            Ordering::Equal => {
                if let (Some(old), Some(new)) = (old.next(), new.next()) {
                    let (old, new) = (old?, new?);
                    if let Some(change) = compare(&old.kind, &new.kind) {
                        tell(change, &new, Some(&old))?;
                    }
                }
            }
        }
    }
}

/// None for equal ones. The kind decides first, then content, then the rest.
fn compare(old: &Kind, new: &Kind) -> Option<Change> {
    if old == new {
        return None;
    }
    let same_content = match (old, new) {
        (Kind::File { digest: old, .. }, Kind::File { digest: new, .. }) => old == new,
        (Kind::Symlink { target: old, .. }, Kind::Symlink { target: new, .. }) => old == new,
        (Kind::Dir { .. }, Kind::Dir { .. }) => true,
        _ => false,
    };
    Some(if same_content { Change::Metadata } else { Change::Modified })
}

/// `+`, `-`, `~` for other content, `.` for what is only mode, time or hard link.
fn human(out: &mut dyn Write, change: Change, entry: &Entry, was: Option<&Entry>) -> io::Result<()> {
    let bytes = |entry: &Entry| match &entry.kind {
        Kind::File { size: bytes, .. } => size(*bytes),
        Kind::Dir { .. } => "directory".to_owned(),
        Kind::Symlink { .. } => "symlink".to_owned(),
    };
    match (change, was) {
        (Change::Added, _) => writeln!(out, "+ {}  {}", entry.path, bytes(entry)),
        (Change::Removed, _) => writeln!(out, "- {}  {}", entry.path, bytes(entry)),
        (Change::Modified, Some(was)) => writeln!(out, "~ {}  {} -> {}", entry.path, bytes(was), bytes(entry)),
        (Change::Modified | Change::Metadata, _) => writeln!(out, ". {}  {}", entry.path, bytes(entry)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::digest::digest;
    use crate::content::tree::Time;

    fn file(path: &str, content: &str, mode: u32) -> Result<Entry, TransferError> {
        let mtime = Time { seconds: 0, nanos: 0 };
        let size = content.len() as u64;
        let kind = Kind::File { size, mode, mtime, digest: digest(content.as_bytes()), hardlink: None };
        Ok(Entry { path: RelPath::parse(path.as_bytes()).unwrap(), kind })
    }

    #[test]
    fn all_changes_are_told_in_order() {
        let old = vec![file("a", "1", 0o644), file("b", "1", 0o644), file("c", "1", 0o644), file("e", "1", 0o644)];
        let new = vec![file("b", "22", 0o644), file("c", "1", 0o755), file("d", "1", 0o644), file("e", "1", 0o644)];
        let mut out = Vec::new();
        walk(old.into_iter().peekable(), new.into_iter().peekable(), |change, entry, was| {
            Ok(human(&mut out, change, entry, was)?)
        })
        .unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        - a  1 B
        ~ b  1 B -> 2 B
        . c  1 B
        + d  1 B
        ");
    }

    #[test]
    fn one_path_holds_for_both_sides() {
        let path = |first: &str, second: Option<&str>| {
            let parse = |text: &str| Reference::parse(text.as_ref()).unwrap();
            let path = one_path(&DiffArgs { first: parse(first), second: second.map(parse) });
            path.map(|path| path.map(|path| path.to_string()))
        };
        assert_eq!(path("a@v1", Some("a@v2")).unwrap(), None);
        for (first, second) in
            [("a:x", None), ("a@v1:x", Some("a@v2")), ("a@v1", Some("a@v2:x")), ("a:x", Some("b:x/"))]
        {
            assert_eq!(path(first, second).unwrap().as_deref(), Some("x"), "{first} {second:?}");
        }
        assert!(matches!(path("a:x", Some("b:y")), Err(Error::Usage { .. })));
    }

    #[test]
    fn a_damaged_side_ends_the_walk() {
        let broken = vec![file("a", "1", 0o644), Err(TransferError::Broken { what: "x" })];
        let whole = vec![file("a", "1", 0o644), file("b", "1", 0o644)];
        let ended = walk(broken.into_iter().peekable(), whole.into_iter().peekable(), |_, _, _| Ok(()));
        assert!(ended.is_err());
    }
}
