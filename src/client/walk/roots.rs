//! The paths that the user names: what becomes the root of the tree, and under which names.
//!
//! The only place of a walk that follows links, and only those that the user typed. What it opens is held by handle from then on.

use crate::client::context::TransferError;
use crate::content::path::{RelPath, escaped};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One named entry at the top of the tree.
#[derive(Debug)]
pub(super) struct Root {
    /// The name in the tree: the one that was typed, where it has one.
    pub path: RelPath,
    /// Directory and name of what the path leads to, all links resolved.
    pub dir: Arc<OwnedFd>,
    pub name: CString,
}

/// What stands at the top.
#[derive(Debug)]
pub(super) enum Top {
    /// The contents of one directory, which itself is no entry; the path is for messages.
    Contents(PathBuf, OwnedFd),
    /// Entries by base name, in tree order.
    Names(VecDeque<Root>),
}

/// One directory gives its contents; else every path its base name, sorted into tree order whatever the order of the words.
///
/// Without any path the tree is empty. `Source` where one is missing or unreadable, `EqualNames` where two would have one name.
pub(super) fn open(paths: &[PathBuf]) -> Result<Top, TransferError> {
    if let [path] = paths
        && path.metadata().map_err(source(path))?.is_dir()
    {
        return Ok(Top::Contents(path.clone(), open_dir(path).map_err(source(path))?));
    }
    let mut roots = Vec::with_capacity(paths.len());
    let mut dirs: HashMap<PathBuf, Arc<OwnedFd>> = HashMap::new();
    for path in paths {
        // Where the path is a link, what it leads to is pushed, under the link's own name.
        let real = path.canonicalize().map_err(source(path))?;
        let no_name = || TransferError::NoName { path: path.clone() };
        let shown = path.file_name().or(real.file_name()).ok_or_else(no_name)?;
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else { return Err(no_name()) };
        let dir = match dirs.get(parent) {
            Some(dir) => Arc::clone(dir),
            None => {
                let dir = Arc::new(open_dir(parent).map_err(source(parent))?);
                dirs.insert(parent.to_owned(), Arc::clone(&dir));
                dir
            }
        };
        roots.push(Root {
            path: RelPath::parse(shown.as_bytes()).map_err(|_| no_name())?,
            dir,
            name: CString::new(name.as_bytes()).map_err(|_| no_name())?,
        });
    }
    roots.sort_by(|a, b| a.path.cmp(&b.path));
    if let Some(pair) = roots.windows(2).find(|pair| pair[0].path == pair[1].path) {
        return Err(TransferError::EqualNames { name: escaped(pair[0].path.as_bytes()).to_string() });
    }
    Ok(Top::Names(roots.into()))
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn source(path: &Path) -> impl Fn(io::Error) -> TransferError + '_ {
    move |source| TransferError::Source { path: path.to_owned(), source }
}
