//! `dray ls`, `log`, `show`, `cat`: what there is in the store.
//!
//! Trees are streamed from the service to stdout: memory does not follow the number of files.
//!
//! With `--json` entries are one array; a listing that breaks off leaves it without its end, so that nobody takes it for
//! whole.

use super::error::Error;
use super::listing::list;
use super::output::{self, Array, Format, Side, clean};
use super::reference::{Reference, ReferenceParser};
use super::session::Session;
use super::units::{count, instant, size};
use crate::api::datasets::{Dataset, Version};
use crate::client::TransferError;
use crate::client::api::Api;
use crate::client::stored::{self, TreeSource};
use crate::content::path::{RelPath, escaped};
use crate::content::tree::{Entry, Kind, Time};
use data_encoding::BASE64;
use serde::Serialize;
use std::io::{self, Write};
use std::ops::ControlFlow;

/// A version, or a part of it.
#[derive(Debug, clap::Args)]
pub struct RefArgs {
    /// `DATASET[@V][:PATH]`
    #[arg(value_name = "REF", value_parser = ReferenceParser)]
    reference: Reference,
}

/// List the entries of a version; without REF, the datasets
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    /// `DATASET[@V][:PATH]`, or a prefix of datasets ending in `/`
    #[arg(value_name = "REF", value_parser = ReferenceParser)]
    reference: Option<Reference>,
}

/// One entry as `ls --json` shows it.
///
/// Its fields are stable for scripts. A field that does not apply to the kind is left out.
#[derive(Debug, Serialize)]
pub struct EntryDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Instead of `path` where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    /// `file`, `dir` or `symlink`.
    kind: &'static str,
    /// Bytes of a file; 0 for everything else.
    size: u64,
    /// Four octal digits. Symlinks have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    /// RFC 3339 in UTC with its fraction. Directories have none in a tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtime: Option<String>,
    /// BLAKE3 of a file's content, hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// A symlink's text; `target_b64` where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_b64: Option<String>,
    /// The first path of the same file, for its further names; `hardlink_b64` where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    hardlink: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hardlink_b64: Option<String>,
}

/// Text where the bytes are UTF-8, base64 where they are not.
fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(BASE64.encode(bytes))),
    }
}

/// Seconds and nanoseconds as plain numbers where the calendar does not reach.
fn time(time: Time) -> String {
    jiff::Timestamp::new(time.seconds, i32::try_from(time.nanos).unwrap_or_default())
        .map_or_else(|_| format!("{}.{:09}", time.seconds, time.nanos), |at| at.to_string())
}

impl From<&Entry> for EntryDocument {
    fn from(entry: &Entry) -> Self {
        let (path, path_b64) = text_or_base64(entry.path.as_bytes());
        let bare = Self {
            path,
            path_b64,
            kind: "dir",
            size: 0,
            mode: None,
            mtime: None,
            digest: None,
            target: None,
            target_b64: None,
            hardlink: None,
            hardlink_b64: None,
        };
        match &entry.kind {
            Kind::Dir { mode } => Self { mode: Some(format!("{mode:04o}")), ..bare },
            Kind::Symlink { mtime, target } => {
                let (target, target_b64) = text_or_base64(target);
                Self { kind: "symlink", mtime: Some(time(*mtime)), target, target_b64, ..bare }
            }
            Kind::File { size, mode, mtime, digest, hardlink } => {
                let first = hardlink.as_ref().map(|first| text_or_base64(first.as_bytes()));
                let (hardlink, hardlink_b64) = first.unwrap_or_default();
                Self {
                    kind: "file",
                    size: *size,
                    mode: Some(format!("{mode:04o}")),
                    mtime: Some(time(*mtime)),
                    digest: Some(digest.to_string()),
                    hardlink,
                    hardlink_b64,
                    ..bare
                }
            }
        }
    }
}

/// `-rw-r--r--    1.23 MiB  2026-11-30 14:18:58  path`
///
/// Names are escaped by their own `Display`.
fn human_entry(out: &mut dyn Write, entry: &Entry) -> io::Result<()> {
    let (letter, mode, bytes, mtime, target) = match &entry.kind {
        Kind::Dir { mode } => ('d', *mode, "-".to_owned(), None, None),
        Kind::File { size: bytes, mode, mtime, .. } => ('-', *mode, size(*bytes), Some(*mtime), None),
        Kind::Symlink { mtime, target } => ('l', 0o777, "-".to_owned(), Some(*mtime), Some(target)),
    };
    let bits: String =
        (0..9).map(|bit| if mode & (0o400 >> bit) != 0 { ['r', 'w', 'x'][bit % 3] } else { '-' }).collect();
    let at = mtime.map_or_else(String::new, |mtime| instant(&time(mtime)));
    write!(out, "{letter}{bits}  {bytes:>9}  {at:19}  {}", entry.path)?;
    match target {
        Some(target) => writeln!(out, " -> {}", escaped(target)),
        None => writeln!(out),
    }
}

/// A prefix ends in `/`, which no name of a dataset does.
pub async fn ls(session: &Session, args: LsArgs) -> Result<(), Error> {
    let api = session.api()?;
    match args.reference {
        Some(reference) if !reference.version.ends_with('/') => entries(session, &api, reference).await,
        prefix => {
            let prefix = prefix.map(|reference| reference.version).unwrap_or_default();
            let columns =
                [("DATASET", Side::Left), ("LATEST", Side::Left), ("VERSIONS", Side::Right), ("SIZE", Side::Right)];
            let query = [("prefix", prefix.as_str())];
            let query = if prefix.is_empty() { &query[..0] } else { &query[..] };
            list(session, &api, (&["v1", "datasets"], query), &columns, |dataset: &Dataset| {
                let latest = dataset.latest.clone().unwrap_or_else(|| "-".to_owned());
                vec![dataset.name.clone(), latest, count(dataset.versions), size(dataset.bytes)]
            })
            .await
        }
    }
}

/// Whether an entry is the wanted one or lies below it.
pub fn is_within(entry: &RelPath, wanted: Option<&RelPath>) -> bool {
    wanted.is_none_or(|wanted| entry == wanted || entry.is_below(wanted))
}

/// The whole tree is gone over also where a path is named: trees have no index.
async fn entries(session: &Session, api: &Api, reference: Reference) -> Result<(), Error> {
    let version = stored::resolve(api, &reference.version).await?;
    let source = TreeSource::open(api, &version).await?;
    let format = session.format;
    blocking(move || {
        let mut array = Array::new(io::BufWriter::new(io::stdout()));
        let mut out = io::BufWriter::new(io::stdout());
        let mut shown = 0_u64;
        for entry in source.entries()? {
            let entry = entry?;
            if !is_within(&entry.path, reference.path.as_ref()) {
                continue;
            }
            shown += 1;
            match format {
                Format::Json => array.item(&EntryDocument::from(&entry))?,
                Format::Human => human_entry(&mut out, &entry)?,
            }
        }
        if let (0, Some(path)) = (shown, &reference.path) {
            return Err(Error::NoPath { reference: version.reference.clone(), path: path.to_string() });
        }
        if format == Format::Json {
            array.end()?;
        }
        Ok(out.flush()?)
    })
    .await
}

/// Runs what reads a tree on a thread that may block.
///
/// A panic there becomes an error of this verb. A Ctrl-C does not stop the thread; `main` ends the process all the same.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|_| TransferError::Broken { what: "tree reader" })?
}

/// List the versions of a dataset, newest first
#[derive(Debug, clap::Args)]
pub struct LogArgs {
    #[arg(value_name = "DATASET", value_parser = ReferenceParser)]
    reference: Reference,
}

pub async fn log(session: &Session, args: LogArgs) -> Result<(), Error> {
    let api = session.api()?;
    let columns = [
        ("REF", Side::Left),
        ("CREATED", Side::Left),
        ("FILES", Side::Right),
        ("SIZE", Side::Right),
        ("DIGEST", Side::Left),
        ("NOTE", Side::Left),
    ];
    let query = [("dataset", args.reference.dataset())];
    list(session, &api, (&["v1", "versions"], &query), &columns, |version: &Version| {
        let notes = [(version.incomplete, "incomplete"), (version.late, "late")];
        let notes: Vec<&str> = notes.into_iter().filter_map(|(is, note)| is.then_some(note)).collect();
        vec![
            version.reference.clone(),
            instant(&version.created_at),
            count(version.files),
            size(version.bytes),
            version.digest.get(..12).unwrap_or(&version.digest).to_owned(),
            notes.join(", "),
        ]
    })
    .await
}

/// A document of the version, or of one entry of it.
pub async fn show(session: &Session, args: RefArgs) -> Result<(), Error> {
    let api = session.api()?;
    let version = stored::resolve(&api, &args.reference.version).await?;
    if let Some(path) = &args.reference.path {
        let found = stored::find(&api, &version, path).await?;
        let document = EntryDocument::from(&found.entry);
        output::show(session.format, &document, |out| human_entry(out, &found.entry))?;
        return Ok(());
    }
    output::show(session.format, &version, |out| {
        let mut facts = vec![
            ("version", version.reference.clone()),
            ("digest", version.digest.clone()),
            ("created", instant(&version.created_at)),
            ("size", size(version.bytes)),
            ("files", count(version.files)),
            ("directories", count(version.dirs)),
            ("symlinks", count(version.symlinks)),
            ("chunks", count(version.chunks)),
            ("packs", count(version.layout.packs)),
            ("id", version.id.clone()),
        ];
        if version.incomplete {
            facts.push(("incomplete", "some files could not be read when it was pushed".to_owned()));
        }
        if version.late {
            facts.push(("late", "an output that arrived after its lease had ended".to_owned()));
        }
        output::facts(out, &facts)
    })?;
    Ok(())
}

/// Streams one file to stdout. With `--json` there is no document: the bytes are the output.
///
/// Each chunk is verified before it is written, so what was printed is right even when the rest fails. A reader that closes
/// the pipe ends it with success.
pub async fn cat(session: &Session, args: RefArgs) -> Result<(), Error> {
    let api = session.api()?;
    let Some(path) = &args.reference.path else {
        return Err(Error::Usage { what: "no file is named".to_owned(), hint: "write `DATASET[@V]:PATH`" });
    };
    let version = stored::resolve(&api, &args.reference.version).await?;
    let found = stored::find(&api, &version, path).await?;
    if !matches!(found.entry.kind, Kind::File { .. }) {
        return Err(Error::NoPath {
            reference: version.reference,
            path: format!("{} that is a file", clean(&path.to_string())),
        });
    }
    let mut out = io::stdout();
    let mut wrong = None;
    stored::read_file(&api, &version, &found, |bytes| match out.write_all(bytes) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            wrong = Some(error);
            ControlFlow::Break(())
        }
    })
    .await?;
    match wrong {
        Some(error) => Err(error.into()),
        None => Ok(out.flush()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::digest::digest;

    fn file(path: &[u8]) -> Entry {
        let kind = Kind::File {
            size: 5,
            mode: 0o640,
            mtime: Time { seconds: 1_700_000_000, nanos: 1 },
            digest: digest(b"hello"),
            hardlink: None,
        };
        Entry { path: RelPath::parse(path).unwrap(), kind }
    }

    #[test]
    fn an_entry_as_json() {
        insta::assert_json_snapshot!(EntryDocument::from(&file(b"a/b")), @r#"
        {
          "path": "a/b",
          "kind": "file",
          "size": 5,
          "mode": "0640",
          "mtime": "2023-11-14T22:13:20.000000001Z",
          "digest": "ea8f163db38682925e4491c5e58d4bb3506ef8c14eb78a86e908c5624a67200f"
        }
        "#);
        let odd = EntryDocument::from(&file(b"a/\xff"));
        assert_eq!((odd.path, odd.path_b64.as_deref()), (None, Some("YS//")));
    }

    #[test]
    fn an_entry_for_people_cannot_drive_the_terminal() {
        let mut out = Vec::new();
        human_entry(&mut out, &file(b"a/\x1b[2J")).unwrap();
        let link = Kind::Symlink { mtime: Time { seconds: 0, nanos: 0 }, target: b"../x\n".to_vec() };
        human_entry(&mut out, &Entry { path: RelPath::parse(b"l").unwrap(), kind: link }).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        -rw-r-----        5 B  2023-11-14 22:13:20  a/\x1b[2J
        lrwxrwxrwx          -  1970-01-01 00:00:00  l -> ../x\x0a
        ");
    }
}
