//! The names in one directory, in byte order, in bounded memory.
//!
//! Names lie in one arena and are sorted by index. A directory whose names do not fit is sorted in runs, which are spilled to
//! unlinked temporary files and merged while they are read. What was listed is a snapshot: later changes are found by `stat`.
//!
//! `readdir` gives names in the order of the file system's own tables, and a tree needs them sorted: a directory of ten million names
//! would take hundreds of megabytes of heap, hence the runs. They hold `length u16 | name` each, and are gone with their handles.

use rustix::fd::OwnedFd;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

/// Bytes a name costs besides itself: its span.
const PER_NAME: usize = 8;
/// Even a directory deep below other large ones may hold this much in memory.
pub(super) const LEAST_BUDGET: usize = 1 << 20;

/// Sorted names, handed out one by one, each once.
#[derive(Debug)]
pub(super) enum Names {
    Memory { arena: Arena, next: usize },
    Spilled(Merge),
}

impl Names {
    /// Lists the directory, whole, before the first name is handed out; `budget` bounds the bytes held in memory, but for
    /// [`LEAST_BUDGET`]. An error is one of the listing or of the temporary file.
    pub fn list(dir: &OwnedFd, budget: usize, temp: Option<&Path>) -> io::Result<Self> {
        let mut arena = Arena::default();
        let mut runs = Vec::new();
        for entry in rustix::fs::Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if arena.held() + name.len() + PER_NAME > budget.max(LEAST_BUDGET) {
                runs.push(arena.spill(temp)?);
                arena.clear();
            }
            arena.push(name);
        }
        arena.sort();
        if runs.is_empty() {
            arena.shrink();
            return Ok(Self::Memory { arena, next: 0 });
        }
        runs.push(arena.spill(temp)?);
        Ok(Self::Spilled(Merge::open(runs)?))
    }

    /// Bytes held in memory; of spilled names the buffers of the runs that still have some.
    pub fn held(&self) -> usize {
        match self {
            Self::Memory { arena, .. } => arena.held(),
            Self::Spilled(merge) => merge.heads.len() * (64 << 10),
        }
    }

    pub fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Memory { arena, next } => {
                let name = arena.get(*next).map(<[u8]>::to_vec);
                *next += 1;
                Ok(name)
            }
            Self::Spilled(merge) => merge.next(),
        }
    }

    /// All names, when they are in memory: for comparing them with each other.
    pub fn in_memory(&self) -> Option<&Arena> {
        match self {
            Self::Memory { arena, .. } => Some(arena),
            Self::Spilled(_) => None,
        }
    }
}

/// Names one after the other, and where each lies.
/// Two allocations for a whole directory, where a `Vec` of names would make one for each.
#[derive(Debug, Default)]
pub(super) struct Arena {
    bytes: Vec<u8>,
    /// Start and length.
    spans: Vec<(u32, u16)>,
}

impl Arena {
    fn push(&mut self, name: &[u8]) {
        // The budget keeps the arena far below 4 GiB, the kernel keeps names at 255 bytes.
        let start = u32::try_from(self.bytes.len()).expect("the budget bounds the arena");
        self.spans.push((start, u16::try_from(name.len()).unwrap_or(u16::MAX)));
        self.bytes.extend_from_slice(&name[..name.len().min(usize::from(u16::MAX))]);
    }

    fn held(&self) -> usize {
        self.bytes.len() + self.spans.len() * PER_NAME
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.spans.shrink_to_fit();
    }

    fn slice(bytes: &[u8], span: (u32, u16)) -> &[u8] {
        &bytes[span.0 as usize..span.0 as usize + usize::from(span.1)]
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.spans.sort_unstable_by(|a, b| Self::slice(bytes, *a).cmp(Self::slice(bytes, *b)));
    }

    fn get(&self, at: usize) -> Option<&[u8]> {
        self.spans.get(at).map(|span| Self::slice(&self.bytes, *span))
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.spans.iter().map(|span| Self::slice(&self.bytes, *span))
    }

    /// Sorts, writes a run and rewinds it; the arena keeps its names until it is cleared.
    fn spill(&mut self, temp: Option<&Path>) -> io::Result<File> {
        self.sort();
        let file = match temp {
            Some(dir) => tempfile::tempfile_in(dir)?,
            None => tempfile::tempfile()?,
        };
        let mut out = BufWriter::with_capacity(64 << 10, file);
        for name in self.iter() {
            out.write_all(&u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes())?;
            out.write_all(name)?;
        }
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(file)
    }
}

/// Sorted runs, merged: a heap with the next name of each. Memory: 64 KiB and one name a run.
#[derive(Debug)]
pub(super) struct Merge {
    runs: Vec<BufReader<File>>,
    heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
}

impl Merge {
    fn open(files: Vec<File>) -> io::Result<Self> {
        let runs = files.into_iter().map(|file| BufReader::with_capacity(64 << 10, file)).collect();
        let mut merge = Self { runs, heads: BinaryHeap::new() };
        for run in 0..merge.runs.len() {
            merge.refill(run)?;
        }
        Ok(merge)
    }

    fn refill(&mut self, run: usize) -> io::Result<()> {
        let mut length = [0; 2];
        match self.runs[run].read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut name = vec![0; usize::from(u16::from_le_bytes(length))];
        self.runs[run].read_exact(&mut name)?;
        self.heads.push(Reverse((name, run)));
        Ok(())
    }

    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(Reverse((name, run))) = self.heads.pop() else { return Ok(None) };
        self.refill(run)?;
        Ok(Some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spilled_and_held_names_come_in_the_same_order() {
        let dir = tempfile::tempdir().unwrap();
        let long = "x".repeat(180);
        let mut want: Vec<Vec<u8>> =
            (0..8000u32).map(|n| format!("{}-{long}", n.wrapping_mul(2_654_435_761) % 65_537).into_bytes()).collect();
        want.iter().for_each(|name| drop(File::create(dir.path().join(std::str::from_utf8(name).unwrap())).unwrap()));
        want.sort();
        want.dedup();
        let open = || OwnedFd::from(File::open(dir.path()).unwrap());
        for budget in [0, 16 << 20] {
            let mut names = Names::list(&open(), budget, None).unwrap();
            assert_eq!(matches!(names, Names::Spilled(_)), budget == 0);
            let mut got = Vec::new();
            while let Some(name) = names.next().unwrap() {
                got.push(name);
            }
            assert!(got == want, "budget {budget}");
        }
    }
}
