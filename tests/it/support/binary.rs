//! The real binary, as a user runs it: a service of its own, commands against it, nothing of this machine's settings.

use std::ffi::OsStr;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub fn dray() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dray"));
    command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command
}

/// A `dray serve` in a directory of its own. Ended when dropped.
#[derive(Debug)]
pub struct Served {
    pub url: String,
    pub token: String,
    pub dir: tempfile::TempDir,
    address: String,
    child: Child,
}

impl Served {
    /// Starts a service and waits until it answers.
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// The same with further flags or variables.
    pub fn start_with(change: impl FnOnce(&mut Command)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let child = serve(dir.path(), &address, change);
        let token = fs_err::read_to_string(dir.path().join("data/admin.token")).unwrap().trim().to_owned();
        Self { url: format!("http://{address}"), token, dir, address, child }
    }

    /// `SIGKILL`, and the service starts again on the same data and port, with these flags or variables only.
    pub fn restart_with(&mut self, change: impl FnOnce(&mut Command)) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = serve(self.dir.path(), &self.address, change);
    }

    /// What the service said about itself.
    pub fn log(&self) -> String {
        fs_err::read_to_string(self.dir.path().join("serve.log")).unwrap()
    }

    /// A command with this service's URL and token, and a home of its own.
    pub fn command(&self) -> Command {
        let mut command = dray();
        command.env("DRAY_URL", &self.url).env("DRAY_TOKEN", &self.token).env("HOME", self.home());
        command
    }

    pub fn home(&self) -> PathBuf {
        let home = self.dir.path().join("home");
        fs_err::create_dir_all(&home).unwrap();
        home
    }

    /// Runs a command to its end.
    pub fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Ran {
        Ran::of(self.command().args(arguments))
    }

    /// Runs a command with `--json`, expects success, and gives its document.
    pub fn json<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> serde_json::Value {
        let ran = Ran::of(self.command().args(arguments).arg("--json"));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.document()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        signal(&self.child, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

fn serve(dir: &Path, address: &str, change: impl FnOnce(&mut Command)) -> Child {
    let path = dir.join("serve.log");
    let log = fs_err::File::options().create(true).append(true).open(&path).unwrap().into_file();
    let mut command = dray();
    command.args(["serve", "--listen", address, "--data"]).arg(dir.join("data"));
    change(&mut command);
    let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    until_it_answers(address, &mut child, &path);
    child
}

/// Waits until a service listens at this address; fails when it ends instead.
pub fn until_it_answers(address: &str, child: &mut Child, log: &Path) {
    let until = Instant::now() + Duration::from_secs(60);
    while std::net::TcpStream::connect(address).is_err() {
        let ended = child.try_wait().unwrap();
        let log = || fs_err::read_to_string(log).unwrap();
        assert!(ended.is_none(), "serve ended: {ended:?}\n{}", log());
        assert!(Instant::now() < until, "serve does not answer\n{}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal to a child.
pub fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

/// How a command ended and what it said.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(command: &mut Command) -> Self {
        command.output().unwrap().into()
    }

    /// The one JSON document on stdout.
    pub fn document(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Waits for a child, killing it and failing after `limit`.
pub fn wait(mut child: Child, limit: Duration) -> Ran {
    let until = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("still running after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let read = |pipe: Option<&mut dyn Read>| {
        let mut text = String::new();
        pipe.map(|pipe| pipe.read_to_string(&mut text)).transpose().unwrap();
        text
    };
    let stdout = read(child.stdout.as_mut().map(|pipe| pipe as &mut dyn Read));
    let stderr = read(child.stderr.as_mut().map(|pipe| pipe as &mut dyn Read));
    Ran { code: status.code().unwrap_or(-1), stdout, stderr }
}

/// A small tree with what a tree may hold: text, an empty directory, a link, an executable, names that try things.
pub fn sample(root: &Path) {
    fs_err::create_dir_all(root.join("a/deep/er")).unwrap();
    fs_err::create_dir_all(root.join("empty")).unwrap();
    fs_err::write(root.join("a/x.txt"), "hello\n").unwrap();
    fs_err::write(root.join("a/deep/er/y.bin"), (0..300_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>())
        .unwrap();
    fs_err::write(root.join("\u{1b}[31mred\u{7}"), "evil").unwrap();
    fs_err::write(root.join("🎬 ملف.mov"), "film").unwrap();
    std::os::unix::fs::symlink("a/x.txt", root.join("link")).unwrap();
}
