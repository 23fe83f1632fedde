//! The role `store check`: tries out a store and says what it does, in words or as JSON.
//!
//! It opens the store as `serve` would, but no database and no port: it may run beside a service on the same store, and
//! before there is one. It writes under `probe/` only and clears that away.

use futures::future::LocalBoxFuture;
use std::fmt::Write;
use std::sync::Arc;

use crate::app::store_check::{Report, Verdict, check_store};
use crate::clock::{RandomIds, SystemClock};
use crate::config::StoreSettings;

/// What `dray store check` has to say.
#[derive(Debug, Clone)]
pub struct StoreCheck {
    /// One JSON document: `{store, verdict, checks: [{name, verdict, detail, hint?}]}`.
    pub json: serde_json::Value,
    /// The same for people, several lines.
    pub text: String,
    /// Whether `serve` would refuse this store; the command then ends with exit status 1.
    pub refused: bool,
}

/// Tries out the store that the settings name. Settings that make no sense are the error, in words.
///
/// A store that is away or refuses is no error but a report with a fatal check: `refused` then says so. Not `Send`.
pub fn store_check(settings: &StoreSettings) -> LocalBoxFuture<'_, Result<StoreCheck, String>> {
    Box::pin(async move {
        let report = check_store(settings, Arc::new(SystemClock), &RandomIds).await.map_err(|error| error.in_full())?;
        let json = serde_json::to_value(&report).expect("a report is plain data");
        Ok(StoreCheck { json, text: words(&report), refused: report.refuses().is_some() })
    })
}

/// A line a check, its hint below, and the verdict last, where it is read.
fn words(report: &Report) -> String {
    let mut text = String::new();
    for check in &report.checks {
        // writing to a string cannot fail
        let _ = writeln!(text, "{:9} {:18} {}", check.verdict.to_string(), check.name, check.detail);
        if let Some(hint) = check.hint {
            let _ = writeln!(text, "{:28} -> {hint}", "");
        }
    }
    let end = match report.verdict {
        Verdict::Ok => "does all that Dray wants of a store",
        Verdict::Degraded => "can be used, with the limits above",
        Verdict::Fatal => "must not be used: bytes would be lost",
    };
    let _ = writeln!(text, "store `{}` {end}", report.store);
    text
}
