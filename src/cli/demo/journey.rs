//! The way of the data, from PATH and back: service, agent, push, then the scheduler's part, then home again.
//!
//! A child that dies ends the journey with its last words. The children are ended before this returns.
//!
//! ```text
//! service -> admin token -> node and its token -> agent -> team and scheduler tokens
//!   push -> job -> lease -> stage -> receipt -> compare inputs -> run -> return -> link -> compare output
//! ```

use super::children::Child;
use super::places::{INPUT, NODE, Outcome, Places};
use super::receiver::Receiver;
use super::report::Screen;
use super::stage::Scheduler;
use crate::api::nodes::{CreateNode, CreatedNode, Node};
use crate::api::teams::{CreateToken, CreatedToken, Page, Role};
use crate::cli::error::Error;
use crate::cli::progress::{Progress, Style};
use crate::cli::session::Session;
use crate::cli::units::{percent, size};
use crate::client::api::Api;
use crate::client::push::{PushOptions, PushReport, push};
use crate::client::transfer::Target;
use crate::client::{Context, Error as ClientError};
use secrecy::SecretString;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often a child that is starting is asked whether it is there.
const ASK: Duration = Duration::from_millis(50);

/// Leaves the directory with everything in it, also where it fails: the logs lie there.
pub async fn run(session: &Session, screen: &mut Screen, dir: &Path, input: &Path) -> Result<Outcome, Error> {
    let places = Places::make(dir)?;
    let address = format!("127.0.0.1:{}", free_port().map_err(Error::local("127.0.0.1"))?);
    let arguments =
        [OsStr::new("--data"), places.service.as_os_str(), OsStr::new("--listen"), OsStr::new(address.as_str())];
    let mut service = Child::start("serve", &places.logs, &arguments, None)?;
    let url = format!("http://{address}");
    let ended = tokio::select! {
        ended = with_service(session, screen, &places, &url, input) => ended,
        died = service.died() => Err(died),
    };
    service.end().await;
    ended
}

/// A port that was free just now.
///
/// Another process may take it before the service does, which then says so and ends.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

async fn with_service(
    session: &Session,
    screen: &mut Screen,
    places: &Places,
    url: &str,
    input: &Path,
) -> Result<Outcome, Error> {
    let admin = screen
        .step("service", async {
            let token = admin_token(session, &places.service, url).await?;
            Ok((format!("{url}, SQLite and a local store"), session.connect(url, token)?))
        })
        .await?;
    let node: CreatedNode = admin.post("/v1/nodes", &CreateNode { name: NODE.to_owned(), zone: None }).await?;
    let token = SecretString::from(node.token);
    let arguments = ["--server", url, "--node", NODE, "--cache"].map(OsStr::new);
    let arguments: Vec<&OsStr> = arguments.into_iter().chain([places.node.as_os_str()]).collect();
    let mut agent = Child::start("agent", &places.logs, &arguments, Some(&token))?;
    let ended = tokio::select! {
        ended = with_agent(session, screen, places, (&admin, url), input) => ended,
        died = agent.died() => Err(died),
    };
    agent.end().await;
    ended
}

/// Waits until the service answers; its first token was on the disk before.
async fn admin_token(session: &Session, data: &Path, url: &str) -> Result<SecretString, Error> {
    let mut ticks = tokio::time::interval(ASK);
    let mut impatient = session.clone();
    impatient.global.patience = Duration::ZERO;
    let anyone = impatient.connect(url, SecretString::from(""))?;
    loop {
        ticks.tick().await;
        match anyone.get_stream(Target::Signed("/healthz"), None).await {
            Ok(_) => break,
            Err(ClientError::Interrupted) => return Err(ClientError::Interrupted.into()),
            Err(_) => {}
        }
    }
    let path = data.join("admin.token");
    let token = fs_err::read_to_string(&path).map_err(Error::local(&path))?;
    Ok(SecretString::from(token.trim()))
}

async fn with_agent(
    session: &Session,
    screen: &mut Screen,
    places: &Places,
    (admin, url): (&Api, &str),
    input: &Path,
) -> Result<Outcome, Error> {
    screen.step("agent", seen(admin)).await?;
    let mut receiver = Receiver::start().await.map_err(Error::local("127.0.0.1"))?;
    let team = session.connect(url, token(admin, Role::Team).await?)?;
    let scheduler = session.connect(url, token(admin, Role::Scheduler).await?)?;

    let pushed = screen.step("push", pushed(session, team.clone(), input)).await?;
    let scheduler = Scheduler { api: scheduler, team, cancel: session.cancel.clone() };
    let job = screen.step("job", scheduler.submit(&mut receiver, &pushed)).await?;
    let lease = screen.step("lease", scheduler.lease(&job)).await?;
    let staged = screen.step("stage", scheduler.stage(&job, &mut receiver, screen.gauge())).await?;
    screen.step("receipt", scheduler.check_receipt(&staged, &places.receipt)).await?;
    let compared = screen.step("compare inputs", scheduler.compare_inputs(&pushed, input, &staged)).await?;
    screen.step("run", scheduler.run_job(&staged, &places.written)).await?;
    let output = screen.step("return", scheduler.bring_home(&job, &lease, &mut receiver)).await?;
    let links = screen.step("link", scheduler.link(&output)).await?;
    let returned =
        screen.step("compare output", scheduler.compare_output(&links, &places.written, &places.home)).await?;
    Ok(Outcome { pushed, staging: staged.staging, output, links, compared, returned, places: places.clone() })
}

/// Waits until the agent has said hello.
async fn seen(admin: &Api) -> Result<(String, ()), Error> {
    let mut ticks = tokio::time::interval(ASK);
    loop {
        ticks.tick().await;
        let nodes: Page<Node> = admin.page(&["v1", "nodes"], &[], None).await?;
        let Some(node) = nodes.items.into_iter().find(|node| node.seen_at.is_some()) else { continue };
        let inventory = node.inventory.unwrap_or_default();
        let gpus = match (inventory.gpus.len(), inventory.gpu_note) {
            (0, Some(note)) => format!("no GPU here ({note}), which is fine for this"),
            (0, None) => "no GPU here, which is fine for this".to_owned(),
            (count, _) => format!("{count} GPUs"),
        };
        return Ok((format!("node `{NODE}`: {} free, {gpus}", size(inventory.free_bytes)), ()));
    }
}

async fn token(admin: &Api, role: Role) -> Result<SecretString, Error> {
    let request = CreateToken { role, team: None, label: Some("demo".to_owned()), expires_at: None };
    let made: CreatedToken = admin.post("/v1/tokens", &request).await?;
    Ok(SecretString::from(made.token))
}

async fn pushed(session: &Session, api: Api, input: &Path) -> Result<(String, PushReport), Error> {
    // Off a terminal the lines of the steps are enough.
    let progress = Arc::new(Progress::new("push", session.style));
    let context: Context = session.context(api, Arc::clone(&progress));
    let options = PushOptions::new(INPUT, vec![input.to_owned()]);
    let report = push(&context, options).await;
    progress.finish();
    let report = report?;
    let text = format!(
        "{}: {} in {} files, {} found twice, {} sent",
        report.reference.as_deref().unwrap_or(INPUT),
        size(report.bytes),
        report.files,
        percent(report.reused_bytes, report.bytes),
        size(report.sent_bytes)
    );
    if session.style == Style::Lines || session.style == Style::Bar {
        for item in report.failed.iter().take(20) {
            crate::cli::progress::note(session.style, "not pushed", &format!("{}: {}", item.path, item.reason));
        }
    }
    Ok((text, report))
}
