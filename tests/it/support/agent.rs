//! The real agent: the program's own process on a cache of its own, its log in a file, killed and started at will.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::binary::{dray, signal};
use super::client::{context, push_dir, set_clock};
use super::service::TestService;

/// Longer than anything waited for here takes; what is waited for ends the wait.
const PATIENCE: Duration = Duration::from_secs(90);

/// A node with its agent. Killed when dropped.
#[derive(Debug)]
pub struct Agent {
    pub node: String,
    pub token: String,
    pub cache: PathBuf,
    /// Where it looks for the service.
    pub url: String,
    log: PathBuf,
    child: Option<Child>,
}

impl Agent {
    /// Adds a node. Its agent does not run yet.
    pub async fn new(service: &TestService, node: &str) -> Self {
        set_clock(service);
        let place = service.scratch().canonicalize().unwrap();
        Self {
            node: node.to_owned(),
            token: service.node(node).await,
            cache: place.join(format!("{node}-cache")),
            url: service.url.clone(),
            log: place.join(format!("{node}.log")),
            child: None,
        }
    }

    pub async fn started(service: &TestService, node: &str) -> Self {
        let mut agent = Self::new(service, node).await;
        agent.start();
        agent
    }

    /// Another agent for the same node, on another cache. It does not run yet.
    pub fn twin(&self, token: &str) -> Self {
        Self {
            node: self.node.clone(),
            token: token.to_owned(),
            cache: self.cache.with_extension("twin"),
            url: self.url.clone(),
            log: self.log.with_extension("twin"),
            child: None,
        }
    }

    /// `dray agent` for this node, with its log on stderr.
    pub fn command(&self) -> Command {
        let mut command = dray();
        command.args(["agent", "--server", &self.url, "--node", &self.node, "--cache"]).arg(&self.cache);
        command.env("DRAY_TOKEN", &self.token);
        command
    }

    pub fn start(&mut self) {
        self.start_with([] as [&str; 0], &[]);
    }

    pub fn start_with<I: AsRef<OsStr>>(&mut self, more: impl IntoIterator<Item = I>, variables: &[(&str, &str)]) {
        self.kill();
        let log = std::fs::File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = self.command();
        command.args(more).envs(variables.iter().copied()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// By `SIGKILL`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// By `SIGTERM`; gives the exit code.
    pub fn end(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        signal(&child, rustix::process::Signal::TERM);
        child.wait().unwrap().code()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Until the log has this text.
    pub async fn says(&self, text: &str) {
        until(|| format!("the agent does not say `{text}`:\n{}", self.log()), async || self.log().contains(text)).await;
    }

    pub fn job_dir(&self, job: &str, epoch: u64) -> PathBuf {
        self.cache.join(format!("jobs/{job}-{epoch}"))
    }

    /// Names in a directory of the cache.
    pub fn names(&self, place: &str) -> Vec<String> {
        let Ok(listing) = std::fs::read_dir(self.cache.join(place)) else { return Vec::new() };
        listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Until the service expects nothing more of the node.
    pub async fn is_free(&self, service: &TestService) {
        let why = || format!("the node is not done:\n{}", self.log());
        until(why, async || {
            let work = service.call(Method::GET, "/v1/agent/work", &self.token, &Value::Null).await.expect(200).json();
            work["returns"] == json!([]) && work["stagings"] == json!([])
        })
        .await;
    }

    /// The staging, once it is in one of these states.
    pub async fn staged(&self, service: &TestService, staging: &Value, states: &[&str]) -> Value {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = 0;
        loop {
            let path = format!("/v1/stagings/{}?wait=20&state_seq={seen}", staging["id"].as_str().unwrap());
            let now = service.get(&path).await.expect(200).json();
            if states.contains(&now["state"].as_str().unwrap()) {
                return now;
            }
            assert!(now["state"] != "failed" && Instant::now() < deadline, "{now}\n{}", self.log());
            seen = now["state_seq"].as_u64().unwrap();
        }
    }

    /// A job over one dataset at `in` with a lease and a staging here: the job's id, the lease and the staging.
    pub async fn stage(&self, service: &TestService, from: &str, more: Value) -> (String, Value, Value) {
        let job = service.job(from, more).await;
        let lease = service.grant_lease(&job, &self.node).await.expect(201).json();
        let staging = service.stage(&job, &self.node).await.expect(201).json();
        (job, lease, staging)
    }

    /// The same, ready: the job's id, the lease and the job's directory.
    pub async fn ready(&self, service: &TestService, from: &str, more: Value) -> (String, Value, PathBuf) {
        let (job, lease, staging) = self.stage(service, from, more).await;
        let ready = self.staged(service, &staging, &["ready"]).await;
        (job, lease, PathBuf::from(ready["path"].as_str().unwrap()))
    }

    /// The outputs of a job by name, once all are in one of these states.
    pub async fn outputs(&self, service: &TestService, job: &str, states: &[&str]) -> Vec<Value> {
        let mut last = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while last.is_empty() || !last.iter().all(|output: &Value| states.contains(&output["state"].as_str().unwrap()))
        {
            assert!(Instant::now() < deadline, "{last:?}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
            let listed = service.get(&format!("/v1/jobs/{job}/outputs")).await.expect(200).json();
            last = listed["outputs"].as_array().unwrap().clone();
        }
        last
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the log of node {}:\n{}", self.node, self.log());
        }
    }
}

/// Looks again and again until it is so; panics with `why` when it never is.
pub async fn until(why: impl Fn() -> String, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{}", why());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Pushes a directory as the team does.
pub async fn push_tree(service: &TestService, dataset: &str, tree: &Path) {
    set_clock(service);
    push_dir(&context(service), dataset, tree).await;
}

/// One due output of everything that the job writes.
pub fn output(name: &str) -> Value {
    json!({ "output": [{ "name": name, "path": "**", "to": format!("out/{name}"), "when": "always" }] })
}
