//! The real program over a bad line: lost answers, cuts at any byte, storms of 503, silence, strangers' pages. Either it ends well and
//! every byte is equal, or it says what is wrong and what to do, and the same command over a good line ends well.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::binary::{Ran, Served, dray, wait};
use crate::support::client::assert_same;
use crate::support::dice::Dice;
use crate::support::fault_proxy::{Answer, Fault, FaultProxy, Rule};
use crate::support::s3;

/// Far above what any of these commands takes: they must end by themselves.
const LIMIT: Duration = Duration::from_secs(120);
const PAGE: &str = "<?xml version=\"1.0\"?><Error><Code>InternalError</Code><Message>try again</Message></Error>";

/// A service and the bad line to it.
struct Bad {
    served: Served,
    proxy: FaultProxy,
    tree: PathBuf,
}

impl Bad {
    async fn start(dice: &mut Dice) -> Self {
        let served = Served::start();
        let proxy = FaultProxy::start(&served.url).await;
        let tree = served.dir.path().join("tree");
        fs_err::create_dir_all(tree.join("notes")).unwrap();
        let bad = Self { served, proxy, tree };
        bad.change_tree(dice);
        bad
    }

    /// New content, so that a push has something to send: a film of several packs and small files.
    fn change_tree(&self, dice: &mut Dice) {
        fs_err::write(self.tree.join("film.mp4"), dice.bytes(9 << 20)).unwrap();
        for number in 0..12 {
            let length = usize::try_from(dice.below(30_000)).unwrap();
            fs_err::write(self.tree.join(format!("notes/{number}")), dice.bytes(length)).unwrap();
        }
    }

    fn path(&self, name: &str) -> String {
        self.served.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A command over the bad line that gives a silent line up after two seconds.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.served.command();
        command.env("DRAY_URL", self.proxy.url()).env("DRAY_STALL_TIMEOUT", "2s").env("DRAY_PATIENCE", "12s");
        command.args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        wait(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), LIMIT)
    }

    fn push(&self) -> Vec<&str> {
        vec!["push", self.tree.to_str().unwrap(), "--to", "bad/line"]
    }

    /// Pulled over the good line, it is the tree.
    fn assert_stored(&self) {
        let dest = self.path("straight");
        let _ = fs_err::remove_dir_all(&dest);
        self.served.json(["pull", "bad/line", &dest]);
        assert_same(&self.tree, Path::new(&dest));
    }
}

/// Not 0: an exit code of the README's, and in words what is so and what to do.
fn assert_told(ran: &Ran, context: &str) {
    assert!([1, 3, 4].contains(&ran.code), "{context}: {ran:?}");
    let at = |word: &str| ran.stderr.lines().position(|line| line.starts_with(word));
    assert!(at("error: ").is_some() && at("hint: ") > at("error: "), "{context}: {ran:?}");
    assert!(!ran.stderr.contains("panicked"), "{context}: {ran:?}");
}

/// The same as a document: a stable code and a hint.
fn assert_document(ran: &Ran, exit: i32, codes: &[&str]) {
    let error = ran.document()["error"].clone();
    assert_eq!(ran.code, exit, "{ran:?}");
    assert!(codes.contains(&error["code"].as_str().unwrap()), "{error}");
    assert!(error["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{error}");
}

/// A fault that may strike anywhere; cuts fall on random bytes.
fn any_fault(dice: &mut Dice, body: u64) -> Fault {
    let busy = Answer::new(503, PAGE);
    match dice.below(12) {
        0 => Fault::Drop,
        1 | 2 => Fault::DropReply,
        3 | 4 => Fault::CutRequest(dice.below(body)),
        5 => Fault::CutReply(dice.below(200)),
        6 => Fault::CutReply(dice.below(body)),
        7 => Fault::Hang,
        8 => Fault::HangReply(dice.below(body)),
        9 => Fault::Answer(busy),
        10 => Fault::Answer(busy.header("retry-after", "1")),
        _ if dice.below(2) == 0 => Fault::Answer(Answer::new(200, PAGE)),
        _ => Fault::AnswerAfter(Answer::new(200, PAGE)),
    }
}

/// Lays up to five random rules on these steps of a road.
fn lay(proxy: &FaultProxy, dice: &mut Dice, steps: &[(&str, &str)], body: u64) -> String {
    proxy.clear();
    let mut rules = Vec::new();
    for _ in 0..1 + dice.below(5) {
        let (method, target) = *dice.of(steps);
        // A long poll is given half a minute of silence: its hangs would make these tests long and show nothing else.
        let is_polled = ["", "/v1/operations/", "/v1/agent/work"].contains(&target);
        let fault = match any_fault(dice, body) {
            Fault::Hang | Fault::HangReply(_) if is_polled => Fault::Drop,
            fault => fault,
        };
        let rule = Rule::new(method, target).skip(dice.below(3)).times(1 + dice.below(3)).does(fault);
        rules.push(format!("{rule:?}"));
        proxy.on(rule);
    }
    rules.join("\n")
}

const PUSH: &[(&str, &str)] = &[
    ("POST", "/v1/uploads"),
    ("POST", "/known"),
    ("PUT", "/packs/"),
    ("PUT", "/packs/"),
    ("PUT", "/tree/"),
    ("PUT", "/layout/"),
    ("POST", "/commit"),
    ("GET", "/v1/operations/"),
    ("GET", "/tree"),
    ("*", ""),
];
const PULL: &[(&str, &str)] = &[
    ("GET", "/v1/resolve"),
    ("GET", "/tree"),
    ("GET", "/layout"),
    ("POST", "/v1/grants"),
    ("GET", "/v1/packs/"),
    ("GET", "/v1/packs/"),
    ("*", ""),
];
const AGENT: &[(&str, &str)] = &[
    ("POST", "/v1/agent/hello"),
    ("GET", "/v1/agent/work"),
    ("POST", "/report"),
    ("GET", "/tree"),
    ("GET", "/layout"),
    ("POST", "/v1/grants"),
    ("GET", "/v1/packs/"),
    ("*", ""),
];

/// A12 to A14, the push: random faults at every step of its road.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_over_a_bad_line_ends_well_or_says_why() {
    let mut dice = Dice::new("a push over a bad line");
    let bad = Bad::start(&mut dice).await;
    let mut well = 0;
    for round in 0..10 {
        bad.change_tree(&mut dice);
        let rules = lay(&bad.proxy, &mut dice, PUSH, 5 << 20);
        let ran = bad.run(&bad.push());
        let context = format!("round {round}\n{rules}");
        if ran.code == 0 {
            well += 1;
        } else {
            assert_told(&ran, &context);
            bad.proxy.clear();
            let again = bad.run(&bad.push());
            assert_eq!(again.code, 0, "{context}\nfirst: {ran:?}\nthen: {again:?}");
        }
        bad.assert_stored();
        let versions = bad.served.json(["log", "bad/line"]);
        assert_eq!(versions.as_array().unwrap().len(), round + 1, "one version a push, whatever was lost: {context}");
    }
    assert!(well >= 5, "short faults are ridden out: {well} of 10");
}

/// A12 to A14, the pull.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_over_a_bad_line_ends_well_or_says_why() {
    let mut dice = Dice::new("a pull over a bad line");
    let bad = Bad::start(&mut dice).await;
    bad.served.json(bad.push());
    let mut well = 0;
    for round in 0..12 {
        let rules = lay(&bad.proxy, &mut dice, PULL, 5 << 20);
        let dest = bad.path(&format!("dest-{round}"));
        let ran = bad.run(&["pull", "bad/line", &dest]);
        let context = format!("round {round}\n{rules}");
        if ran.code == 0 {
            well += 1;
        } else {
            assert_told(&ran, &context);
            assert_only_whole_files(&bad.tree, Path::new(&dest));
            bad.proxy.clear();
            let again = bad.run(&["pull", "bad/line", &dest]);
            assert_eq!(again.code, 0, "{context}\nfirst: {ran:?}\nthen: {again:?}");
        }
        assert_same(&bad.tree, Path::new(&dest));
    }
    assert!(well >= 6, "short faults are ridden out: {well} of 12");
}

/// Whatever stands under a file's name is that file.
fn assert_only_whole_files(tree: &Path, dest: &Path) {
    for name in ["film.mp4"].into_iter().map(str::to_owned).chain((0..12).map(|number| format!("notes/{number}"))) {
        if let Ok(found) = fs_err::read(dest.join(&name)) {
            assert!(found == fs_err::read(tree.join(&name)).unwrap(), "half a file under the name `{name}`");
        }
    }
}

/// A12 to A14, the staging: a real agent over the bad line. `ready` is true when it is said, and a failure is told by its code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_staging_over_a_bad_line_ends_ready_or_says_why() {
    let mut dice = Dice::new("a staging over a bad line");
    let bad = Bad::start(&mut dice).await;
    let served = &bad.served;
    let token = served.json(["node", "add", "n1"])["token"].as_str().unwrap().to_owned();
    let job_file = bad.path("job.toml");
    fs_err::write(&job_file, "name = \"bad\"\n[[data]]\nfrom = \"bad/line\"\nat = \"in\"\n").unwrap();
    let log = fs_err::File::create(bad.path("agent.log")).unwrap().into_file();
    let mut command = bad.command(&["agent", "--node", "n1", "--cache", &bad.path("node")]);
    command.env("DRAY_TOKEN", &token).env("DRAY_LOG", "info").stdout(Stdio::null()).stderr(log);
    lay(&bad.proxy, &mut dice, AGENT, 5 << 20);
    let mut agent = command.spawn().unwrap();
    for round in 0..4 {
        bad.change_tree(&mut dice);
        served.json(bad.push());
        let rules = if round == 0 { String::new() } else { lay(&bad.proxy, &mut dice, AGENT, 5 << 20) };
        let context = || {
            let log = fs_err::read_to_string(bad.path("agent.log")).unwrap();
            format!("round {round}\n{rules}\n{}", &log[log.len().saturating_sub(3_000)..])
        };
        let job = served.json(["job", "submit", &job_file])["id"].as_str().unwrap().to_owned();
        served.json(["lease", "grant", "--job", &job, "--node", "n1", "--until", "4h"]);
        let staged = |patience: &str| {
            let staging = served.json(["stage", "--job", &job, "--node", "n1"])["id"].as_str().unwrap().to_owned();
            let ran = Ran::of(served.command().args(["staging", "wait", &staging, "--timeout", patience, "--json"]));
            (ran.code, ran.document())
        };
        let (mut code, mut staging) = staged("100s");
        if code == 1 {
            let error = &staging["error"];
            assert_eq!(staging["state"], "failed", "{staging}\n{}", context());
            assert!(error["code"].as_str().is_some_and(|code| !code.is_empty()), "{staging}");
            bad.proxy.clear();
            (code, staging) = staged("100s");
        }
        assert_eq!((code, &staging["state"]), (0, &json!("ready")), "{staging}\n{}", context());
        let place = Path::new(staging["path"].as_str().unwrap()).join("in");
        assert_same(&bad.tree, &place);
        bad.proxy.clear();
        served.json(["lease", "release", "--job", &job, "--reason", "finished"]);
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
}

/// A fault that never ends is given up in bounded time, with its own exit code, code and hint; then the same command goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_without_end_is_given_up_in_words() {
    let mut dice = Dice::new("faults without end");
    let bad = Bad::start(&mut dice).await;
    bad.served.json(bad.push());
    let busy = || Answer::new(503, PAGE);
    let with_page = |fault: Fault| (fault, &["protocol"][..]);
    let faults = || {
        vec![
            with_page(Fault::Answer(busy())),
            with_page(Fault::Answer(busy().header("retry-after", "2"))),
            with_page(Fault::AnswerAfter(Answer::new(200, PAGE))),
            (Fault::Hang, &["stalled"][..]),
            (Fault::DropReply, &["connection_broken"][..]),
        ]
    };
    let steps =
        [("PUT", "/packs/"), ("POST", "/commit"), ("GET", "/tree"), ("GET", "/v1/packs/"), ("POST", "/v1/grants")];
    for (at, (method, target)) in steps.into_iter().enumerate() {
        // Two of the five at each step: all of them are had on both roads.
        for which in [at, at + 2] {
            let (fault, codes) = faults().swap_remove(which % 5);
            bad.change_tree(&mut dice);
            bad.proxy.clear();
            bad.proxy.on(Rule::new(method, target).does(fault.clone()));
            let dest = bad.path(&format!("end-{at}-{which}"));
            let arguments = match at {
                0 | 1 => bad.push(),
                _ => vec!["pull", "bad/line@v1", &dest],
            };
            let mut command = bad.command(&arguments);
            command.env("DRAY_PATIENCE", "4s").arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped());
            let ran = wait(command.spawn().unwrap(), LIMIT);
            assert!(ran.code != 0, "{method} {target} {fault:?}: {ran:?}");
            assert_document(&ran, 4, codes);
            bad.proxy.clear();
            let again = bad.run(&arguments);
            assert_eq!(again.code, 0, "{method} {target} {fault:?}: {again:?}");
            if at < 2 {
                bad.assert_stored();
            } else {
                assert_eq!(bad.served.run(["verify", "bad/line@v1", &dest]).code, 0);
            }
        }
    }
}

/// The service acted and was not heard, at every step: said again, and done once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_makes_nothing_twice() {
    let mut dice = Dice::new("lost answers");
    let bad = Bad::start(&mut dice).await;
    for (method, target) in
        [("POST", "/v1/uploads"), ("PUT", "/packs/"), ("PUT", "/tree/"), ("PUT", "/layout/"), ("POST", "/commit")]
    {
        bad.proxy.on(Rule::new(method, target).times(1).does(Fault::DropReply));
    }
    bad.proxy.on(Rule::new("GET", "/v1/operations/").times(1).does(Fault::DropReply));
    let ran = bad.run(&[&bad.push()[..], &["--json"]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    // Every step was done when its answer was lost: five are said twice, and there is one of each thing.
    let log = bad.proxy.log();
    let commits = log.iter().filter(|seen| seen.target.contains("/commit"));
    assert_eq!(commits.map(|seen| seen.status).collect::<Vec<_>>(), [Some(202), Some(202)]);
    let uploads: Vec<_> = log.iter().filter(|seen| seen.target == "/v1/uploads").collect();
    assert_eq!(uploads.len(), 2);
    assert_eq!(uploads[0].headers["idempotency-key"], uploads[1].headers["idempotency-key"]);
    assert_eq!(bad.served.json(["log", "bad/line"]).as_array().unwrap().len(), 1);
    bad.assert_stored();
}

/// The line between the service and its bucket is bad, for pushes and pulls of the real program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_line_behind_the_service_is_ridden_out_or_told() {
    let Some(s3) = s3() else { return };
    let mut dice = Dice::new("a bad line behind the service");
    let proxy = FaultProxy::start(&s3.endpoint).await;
    let store = format!("s3://{}/it-{}", s3.bucket, crate::support::stores::fresh());
    let served = Served::start_with(|command| {
        command.args(["--store", &store]).envs([
            ("DRAY_STORE_ENDPOINT", proxy.url().as_str()),
            ("DRAY_STORE_REGION", "us-east-1"),
            ("DRAY_STORE_ACCESS_KEY_ID", s3.access_key.as_str()),
            ("DRAY_STORE_SECRET_ACCESS_KEY", s3.secret_key.as_str()),
            ("DRAY_STORE_STALL_TIMEOUT_MS", "1000"),
            ("DRAY_STORE_RETRIES", "4"),
            ("DRAY_STORE_RETRY_TIMEOUT_MS", "20000"),
        ]);
    });
    let straight = FaultProxy::start(&served.url).await;
    let tree = served.dir.path().join("tree");
    fs_err::create_dir_all(tree.join("notes")).unwrap();
    let bad = Bad { served, proxy: straight, tree };
    // Signed URLs of the bucket go through the same proxy: the pull's own reads are struck as well.
    let steps = [("PUT", ""), ("PUT", "/packs/"), ("POST", "/packs/"), ("GET", "/packs/"), ("GET", ""), ("HEAD", "")];
    let mut well = 0;
    for round in 0..6 {
        bad.change_tree(&mut dice);
        let dest = bad.path(&format!("dest-{round}"));
        for arguments in [bad.push(), vec!["pull", "bad/line", &dest]] {
            let rules = lay(&proxy, &mut dice, &steps, 4 << 20);
            let mut command = bad.command(&arguments);
            command.env("DRAY_PATIENCE", "30s").env("DRAY_STALL_TIMEOUT", "10s");
            let ran = wait(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), LIMIT);
            proxy.clear();
            let context = format!("round {round} {arguments:?}\n{rules}");
            if ran.code == 0 {
                well += 1;
            } else {
                assert_told(&ran, &context);
                let again = bad.run(&arguments);
                assert_eq!(again.code, 0, "{context}\nfirst: {ran:?}\nthen: {again:?}");
            }
        }
        assert_same(&bad.tree, Path::new(&dest));
    }
    assert!(well >= 6, "short faults are ridden out: {well} of 12");
    assert_eq!(bad.served.json(["log", "bad/line"]).as_array().unwrap().len(), 6);
    // A bucket that is gone for good: 503 with its code, exit 4, and nothing is lost.
    proxy.on(Rule::new("*", "").does(Fault::Answer(Answer::new(503, PAGE))));
    bad.change_tree(&mut dice);
    let ran = bad.run(&[&bad.push()[..], &["--json"]].concat());
    assert_document(&ran, 4, &["unavailable", "stalled"]);
    proxy.clear();
    assert_eq!(bad.run(&bad.push()).code, 0);
    bad.assert_stored();
}

/// One of two URLs leads to something that is no service: the other one serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_gateway_in_the_list_is_passed_over() {
    let mut dice = Dice::new("a dead gateway");
    let bad = Bad::start(&mut dice).await;
    for fault in [Fault::Answer(Answer::new(502, PAGE)), Fault::Drop, Fault::Hang] {
        bad.proxy.clear();
        bad.proxy.on(Rule::new("*", "").does(fault.clone()));
        bad.change_tree(&mut dice);
        let both = format!("{},{}", bad.proxy.url(), bad.served.url);
        let mut command = dray();
        command.args(bad.push()).env("DRAY_URL", both).env("DRAY_TOKEN", &bad.served.token);
        let ran = Ran::of(command.env("HOME", bad.served.home()).env("DRAY_STALL_TIMEOUT", "1s"));
        assert_eq!(ran.code, 0, "{fault:?}: {ran:?}");
        assert_eq!(bad.proxy.count(|seen| seen.target.contains("/packs/")), 0, "it was left after its first failure");
        bad.assert_stored();
    }
    assert_eq!(bad.served.json(["log", "bad/line"]).as_array().map(Vec::len), Some(3));
    let _: Value = bad.served.json(["verify", "bad/line"]);
}
