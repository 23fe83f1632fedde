//! What every sequence of entries must hold, whether it is written or read.
//!
//! One walk in order suffices: the open directories are a stack, so memory follows the depth and not the count.
//!
//! It is why a reader may believe an order, a parent or a sum without looking back: `TreeReader` and `TreeWriter` both go through it.

use super::super::digest::{Digest, digest};
use super::super::path::{Profile, RelPath, Twins, lies_below, portable};
use super::entry::{Counts, Entry, Error, Fault, Kind, MAX_FILE_SIZE, MAX_TARGET, Time};

#[derive(Debug)]
pub(super) struct Checker {
    twins: Option<Twins>,
    previous: Option<RelPath>,
    previous_is_dir: bool,
    /// Lengths of the prefixes of `previous` that are directories already named.
    open: Vec<usize>,
    counts: Counts,
    digest_of_nothing: Digest,
}

/// What the checker becomes with an entry.
#[derive(Debug)]
pub(super) struct Next {
    counts: Counts,
    /// How many of the open directories stay open.
    depth: usize,
}

impl Checker {
    pub(super) fn new(profile: Profile) -> Self {
        Self {
            twins: (profile == Profile::Portable).then(Twins::new),
            previous: None,
            previous_is_dir: false,
            open: Vec::new(),
            counts: Counts::default(),
            digest_of_nothing: digest(b""),
        }
    }

    /// Takes the next entry; one that is refused leaves the checker as it was (names seen by a twin check excepted).
    pub(super) fn add(&mut self, entry: &Entry) -> Result<(), Error> {
        let step = self.check(entry)?;
        self.take(entry, step);
        Ok(())
    }

    /// Whether the entry may come next. Nothing changes before it is taken (names seen by a twin check excepted).
    pub(super) fn check(&mut self, entry: &Entry) -> Result<Next, Error> {
        let counts = self.values(entry)?;
        let depth = self.place(entry)?;
        if let Some(twins) = &mut self.twins {
            portable(&entry.path).map_err(|source| Error::NotPortable { path: entry.path.clone(), source })?;
            twins.add(&entry.path).map_err(|source| Error::Twin { path: entry.path.clone(), source })?;
        }
        Ok(Next { counts, depth })
    }

    /// Takes an entry that was checked just before.
    pub(super) fn take(&mut self, entry: &Entry, Next { counts, depth }: Next) {
        self.counts = counts;
        self.open.truncate(depth);
        match &mut self.previous {
            Some(previous) => previous.assign(&entry.path),
            None => self.previous = Some(entry.path.clone()),
        }
        self.previous_is_dir = matches!(entry.kind, Kind::Dir { .. });
        if self.previous_is_dir {
            self.open.push(entry.path.as_bytes().len());
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Order and parents. Answers how many of the open directories stay open.
    fn place(&self, entry: &Entry) -> Result<usize, Error> {
        let path = entry.path.as_bytes();
        let before = self.previous.as_ref().map_or(&b""[..], RelPath::as_bytes);
        if let Some(previous) = &self.previous {
            if *previous >= entry.path {
                return Err(Error::Order { path: entry.path.clone(), previous: previous.clone() });
            }
            // what lies below a path comes directly after it, so a file or link as a parent can only be the previous one
            if !self.previous_is_dir && lies_below(path, before) {
                return Err(Error::PrefixConflict { path: entry.path.clone(), parent: previous.clone() });
            }
        }
        let still_open = |&&length: &&usize| lies_below(path, &before[..length]);
        let depth = self.open.iter().take_while(still_open).count();
        let parent = depth.checked_sub(1).map(|top| self.open[top]);
        if entry.path.parent_bytes().map(<[u8]>::len) != parent {
            return Err(Error::MissingParent { path: entry.path.clone() });
        }
        Ok(depth)
    }

    /// The values of one entry. Answers the counts with it.
    fn values(&self, entry: &Entry) -> Result<Counts, Error> {
        let fault = |fault| Error::Value { path: entry.path.clone(), fault };
        let mode_ok = |mode: u32| if mode & !0o777 == 0 { Ok(()) } else { Err(fault(Fault::Mode)) };
        let time_ok = |time: Time| if time.is_valid() { Ok(()) } else { Err(fault(Fault::Time)) };
        let mut counts = self.counts;
        match &entry.kind {
            Kind::File { size, mode, mtime, digest, hardlink } => {
                mode_ok(*mode)?;
                time_ok(*mtime)?;
                if *size > MAX_FILE_SIZE {
                    return Err(fault(Fault::Size));
                }
                if *size == 0 && *digest != self.digest_of_nothing {
                    return Err(fault(Fault::EmptyDigest));
                }
                counts.files += 1;
                match hardlink {
                    Some(first) if *first >= entry.path => return Err(fault(Fault::HardLink)),
                    Some(_) => {}
                    // kept within what SQL and JSON readers hold
                    None => {
                        counts.bytes = counts
                            .bytes
                            .checked_add(*size)
                            .filter(|&sum| i64::try_from(sum).is_ok())
                            .ok_or_else(|| fault(Fault::Size))?;
                    }
                }
            }
            Kind::Dir { mode } => {
                mode_ok(*mode)?;
                counts.dirs += 1;
            }
            Kind::Symlink { mtime, target } => {
                time_ok(*mtime)?;
                if target.is_empty() || target.len() > MAX_TARGET || target.contains(&0) {
                    return Err(fault(Fault::Target));
                }
                counts.symlinks += 1;
            }
        }
        Ok(counts)
    }
}
