//! `dray demo`: the whole journey on this machine, in one process tree, on the embedded store.
//!
//! A service and an agent are children of this process; the scheduler and the receiver of callbacks are here. Everything
//! lies in one fresh directory, which stays. Whatever happens, the children are ended, by their pids.
//!
//! It proves and does not pretend: the same binary, the same HTTP calls, and every byte compared at both ends. Nothing of
//! the user's is changed; PATH is only read.

mod children;
mod compare;
mod footage;
mod job;
mod journey;
mod places;
mod receiver;
mod report;
mod stage;

pub use job::{JobArgs, run as job};

use super::error::Error;
use super::session::Session;
use super::units::parse_size;
use crate::client::{Error as ClientError, TransferError};
use std::path::{Path, PathBuf};

/// Show the whole journey on this machine, with your data or generated data
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// A directory or file of yours; it is only read. Without it sample data is generated
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Where everything goes; must not exist yet (default: ./dray-demo-N)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How much sample data to generate when no PATH is given
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    size: u64,
}

/// Exit 0 only when all comparisons were equal. A Ctrl-C ends the children first and then says so.
pub async fn run(session: &Session, args: DemoArgs) -> Result<(), Error> {
    let source =
        args.path.as_deref().map(fs_err::canonicalize).transpose().map_err(|source| {
            Error::from(TransferError::Source { path: args.path.clone().unwrap_or_default(), source })
        })?;
    let dir = make_dir(args.dir, source.as_deref())?;
    let mut screen = report::Screen::new(session);
    screen.head(&dir);
    let input = match source {
        Some(path) => path,
        None => {
            let path = dir.join("sample-data");
            screen.step("sample data", footage::generate(&session.cancel, &path, args.size)).await?;
            path
        }
    };
    let ended = journey::run(session, &mut screen, &dir, &input).await;
    if session.cancel.is_cancelled() {
        return Err(ClientError::Interrupted.into());
    }
    let outcome = ended?;
    screen.report(&dir, &input, &outcome)?;
    Ok(())
}

/// Makes the demonstration's directory, outside of what is pushed.
///
/// Within what is pushed it would push itself. Whether a wanted place lies inside is known once it is made and its links
/// are resolved; then it is removed again.
fn make_dir(wanted: Option<PathBuf>, source: Option<&Path>) -> Result<PathBuf, Error> {
    let outside = |dir: &Path| source.is_none_or(|source| !dir.starts_with(source));
    if let Some(dir) = wanted {
        fs_err::create_dir_all(dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))
            .map_err(Error::local(&dir))?;
        fs_err::create_dir(&dir).map_err(Error::local(&dir))?;
        let dir = fs_err::canonicalize(&dir).map_err(Error::local(&dir))?;
        if !outside(&dir) {
            let _ = fs_err::remove_dir(&dir);
            return Err(within(&dir));
        }
        return Ok(dir);
    }
    let here = fs_err::canonicalize(".").map_err(Error::local("."))?;
    let Some(parent) = [here, std::env::temp_dir()].into_iter().find(|parent| outside(parent)) else {
        return Err(within(Path::new(".")));
    };
    for number in 1.. {
        let dir = parent.join(format!("dray-demo-{number}"));
        match fs_err::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::Local { path: dir, source: error }),
        }
    }
    unreachable!("the numbers do not end")
}

fn within(dir: &Path) -> Error {
    Error::Usage {
        what: format!("`{}` lies inside the directory to push", dir.display()),
        hint: "name a place outside of it with `--dir`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_fresh_and_outside() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let dir = make_dir(Some(place.join("a/b")), None).unwrap();
        assert!(dir.is_dir());
        assert!(make_dir(Some(dir.clone()), None).is_err(), "it must not exist yet");
        let error = make_dir(Some(place.join("a/c")), Some(&place)).unwrap_err();
        assert_eq!(error.exit(), 2);
        assert!(!place.join("a/c").exists());
    }
}
