//! `dray pull` and `dray verify`: flags in, report out.
//!
//! A pull's exit is 3 when some entries could not be written, with the others in place and verified. A verify is 1 when
//! anything is extra, missing or different: a difference is an answer, and it is printed before the exit.

use super::error::Error;
use super::output::{self, clean};
use super::progress::Progress;
use super::push::{LimitArgs, items};
use super::reference::{Reference, ReferenceParser};
use super::session::Session;
use super::units::{count, parse_size, percent, seconds, size};
use crate::client::Exit;
use crate::client::pull::{self, PullOptions, PullReport, Select};
use crate::client::verify::{self, Verify, VerifyOptions, VerifyReport};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Put a version, or a file or subtree of it, at DEST; resumes and repairs what is there
#[derive(Debug, clap::Args)]
pub struct PullArgs {
    /// `DATASET[@V][:PATH]`
    #[arg(value_name = "REF", value_parser = ReferenceParser)]
    reference: Reference,
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Replace files that differ although no pull wrote them
    #[arg(long)]
    overwrite: bool,
    /// Only files that match, relative to the root of what is pulled
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Not the files that match
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    #[command(flatten)]
    limit: LimitArgs,
    /// Most memory to use
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    memory: u64,
}

/// Without a place for caches every file that is there is read again, and none counts as an earlier pull's.
pub async fn pull(session: &Session, args: PullArgs) -> Result<(), Error> {
    let api = session.api()?;
    let select = Select { path: args.reference.path, include: args.include, exclude: args.exclude, shard: None };
    let options = PullOptions {
        select,
        overwrite: args.overwrite,
        memory: args.memory,
        limit: args.limit.limit()?,
        cache_dir: session.cache("pull"),
        ..PullOptions::new(args.reference.version, args.dest)
    };
    let progress = Arc::new(Progress::new("pull", session.style));
    let context = session.context(api, Arc::clone(&progress));
    let pulled = pull::pull(&context, options).await;
    progress.finish();
    let report = pulled?;
    output::show(session.format, &report, |out| human_pull(out, &report))?;
    if report.failed_count > 0 { Err(Error::Ended(Exit::Partial)) } else { Ok(()) }
}

fn human_pull(out: &mut dyn Write, report: &PullReport) -> io::Result<()> {
    writeln!(out, "pulled {}", clean(&report.reference))?;
    let entries = format!(
        "{} files, {} directories, {} symlinks",
        count(report.files),
        count(report.dirs),
        count(report.symlinks)
    );
    output::facts(
        &mut *out,
        &[
            ("digest", report.selected_digest.clone()),
            ("holds", format!("{}, {entries}, every file verified", size(report.bytes))),
            ("reused", format!("{} ({})", size(report.reused_bytes), percent(report.reused_bytes, report.bytes))),
            ("fetched", format!("{} in {}", size(report.fetched_bytes), seconds(report.seconds))),
        ],
    )?;
    for warning in &report.warnings {
        writeln!(out, "warning: {}", clean(warning))?;
    }
    items(out, "failed", &report.failed, report.failed_count, "`--json`")
}

/// Prove that a directory holds exactly a version, or without a directory that every stored byte of it is right
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// `DATASET[@V][:PATH]`
    #[arg(value_name = "REF", value_parser = ReferenceParser)]
    reference: Reference,
    /// The directory (or file) to compare
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Most memory to use
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    memory: u64,
}

/// With a directory nothing is written to it; without one every stored byte is fetched, which costs the version's size in
/// traffic.
pub async fn verify(session: &Session, args: VerifyArgs) -> Result<(), Error> {
    let api = session.api()?;
    let options = VerifyOptions {
        reference: args.reference.version,
        path: args.reference.path,
        what: args.dir.map_or(Verify::Stored, Verify::Directory),
        memory: args.memory,
        temp_dir: None,
    };
    let progress = Arc::new(Progress::new("verify", session.style));
    let context = session.context(api, Arc::clone(&progress));
    let verified = verify::verify(&context, options).await;
    progress.finish();
    let report = verified?;
    output::show(session.format, &report, |out| human_verify(out, &report))?;
    if report.is_equal() { Ok(()) } else { Err(Error::Ended(Exit::Failed)) }
}

fn human_verify(out: &mut dyn Write, report: &VerifyReport) -> io::Result<()> {
    let word = if report.is_equal() { "verified" } else { "NOT equal:" };
    writeln!(out, "{word} {}", clean(&report.reference))?;
    output::facts(
        &mut *out,
        &[
            ("digest", report.digest.clone()),
            ("read", format!("{}, {} files in {}", size(report.bytes), count(report.files), seconds(report.seconds))),
        ],
    )?;
    for (what, list, all) in [
        ("extra", &report.extra, report.extra_count),
        ("missing", &report.missing, report.missing_count),
        ("differs", &report.differs, report.differs_count),
        ("unreadable", &report.unreadable, report.unreadable_count),
    ] {
        items(out, what, list, all, "`--json`")?;
    }
    Ok(())
}
