//! `dray stage`, `dray staging`, `dray outputs`.
//!
//! `wait` ends with exit 0 for ready (or near, where there is no lease), 1 for what will never be ready, 4 when the time is
//! up: the last document is printed in each of these cases.

use super::error::Error;
use super::jobs::word;
use super::output::{self, Format, Side, Table};
use super::progress::{Style, say};
use super::session::Session;
use super::units::{Until, count, instant, parse_duration, percent, size};
use crate::api::jobs::{Outputs, RequestStaging, Staging, StagingState};
use crate::api::plans::StagingPlan;
use crate::client::Exit;
use crate::client::api::{Api, route};
use crate::clock::{Clock, SystemClock};
use std::io::{self, Write};
use std::time::Duration;
use tokio::time::Instant;

/// Longest single long poll.
///
/// Below the usual limits of proxies on silent answers. The wait as a whole may be any length.
const POLL: Duration = Duration::from_secs(20);

/// How long the service may walk trees for a plan before it is taken for silent.
const PLAN_WAIT: Duration = Duration::from_secs(60);

/// Bring a job's inputs near, or onto the node it holds
#[derive(Debug, clap::Args)]
pub struct StageArgs {
    #[arg(long, value_name = "JOB")]
    job: String,
    /// The node of the job's live lease; without it the inputs are proven in the store only
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// An instant (RFC 3339) or a duration from now
    #[arg(long, value_name = "TIME", value_parser = Until::parse)]
    ready_by: Option<Until>,
    /// Only tell what would be staged, the room it needs and what stands against it (then exit 1); nothing is changed
    #[arg(long, conflicts_with = "ready_by")]
    plan: bool,
}

/// Saying it again for the same lease gives the staging there is. It returns at once; `dray staging wait` follows it.
pub async fn stage(session: &Session, args: StageArgs) -> Result<(), Error> {
    if args.plan {
        return plan(session, &args.job, args.node.as_deref()).await;
    }
    let ready_by = args.ready_by.map(|until| until.instant(SystemClock.now()));
    let request = RequestStaging { job: args.job, node: args.node, ready_by };
    let staging: Staging = session.api()?.post("/v1/stagings", &request).await?;
    output::show(session.format, &staging, |out| human(out, &staging))?;
    Ok(())
}

/// A refusal is told in the document and by exit 1: a scheduler need not read the text.
async fn plan(session: &Session, job: &str, node: Option<&str>) -> Result<(), Error> {
    let query: Vec<_> = node.map(|node| ("node", node)).into_iter().collect();
    let plan: StagingPlan = session.api()?.get_waiting(&route(&["v1", "jobs", job, "plan"], &query), PLAN_WAIT).await?;
    output::show(session.format, &plan, |out| human_plan(out, &plan))?;
    if plan.refusals.is_empty() { Ok(()) } else { Err(Error::Ended(Exit::Failed)) }
}

/// What stands against the staging comes last, where it is seen.
fn human_plan(mut out: &mut dyn Write, plan: &StagingPlan) -> io::Result<()> {
    let mut table =
        Table::new(&[("AT", Side::Left), ("FROM", Side::Left), ("FILES", Side::Right), ("SIZE", Side::Right)]);
    for input in &plan.inputs {
        let from =
            if input.path.is_empty() { input.reference.clone() } else { format!("{}:{}", input.reference, input.path) };
        let told = input.chosen.map(|chosen| (count(chosen.files), size(chosen.bytes)));
        let (files, bytes) = told.unwrap_or_else(|| ("-".to_owned(), "-".to_owned()));
        table.row(&[&input.at, &from, &files, &bytes]);
    }
    table.write(&mut out)?;
    let mut facts = vec![("fetch", format!("{} in {} files", size(plan.bytes), count(plan.files)))];
    facts.push(("room needed", size(plan.needed_bytes)));
    if let Some(node) = &plan.node {
        let free = node
            .free_bytes
            .map_or_else(|| "not known".to_owned(), |free| format!("{} when its agent started", size(free)));
        facts.push(("free", format!("{free} on {}", node.name)));
    }
    output::facts(out, &facts)?;
    for refusal in &plan.refusals {
        writeln!(out, "refused: {} ({})", output::clean(&refusal.detail), output::clean(&refusal.code))?;
    }
    Ok(())
}

/// Follow a staging
#[derive(Debug, clap::Subcommand)]
pub enum StagingCommand {
    /// Where it stands
    Show { id: String },
    /// Wait until it is ready (exit 0), failed or cancelled (1), or the time is up (4)
    Wait {
        id: String,
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        timeout: Option<Duration>,
    },
    /// Stop it; what was staged is given up
    Cancel { id: String },
}

pub async fn staging(session: &Session, command: StagingCommand) -> Result<(), Error> {
    let api = session.api()?;
    let (staging, ended) = match command {
        StagingCommand::Show { id } => (api.get::<Staging>(&route(&["v1", "stagings", &id], &[])).await?, Ok(())),
        StagingCommand::Cancel { id } => (api.delete::<Staging>(&route(&["v1", "stagings", &id], &[])).await?, Ok(())),
        StagingCommand::Wait { id, timeout } => {
            let (staging, exit) = wait(session, &api, &id, timeout).await?;
            (staging, exit.map_or(Ok(()), |exit| Err(Error::Ended(exit))))
        }
    };
    output::show(session.format, &staging, |out| human(out, &staging))?;
    ended
}

/// How a staging that will not change by itself any more ended; `None` while it still may.
fn end(staging: &Staging) -> Option<Option<Exit>> {
    match staging.state {
        StagingState::Ready => Some(None),
        // Without a lease `near` is as far as it goes.
        StagingState::Near if staging.lease.is_none() => Some(None),
        StagingState::Failed | StagingState::Cancelled | StagingState::Released => Some(Some(Exit::Failed)),
        StagingState::Accepted | StagingState::Pulling | StagingState::Verifying => None,
        StagingState::Near | StagingState::Unready => None,
    }
}

/// Long-polls until the staging ends or `timeout` is over; gives the last document either way.
async fn wait(
    session: &Session,
    api: &Api,
    id: &str,
    timeout: Option<Duration>,
) -> Result<(Staging, Option<Exit>), Error> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut staging: Staging = api.get(&route(&["v1", "stagings", id], &[])).await?;
    loop {
        if let Some(exit) = end(&staging) {
            return Ok((staging, exit));
        }
        tell(session, &staging);
        let left = deadline.map_or(POLL, |deadline| deadline.saturating_duration_since(Instant::now()).min(POLL));
        if left.is_zero() {
            return Ok((staging, Some(Exit::Network)));
        }
        // Whole seconds on the wire; the last fraction is waited for here.
        let (wait, seen) = (left.as_secs().to_string(), staging.state_seq.to_string());
        let path = route(&["v1", "stagings", id], &[("wait", wait.as_str()), ("state_seq", seen.as_str())]);
        if left.as_secs() == 0 {
            tokio::time::sleep(left).await;
        }
        staging = api.get_waiting(&path, left).await?;
    }
}

/// Progress, a line for each change or poll. On stderr: the document comes at the end.
fn tell(session: &Session, staging: &Staging) {
    match session.style {
        Style::Json => {
            let event = serde_json::json!({
                "event": "progress", "verb": "staging", "state": staging.state,
                "bytes": staging.bytes_done, "bytes_total": staging.bytes_total, "reused_bytes": staging.bytes_reused,
            });
            let mut line = Vec::new();
            // Writing into memory does not fail.
            let _ = output::json(&mut line, &event);
            say(&String::from_utf8_lossy(&line));
        }
        Style::Bar | Style::Lines => say(&format!(
            "staging {}: {} of {}",
            word(&staging.state),
            size(staging.bytes_done),
            size(staging.bytes_total)
        )),
    }
}

fn human(out: &mut dyn Write, staging: &Staging) -> io::Result<()> {
    let done = format!(
        "{} of {} ({}), {} reused",
        size(staging.bytes_done),
        size(staging.bytes_total),
        percent(staging.bytes_done, staging.bytes_total),
        size(staging.bytes_reused)
    );
    let mut facts = vec![
        ("staging", staging.id.clone()),
        ("job", staging.job.clone()),
        ("state", word(&staging.state)),
        ("bytes", done),
    ];
    for (name, value) in [("node", &staging.node), ("path", &staging.path), ("eta", &staging.eta.p50)] {
        facts.extend(value.clone().map(|value| (name, value)));
    }
    facts.extend(staging.ready_at.as_deref().map(|at| ("ready", instant(at))));
    facts.extend(staging.error.as_ref().map(|error| ("error", format!("{} ({})", error.detail, error.code))));
    output::facts(out, &facts)
}

/// Where a job's declared outputs stand
#[derive(Debug, clap::Args)]
pub struct OutputsArgs {
    #[arg(value_name = "JOB")]
    job: String,
}

/// What failed comes last.
pub async fn outputs(session: &Session, args: OutputsArgs) -> Result<(), Error> {
    let outputs: Outputs = session.api()?.get(&route(&["v1", "jobs", &args.job, "outputs"], &[])).await?;
    if session.format == Format::Json {
        return Ok(output::show(session.format, &outputs, |_| Ok(()))?);
    }
    let columns = [
        ("NAME", Side::Left),
        ("STATE", Side::Left),
        ("REF", Side::Left),
        ("FILES", Side::Right),
        ("SIZE", Side::Right),
    ];
    let mut table = Table::new(&columns);
    for output in &outputs.outputs {
        let reference = output.reference.as_deref().unwrap_or("-");
        table.row(&[&output.name, &word(&output.state), reference, &count(output.files), &size(output.bytes)]);
    }
    let mut out = io::stdout().lock();
    table.write(&mut out)?;
    for output in &outputs.outputs {
        for link in &output.links {
            writeln!(out, "link of {}: {}", output::clean(&output.name), output::clean(&link.url))?;
        }
        for skipped in &output.skipped {
            let line = format!("{}: {}: {}", output.name, skipped.path, skipped.reason);
            writeln!(out, "skipped: {}", output::clean(&line))?;
        }
    }
    for output in &outputs.outputs {
        if let Some(error) = &output.error {
            let line = format!("{}: {} ({})", output.name, error.detail, error.code);
            writeln!(out, "failed: {}", output::clean(&line))?;
        }
    }
    Ok(())
}
