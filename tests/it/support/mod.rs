//! What the tests share: the real servers they run against, and a proxy that breaks connections to order.
#![allow(dead_code, reason = "each road uses its own part")]

pub mod agent;
pub mod binary;
pub mod client;
pub mod data;
pub mod dice;
pub mod fake_agent;
pub mod fault_proxy;
mod http1;
pub mod line;
pub mod replicas;
pub mod service;
pub mod stores;

#[allow(unused_imports, reason = "each road uses its own part")]
pub use service::{Answer, Builder, Engine, TestService};

/// The real S3 server the tests run against.
#[derive(Debug, Clone)]
pub struct S3 {
    /// `http://127.0.0.1:8333`
    pub endpoint: String,
    pub access_key: String,
    pub secret_key: String,
    pub bucket: String,
}

/// The S3 server that `tests/run` starts; none, said loudly, where there is none. In CI that is a failure.
pub fn s3() -> Option<S3> {
    let endpoint = service("DRAY_TEST_S3_ENDPOINT")?;
    let or = |name: &str, default: &str| env(name).unwrap_or_else(|| default.to_owned());
    Some(S3 {
        endpoint,
        access_key: or("DRAY_TEST_S3_ACCESS_KEY", "testaccess"),
        secret_key: or("DRAY_TEST_S3_SECRET_KEY", "testsecretkey12345"),
        bucket: or("DRAY_TEST_S3_BUCKET", "stage"),
    })
}

/// The URL of the Postgres server that `tests/run` starts, as [`s3`].
pub fn postgres() -> Option<String> {
    service("DRAY_TEST_PG")
}

fn service(name: &str) -> Option<String> {
    let found = env(name);
    if found.is_none() {
        assert!(env("CI").is_none(), "`{name}` is not set: in CI nothing is skipped, run the tests by `tests/run`");
        eprintln!(
            "SKIPPED: `{name}` is not set, so this test ran against no real server; run the tests by `tests/run`"
        );
    }
    found
}

/// Runs one test of this binary in a process of its own, with these variables set, as its part `role`.
///
/// For what a process has only one of: its environment, its life. That test begins with [`role`].
pub fn child(test: &str, role: &str, variables: &[(&str, &str)]) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role).envs(variables.iter().copied());
    command
}

/// The part that this process was started for by [`child`]; none in the parent.
pub fn role() -> Option<String> {
    env(ROLE)
}

const ROLE: &str = "DRAY_TEST_ROLE";

#[expect(clippy::disallowed_methods, reason = "where the test servers are is told by the environment only")]
pub fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
