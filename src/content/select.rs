//! A part of a version: a subtree, or what a job's globs and shards pick, as a tree and layout of its own.
//!
//! The pairs that come out hold together like those of a whole version: the directories on the way to a picked entry
//! come along, and a hard link whose first file was not picked becomes a file with that file's bytes (the next links of
//! its group then lead to it). So they can be written by `TreeWriter`, planned, staged or archived without a second
//! thought.
//!
//! Memory: the directories on the way, and the places of first files that were not picked (see
//! [`Leaders`]).

#[cfg(test)]
mod tests;

use super::layout::{FileLayout, Line};
use super::merge::{Error, Leaders, MAX_GROUPS, Pair};
use super::path::RelPath;
use super::tree::{Entry, Kind};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// When a directory is in a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directories {
    /// When it is kept, as every entry, or on the way to one that is.
    Picked,
    /// On the way only: one without anything that is kept is left out.
    OnTheWay,
}

/// What to take of a version.
#[derive(Debug, Clone)]
pub struct Selection<F> {
    root: Option<RelPath>,
    directories: Directories,
    keep: F,
    orphans: Leaders,
}

impl<F: Fn(&RelPath) -> bool> Selection<F> {
    /// Prepares a selection with a first walk over the same pairs that will be selected from; trees known to be without
    /// hard links may pass an empty walk.
    ///
    /// `root` is a directory whose contents are wanted (paths come out relative to it) or a single file (comes out under
    /// its base name); without it the whole tree. `keep` is asked with paths as they come out, must always answer the
    /// same, and need not answer for the directories on the way to what it keeps.
    pub fn survey(
        root: Option<RelPath>,
        directories: Directories,
        keep: F,
        pairs: impl Iterator<Item = Result<Pair, Error>>,
    ) -> Result<Self, Error> {
        let mut selection = Self { root, directories, keep, orphans: Leaders::default() };
        for pair in pairs {
            let (entry, _) = pair?;
            let Kind::File { hardlink: Some(first), size, .. } = &entry.kind else { continue };
            if *size > 0 && selection.picked(&entry.path).is_some() && selection.picked(first).is_none() {
                selection.orphans.want(first)?;
            }
        }
        Ok(selection)
    }

    /// The second walk: the selected pairs.
    pub fn select<I: Iterator<Item = Result<Pair, Error>>>(&self, pairs: I) -> Selected<'_, F, I> {
        Selected {
            selection: self,
            pairs,
            leaders: self.orphans.afresh(),
            promoted: HashMap::new(),
            on_the_way: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// The path below the root, whether it is kept or not.
    fn placed(&self, path: &RelPath) -> Option<RelPath> {
        match &self.root {
            None => Some(path.clone()),
            Some(root) if root == path => RelPath::parse(path.name()).ok(),
            Some(root) => path.strip(root),
        }
    }

    fn picked(&self, path: &RelPath) -> Option<RelPath> {
        self.placed(path).filter(|placed| (self.keep)(placed))
    }
}

/// The selected pairs in tree order. After an error it yields nothing of use.
#[derive(Debug)]
pub struct Selected<'a, F, I> {
    selection: &'a Selection<F>,
    pairs: I,
    leaders: Leaders,
    /// First files that were not picked, and the path that now stands for each.
    promoted: HashMap<RelPath, RelPath>,
    /// Directories that are there for the sake of something in them, on the way to the current path, not yet given out.
    on_the_way: Vec<Pair>,
    ready: VecDeque<Pair>,
}

impl<F: Fn(&RelPath) -> bool, I: Iterator<Item = Result<Pair, Error>>> Selected<'_, F, I> {
    fn take(&mut self, (mut entry, line): Pair) -> Result<(), Error> {
        let Some(path) = self.selection.placed(&entry.path) else { return self.pass(&entry.path, line) };
        // a root that is a directory is the place itself and no entry
        let is_dir = matches!(entry.kind, Kind::Dir { .. });
        if is_dir && self.selection.root.as_ref() == Some(&entry.path) {
            return Ok(());
        }
        while self.on_the_way.last().is_some_and(|(dir, _)| !path.is_below(&dir.path)) {
            self.on_the_way.pop();
        }
        let keep = (self.selection.keep)(&path);
        if is_dir && (!keep || self.selection.directories == Directories::OnTheWay) {
            entry.path = path;
            self.on_the_way.push((entry, line));
            return Ok(());
        }
        if !keep {
            return self.pass(&entry.path, line);
        }
        entry.path = path;
        let pair = self.relink(entry, line)?;
        self.ready.extend(self.on_the_way.drain(..));
        self.ready.push_back(pair);
        Ok(())
    }

    /// Something that is not picked goes by.
    fn pass(&mut self, path: &RelPath, line: Option<Line>) -> Result<(), Error> {
        if let Some(Line::File(layout)) = line
            && !self.leaders.is_empty()
        {
            self.leaders.pass(path, &Arc::new(layout))?;
        }
        Ok(())
    }

    /// Lets a hard link lead to something that is in the selection, or makes it a file of its own.
    fn relink(&mut self, mut entry: Entry, line: Option<Line>) -> Result<Pair, Error> {
        let Kind::File { hardlink, size, .. } = &mut entry.kind else { return Ok((entry, line)) };
        let Some(first) = hardlink.take() else { return Ok((entry, line)) };
        *hardlink = self.selection.picked(&first).or_else(|| self.promoted.get(&first).cloned());
        if hardlink.is_some() {
            return Ok((entry, line));
        }
        let line = match self.leaders.get(&first) {
            Some(layout) => Some(Line::File(FileLayout::clone(layout))),
            None if *size == 0 => None,
            None => return Err(Error::HardLink { path: entry.path, target: first }),
        };
        if self.promoted.len() >= MAX_GROUPS {
            return Err(Error::TooManyGroups);
        }
        self.promoted.insert(first, entry.path.clone());
        Ok((entry, line))
    }
}

impl<F: Fn(&RelPath) -> bool, I: Iterator<Item = Result<Pair, Error>>> Iterator for Selected<'_, F, I> {
    type Item = Result<Pair, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pair) = self.ready.pop_front() {
                return Some(Ok(pair));
            }
            match self.pairs.next()? {
                Ok(pair) => {
                    if let Err(error) = self.take(pair) {
                        return Some(Err(error));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
