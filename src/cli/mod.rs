//! The command line: words in, one document or text out, an exit code.
//!
//! A file per group of verbs. Each verb takes its flags and a [`session::Session`], calls the client, and prints through
//! [`output`]; none decides about data. `serve` and `store check` are only parsed here: `main` runs them.
//!
//! Exit codes: 0 done, 1 refused or failed, 2 usage, 3 partial, 4 network or service unavailable, 130 interrupted.
//!
//! ```text
//! main -> parse -> run -> until_interrupted -> a verb -> client -> one document on stdout, or text
//!                             ^ Ctrl-C         |                  progress and messages on stderr
//!                                              +-> Error -> told once -> exit code
//! ```
//!
//! What scripts may rely on: with `--json` stdout holds one JSON document, an error's too (`cat`, `completions` and `serve
//! --check` print their own text; a listing that breaks off leaves an array without its end before the error's document).
//! Exit codes and error codes are stable; texts for people are not.

mod admin;
mod agent;
mod browse;
mod demo;
mod diff;
mod error;
mod interrupt;
mod jobs;
mod links;
mod listing;
pub mod logging;
pub mod output;
mod progress;
mod pull;
mod push;
mod receipt;
mod reference;
pub mod serve;
pub mod session;
mod staging;
mod units;

pub use error::Error;

use crate::client::Exit;
use clap::{CommandFactory, Parser};
use futures::future::{LocalBoxFuture, ready};
use interrupt::Interrupts;
use output::Format;
use session::{Global, Session};
use std::ffi::OsString;
use std::process::ExitCode;
use tokio_util::sync::CancellationToken;

/// Carries a team's data to the GPU it rented and carries the results home.
#[derive(Debug, Parser)]
#[command(name = "dray", version, max_term_width = 120, after_help = AFTER)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Kept in step with [`Exit`] by hand.
const AFTER: &str =
    "Exit codes: 0 done, 1 refused or failed, 2 usage, 3 partial (some items failed; they are listed last),
4 network or service unavailable, 130 interrupted. DATASET is a name like `warehouse/aisle-cams`, V a version like `v3`,
`latest` (the default) or 8 or more digits of a digest.";

/// Every verb.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    Agent(agent::AgentArgs),
    Push(push::PushArgs),
    Pull(pull::PullArgs),
    Verify(pull::VerifyArgs),
    Ls(browse::LsArgs),
    Log(browse::LogArgs),
    /// Show a version, or one entry of it
    Show(browse::RefArgs),
    Diff(diff::DiffArgs),
    /// Write one file of a version to stdout, verified
    Cat(browse::RefArgs),
    #[command(subcommand)]
    Job(jobs::JobCommand),
    #[command(subcommand)]
    Lease(jobs::LeaseCommand),
    Stage(staging::StageArgs),
    #[command(subcommand)]
    Staging(staging::StagingCommand),
    Outputs(staging::OutputsArgs),
    Link(links::LinkArgs),
    Rm(links::RmArgs),
    #[command(subcommand)]
    Receipt(receipt::ReceiptCommand),
    #[command(subcommand)]
    Team(admin::TeamCommand),
    #[command(subcommand)]
    Token(admin::TokenCommand),
    #[command(subcommand)]
    Node(admin::NodeCommand),
    #[command(subcommand)]
    Webhook(admin::WebhookCommand),
    #[command(subcommand)]
    Store(serve::StoreCommand),
    Login(admin::LoginArgs),
    /// Print a shell's completion script
    Completions {
        shell: clap_complete::Shell,
    },
    /// The demonstration's job: hashes every file under a directory
    #[command(hide = true)]
    DemoJob(demo::JobArgs),
}

/// Reads the command line. On `Err` everything was told, and the process ends with the code: 0 after `--help` and
/// `--version`, 2 for a wrong line. Whether JSON is wanted is then read from the raw arguments, since they could not be
/// parsed.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    Cli::try_parse_from(&arguments).map_err(|error| {
        let is_help = !error.use_stderr();
        if !is_help && arguments.iter().any(|argument| argument == "--json") {
            let what = output::clean(error.to_string().trim_end()).replace("\\x0a", " ");
            let what = what.trim_start_matches("error: ").to_owned();
            return Error::Usage { what, hint: "`dray help` shows every verb and flag" }.tell(Format::Json);
        }
        // Nobody is left to tell when this fails.
        let _ = error.print();
        if is_help { ExitCode::SUCCESS } else { ExitCode::from(2) }
    })
}

/// Tells why a role that `main` started ended, and gives its exit code: 1. `role` becomes the error's code.
pub fn failed(global: &Global, role: &'static str, error: &dyn std::error::Error) -> ExitCode {
    let sources = std::iter::successors(error.source(), |error| error.source());
    let causes = sources.map(ToString::to_string).collect();
    Error::Role { role, what: error.to_string(), causes }.tell(global.format())
}

/// Prints a finished document, or the same as text. For roles whose room knows nothing of output; the text is cleaned line
/// by line.
pub fn show(global: &Global, document: &serde_json::Value, text: &str) -> Result<(), Error> {
    let lines: Vec<String> = text.lines().map(output::clean).collect();
    Ok(output::show(global.format(), document, |out| writeln!(out, "{}", lines.join("\n")))?)
}

/// Prints finished text of our own, as it is.
pub fn print(text: &str) -> ExitCode {
    match output::show(Format::Human, &(), |out| out.write_all(text.as_bytes())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Error::from(error).tell(Format::Human),
    }
}

/// Runs every verb but those that `main` hands to other rooms, and gives the process's exit code.
///
/// Starts the log and the watch for signals, so it is called once, in a runtime with timers and IO.
pub fn run(cli: Cli) -> LocalBoxFuture<'static, ExitCode> {
    Box::pin(async move {
        // An agent tells what it does; each attempt of a call that will be repeated is no news.
        let filter = if matches!(cli.command, Command::Agent(_)) { "info,dray_outside::client=warn" } else { "warn" };
        logging::start(&cli.global, filter);
        let session = Session::new(cli.global, CancellationToken::new());
        let interrupts = Interrupts::watch(session.cancel.clone(), session.style);
        let ended = match interrupts {
            Ok(_watch) => until_interrupted(&session, cli.command).await,
            Err(source) => Err(Error::Local { path: "signal handlers".into(), source }),
        };
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => error.tell(session.format),
        }
    })
}

/// Verbs that save their state end by themselves after a Ctrl-C; the others are dropped where they stand.
///
/// A verb that is dropped leaves nothing half done here: the service finishes or forgets what it was asked, by its own
/// rules.
async fn until_interrupted(session: &Session, command: Command) -> Result<(), Error> {
    let saves = matches!(
        command,
        Command::Push(_) | Command::Pull(_) | Command::Verify(_) | Command::Demo(_) | Command::Agent(_)
    );
    let work = dispatch(session, command);
    if saves {
        return work.await;
    }
    tokio::select! {
        ended = work => ended,
        () = session.cancel.cancelled() => Err(Error::Ended(Exit::Interrupted)),
    }
}

/// Boxed, each verb's future by itself: together they would make one as large as the largest, for every verb.
fn dispatch(session: &Session, command: Command) -> LocalBoxFuture<'_, Result<(), Error>> {
    match command {
        Command::Agent(args) => Box::pin(agent::run(session, args)),
        Command::Demo(args) => Box::pin(demo::run(session, args)),
        Command::DemoJob(args) => Box::pin(ready(demo::job(args))),
        Command::Pull(args) => Box::pin(pull::pull(session, args)),
        Command::Verify(args) => Box::pin(pull::verify(session, args)),
        Command::Push(args) => Box::pin(push::run(session, args)),
        Command::Ls(args) => Box::pin(browse::ls(session, args)),
        Command::Log(args) => Box::pin(browse::log(session, args)),
        Command::Show(args) => Box::pin(browse::show(session, args)),
        Command::Diff(args) => Box::pin(diff::run(session, args)),
        Command::Cat(args) => Box::pin(browse::cat(session, args)),
        Command::Job(command) => Box::pin(jobs::job(session, command)),
        Command::Lease(command) => Box::pin(jobs::lease(session, command)),
        Command::Stage(args) => Box::pin(staging::stage(session, args)),
        Command::Staging(command) => Box::pin(staging::staging(session, command)),
        Command::Outputs(args) => Box::pin(staging::outputs(session, args)),
        Command::Link(args) => Box::pin(links::link(session, args)),
        Command::Rm(args) => Box::pin(links::rm(session, args)),
        Command::Receipt(command) => Box::pin(receipt::run(session, command)),
        Command::Team(command) => Box::pin(admin::team(session, command)),
        Command::Token(command) => Box::pin(admin::token(session, command)),
        Command::Node(command) => Box::pin(admin::node(session, command)),
        Command::Webhook(command) => Box::pin(admin::webhook(session, command)),
        Command::Login(args) => Box::pin(admin::login(session, args)),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "dray", &mut std::io::stdout());
            Box::pin(ready(Ok(())))
        }
        Command::Serve(_) | Command::Store(_) => {
            unreachable!("`main` hands these to the rooms they belong to")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_the_design_promises_is_understood() {
        for line in [
            "dray serve --data d --listen 127.0.0.1:0 --store s3://b/p --database postgres://x --config f --check",
            "dray demo",
            "dray demo footage --dir d",
            "dray agent --server http://x --token t --cache d --node n --zone z",
            "dray pull w/t@v1:sub/dir dest --overwrite",
            "dray verify w/t dir",
            "dray store check s3://b",
            "dray push a b --to w/t --exclude *.tmp --exclude x --limit-rate 20M --memory 256M --dry-run --json",
            "dray push a --to w/t --limit-schedule f --rehash --all-or-nothing --report r",
            "dray ls w/t@latest",
            "dray ls",
            "dray log w/t",
            "dray show w/t",
            "dray diff w/t@v1 w/t@v2",
            "dray cat w/t:a/b",
            "dray job submit f.toml",
            "dray job list --json",
            "dray lease grant --job j --node n --until 2026-12-01T02:00:00Z --gpus 2",
            "dray lease renew L --until 4h",
            "dray lease release --job j --reason preempted",
            "dray lease release L --reason finished",
            "dray stage --job j --node n --ready-by 2026-12-01T02:00:00Z",
            "dray staging wait s --timeout 90",
            "dray outputs j",
            "dray link w/t@v1:a --archive zip --expires 7d --direct",
            "dray link revoke id",
            "dray rm w/t@v1",
            "dray receipt verify f",
            "dray team create t --quota 2T",
            "dray token create --role team-read --label ci --expires 30d",
            "dray token revoke id",
            "dray node add gpu-7 --json",
            "dray node rm gpu-7",
            "dray login http://x",
            "dray webhook list --job j",
            "dray webhook replay e",
            "dray completions bash",
        ] {
            if let Err(error) = parsed(line) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "dray",
            "dray push --to w/t",
            "dray push a",
            "dray push a --to w/t --limit-rate 20X",
            "dray push a --to w/t --limit-rate 1M --limit-schedule f",
            "dray pull w/t:../x dest",
            "dray lease release --reason finished",
            "dray lease release L --job j --reason finished",
            "dray lease release L --reason bored",
            "dray link",
            "dray gc",
            "dray hold list",
        ] {
            let refused = parsed(line).err().unwrap_or_else(|| panic!("{line} was taken"));
            assert_eq!(refused.exit_code(), 2, "{line}");
        }
    }
}
