//! The small scheduler: declares a job, leases the node, has the inputs staged, runs the job, brings the outputs home.
//!
//! It does what any scheduler would do over the same HTTP calls, with a `scheduler` token; links are the team's.
//!
//! Steps are methods in the order of the journey. Each gives a line to show and the value that the next one needs; the
//! first that fails ends the demonstration, with its step's name.

use super::children::own_executable;
use super::compare::{self, Compared};
use super::job::{SUMMARY, SUMS};
use super::places::NODE;
use super::receiver::Receiver;
use super::report::Gauge;
use crate::api::events::{Event, PublicKeys};
use crate::api::jobs::{
    CallbackSpec, GrantLease, InputSpec, Job, JobSpec, Lease, Output, OutputSpec, OutputState, OutputWhen, Outputs,
    ReleaseLease, ReleaseReason, RequestSpec, RequestStaging, Staging, StagingState,
};
use crate::api::links::{CreateLink, Link};
use crate::cli::error::Error;
use crate::cli::receipt;
use crate::cli::units::{count, size};
use crate::client::api::{Api, route};
use crate::client::push::PushReport;
use crate::client::stored::{TreeSource, resolve};
use crate::client::transfer::Target;
use crate::client::{Error as ClientError, TransferError};
use crate::clock::{Clock, SystemClock};
use crate::domain::receipt::Envelope;
use jiff::SignedDuration;
use secrecy::SecretString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const AT: &str = "footage";
const RESULTS: &str = "demo/results";
/// How often the state is looked at while a callback is waited for.
const LOOK: Duration = Duration::from_millis(300);

/// `api` bears the `scheduler` token, `team` the team's: what each role may do is thereby shown too.
#[derive(Debug)]
pub struct Scheduler {
    pub api: Api,
    pub team: Api,
    pub cancel: CancellationToken,
}

/// A staging that is ready, and the event that said so.
#[derive(Debug)]
pub struct Staged {
    pub staging: Staging,
    pub path: PathBuf,
}

/// The text for people, and the result.
type Step<T> = Result<(String, T), Error>;

fn failed(step: &'static str, why: impl Into<String>) -> Error {
    Error::Demo { step, why: why.into() }
}

impl Scheduler {
    /// The receiver is told the callback's secret, which is answered this once.
    pub async fn submit(&self, receiver: &mut Receiver, pushed: &PushReport) -> Step<Job> {
        let reference = pushed.reference.clone().ok_or_else(|| failed("job", "the push made no version"))?;
        let spec = JobSpec {
            name: "demo".to_owned(),
            work: None,
            data: vec![InputSpec {
                from: reference,
                at: AT.to_owned(),
                include: Vec::new(),
                exclude: Vec::new(),
                shard: None,
                allow_incomplete: pushed.incomplete,
                // They are restored as text, and this job follows no link.
                allow_outside_links: true,
            }],
            request: RequestSpec::default(),
            output: vec![OutputSpec {
                name: "results".to_owned(),
                path: vec!["**".to_owned()],
                to: RESULTS.to_owned(),
                when: OutputWhen::Always,
                required: true,
            }],
            checkpoint: None,
            callback: Some(CallbackSpec { url: receiver.url() }),
            run_as: None,
        };
        let job: Job = self.api.post("/v1/jobs", &spec).await?;
        let secret = job.callback_secret.as_deref().ok_or_else(|| failed("job", "no callback secret was given"))?;
        receiver.trust(secret).map_err(|why| failed("job", why))?;
        Ok((format!("`{}` over it, callbacks to {}", job.name, receiver.url()), job))
    }

    pub async fn lease(&self, job: &Job) -> Step<Lease> {
        let hours = SignedDuration::from_hours(6);
        let until = SystemClock.now().checked_add(hours).map_err(|error| failed("lease", error.to_string()))?;
        let request = GrantLease { job: job.id.clone(), node: NODE.to_owned(), until: until.to_string(), gpus: None };
        let lease: Lease = self.api.post("/v1/leases", &request).await?;
        Ok((format!("`{NODE}` for 6 hours, epoch {}", lease.epoch), lease))
    }

    /// Asks for the inputs on the node and waits for the callback that they are ready.
    ///
    /// Ready is believed by the callback alone; the looks meanwhile are for the gauge, and to notice a failure.
    pub async fn stage(&self, job: &Job, receiver: &mut Receiver, gauge: Gauge) -> Step<Staged> {
        let request = RequestStaging { job: job.id.clone(), node: Some(NODE.to_owned()), ready_by: None };
        let asked: Staging = self.api.post("/v1/stagings", &request).await?;
        let path = route(&["v1", "stagings", &asked.id], &[]);
        let mut looks = tokio::time::interval(LOOK);
        let event = loop {
            tokio::select! {
                event = next_event(receiver, &self.cancel) => {
                    let event = event?;
                    let is_ours = event.data["id"].as_str() == Some(&asked.id);
                    if is_ours && event.kind == "dray.staging.ready.v1" {
                        break event;
                    }
                }
                _ = looks.tick() => {
                    let staging: Staging = self.api.get(&path).await?;
                    gauge.show(staging.bytes_done, staging.bytes_total);
                    if matches!(staging.state, StagingState::Failed | StagingState::Cancelled) {
                        let why = staging.error.map_or_else(String::new, |error| error.detail);
                        return Err(failed("stage", format!("the staging failed: {why}")));
                    }
                }
            }
        };
        let staging: Staging =
            serde_json::from_value(event.data).map_err(|error| failed("stage", format!("the event: {error}")))?;
        let path = staging.path.clone().ok_or_else(|| failed("stage", "the ready event names no path"))?;
        let text = format!("{} on the node; ready was called back, signature right", size(staging.bytes_total));
        Ok((text, Staged { staging, path: PathBuf::from(path) }))
    }

    /// Proves the receipt that came with the callback and keeps it.
    ///
    /// Also that it speaks of this staging and this node: a receipt that holds may be another one's.
    pub async fn check_receipt(&self, staged: &Staged, to: &Path) -> Step<()> {
        let document = staged.staging.receipt.clone().ok_or_else(|| failed("receipt", "there is none"))?;
        let text = document.to_string();
        fs_err::write(to, &text).map_err(Error::local(to))?;
        let envelope = Envelope::from_json(text.as_bytes()).map_err(|error| failed("receipt", error.to_string()))?;
        let keys: PublicKeys = self.api.get("/v1/keys").await?;
        let statement = receipt::check(&envelope, &keys)?;
        if statement.staging != staged.staging.id || statement.node != NODE {
            return Err(failed("receipt", "it speaks of another staging"));
        }
        let text = format!(
            "signed by node and service: {} files, {} read back from the disk",
            count(statement.files),
            size(statement.bytes)
        );
        Ok((text, ()))
    }

    pub async fn compare_inputs(&self, pushed: &PushReport, input: &Path, staged: &Staged) -> Step<Compared> {
        let reference = pushed.reference.clone().unwrap_or_default();
        let version = resolve(&self.team, &reference).await?;
        let tree = TreeSource::open(&self.team, &version).await?;
        let (input, at, cancel) = (input.to_owned(), staged.path.join(AT), self.cancel.clone());
        let done = tokio::task::spawn_blocking(move || compare::trees(tree, &input, &at, &cancel)).await;
        let compared = done
            .map_err(|_| failed("compare inputs", "the comparison ended"))?
            .map_err(|differs| failed("compare inputs", differs.to_string()))?;
        let text =
            format!("{} files, {}: staged equals pushed, byte for byte", count(compared.files), size(compared.bytes));
        Ok((text, compared))
    }

    /// Runs a process over the staged files, and keeps a copy of what it wrote.
    ///
    /// As a process of its own, so that nothing of ours helps it to the files.
    pub async fn run_job(&self, staged: &Staged, keep: &Path) -> Step<()> {
        let out = staged.path.join("out");
        let mut command = own_executable()?;
        command.arg("demo-job").arg("--input").arg(staged.path.join(AT)).arg("--output").arg(&out);
        command.current_dir(&staged.path).kill_on_drop(true);
        let child = command.spawn().map_err(Error::local("dray"))?;
        let pid = child.id().unwrap_or_default();
        let ended = tokio::select! {
            ended = child.wait_with_output() => ended.map_err(Error::local("dray"))?,
            () = self.cancel.cancelled() => return Err(ClientError::Interrupted.into()),
        };
        if !ended.status.success() {
            return Err(failed("run", format!("the job ended with {}", ended.status)));
        }
        for name in [SUMS, SUMMARY] {
            fs_err::copy(out.join(name), keep.join(name)).map_err(Error::local(out.join(name)))?;
        }
        let lines = fs_err::read(keep.join(SUMS)).map_err(Error::local(keep))?;
        let lines = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        Ok((format!("process {pid} hashed {} staged files into out/", count(lines)), ()))
    }

    /// Gives the node back; the agent brings the outputs home.
    pub async fn bring_home(&self, job: &Job, lease: &Lease, receiver: &mut Receiver) -> Step<Output> {
        let path = route(&["v1", "leases", &lease.id, "release"], &[]);
        self.api.post::<_, Lease>(&path, &ReleaseLease { reason: ReleaseReason::Finished }).await?;
        let path = route(&["v1", "jobs", &job.id, "outputs"], &[]);
        let mut looks = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                event = next_event(receiver, &self.cancel) => drop(event?),
                _ = looks.tick() => {}
            }
            let outputs: Outputs = self.api.get(&path).await?;
            let Some(output) = outputs.outputs.into_iter().next() else {
                return Err(failed("return", "the job has no output"));
            };
            match (output.state, &output.reference) {
                (OutputState::Stored, Some(reference)) => {
                    let text = format!("{reference}: {} in {} files", size(output.bytes), count(output.files));
                    return Ok((text, output));
                }
                (OutputState::Failed | OutputState::Missing, _) => {
                    let why = output.error.map_or_else(|| "it is missing".to_owned(), |error| error.detail);
                    return Err(failed("return", why));
                }
                _ => {}
            }
        }
    }

    /// One link for each file of the output.
    pub async fn link(&self, output: &Output) -> Step<Vec<(&'static str, Link)>> {
        let reference = output.reference.clone().unwrap_or_default();
        let mut links = Vec::new();
        for name in [SUMS, SUMMARY] {
            let request = CreateLink {
                reference: reference.clone(),
                path: name.to_owned(),
                archive: None,
                expires_in: Some(3600),
                direct: false,
            };
            links.push((name, self.team.post("/v1/links", &request).await?));
        }
        let text = links.first().map_or_else(String::new, |(_, link): &(_, Link)| link.url.clone());
        Ok((text, links))
    }

    /// Downloads by the links, without a token, and compares with what the job wrote.
    pub async fn compare_output(&self, links: &[(&'static str, Link)], written: &Path, home: &Path) -> Step<Compared> {
        let base = self.team.base().to_string();
        let urls = vec![base.parse().map_err(|_| failed("compare output", "the service has no URL"))?];
        let stranger =
            Api::new(urls, SecretString::from(""), self.team.options().clone())?.cancelled_by(self.cancel.clone());
        let mut compared = Compared::default();
        for (name, link) in links {
            let to = home.join(name);
            download(&stranger, &link.url, &to).await?;
            let (ours, cancel) = (written.join(name), self.cancel.clone());
            let check = to.clone();
            let equal = tokio::task::spawn_blocking(move || compare::files(&ours, &check, &cancel)).await;
            let equal = equal.map_err(|_| failed("compare output", "the comparison ended"))?;
            if let Some(at) = equal.map_err(Error::local(&to))? {
                return Err(failed("compare output", format!("`{name}` differs at byte {at}")));
            }
            compared.files += 1;
            compared.bytes += link.bytes;
        }
        let text = format!("{} files, {}: downloaded equals written", compared.files, size(compared.bytes));
        Ok((text, compared))
    }
}

async fn next_event(receiver: &mut Receiver, cancel: &CancellationToken) -> Result<Event, Error> {
    tokio::select! {
        event = receiver.events.recv() => event.ok_or_else(|| failed("callback", "the receiver ended")),
        () = cancel.cancelled() => Err(ClientError::Interrupted.into()),
    }
}

/// Streams to the file, not synced: it is compared at once.
async fn download(api: &Api, url: &str, to: &Path) -> Result<(), Error> {
    let mut stream = api.get_stream(Target::Signed(url), None).await?;
    let mut file = tokio::fs::File::create(to).await.map_err(Error::local(to))?;
    while let Some(part) = stream.next().await.map_err(TransferError::from)? {
        tokio::io::AsyncWriteExt::write_all(&mut file, &part).await.map_err(Error::local(to))?;
    }
    tokio::io::AsyncWriteExt::flush(&mut file).await.map_err(Error::local(to))
}
