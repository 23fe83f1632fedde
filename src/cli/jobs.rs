//! `dray job`, `dray lease`.
//!
//! A lease may be named by its job, since people know jobs: the newest one that was not released is meant. `cancel` answers
//! the job as it is afterwards.

use super::error::Error;
use super::listing::list;
use super::output::{self, Side};
use super::session::Session;
use super::units::{Until, instant, size};
use crate::api::jobs::{GrantLease, Job, JobSpec, Lease, ReleaseLease, ReleaseReason, RenewLease};
use crate::api::teams::Page;
use crate::client::api::{Api, route};
use crate::clock::{Clock, SystemClock};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Declare jobs and look at them
#[derive(Debug, clap::Subcommand)]
pub enum JobCommand {
    /// Declare a job from a file (TOML, or JSON where the name ends in .json)
    Submit { file: PathBuf },
    /// One job, with the versions its inputs were resolved to
    Show { id: String },
    /// All jobs, newest first
    List,
    /// Give a job up; its stagings are cancelled
    Cancel { id: String },
}

pub async fn job(session: &Session, command: JobCommand) -> Result<(), Error> {
    let api = session.api()?;
    let job: Job = match command {
        JobCommand::Submit { file } => api.post("/v1/jobs", &read_spec(&file)?).await?,
        JobCommand::Show { id } => api.get(&route(&["v1", "jobs", &id], &[])).await?,
        JobCommand::Cancel { id } => {
            let path = route(&["v1", "jobs", &id], &[]);
            // An older or newer service may answer with the job or with nothing.
            api.delete::<serde::de::IgnoredAny>(&path).await?;
            api.get(&path).await?
        }
        JobCommand::List => {
            let columns = [("ID", Side::Left), ("NAME", Side::Left), ("STATE", Side::Left), ("CREATED", Side::Left)];
            return list(session, &api, (&["v1", "jobs"], &[]), &columns, |job: &Job| {
                vec![job.id.clone(), job.name.clone(), word(&job.state), instant(&job.created_at)]
            })
            .await;
        }
    };
    output::show(session.format, &job, |out| human_job(out, &job))?;
    Ok(())
}

/// Reads a job file. Unknown keys are refused with their place.
///
/// Only the form is checked here; what it means is for the service, so that an older `dray` does not refuse what a newer
/// service takes, but for keys it does not know.
pub fn read_spec(path: &Path) -> Result<JobSpec, Error> {
    let text = fs_err::read_to_string(path).map_err(Error::local(path))?;
    let bad = |why: String| Error::BadFile { path: path.to_owned(), what: "job file", why };
    match path.extension().is_some_and(|extension| extension == "json") {
        true => serde_json::from_str(&text).map_err(|error| bad(error.to_string())),
        false => toml::from_str(&text).map_err(|error| bad(error.to_string())),
    }
}

/// The wire's word for an enum value.
///
/// As the API spells it, so that what is read in a table can be asked for.
pub fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// A callback's secret is in the answer of the submission only, and is shown then.
fn human_job(out: &mut dyn Write, job: &Job) -> io::Result<()> {
    let mut facts = vec![
        ("job", job.id.clone()),
        ("name", job.name.clone()),
        ("state", word(&job.state)),
        ("created", instant(&job.created_at)),
    ];
    if let Some(secret) = &job.callback_secret {
        facts.push(("callback secret", format!("{secret} (shown this once)")));
    }
    output::facts(&mut *out, &facts)?;
    for input in &job.inputs {
        let path = if input.path.is_empty() { String::new() } else { format!(":{}", input.path) };
        let line = format!("{}{path} at {} ({})", input.version.reference, input.spec.at, size(input.version.bytes));
        writeln!(out, "input: {}", output::clean(&line))?;
    }
    for declared in &job.spec.output {
        let line = format!("{} to {}, {}", declared.name, declared.to, word(&declared.when));
        writeln!(out, "output: {}", output::clean(&line))?;
    }
    Ok(())
}

/// Say which node a job holds, and until when
#[derive(Debug, clap::Subcommand)]
pub enum LeaseCommand {
    /// Give a job a node until a time
    Grant {
        #[arg(long, value_name = "JOB")]
        job: String,
        #[arg(long, value_name = "NODE")]
        node: String,
        /// An instant (RFC 3339) or a duration from now, like `4h`
        #[arg(long, value_name = "TIME", value_parser = Until::parse)]
        until: Until,
        #[arg(long, value_name = "N")]
        gpus: Option<u32>,
    },
    /// Move a lease's end
    Renew {
        #[command(flatten)]
        which: Which,
        #[arg(long, value_name = "TIME", value_parser = Until::parse)]
        until: Until,
    },
    /// End a lease; declared outputs come home
    Release {
        #[command(flatten)]
        which: Which,
        #[arg(long)]
        reason: Reason,
    },
}

/// A lease by its id, or as the live one of a job.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Which {
    #[arg(value_name = "LEASE")]
    lease: Option<String>,
    /// The job's live lease
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Reason {
    Finished,
    Failed,
    Preempted,
    Expired,
}

impl From<Reason> for ReleaseReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Finished => Self::Finished,
            Reason::Failed => Self::Failed,
            Reason::Preempted => Self::Preempted,
            Reason::Expired => Self::Expired,
        }
    }
}

pub async fn lease(session: &Session, command: LeaseCommand) -> Result<(), Error> {
    let api = session.api()?;
    let now = SystemClock.now();
    let lease: Lease = match command {
        LeaseCommand::Grant { job, node, until, gpus } => {
            api.post("/v1/leases", &GrantLease { job, node, until: until.instant(now), gpus }).await?
        }
        LeaseCommand::Renew { which, until } => {
            let id = which.find(&api).await?;
            api.post(&route(&["v1", "leases", &id, "renew"], &[]), &RenewLease { until: until.instant(now) }).await?
        }
        LeaseCommand::Release { which, reason } => {
            let id = which.find(&api).await?;
            let path = route(&["v1", "leases", &id, "release"], &[]);
            api.post(&path, &ReleaseLease { reason: reason.into() }).await?
        }
    };
    output::show(session.format, &lease, |out| human_lease(out, &lease))?;
    Ok(())
}

impl Which {
    /// Goes over all leases of the job. Between this and the call that follows another lease may be granted; its id then
    /// says so.
    async fn find(self, api: &Api) -> Result<String, Error> {
        let Some(job) = self.job else { return Ok(self.lease.unwrap_or_default()) };
        let mut cursor = None;
        let mut newest: Option<Lease> = None;
        loop {
            let page: Page<Lease> = api.page(&["v1", "leases"], &[("job", &job)], cursor.as_deref()).await?;
            let live = page.items.into_iter().filter(|lease| lease.released.is_none());
            newest = newest.into_iter().chain(live).max_by_key(|lease| lease.epoch);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        newest.map(|lease| lease.id).ok_or_else(|| Error::Absent {
            what: format!("job `{job}` holds no live lease"),
            hint: "`dray lease grant` gives it one",
        })
    }
}

fn human_lease(out: &mut dyn Write, lease: &Lease) -> io::Result<()> {
    let mut facts = vec![
        ("lease", lease.id.clone()),
        ("job", lease.job.clone()),
        ("node", lease.node.clone()),
        ("epoch", lease.epoch.to_string()),
        ("until", instant(&lease.expires_at)),
    ];
    if let Some(reason) = &lease.released {
        facts.push(("released", word(reason)));
    }
    output::facts(out, &facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_file_is_read_and_a_wrong_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.toml");
        let text = "name = \"x\"\n[[data]]\nfrom = \"w/t\"\nat = \"in\"\n[[output]]\nname = \"o\"\npath = \"**\"\nto = \"w/o\"\n";
        fs_err::write(&path, text).unwrap();
        let spec = read_spec(&path).unwrap();
        assert_eq!((spec.data.len(), spec.output[0].path.as_slice()), (1, &["**".to_owned()][..]));
        fs_err::write(&path, format!("{text}retries = 3\n")).unwrap();
        let error = read_spec(&path).unwrap_err();
        assert!(error.to_string().contains("retries"), "{error}");
        assert_eq!(error.exit(), 1);
    }
}
