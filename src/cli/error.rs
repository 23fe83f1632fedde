//! What a verb can end with, how it is told, and which exit code it has.
//!
//! Told once: in words on stderr (`error`, `caused by`, `hint`), or with `--json` as one document on stdout.
//!
//! ```text
//! {"error": {"code", "title", "detail", "hint", "request_id", "causes"?, "data"?}}
//! ```
//!
//! Exit codes come from the cause, not from the verb: what the service or a transfer says is mapped by the client, a wrong
//! line is 2, everything local is 1. A hint says what to do; a text that does so itself has none. `hint` and `request_id` may be null.

use super::output::{self, Format, clean};
use crate::agent::Error as AgentError;
use crate::client::{Error as ClientError, Exit, TransferError};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code of a wrong command line.
const USAGE: u8 = 2;

/// Why a verb did not end well.
///
/// Made once, at the place that knows best what happened; verbs pass it on with `?`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] ClientError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// Nothing was changed. Exit 2.
    #[error("{what}")]
    Usage { what: String, hint: &'static str },
    /// A file or directory of the user's, or the system's refusal.
    #[error("cannot use `{}`", path.display())]
    Local {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file of the user's that does not say what it should.
    #[error("`{}` is not a usable {what}: {why}", path.display())]
    BadFile { path: PathBuf, what: &'static str, why: String },
    /// A closed pipe is no failure: silent, exit 0. Every [`io::Error`] that is passed on by `?` becomes this, so errors of
    /// files must be mapped by [`Error::local`] first.
    #[error("cannot write to stdout")]
    Stdout(#[from] io::Error),
    /// A tree, layout or receipt that is not what it should be.
    #[error("the {what} of `{of}` is damaged: {why}")]
    Damaged { what: &'static str, of: String, why: String },
    #[error("the receipt does not hold: {why}")]
    BadReceipt { why: String },
    #[error("`{reference}` holds no `{path}`")]
    NoPath { reference: String, path: String },
    /// What was asked for is not there: nothing is wrong with the command line.
    #[error("{what}")]
    Absent { what: String, hint: &'static str },
    /// A step of the demonstration.
    #[error("{step}: {why}")]
    Demo { step: &'static str, why: String },
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A role that another room runs: `serve`, a probe of a store.
    ///
    /// Its texts may have several lines.
    #[error("{what}")]
    Role { role: &'static str, what: String, causes: Vec<String> },
    /// Everything was told already; only the exit code is left.
    #[error("ended")]
    Ended(Exit),
}

impl Error {
    /// For `map_err` on what touches a file.
    pub fn local(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Local { path, source }
    }

    /// Stable, for scripts; the service's own codes pass through.
    fn code(&self) -> &str {
        match self {
            Self::Api(error) => error.code(),
            Self::Transfer(error) => error.code(),
            Self::Usage { .. } => "usage",
            Self::Local { .. } => "local_file",
            Self::BadFile { .. } => "bad_file",
            Self::Stdout(_) => "stdout",
            Self::Damaged { .. } => "damaged",
            Self::BadReceipt { .. } => "bad_receipt",
            Self::NoPath { .. } => "no_such_path",
            Self::Absent { .. } => "not_found",
            Self::Demo { .. } => "demo",
            Self::Agent(error) => error.code(),
            Self::Role { role, .. } => role,
            Self::Ended(_) => "ended",
        }
    }

    /// The kind of error in a few words, the same for all of its code.
    fn title(&self) -> &str {
        match self {
            Self::Api(error) => error.title(),
            Self::Transfer(error) => error.title(),
            Self::Usage { .. } => "wrong command line",
            Self::Local { .. } => "local file",
            Self::BadFile { .. } => "unusable file",
            Self::Stdout(_) => "output",
            Self::Damaged { .. } => "damaged data",
            Self::BadReceipt { .. } => "receipt refused",
            Self::NoPath { .. } => "no such path",
            Self::Absent { .. } => "not there",
            Self::Demo { .. } => "demonstration",
            Self::Agent(_) => "agent",
            Self::Role { role, .. } => role,
            Self::Ended(_) => "ended",
        }
    }

    fn hint(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(match self {
            Self::Api(error) => return error.hint(),
            Self::Transfer(error) => return error.hint(),
            Self::Agent(AgentError::Service(error)) => return error.hint(),
            Self::Usage { hint, .. } | Self::Absent { hint, .. } => hint,
            Self::Local { .. } => "see that it exists, is yours and has room",
            Self::BadFile { .. } => "correct it and run the same command again",
            Self::Damaged { .. } => "run `dray verify` on the version; a push of the same files heals it",
            Self::BadReceipt { .. } => "do not rely on what it says; compare with `dray staging show`",
            Self::NoPath { .. } => "`dray ls` shows what there is",
            Self::Demo { .. } => "the logs lie in the demonstration's directory, named above",
            // Their texts say what to do.
            Self::Role { .. } | Self::Agent(_) => return None,
            Self::Stdout(_) | Self::Ended(_) => return None,
        }))
    }

    fn request_id(&self) -> Option<&str> {
        match self {
            Self::Api(error) => error.request_id(),
            Self::Transfer(error) => error.request_id(),
            _ => None,
        }
    }

    /// What a program can act on, where the service or the transfer gave it.
    fn data(&self) -> Option<Value> {
        match self {
            Self::Api(error) => error.problem().and_then(|problem| problem.data.clone()),
            Self::Transfer(error) => error.data(),
            _ => None,
        }
    }

    /// The table is in the head of `cli`.
    pub fn exit(&self) -> u8 {
        match self {
            Self::Api(error) => error.exit().code(),
            Self::Transfer(error) => error.exit().code(),
            Self::Agent(AgentError::Service(error)) => error.exit().code(),
            Self::Usage { .. } => USAGE,
            Self::Ended(exit) => exit.code(),
            // The reader of our output has seen enough (`dray ls | head`).
            Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            _ => Exit::Failed.code(),
        }
    }

    /// The chain of sources in words, without what the text above already says.
    fn causes(&self) -> Vec<String> {
        let mut causes = match self {
            Self::Role { causes, .. } => causes.clone(),
            _ => Vec::new(),
        };
        let mut last = self.to_string();
        let mut source = self.source();
        while let Some(error) = source {
            let text = error.to_string();
            if text != last {
                causes.push(text.clone());
                last = text;
            }
            source = error.source();
        }
        causes
    }

    /// The error as a document. Not cleaned: the printer escapes JSON.
    pub fn document(&self) -> Value {
        let mut error = json!({
            "code": self.code(), "title": self.title(), "detail": self.to_string(),
            "hint": self.hint(), "request_id": self.request_id(),
        });
        let causes = self.causes();
        if !causes.is_empty() {
            error["causes"] = json!(causes);
        }
        if let Some(data) = self.data() {
            error["data"] = data;
        }
        json!({ "error": error })
    }

    /// The error in words, ending with a line feed: `error:`, then causes, hint and request id, each on a line. Cleaned.
    pub fn words(&self) -> String {
        let mut text = match self {
            // A room's own text may have lines; what came from outside may not.
            Self::Role { what, .. } => {
                let lines: Vec<String> = what.lines().map(clean).collect();
                format!("error: {}\n", lines.join("\n"))
            }
            _ => format!("error: {}\n", clean(&self.to_string())),
        };
        for cause in self.causes() {
            let _ = writeln!(text, "caused by: {}", clean(&cause));
        }
        if let Some(hint) = self.hint() {
            let _ = writeln!(text, "hint: {}", clean(&hint));
        }
        if let Some(id) = self.request_id() {
            let _ = writeln!(text, "request: {}", clean(id));
        }
        text
    }

    /// Tells the error and gives the process's exit code.
    ///
    /// [`Error::Ended`] and a closed pipe are silent.
    pub fn tell(&self, format: Format) -> ExitCode {
        let silent = matches!(self, Self::Ended(_))
            || matches!(self, Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe);
        if !silent {
            // Nobody is left to tell when these fail.
            let _ = match format {
                Format::Json => output::show(format, &self.document(), |_| Ok(())),
                Format::Human => io::stderr().lock().write_all(self.words().as_bytes()),
            };
        }
        ExitCode::from(self.exit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::problem::Problem;

    fn refused() -> Error {
        Error::Api(ClientError::Refused(Box::new(Problem {
            kind: "about:blank".to_owned(),
            code: "no_lease".to_owned(),
            title: "no lease".to_owned(),
            status: 409,
            detail: "job `j\u{1b}[31m` holds no lease on `gpu-7`".to_owned(),
            hint: Some("grant one with `dray lease grant`".to_owned()),
            request_id: Some("0190".to_owned()),
            data: None,
        })))
    }

    #[test]
    fn a_refusal_in_words() {
        insta::assert_snapshot!(refused().words(), @r"
        error: job `j\x1b[31m` holds no lease on `gpu-7`
        hint: grant one with `dray lease grant`
        request: 0190
        ");
        assert_eq!(refused().exit(), 1);
    }

    #[test]
    fn a_refusal_as_a_document() {
        insta::assert_json_snapshot!(refused().document(), @r#"
        {
          "error": {
            "code": "no_lease",
            "detail": "job `j\u001b[31m` holds no lease on `gpu-7`",
            "hint": "grant one with `dray lease grant`",
            "request_id": "0190",
            "title": "no lease"
          }
        }
        "#);
    }

    #[test]
    fn causes_are_told_once() {
        let error =
            Error::Local { path: "x.toml".into(), source: io::Error::new(io::ErrorKind::NotFound, "no such file") };
        insta::assert_snapshot!(error.words(), @r"
        error: cannot use `x.toml`
        caused by: no such file
        hint: see that it exists, is yours and has room
        ");
        assert_eq!(Error::Usage { what: String::new(), hint: "" }.exit(), 2);
        assert_eq!(Error::Stdout(io::ErrorKind::BrokenPipe.into()).exit(), 0);
    }
}
