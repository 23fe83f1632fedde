//! Which entries of a version a job stages, and where in its directory they come to lie.
//!
//! Pure, streaming, shared by the service and the agent: both compute the same tree from the same inputs, so that a receipt's tree digest can be
//! checked. Memory: the directories on the way to the next entry, and a path for each group of
//! hard links (`MAX_GROUPS`) whose first name is not staged. Rules:
//!
//! * what is chosen is said by a [`Rule`], the same for pulls;
//! * with `include` or `shard` a directory is staged only for the sake of something in it, else every directory is;
//! * a hard link stays one while its first name is chosen too, else it is a file with those bytes, and the next names of its group link to it;
//! * a single file as the subtree is what was asked for: patterns and shards choose among the entries of a directory.

mod rule;

pub use rule::{Rule, weight};

use super::job::BadGlob;
use super::shard::Shard;
use crate::content::digest::Digest;
use crate::content::merge::MAX_GROUPS;
use crate::content::path::{Profile, RelPath, symlink_escapes};
use crate::content::select::Directories;
use crate::content::tree::{Counts, Entry, Kind, TreeReader, TreeWriter};
use std::collections::HashMap;
use std::io::BufRead;

/// Mode of directories that no version speaks of: the parents of `at`, and `at` itself.
pub const DIR_MODE: u32 = 0o755;

/// One input's choice, compiled.
///
/// ```text
/// new -> [needs_weighing? weigh: a first walk] -> Picker: a second walk over the same tree
/// ```
#[derive(Debug, Clone)]
pub struct Selection {
    /// Where the subtree (or file) comes to lie in the job's directory.
    pub at: RelPath,
    /// File or directory of the version; all of it when `None`.
    pub subtree: Option<RelPath>,
    rule: Rule,
    /// Not dealt yet.
    shard: Option<Shard>,
    links: OutsideLinks,
}

/// Whether symlinks that point out of what is staged are staged as text or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutsideLinks {
    /// [`Error::OutsideLink`] names the first one met.
    Refuse,
    /// Staged with their target as it is; nothing here or in the pull follows it.
    Keep,
}

/// An input as declared.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub at: &'a str,
    /// Empty for the whole version.
    pub subtree: &'a [u8],
    pub include: &'a [String],
    pub exclude: &'a [String],
    pub shard: Option<&'a str>,
    pub links: OutsideLinks,
}

/// Why an input cannot be staged.
/// All but [`Error::Tree`] and [`Error::NotWeighed`] are the job's fault and name what to change in it; the former is the
/// store's, the latter ours.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Glob(#[from] BadGlob),
    #[error("`{0}` is not a relative path")]
    Path(String),
    #[error("`{0}` is not `i/n`")]
    Shard(String),
    #[error("the shards of an input were asked for before its files were weighed")]
    NotWeighed,
    #[error("an input has more than {MAX_GROUPS} groups of hard links whose first names are not staged")]
    TooManyGroups,
    #[error("`{0}` is neither a file nor a directory of the version")]
    NoSuchPath(RelPath),
    #[error(
        "the symlink `{path}` points out of what is staged; say `allow_outside_links = true` on the input to stage it as text"
    )]
    OutsideLink { path: RelPath },
    #[error("`{path}` would lie too deep or too long below its input's `at`; choose a shorter one")]
    TooLong { path: String },
    #[error("the tree of an input cannot be read")]
    Tree(#[source] crate::content::tree::Error),
}

impl Selection {
    pub fn new(input: &Input<'_>) -> Result<Self, Error> {
        let path = |bytes: &[u8]| {
            RelPath::parse(bytes).map_err(|_| Error::Path(String::from_utf8_lossy(bytes).escape_debug().to_string()))
        };
        let shard =
            input.shard.map(|text| Shard::parse(text).ok_or_else(|| Error::Shard(text.to_owned()))).transpose()?;
        Ok(Self {
            at: path(input.at.as_bytes())?,
            subtree: if input.subtree.is_empty() { None } else { Some(path(input.subtree)?) },
            rule: Rule::new(input.include, input.exclude)?,
            shard,
            links: input.links,
        })
    }

    /// Whether every entry of the version is staged.
    pub fn is_whole(&self) -> bool {
        self.subtree.is_none() && self.rule.is_all() && self.shard.is_none()
    }

    /// Whether [`Self::weigh`] is to be called before the selection is used.
    pub fn needs_weighing(&self) -> bool {
        self.shard.is_some()
    }

    /// Goes over the version once to deal its files to shards; `tree` is the same version that will be picked from, from its
    /// start. Without a shard it is not read. Costs 512 KiB while it runs.
    pub fn weigh<R: BufRead>(self, tree: TreeReader<R>) -> Result<Self, Error> {
        let Some(shard) = self.shard else { return Ok(self) };
        let files = tree.filter_map(|entry| match entry {
            Ok(entry) => Some(Ok((self.relative(&entry.path)?.to_vec(), weight(&entry.kind)?))),
            Err(error) => Some(Err(Error::Tree(error))),
        });
        let rule = self.rule.clone().sharded(shard, files)?;
        Ok(Self { rule, shard: None, ..self })
    }

    /// The part of `path` below the staged subtree; `None` outside of it or for the subtree itself.
    fn relative<'p>(&self, path: &'p RelPath) -> Option<&'p [u8]> {
        match &self.subtree {
            None => Some(path.as_bytes()),
            Some(root) if path.is_below(root) => path.as_bytes().get(root.as_bytes().len() + 1..),
            Some(_) => None,
        }
    }

    fn place(&self, relative: &[u8]) -> Result<RelPath, Error> {
        let too_long = |_| Error::TooLong { path: String::from_utf8_lossy(relative).escape_debug().to_string() };
        self.at.join(relative).map_err(too_long)
    }
}

/// An entry and where it goes.
#[derive(Debug, Clone)]
pub struct Placed {
    /// With its path in the job's directory.
    pub entry: Entry,
    /// Path in the version; `None` for a directory that is there for `at` only.
    pub source: Option<RelPath>,
    /// Where the layout has this file's bytes when that is not `source`: a hard link whose first member is not staged as such.
    pub data_of: Option<RelPath>,
}

/// Walks one version's tree in order and gives out what is staged of it.
#[derive(Debug)]
pub struct Picker<'a> {
    selection: &'a Selection,
    /// Directories not yet needed by anything in them.
    pending: Vec<Placed>,
    /// First names that are not staged, and the staged path that stands for each.
    promoted: HashMap<RelPath, RelPath>,
    root: Root,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    Unseen,
    Placed,
}

impl<'a> Picker<'a> {
    pub fn new(selection: &'a Selection) -> Self {
        Self { selection, pending: Vec::new(), promoted: HashMap::new(), root: Root::Unseen }
    }

    /// Takes the next entry of the version and appends what it adds to the job's directory, in the order of its paths: a
    /// parent comes out before what lies in it. Entries must come in the tree's order, all of them. After an error the
    /// picker is of no further use.
    pub fn push(&mut self, entry: &Entry, out: &mut Vec<Placed>) -> Result<(), Error> {
        if self.selection.shard.is_some() {
            return Err(Error::NotWeighed);
        }
        if let Some(root) = &self.selection.subtree
            && entry.path == *root
        {
            return self.push_subtree(entry, out);
        }
        let selection = self.selection;
        let Some(relative) = selection.relative(&entry.path) else { return Ok(()) };
        self.place_root(out);
        self.pending.retain(|dir| dir.source.as_ref().is_some_and(|source| entry.path.is_below(source)));
        let rule = &selection.rule;
        match (&entry.kind, rule.directories()) {
            (Kind::Dir { .. }, Directories::OnTheWay) => {
                let dir = self.placed(entry, relative)?;
                self.pending.push(dir);
                return Ok(());
            }
            (Kind::Dir { .. }, Directories::Picked) if !rule.picks(relative) => return Ok(()),
            (Kind::File { .. } | Kind::Symlink { .. }, _) if !rule.takes(relative) => return Ok(()),
            _ => {}
        }
        if let Kind::Symlink { target, .. } = &entry.kind
            && self.selection.links == OutsideLinks::Refuse
            && RelPath::parse(relative).is_ok_and(|below| symlink_escapes(&below, target))
        {
            return Err(Error::OutsideLink { path: entry.path.clone() });
        }
        out.append(&mut self.pending);
        out.push(self.placed(entry, relative)?);
        Ok(())
    }

    /// After the last entry; to be called also for an empty version, which still places `at`. Fails when the subtree was not
    /// there.
    pub fn finish(&mut self, out: &mut Vec<Placed>) -> Result<(), Error> {
        match (&self.selection.subtree, self.root) {
            (Some(root), Root::Unseen) => Err(Error::NoSuchPath(root.clone())),
            _ => {
                self.place_root(out);
                Ok(())
            }
        }
    }

    fn push_subtree(&mut self, entry: &Entry, out: &mut Vec<Placed>) -> Result<(), Error> {
        match &entry.kind {
            Kind::Dir { .. } => self.place_root(out),
            Kind::Symlink { .. } => return Err(Error::NoSuchPath(entry.path.clone())),
            Kind::File { size, mode, mtime, digest, hardlink } => {
                self.root = Root::Placed;
                let kind = Kind::File { size: *size, mode: *mode, mtime: *mtime, digest: *digest, hardlink: None };
                let entry_there = Entry { path: self.selection.at.clone(), kind };
                out.push(Placed { entry: entry_there, source: Some(entry.path.clone()), data_of: hardlink.clone() });
            }
        }
        Ok(())
    }

    fn place_root(&mut self, out: &mut Vec<Placed>) {
        if self.root == Root::Unseen {
            self.root = Root::Placed;
            let entry = Entry { path: self.selection.at.clone(), kind: Kind::Dir { mode: DIR_MODE } };
            out.push(Placed { entry, source: self.selection.subtree.clone(), data_of: None });
        }
    }

    /// A link whose first name is staged stays a link to it. Else the first of its group becomes the file (`data_of` says
    /// whose bytes) and is remembered for those that follow.
    fn placed(&mut self, entry: &Entry, relative: &[u8]) -> Result<Placed, Error> {
        let path = self.selection.place(relative)?;
        let (mut kind, mut data_of) = (entry.kind.clone(), None);
        if let Kind::File { hardlink, .. } = &mut kind
            && let Some(first) = hardlink.take()
        {
            let below = self.selection.relative(&first).filter(|below| self.selection.rule.takes(below));
            let staged = below.map(|below| self.selection.place(below)).transpose()?;
            *hardlink = staged.or_else(|| self.promoted.get(&first).cloned());
            if hardlink.is_none() {
                if self.promoted.len() >= MAX_GROUPS {
                    return Err(Error::TooManyGroups);
                }
                self.promoted.insert(first.clone(), path.clone());
                data_of = Some(first);
            }
        }
        Ok(Placed { entry: Entry { path, kind }, source: Some(entry.path.clone()), data_of })
    }
}

/// The tree of a job's directory without `out`: every input's entries under its `at`, the parents of each `at` before them.
/// The digest is the one that a readiness receipt must name; it depends on the inputs' trees and rules alone, not on the
/// order they are given in.
///
/// `inputs` weighed where they need it; their places must not clash (see [`super::job::check`]). Reads each tree once, one
/// after the other; nothing is kept of what was written.
pub fn staged_tree<R: BufRead>(inputs: Vec<(Selection, TreeReader<R>)>) -> Result<(Digest, Counts), Error> {
    staged_tree_of(inputs.into_iter().map(|(selection, tree)| (selection, || Ok::<_, Error>(tree))).collect())
}

/// The same of trees that are opened when their turn comes, so that one is open at a time: an open one holds a window of
/// several MiB.
pub fn staged_tree_of<R: BufRead, E: From<Error>>(
    mut inputs: Vec<(Selection, impl FnOnce() -> Result<TreeReader<R>, E>)>,
) -> Result<(Digest, Counts), E> {
    inputs.sort_by(|left, right| left.0.at.cmp(&right.0.at));
    let mut writer = TreeWriter::new(std::io::sink(), Profile::Posix).map_err(Error::Tree)?;
    let (mut out, mut parents): (Vec<Placed>, Vec<RelPath>) = (Vec::new(), Vec::new());
    for (selection, open) in inputs {
        for parent in parents_of(&selection.at) {
            if !parents.contains(&parent) {
                writer
                    .write(&Entry { path: parent.clone(), kind: Kind::Dir { mode: DIR_MODE } })
                    .map_err(Error::Tree)?;
                parents.push(parent);
            }
        }
        let mut picker = Picker::new(&selection);
        for entry in open()? {
            picker.push(&entry.map_err(Error::Tree)?, &mut out)?;
            write_all(&mut writer, &mut out)?;
        }
        picker.finish(&mut out)?;
        write_all(&mut writer, &mut out)?;
    }
    let (digest, counts, _) = writer.finish().map_err(Error::Tree)?;
    Ok((digest, counts))
}

fn write_all(writer: &mut TreeWriter<std::io::Sink>, out: &mut Vec<Placed>) -> Result<(), Error> {
    out.drain(..).try_for_each(|placed| writer.write(&placed.entry).map_err(Error::Tree))
}

/// Room that a disk must have for this much to be staged: a file takes at least a block more than its bytes, a directory
/// one. An estimate, on the high side for most file systems; the plan and the agent reckon by the same one.
pub fn space_needed(counts: &Counts) -> u64 {
    const BLOCK: u64 = 4096;
    counts.bytes.saturating_add(counts.files.saturating_add(counts.dirs).saturating_mul(BLOCK))
}

/// The directories above `path`, topmost first.
pub fn parents_of(path: &RelPath) -> Vec<RelPath> {
    let mut above = Vec::new();
    let mut next = path.parent();
    while let Some(parent) = next {
        next = parent.parent();
        above.push(parent);
    }
    above.reverse();
    above
}

#[cfg(test)]
mod tests;
