//! `dray push`: flags in, report out.
//!
//! Exit 3 where some items failed, whether a version was made without them or, by `--all-or-nothing`, none; 1 where the service refused. Failed items
//! stand last in what is printed, so that they are seen.

use super::error::Error;
use super::output::{self, clean};
use super::progress::{Progress, note};
use super::session::Session;
use super::units::{count, parse_size, percent, seconds, size};
use crate::client::push::{self, Item, PushOptions, PushReport};
use crate::client::rate::{Limit, Timetable, parse_rate};
use crate::client::{Exit, TransferError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most items of one kind that the closing summary lists; `--report` has them all.
///
/// A screen or two: ten thousand failures must not hide the summary.
const LISTED: usize = 50;
/// Where a push tells all items.
const ALL: &str = "`--json` or `--report`";

/// Make directories or files the next version of a dataset
#[derive(Debug, clap::Args)]
pub struct PushArgs {
    /// A directory (its contents become the root), a file, or several of either by their base names
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Dataset, like `warehouse/aisle-cams`
    #[arg(long, value_name = "DATASET")]
    to: String,
    /// Leave out what matches, in gitignore syntax; on top of `.drayignore` files
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    #[command(flatten)]
    limit: LimitArgs,
    /// Most memory to use
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    memory: u64,
    /// Read and count, send nothing
    #[arg(long)]
    dry_run: bool,
    /// Read every file again, also those that look unchanged
    #[arg(long)]
    rehash: bool,
    /// Commit nothing when any item fails
    #[arg(long)]
    all_or_nothing: bool,
    /// Also write the report, as JSON, to a file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// How fast a transfer may go.
#[derive(Debug, Clone, clap::Args)]
pub struct LimitArgs {
    /// Most bytes a second, like `20M`
    #[arg(long, value_name = "RATE", conflicts_with = "limit_schedule", value_parser = rate)]
    limit_rate: Option<u64>,
    /// A timetable of rates: lines like `mon-fri 08:00-18:00 2M`, then `* none`
    #[arg(long, value_name = "FILE")]
    limit_schedule: Option<PathBuf>,
}

/// 0 is refused: it would stop the transfer for good.
fn rate(text: &str) -> Result<u64, String> {
    parse_rate(text).filter(|rate| *rate > 0).ok_or_else(|| "write a rate like `20M` or `512Ki`".to_owned())
}

impl LimitArgs {
    /// Reads the timetable once; a later change of the file is not seen. A rate is in bytes a second.
    pub fn limit(&self) -> Result<Limit, Error> {
        if let Some(path) = &self.limit_schedule {
            let text = fs_err::read_to_string(path).map_err(Error::local(path))?;
            let table = Timetable::parse(&text).map_err(|error| Error::BadFile {
                path: path.clone(),
                what: "timetable",
                why: error.to_string(),
            })?;
            return Ok(Limit::Schedule(table));
        }
        Ok(match self.limit_rate {
            None | Some(u64::MAX) => Limit::None,
            Some(rate) => Limit::Fixed(rate),
        })
    }
}

/// The report is written to `--report` also where the push made no
/// version because some items failed.
pub async fn run(session: &Session, args: PushArgs) -> Result<(), Error> {
    let api = session.api()?;
    let options = PushOptions {
        exclude: args.exclude,
        memory: args.memory,
        limit: args.limit.limit()?,
        cache_dir: session.cache("push"),
        cache_scope: api.base().to_string(),
        rehash: args.rehash,
        dry_run: args.dry_run,
        all_or_nothing: args.all_or_nothing,
        ..PushOptions::new(args.to, args.paths)
    };
    let progress = Arc::new(Progress::new("push", session.style));
    let context = session.context(api, Arc::clone(&progress));
    let pushed = push::push(&context, options).await;
    progress.finish();
    let report = match pushed {
        Ok(report) => report,
        Err(TransferError::SomeFailed { failed, report }) => {
            save(args.report.as_deref(), &report)?;
            for item in report.failed.iter().take(LISTED) {
                note(session.style, "failed", &line(item));
            }
            return Err(TransferError::SomeFailed { failed, report }.into());
        }
        Err(error) => return Err(error.into()),
    };
    save(args.report.as_deref(), &report)?;
    output::show(session.format, &report, |out| human(out, &report))?;
    if report.failed_count > 0 || report.incomplete { Err(Error::Ended(Exit::Partial)) } else { Ok(()) }
}

/// Writes a report's JSON beside what is printed.
///
/// Not atomic: a program that reads it waits for the exit.
fn save(path: Option<&Path>, report: &PushReport) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_vec_pretty(report).expect("a report is plain data");
    text.push(b'\n');
    fs_err::write(path, text).map_err(Error::local(path))
}

/// The closing summary: what was done, then what was not, the failures last.
pub fn human(out: &mut dyn Write, report: &PushReport) -> io::Result<()> {
    let head = match (&report.reference, report.unchanged) {
        (Some(reference), true) => format!("unchanged: {} holds exactly this", clean(reference)),
        (Some(reference), false) => format!("pushed {}", clean(reference)),
        (None, _) => "dry run: nothing was sent".to_owned(),
    };
    writeln!(out, "{head}")?;
    let entries = format!(
        "{} files, {} directories, {} symlinks",
        count(report.files),
        count(report.dirs),
        count(report.symlinks)
    );
    let mut facts = vec![
        ("digest", report.digest.clone()),
        ("holds", format!("{}, {entries}", size(report.bytes))),
        ("reused", format!("{} ({})", size(report.reused_bytes), percent(report.reused_bytes, report.bytes))),
        ("sent", format!("{} in {}", size(report.sent_bytes), seconds(report.seconds))),
        ("stored", size(report.stored_bytes)),
    ];
    if report.dry_run {
        facts.truncate(3);
    }
    output::facts(&mut *out, &facts)?;
    for warning in report.warnings.iter().take(LISTED) {
        writeln!(out, "warning: {}", clean(warning))?;
    }
    more(out, "warnings", report.warnings.len() as u64, ALL)?;
    items(out, "skipped", &report.skipped, report.skipped_count, ALL)?;
    items(out, "failed", &report.failed, report.failed_count, ALL)?;
    if report.incomplete {
        writeln!(out, "the version is marked incomplete: push again once the failed items can be read")?;
    }
    Ok(())
}

fn line(item: &Item) -> String {
    format!("{}: {}", item.path, item.reason)
}

/// `failed: path: reason` lines, and how many more there are.
///
/// At most [`LISTED`]; `all` may be larger than `items` has. `all_in` names what of the verb's flags has them.
pub fn items(out: &mut dyn Write, what: &str, items: &[Item], all: u64, all_in: &str) -> io::Result<()> {
    for item in items.iter().take(LISTED) {
        writeln!(out, "{what}: {}", clean(&line(item)))?;
    }
    more(out, what, all, all_in)
}

fn more(out: &mut dyn Write, what: &str, all: u64, all_in: &str) -> io::Result<()> {
    match all.checked_sub(LISTED as u64) {
        Some(rest) if rest > 0 => writeln!(out, "{what}: and {} more; {all_in} has them", count(rest)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_push_names_its_failures_last() {
        let item = |path: &str, reason: &str| Item { path: path.to_owned(), path_b64: None, reason: reason.to_owned() };
        let report = PushReport {
            reference: Some("w/t@v2".to_owned()),
            version: Some("v2".to_owned()),
            digest: "ab".repeat(32),
            files: 1_999,
            dirs: 3,
            bytes: 3 << 30,
            sent_bytes: 1 << 30,
            stored_bytes: 1 << 30,
            reused_bytes: 1 << 30,
            skipped: vec![item("pipe", "fifo")],
            skipped_count: 1,
            failed: vec![item("a/b\x1b", "permission_denied")],
            failed_count: 1,
            incomplete: true,
            seconds: 12.34,
            ..PushReport::default()
        };
        let mut out = Vec::new();
        human(&mut out, &report).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        pushed w/t@v2
        digest  abababababababababababababababababababababababababababababababab
        holds   3.00 GiB, 1,999 files, 3 directories, 0 symlinks
        reused  1.00 GiB (33.3 %)
        sent    1.00 GiB in 12.3 s
        stored  1.00 GiB
        skipped: pipe: fifo
        failed: a/b\x1b: permission_denied
        the version is marked incomplete: push again once the failed items can be read
        ");
    }
}
