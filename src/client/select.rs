//! Which part of a version a pull or a verification is about.
//!
//! A selection is a walk over the version's documents that leaves things out; it can be walked as often as needed. A file as
//! root is put *at* DEST, so its entry takes DEST's name.
//!
//! ```text
//! PATH given, a directory   entries below it, relative to it          include, exclude, shard apply
//! PATH given, a file        that file alone, under DEST's name        they do not
//! no PATH                   the whole tree                            they apply
//! ```

use super::context::TransferError;
use super::download::Fetched;
use crate::api::datasets::Version;
use crate::content::digest::Digest;
use crate::content::merge::{Error, Pair};
use crate::content::path::{Profile, RelPath, symlink_escapes};
use crate::content::select::Selection;
use crate::content::tree::{Kind, TreeWriter};
use crate::domain::selection::{Rule, weight};
use crate::domain::shard::Shard;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Links out of the tree that are named in an error.
const NAMED: usize = 20;

type Keep = Box<dyn Fn(&RelPath) -> bool + Send + Sync>;

/// Which part of the version.
#[derive(Debug, Clone, Default)]
pub struct Select {
    /// This file or subtree, put *at* DEST.
    /// [`TransferError::NoPath`] where the version has nothing there.
    pub path: Option<RelPath>,
    /// Of the entries of the selected directory, those that a [`Rule`] of these picks; a single file is taken as it is.
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    /// Dealt after `include` and `exclude`, over what they leave, by the rule that stagings use too.
    pub shard: Option<Shard>,
}

/// The chosen part.
/// Holds the version's documents, not its entries; cheap to clone. Every walk gives the same pairs in the same order.
#[derive(Clone)]
pub(super) struct Chosen {
    version: Version,
    fetched: Fetched,
    /// None = everything.
    selection: Option<Arc<Selection<Keep>>>,
    /// The root is a single file.
    pub is_file: bool,
    /// Name that the single file gets.
    rename: Option<RelPath>,
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chosen").field("version", &self.version.reference).finish_non_exhaustive()
    }
}

impl Chosen {
    /// Reads the tree once where something is selected, to see that the root is there and which links lead where.
    pub fn of(select: &Select, version: &Version, fetched: &Fetched) -> Result<Self, TransferError> {
        let mut chosen =
            Self { version: version.clone(), fetched: fetched.clone(), selection: None, is_file: false, rename: None };
        if let Some(path) = &select.path {
            chosen.is_file = chosen.root_is_file(path)?;
        }
        if select.path.is_none() && select.include.is_empty() && select.exclude.is_empty() && select.shard.is_none() {
            return Ok(chosen);
        }
        let rule = if chosen.is_file { Rule::new(&[], &[]) } else { Rule::new(&select.include, &select.exclude) };
        let mut rule = rule.map_err(|error| TransferError::BadPattern { pattern: error.0 })?;
        if let Some(shard) = select.shard.filter(|_| !chosen.is_file) {
            rule = chosen.weighed(rule, shard, select.path.as_ref())?;
        }
        let directories = rule.directories();
        let keep: Keep = Box::new(move |path| rule.takes(path.as_bytes()));
        let selection = Selection::survey(select.path.clone(), directories, keep, chosen.all()?);
        chosen.selection = Some(Arc::new(selection.map_err(|error| chosen.bad(&error))?));
        Ok(chosen)
    }

    /// The directory that the entries lie in when they are put at `dest`.
    /// For a single file the one above DEST; `.` where DEST is a bare name.
    pub fn directory(&self, dest: &Path) -> PathBuf {
        match self.is_file {
            true => dest.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned(),
            false => dest.to_owned(),
        }
    }

    /// The same, a single file under `dest`'s name.
    /// To be said before the walk; without effect on a directory.
    pub fn named_at(mut self, dest: &Path) -> Self {
        if self.is_file {
            self.rename = dest.file_name().and_then(|name| RelPath::parse(name.as_bytes()).ok());
        }
        self
    }

    /// The chosen entries with their lines, in tree order.
    /// They hold together like those of a whole version: parents first, hard links only to what is chosen. Blocks on the temporary files.
    pub fn pairs(&self) -> Result<Box<dyn Iterator<Item = Result<Pair, Error>> + Send + '_>, TransferError> {
        let all = self.all()?;
        let Some(selection) = &self.selection else { return Ok(Box::new(all)) };
        let selected = selection.select(all);
        Ok(match &self.rename {
            None => Box::new(selected),
            Some(name) => Box::new(selected.map(|pair| {
                pair.map(|(mut entry, line)| {
                    entry.path = name.clone();
                    (entry, line)
                })
            })),
        })
    }

    /// An error when a chosen symlink points out of the tree.
    /// One more walk, before anything is written. Lexical, see [`symlink_escapes`].
    pub fn refuse_outside_links(&self) -> Result<(), TransferError> {
        let (mut count, mut paths) = (0, Vec::new());
        for pair in self.pairs()? {
            let (entry, _) = pair.map_err(|error| self.bad(&error))?;
            if let Kind::Symlink { target, .. } = &entry.kind
                && symlink_escapes(&entry.path, target)
            {
                count += 1;
                if paths.len() < NAMED {
                    paths.push(entry.path.to_string());
                }
            }
        }
        if count == 0 { Ok(()) } else { Err(TransferError::OutsideLinks { count, paths }) }
    }

    /// The tree digest of exactly what was chosen.
    /// That of the version where all is chosen; else one more walk. A pull reports it as `selected_digest`.
    pub fn digest(&self) -> Result<Digest, TransferError> {
        if self.selection.is_none() {
            return self.version.digest.parse().map_err(|_| self.broken("its digest is none"));
        }
        let mut writer =
            TreeWriter::new(io::sink(), Profile::Posix).map_err(|error| self.broken(&error.to_string()))?;
        for pair in self.pairs()? {
            let (entry, _) = pair.map_err(|error| self.bad(&error))?;
            writer.write(&entry).map_err(|error| self.broken(&error.to_string()))?;
        }
        Ok(writer.finish().map_err(|error| self.broken(&error.to_string()))?.0)
    }

    /// A shard is dealt by the weights of all files, so they are walked once before anything can be selected.
    fn weighed(&self, rule: Rule, shard: Shard, root: Option<&RelPath>) -> Result<Rule, TransferError> {
        let files = self.all()?.filter_map(|pair| match pair {
            Ok((entry, _)) => {
                let below = match root {
                    Some(root) => entry.path.strip(root)?,
                    None => entry.path,
                };
                Some(Ok((below.as_bytes().to_vec(), weight(&entry.kind)?)))
            }
            Err(error) => Some(Err(self.bad(&error))),
        });
        rule.sharded(shard, files)
    }

    fn all(&self) -> Result<impl Iterator<Item = Result<Pair, Error>> + Send + use<>, TransferError> {
        self.fetched.open().map_err(|error| self.bad(&error))
    }

    /// Reads no further than tree order requires. A symlink counts as a file: it is put at DEST, not followed.
    fn root_is_file(&self, root: &RelPath) -> Result<bool, TransferError> {
        for pair in self.all()? {
            let (entry, _) = pair.map_err(|error| self.bad(&error))?;
            if entry.path == *root {
                return Ok(!matches!(entry.kind, Kind::Dir { .. }));
            }
            if entry.path > *root {
                break;
            }
        }
        Err(TransferError::NoPath { reference: self.version.reference.clone(), path: root.to_string() })
    }

    fn bad(&self, error: &Error) -> TransferError {
        self.broken(&error.to_string())
    }

    fn broken(&self, why: &str) -> TransferError {
        let reference = self.version.reference.clone();
        TransferError::BadVersion { reference, what: "tree or layout", why: why.to_owned() }
    }
}
