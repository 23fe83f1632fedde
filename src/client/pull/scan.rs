//! What is at DEST already: kept where it is right, replaced where a pull wrote it or the caller says so, else told before
//! anything is changed.
//!
//! Files are compared by digest: from the record where their stamps did not change and are settled, else by reading them. The
//! decisions are one byte an entry, in a temporary file, in the order of the entries.
//!
//! Directories are never replaced, and nothing but a directory may stand where one belongs: that is [`TransferError::InTheWay`], whatever
//! the options say.

use super::dest::{Dest, Dirs, Missing, in_the_way, local, look};
use super::file::may_resume;
use super::large::read_back;
use super::resume::left_of;
use crate::client::context::TransferError;
use crate::client::download::{place, temporary};
use crate::client::stat_cache;
use crate::client::walk::{READ, Stamp};
use crate::content::digest::digest;
use crate::content::layout::{FileLayout, Line};
use crate::content::merge::Pair;
use crate::content::path::RelPath;
use crate::content::tree::{Entry, Kind};
use rustix::fs::{FileType, Mode, Stat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Paths of files in the way that are named.
const NAMED: usize = 20;

/// What to do with one entry. A directory is made where it is missing, whatever is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::client) enum Decision {
    Fetch = 0,
    /// Its bytes are right: mode and times are all that is set. Judged again when its turn comes, since it may be gone by then.
    Keep = 1,
}

/// Decisions in the order of the entries.
#[derive(Debug)]
pub(in crate::client) enum Decisions {
    /// Nothing is there, or nothing is asked: every entry is fetched.
    FetchAll,
    Spooled {
        file: BufReader<File>,
        /// For messages: the file has no name.
        place: PathBuf,
    },
}

impl Decisions {
    /// The next entry's. Asked exactly once an entry, in order; the planner walks the same selection as the scan did.
    pub fn next(&mut self) -> Result<Decision, TransferError> {
        let Self::Spooled { file, place } = self else { return Ok(Decision::Fetch) };
        let mut byte = [0];
        file.read_exact(&mut byte).map_err(TransferError::local(&*place))?;
        Ok(if byte[0] == Decision::Keep as u8 { Decision::Keep } else { Decision::Fetch })
    }
}

/// What a scan found.
#[derive(Debug)]
pub(in crate::client) struct Scanned {
    pub decisions: Decisions,
    /// Bytes that are to be written, holes left out, and what earlier pulls left of them.
    pub needed: u64,
    /// Names of the parts of large files that will be taken over.
    pub parts: HashSet<String>,
}

/// How to judge what is there.
#[derive(Debug)]
pub(in crate::client) struct Scan<'a> {
    pub dest: &'a Arc<Dest>,
    pub record: stat_cache::Reader,
    /// Further names of hard links that a pull made; see [`Records::links`](super::record::Records::links).
    pub links: stat_cache::Reader,
    /// What differs is replaced, whoever wrote it.
    pub overwrite: bool,
    /// For the decisions.
    pub temp: Option<&'a Path>,
    /// Ids of earlier pulls that did not end, one a line.
    pub earlier: Option<&'a str>,
}

impl Scan<'_> {
    /// Looks at every entry. Nothing is changed.
    ///
    /// Reads every file of the right size whose stamp the record cannot vouch for, so it may take as long as the disk takes. Ends with
    /// [`TransferError::WouldOverwrite`] after all were looked at, with the first few and the count.
    pub fn run(
        mut self,
        reference: &str,
        pairs: impl Iterator<Item = Result<Pair, crate::content::merge::Error>>,
    ) -> Result<Scanned, TransferError> {
        let (mut out, place) = (BufWriter::new(temporary(self.temp)?), place(self.temp));
        let mut dirs = Dirs::new(Arc::clone(self.dest));
        let (mut needed, mut count, mut named) = (0_u64, 0_u64, Vec::new());
        let mut parts = HashSet::new();
        for pair in pairs {
            let (entry, line) = pair.map_err(|error| TransferError::BadVersion {
                reference: reference.to_owned(),
                what: "tree or layout",
                why: error.to_string(),
            })?;
            let found = self.entry(&mut dirs, &entry)?;
            if found == Found::Foreign && !self.overwrite {
                count += 1;
                if named.len() < NAMED {
                    named.push(entry.path.to_string());
                }
            }
            let decision = if found == Found::Equal { Decision::Keep } else { Decision::Fetch };
            if let (Decision::Fetch, Some(Line::File(layout))) = (decision, &line) {
                let data = layout.segments.iter().filter(|segment| segment.pack.is_some());
                let size = data.map(|segment| segment.raw).sum::<u64>();
                let left = self.left_of(&mut dirs, &entry, layout);
                needed += size.saturating_sub(left.as_ref().map_or(0, |(_, bytes)| *bytes));
                parts.extend(left.map(|(part, _)| part));
            }
            out.write_all(&[decision as u8]).map_err(TransferError::local(&*place))?;
        }
        if count > 0 {
            return Err(TransferError::WouldOverwrite { dest: self.dest.path.clone(), count, paths: named });
        }
        let ended = out.into_inner().map_err(std::io::IntoInnerError::into_error);
        let mut file = ended.map_err(TransferError::local(&*place))?;
        file.rewind().map_err(TransferError::local(&*place))?;
        Ok(Scanned { decisions: Decisions::Spooled { file: BufReader::new(file), place }, needed, parts })
    }

    /// What an earlier pull left of a file.
    fn left_of(&self, dirs: &mut Dirs, entry: &Entry, layout: &FileLayout) -> Option<(String, u64)> {
        let (Some(runs), Kind::File { size, digest, .. }) = (self.earlier, &entry.kind) else { return None };
        if !may_resume(*size, layout) {
            return None;
        }
        let dir = dirs.parent(&entry.path, Missing::Fail).ok()?;
        left_of(dir, runs, entry.path.name(), digest)
    }

    /// What lies behind a directory that may not be read counts as nothing: the planner opens it up, or says why it cannot.
    fn entry(&mut self, dirs: &mut Dirs, entry: &Entry) -> Result<Found, TransferError> {
        let path = &entry.path;
        let dir = match dirs.parent(path, Missing::Fail) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(Found::Nothing),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(in_the_way(path, "one of the directories on the way is a link or a file"));
            }
            // Unreadable directories of ours are opened up when they are written to.
            Err(Errno::ACCESS) => return Ok(Found::Nothing),
            Err(error) => return Err(local(&self.dest.path, error)),
        };
        let stat = match look(dir, path.name()) {
            Ok(Some(stat)) => stat,
            Ok(None) | Err(Errno::ACCESS) => return Ok(Found::Nothing),
            Err(Errno::NAMETOOLONG | Errno::ILSEQ | Errno::INVAL) => return Ok(Found::Nothing),
            Err(error) => return Err(local(&self.dest.path, error)),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        match &entry.kind {
            Kind::Dir { .. } if kind == FileType::Directory => Ok(Found::Equal),
            Kind::Dir { .. } => Err(in_the_way(path, "a directory belongs there, and something else is")),
            _ if kind == FileType::Directory => Err(in_the_way(path, "a directory is where something else belongs")),
            Kind::Symlink { target, .. } => Ok(self.symlink(dir, path, &stat, target)),
            Kind::File { .. } => self.file(dir, entry, &stat),
        }
    }

    fn symlink(&mut self, dir: rustix::fd::BorrowedFd<'_>, path: &RelPath, stat: &Stat, target: &[u8]) -> Found {
        let stamp = Stamp::of(stat);
        let _ = self.record.find(path, &stamp);
        let there = rustix::fs::readlinkat(dir, path.name(), Vec::new());
        if there.is_ok_and(|there| there.to_bytes() == target) {
            return Found::Equal;
        }
        if self.record.wrote(path, &stamp).is_some() { Found::Ours } else { Found::Foreign }
    }

    /// The records are asked for every file, equal or not: they must be read in order.
    ///
    /// A file with several names is no pull's for that: whoever else links files would lose theirs.
    fn file(&mut self, dir: rustix::fd::BorrowedFd<'_>, entry: &Entry, stat: &Stat) -> Result<Found, TransferError> {
        let Kind::File { size, digest: wanted, .. } = &entry.kind else { return Ok(Found::Nothing) };
        let stamp = Stamp::of(stat);
        let settled = self.record.find(&entry.path, &stamp);
        let _ = self.links.find(&entry.path, &stamp);
        let ours = [&self.record, &self.links].iter().any(|record| record.wrote(&entry.path, &stamp).is_some());
        let differs = if ours { Found::Ours } else { Found::Foreign };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stamp.size != *size {
            return Ok(differs);
        }
        if let Some(known) = settled {
            return Ok(if known == *wanted { Found::Equal } else { differs });
        }
        let actual = match rustix::fs::openat(dir, entry.path.name(), READ, Mode::empty()) {
            Ok(file) => read_back(&file, *size).ok(),
            // Not readable, so not comparable: replaced if it is ours.
            Err(_) => None,
        };
        Ok(if actual == Some(*wanted) { Found::Equal } else { differs })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Equal,
    /// Differs, and a pull wrote it.
    Ours,
    /// Differs, and who knows who wrote it.
    Foreign,
}

/// The digest under which a symlink stands in the record.
pub(in crate::client) fn link_digest(target: &[u8]) -> crate::content::digest::Digest {
    digest(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_the_decisions_names_their_directory() {
        let mut decisions =
            Decisions::Spooled { file: BufReader::new(tempfile::tempfile().unwrap()), place: "/their/place".into() };
        let Err(TransferError::Local { path, .. }) = decisions.next() else { panic!("they have ended") };
        assert_eq!(path, Path::new("/their/place"));
    }
}
