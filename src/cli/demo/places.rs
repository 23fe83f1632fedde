//! Where things lie in the demonstration's directory, what they are called, and what the journey proved.

use super::compare::Compared;
use crate::api::jobs::{Output, Staging};
use crate::api::links::Link;
use crate::cli::error::Error;
use crate::client::push::PushReport;
use std::path::{Path, PathBuf};

pub const NODE: &str = "demo-node";
pub const INPUT: &str = "demo/input";

/// The directories and files of one demonstration.
///
/// All below one fresh directory; the receipt is a file, the others are directories.
#[derive(Debug, Clone)]
pub struct Places {
    pub service: PathBuf,
    pub node: PathBuf,
    pub logs: PathBuf,
    pub written: PathBuf,
    pub home: PathBuf,
    pub receipt: PathBuf,
}

impl Places {
    /// Fails where one is there already: nothing is mixed with an earlier run.
    pub fn make(dir: &Path) -> Result<Self, Error> {
        let make = |name: &str| {
            let path = dir.join(name);
            fs_err::create_dir(&path).map_err(Error::local(&path)).map(|()| path)
        };
        Ok(Self {
            service: make("service")?,
            node: make("node")?,
            logs: make("logs")?,
            written: make("written-by-the-job")?,
            home: make("came-home")?,
            receipt: dir.join("receipt.json"),
        })
    }
}

/// What the journey proved.
#[derive(Debug)]
pub struct Outcome {
    pub pushed: PushReport,
    pub staging: Staging,
    pub output: Output,
    pub links: Vec<(&'static str, Link)>,
    pub compared: Compared,
    pub returned: Compared,
    pub places: Places,
}
