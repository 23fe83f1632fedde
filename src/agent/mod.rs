//! The node's side of staging: brings inputs onto the node's disk, proves them, says so, and brings outputs home.
//!
//! Outbound only. The agent asks the service what this node should be doing ([`crate::api::jobs::Work`]) and makes it so; being told the same
//! twice does nothing twice. What it claims comes from facts on the disk: `ready` is said only after every byte was read back from the
//! disk with its digest equal, and the record of it was synced first. The service being away never ends the agent.
//!
//! ```text
//! work       long-polls the service, keeps one task for each staging on its list
//! stage_in   trees -> room -> pull, synced and read back -> facts -> receipt -> ready
//! stage_out  seal -> push -> clear away -> released;  seal  what may come home
//! report     says it until it is heard;  staged  what should lie there, and whether it does;  home  where it lies;  gpu  NVML
//! ```
//!
//! What the agent must know after a kill is recorded in `home` before it is said: that a staging is ready, and that something of an output is not home.

pub mod gpu;
mod home;
mod report;
mod seal;
mod stage_in;
mod stage_out;
mod staged;
mod work;

pub use work::run;

use crate::client::Error as ClientError;
use std::ffi::OsString;
use std::path::PathBuf;

/// How an agent runs.
///
/// Given once, by the command line.
#[derive(Debug, Clone)]
pub struct Options {
    /// Created when missing.
    ///
    /// Everything the agent writes lies below it, staged files included; one file system, since directories are moved
    /// within it.
    pub cache: PathBuf,
    /// What the caller thinks this node is called; refused when the token is another node's.
    pub node: Option<String>,
    /// NVML library to open instead of the system's.
    pub nvml: Option<OsString>,
    /// Most memory of one staging or return, bytes.
    ///
    /// `work` runs two stagings at a time, and returns beside them, each with as much.
    pub memory: u64,
}

/// Why the agent ended or could not begin.
///
/// All are final: waiting does not heal them, and the texts say what to do. What passes by itself is waited for and only
/// logged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use `{}`", path.display())]
    Local {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("another agent runs on `{}`; give each agent a `--cache` of its own", path.display())]
    InUse { path: PathBuf },
    /// Never replaced silently: the service has enrolled the old key for this node.
    #[error("`{}` is no Ed25519 key; move it away to make a new one, and add the node anew since the old key is enrolled", path.display())]
    BadKey { path: PathBuf },
    /// Found before the hello, which would enrol this directory's key for the other node.
    #[error(
        "the token belongs to node `{actual}`, not `{wanted}`; use the token that `dray node add {wanted}` printed"
    )]
    WrongNode { wanted: String, actual: String },
    /// The service said no for good: an unknown or revoked token, another agent's key.
    #[error(transparent)]
    Service(#[from] ClientError),
}

/// An error with what lies below it, for one line of a log.
fn chain(error: &dyn std::error::Error) -> String {
    let below = std::iter::successors(error.source(), |error| error.source());
    below.fold(error.to_string(), |text, error| format!("{text}: {error}"))
}

impl Error {
    /// Stable code for `--json`.
    pub fn code(&self) -> &str {
        match self {
            Self::Local { .. } => "local_io",
            Self::InUse { .. } => "cache_in_use",
            Self::BadKey { .. } => "bad_key",
            Self::WrongNode { .. } => "wrong_node",
            Self::Service(error) => error.code(),
        }
    }
}
