//! The service and the agent as children of this process: started, watched, ended by pid.
//!
//! What they say goes to files. They inherit no setting of the user's (`DRAY_...`), so that the demonstration is the same everywhere.

use crate::cli::error::Error;
use rustix::process::{Pid, Signal, kill_process};
use secrecy::{ExposeSecret, SecretString};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How long a child may take to end by itself.
const GRACE: Duration = Duration::from_secs(15);

/// One running role.
///
/// Killed when dropped; [`Child::end`] asks first.
#[derive(Debug)]
pub struct Child {
    name: &'static str,
    log: PathBuf,
    process: tokio::process::Child,
}

impl Child {
    /// Starts `dray NAME arguments...` from this very executable.
    ///
    /// Returns once the process runs, not once it answers. stdout and stderr go to `<logs>/<name>.log`.
    pub fn start(
        name: &'static str,
        logs: &Path,
        arguments: &[&OsStr],
        token: Option<&SecretString>,
    ) -> Result<Self, Error> {
        let log = logs.join(format!("{name}.log"));
        let mut command = own_executable()?;
        command.arg(name).args(arguments);
        if let Some(token) = token {
            // Not as an argument: those can be seen by every user of the machine.
            command.env("DRAY_TOKEN", token.expose_secret());
        }
        let out = File::create(&log).map_err(Error::local(&log))?;
        let copy = out.try_clone().map_err(Error::local(&log))?;
        command.stdin(Stdio::null()).stdout(out).stderr(copy).kill_on_drop(true);
        let process = command.spawn().map_err(Error::local("dray"))?;
        Ok(Self { name, log, process })
    }

    /// Resolves when the child ends, which is always an error before [`Child::end`].
    pub async fn died(&mut self) -> Error {
        let how = match self.process.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        Error::Demo { step: self.name, why: format!("it ended ({how}); its last words:\n{}", tail(&self.log)) }
    }

    /// Asks it to end by SIGTERM, waits for [`GRACE`], and kills it when it does not. By its own pid, while the handle
    /// keeps it from being reused.
    pub async fn end(mut self) {
        let pid = self.process.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            // It may have ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(GRACE, self.process.wait()).await.is_err() {
            tracing::warn!(child = self.name, "did not end when asked; killed");
            let _ = self.process.kill().await;
        }
    }
}

/// This executable, without the user's settings.
pub fn own_executable() -> Result<Command, Error> {
    let path = std::env::current_exe().map_err(Error::local("/proc/self/exe"))?;
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DRAY_") {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// The last lines of a log.
fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = fs_err::File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(2_000)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}
