//! What a store really does, found out by doing it: `dray store check`, and the short form before `serve` starts.
//!
//! A probe writes under `probe/<run>/` only, and removes what it wrote. Its outcome is a value, never an error: each check has a
//! verdict, what was seen, and what to do. A store that loses or changes bytes is `fatal`, and `serve` refuses it; one that lacks
//! something Dray can do without is `degraded`, and the hint says what is then done instead.
//!
//! The order matters: writing and reading come first, and without them nothing else is tried. Deletion comes last, since it
//! clears up what the others wrote. The clock is judged by the last answer's `Date`, so it needs no request of its own.
//!
//! Names of checks and the shape of [`Report`] are read by scripts and by the docs: a new check may be added, none renamed.

mod checks;
mod signed;

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use self::checks::Probe;
use super::Store;

/// How much to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Whether bytes come back as they were written: a few small requests.
    ///
    /// Before every `serve`; refuses a store that would lose bytes.
    Quick,
    /// Everything; a few seconds, and up to 50 MiB of traffic.
    Full,
}

/// How bad it is.
///
/// Ordered: the worst of a report's checks is the report's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As Dray wants it.
    Ok,
    /// Dray works, with less.
    Degraded,
    /// Bytes would be lost, changed, or cannot be stored at all.
    Fatal,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Fatal => "fatal",
        })
    }
}

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Stable, for scripts: `read_after_write`.
    pub name: &'static str,
    pub verdict: Verdict,
    /// What was seen.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'static str>,
}

/// All that was found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The store's place; no secret in it.
    pub store: String,
    /// The worst of the checks; `Ok` of none.
    pub verdict: Verdict,
    /// In the order they were tried. One name may stand twice: a probe of several steps notes each that went wrong.
    pub checks: Vec<Check>,
}

impl Report {
    fn new(store: String, checks: Vec<Check>) -> Self {
        let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
        Self { store, verdict, checks }
    }

    /// Why a service must not start on this store; none when it may.
    ///
    /// The first fatal check in one line, with its hint. Degraded stores are never refused: what is lacking is said and
    /// done without.
    pub fn refuses(&self) -> Option<String> {
        let check = self.checks.iter().find(|check| check.verdict == Verdict::Fatal)?;
        let hint = check.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        Some(format!("store `{}` failed check `{}`: {}{hint}", self.store, check.name, check.detail))
    }
}

impl Store {
    /// Tries out the store under `probe/<run>/`. `run` is a fresh UUID. What it wrote is gone when it returns, as far as the
    /// store lets it; what a killed run leaves is listed as `Kind::Probe`.
    ///
    /// Two probes may run at once, each in a folder of its own. Takes as long as the store's retries when it is away.
    pub async fn probe(&self, run: Uuid, depth: Depth) -> Report {
        let mut probe = Probe::new(self, run);
        probe.run(depth).await;
        Report::new(self.name(), probe.checks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_check_decides_and_says_what_to_do() {
        let check = |name, verdict, hint| Check { name, verdict, detail: "seen".into(), hint };
        let fine = check("write", Verdict::Ok, None);
        let odd = check("paging", Verdict::Degraded, Some("do this"));
        let bad = check("read_after_write", Verdict::Fatal, Some("do that"));
        let report = Report::new("s3://b".into(), vec![fine.clone(), odd.clone()]);
        assert_eq!((report.verdict, report.refuses()), (Verdict::Degraded, None));
        let report = Report::new("s3://b".into(), vec![fine, odd, bad]);
        let reason = report.refuses().unwrap();
        assert_eq!(reason, "store `s3://b` failed check `read_after_write`: seen; do that");
        assert_eq!(serde_json::to_value(&report).unwrap()["checks"][2]["verdict"], "fatal");
    }
}
