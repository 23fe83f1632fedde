//! Two real `dray serve` on one Postgres and one bucket, each behind a proxy that logs every request; killed and started at will.
//!
//! The proxies outlive their replicas, as a load balancer or a port forwarder does: in front of a dead replica a connection is
//! taken and closed without a word.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::binary::{Ran, dray, until_it_answers};
use super::fault_proxy::{FaultProxy, Seen};
use super::service::PgDatabase;
use super::stores::fresh;
use super::{S3, postgres, s3};

/// The largest pack these services take, so that a small tree makes many packs.
pub const PACK: u64 = 1 << 20;

#[derive(Debug)]
pub struct Pair {
    pub dir: tempfile::TempDir,
    pub replicas: Vec<Replica>,
    pub token: String,
    database: PgDatabase,
    store: String,
    s3: S3,
}

#[derive(Debug)]
pub struct Replica {
    pub proxy: FaultProxy,
    /// Of the service itself, behind the proxy.
    pub port: u16,
    child: Option<Child>,
}

impl Pair {
    /// Starts both; none where there are no servers for them.
    pub async fn start() -> Option<Self> {
        let (_, s3) = (postgres()?, s3()?);
        let database = PgDatabase::create().await;
        let store = format!("s3://{}/it-{}", s3.bucket, fresh());
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("secret.key");
        fs_err::write(&key, "5a".repeat(32)).unwrap();
        fs_err::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let mut pair = Self { dir, replicas: Vec::new(), token: String::new(), database, store, s3 };
        for number in 0..2 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let proxy = FaultProxy::start(&format!("127.0.0.1:{port}")).await;
            pair.replicas.push(Replica { proxy, port, child: None });
            pair.restart(number);
            if number == 0 {
                let token = fs_err::read_to_string(pair.path("replica-0/admin.token")).unwrap();
                token.trim().clone_into(&mut pair.token);
            }
        }
        Some(pair)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a replica that is not running.
    pub fn restart(&mut self, number: usize) {
        let (log_path, address) =
            (self.path(&format!("replica-{number}.log")), format!("127.0.0.1:{}", self.replicas[number].port));
        let log = fs_err::File::options().create(true).append(true).open(&log_path).unwrap().into_file();
        let mut command = dray();
        command
            .args(["serve", "--listen", &address, "--store", &self.store, "--database", &self.database.url, "--data"])
            .arg(self.path(&format!("replica-{number}")))
            .env("DRAY_MULTI_REPLICA", "true")
            .env("DRAY_SECRET_KEY_FILE", self.path("secret.key"))
            .env("DRAY_STORE_ENDPOINT", &self.s3.endpoint)
            .env("DRAY_STORE_REGION", "us-east-1")
            .env("DRAY_STORE_ACCESS_KEY_ID", &self.s3.access_key)
            .env("DRAY_STORE_SECRET_ACCESS_KEY", &self.s3.secret_key)
            .env("DRAY_LIMITS_MAX_PACK_BYTES", "1MiB");
        let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        until_it_answers(&address, &mut child, &log_path);
        self.replicas[number].child = Some(child);
    }

    /// `SIGKILL`.
    pub fn kill(&mut self, number: usize) {
        let mut child = self.replicas[number].child.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Both proxies, as `DRAY_URL` takes them.
    pub fn urls(&self) -> String {
        self.replicas.iter().map(|replica| replica.proxy.url()).collect::<Vec<_>>().join(",")
    }

    /// A command against both, with a home of its own, its output kept.
    pub fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let home = self.path("home");
        fs_err::create_dir_all(&home).unwrap();
        let mut command = dray();
        command.args(arguments).env("DRAY_URL", self.urls()).env("DRAY_TOKEN", &self.token).env("HOME", home);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command with `--json`, expects success, and gives its document.
    pub fn json<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> serde_json::Value {
        let ran = Ran::of(self.command(arguments).arg("--json"));
        assert_eq!(ran.code, 0, "{ran:?}\n{}", self.logs());
        ran.document()
    }

    /// Waits until one of the replicas has seen so many such requests; says which.
    pub async fn seen(&self, wanted: impl Fn(&Seen) -> bool, count: usize) -> usize {
        let both = async {
            tokio::select! {
                () = self.replicas[0].proxy.wait(&wanted, count) => 0,
                () = self.replicas[1].proxy.wait(&wanted, count) => 1,
            }
        };
        let log = || self.requests().into_iter().map(|seen| format!("{} {}", seen.method, seen.target));
        tokio::time::timeout(Duration::from_secs(120), both)
            .await
            .unwrap_or_else(|_| panic!("never seen; there were {:#?}\n{}", log().collect::<Vec<_>>(), self.logs()))
    }

    /// What came to either.
    pub fn requests(&self) -> Vec<Seen> {
        self.replicas.iter().flat_map(|replica| replica.proxy.log()).collect()
    }

    /// The ends of the services' own logs.
    pub fn logs(&self) -> String {
        let end = |number: usize| {
            let text = fs_err::read_to_string(self.path(&format!("replica-{number}.log"))).unwrap_or_default();
            let skip = text.chars().count().saturating_sub(3_000);
            format!("replica {number}:\n{}\n", text.chars().skip(skip).collect::<String>())
        };
        (0..self.replicas.len()).map(end).collect()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for child in self.replicas.iter_mut().filter_map(|replica| replica.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The pack that a PUT brings; none for every other request.
pub fn pack_of(seen: &Seen) -> Option<&str> {
    let rest = seen.target.strip_prefix("/v1/uploads/").filter(|_| seen.method == "PUT")?;
    rest.split_once("/packs/").map(|(_, pack)| pack)
}

/// The service answered well, and its answer has gone out whole.
pub fn acknowledged(seen: &Seen) -> bool {
    seen.done && seen.status.is_some_and(|status| (200..300).contains(&status))
}

/// A grant of packs was asked for.
pub fn is_grant(seen: &Seen) -> bool {
    seen.method == "POST" && seen.target == "/v1/grants"
}
