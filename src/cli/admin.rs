//! `dray login`, `team`, `token`, `node`, `webhook`.
//!
//! Tokens are printed once, by the call that makes them, since the service keeps only their hashes. `login` reads one from
//! stdin where neither `DRAY_TOKEN` nor `--token` gives it: arguments are seen by every user of the machine and kept in
//! histories.

use super::error::Error;
use super::jobs::word;
use super::listing::list;
use super::output::{self, Side};
use super::session::{Session, store_login};
use super::units::{Until, instant, parse_size, size};
use crate::api::events::Delivery;
use crate::api::nodes::{CreateNode, CreatedNode, Node};
use crate::api::teams::{CreateTeam, CreateToken, CreatedToken, Role, Team, TokenInfo, WhoAmI};
use crate::client::api::route;
use crate::clock::{Clock, SystemClock};
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use secrecy::SecretString;
use serde_json::json;
use std::io::{self, BufRead, IsTerminal};

const LEFT: Side = Side::Left;

/// Remember a service and a token for this user
#[derive(Debug, clap::Args)]
pub struct LoginArgs {
    /// The service's base URLs; `--url` and `DRAY_URL` count too
    #[arg(value_name = "URL")]
    server: Option<String>,
}

/// Stored only after the service has accepted it, so a typing error does not replace a login that works.
pub async fn login(session: &Session, args: LoginArgs) -> Result<(), Error> {
    let Some(url) = args.server.or_else(|| session.global.url.clone()) else {
        return Err(Error::Usage { what: "no service is named".to_owned(), hint: "say `dray login URL`" });
    };
    let Some(path) = session.global.login_file() else {
        return Err(Error::Usage {
            what: "there is no home directory".to_owned(),
            hint: "set HOME or XDG_CONFIG_HOME",
        });
    };
    let token = match session.global.token.clone() {
        Some(token) => token,
        None => read_token().await?,
    };
    let who: WhoAmI = session.connect(&url, token.clone())?.get("/v1/whoami").await?;
    store_login(&path, &url, &token)?;
    let document = json!({ "url": url, "team": who.team.name, "role": who.role, "file": path });
    output::show(session.format, &document, |out| {
        output::facts(
            out,
            &[
                ("service", url.clone()),
                ("team", who.team.name.clone()),
                ("role", word(&who.role)),
                ("stored in", path.display().to_string()),
            ],
        )
    })?;
    Ok(())
}

/// One line of stdin. On a terminal it is asked for, and what is typed there is not shown.
///
/// The line is wiped from memory when it has been taken over.
async fn read_token() -> Result<SecretString, Error> {
    let quiet = if io::stdin().is_terminal() { Some(Quiet::begin()?) } else { None };
    if quiet.is_some() {
        super::progress::say("token (it is not shown):");
    }
    // On a thread of its own, so that a Ctrl-C is heard meanwhile; it drops this function and with it the silence.
    let read = tokio::task::spawn_blocking(|| {
        let mut line = zeroize::Zeroizing::new(String::new());
        io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = read.await.map_err(io::Error::other)??;
    drop(quiet);
    if line.trim().is_empty() {
        return Err(Error::Usage { what: "no token was given".to_owned(), hint: "pipe it in, or set `DRAY_TOKEN`" });
    }
    Ok(SecretString::from(line.trim()))
}

/// The terminal shows nothing of what is typed but the end of a line, until this is dropped.
///
/// Holds how it was before. A process that is killed leaves the terminal silent; `stty echo` mends that.
struct Quiet(Termios);

impl Quiet {
    fn begin() -> Result<Self, Error> {
        let before = termios::tcgetattr(io::stdin()).map_err(io::Error::from)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        quiet.local_modes.insert(LocalModes::ECHONL);
        termios::tcsetattr(io::stdin(), OptionalActions::Flush, &quiet).map_err(io::Error::from)?;
        Ok(Self(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // There is nobody to tell, and nothing else to do.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Teams of the service (operators only)
#[derive(Debug, clap::Subcommand)]
pub enum TeamCommand {
    Create {
        name: String,
        /// Most logical bytes it may hold
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        quota: Option<u64>,
    },
    List,
}

pub async fn team(session: &Session, command: TeamCommand) -> Result<(), Error> {
    let api = session.api()?;
    match command {
        TeamCommand::Create { name, quota } => {
            let team: Team = api.post("/v1/teams", &CreateTeam { name, quota_bytes: quota }).await?;
            output::show(session.format, &team, |out| {
                output::facts(out, &[("team", team.name.clone()), ("id", team.id.clone())])
            })?;
            Ok(())
        }
        TeamCommand::List => {
            let columns = [("NAME", LEFT), ("ID", LEFT), ("USED", Side::Right), ("QUOTA", Side::Right)];
            list(session, &api, (&["v1", "teams"], &[]), &columns, |team: &Team| {
                let quota = team.quota_bytes.map_or_else(|| "none".to_owned(), size);
                vec![team.name.clone(), team.id.clone(), size(team.used_bytes), quota]
            })
            .await
        }
    }
}

/// Bearer tokens of the team
#[derive(Debug, clap::Subcommand)]
pub enum TokenCommand {
    /// Make one; it is shown this once
    Create {
        #[arg(long)]
        role: TokenRole,
        /// Another team's name (operators only)
        #[arg(long, value_name = "NAME")]
        team: Option<String>,
        #[arg(long, value_name = "TEXT")]
        label: Option<String>,
        /// An instant (RFC 3339) or a duration from now
        #[arg(long, value_name = "TIME", value_parser = Until::parse)]
        expires: Option<Until>,
    },
    List,
    /// Make one stop working at once
    Revoke {
        id: String,
    },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum TokenRole {
    Admin,
    Team,
    TeamRead,
    Scheduler,
}

impl From<TokenRole> for Role {
    fn from(role: TokenRole) -> Self {
        match role {
            TokenRole::Admin => Self::Admin,
            TokenRole::Team => Self::Team,
            TokenRole::TeamRead => Self::TeamRead,
            TokenRole::Scheduler => Self::Scheduler,
        }
    }
}

/// A node's token is not made here but with its node.
pub async fn token(session: &Session, command: TokenCommand) -> Result<(), Error> {
    let api = session.api()?;
    match command {
        TokenCommand::Create { role, team, label, expires } => {
            let expires_at = expires.map(|until| until.instant(SystemClock.now()));
            let request = CreateToken { role: role.into(), team, label, expires_at };
            let made: CreatedToken = api.post("/v1/tokens", &request).await?;
            output::show(session.format, &made, |out| {
                output::facts(
                    out,
                    &[
                        ("token", format!("{} (shown this once)", made.token)),
                        ("id", made.id.clone()),
                        ("role", word(&made.role)),
                    ],
                )
            })?;
            Ok(())
        }
        TokenCommand::List => {
            let columns = [("ID", LEFT), ("ROLE", LEFT), ("LABEL", LEFT), ("CREATED", LEFT), ("STATE", LEFT)];
            list(session, &api, (&["v1", "tokens"], &[]), &columns, |token: &TokenInfo| {
                let state = match (&token.revoked_at, &token.expires_at) {
                    (Some(at), _) => format!("revoked {}", instant(at)),
                    (None, Some(at)) => format!("until {}", instant(at)),
                    (None, None) => "valid".to_owned(),
                };
                let label = token.label.as_deref().or(token.node.as_deref()).unwrap_or("-").to_owned();
                vec![token.id.clone(), word(&token.role), label, instant(&token.created_at), state]
            })
            .await
        }
        TokenCommand::Revoke { id } => {
            api.delete::<()>(&route(&["v1", "tokens", &id], &[])).await?;
            gone(session, "revoked token", json!({ "id": id, "revoked": true }), &id)
        }
    }
}

/// Nodes and their agents' tokens
#[derive(Debug, clap::Subcommand)]
pub enum NodeCommand {
    /// Make a node known; prints its agent's token, once
    Add {
        name: String,
        #[arg(long, value_name = "ZONE")]
        zone: Option<String>,
    },
    List,
    /// Forget a node; its token stops working
    Rm {
        name: String,
    },
}

pub async fn node(session: &Session, command: NodeCommand) -> Result<(), Error> {
    let api = session.api()?;
    match command {
        NodeCommand::Add { name, zone } => {
            let made: CreatedNode = api.post("/v1/nodes", &CreateNode { name, zone }).await?;
            output::show(session.format, &made, |out| {
                let token = format!("{} (shown this once)", made.token);
                output::facts(out, &[("node", made.name.clone()), ("token", token)])
            })?;
            Ok(())
        }
        NodeCommand::List => {
            let columns = [("NAME", LEFT), ("ZONE", LEFT), ("SEEN", LEFT), ("FREE", Side::Right), ("GPUS", LEFT)];
            list(session, &api, (&["v1", "nodes"], &[]), &columns, |node: &Node| {
                let seen = node.seen_at.as_deref().map_or_else(|| "never".to_owned(), instant);
                let inventory = node.inventory.clone().unwrap_or_default();
                let gpus = match inventory.gpus.as_slice() {
                    [] => inventory.gpu_note.unwrap_or_else(|| "-".to_owned()),
                    [first, ..] => format!("{} x {}", inventory.gpus.len(), first.name),
                };
                let zone = node.zone.clone().unwrap_or_else(|| "-".to_owned());
                vec![node.name.clone(), zone, seen, size(inventory.free_bytes), gpus]
            })
            .await
        }
        NodeCommand::Rm { name } => {
            api.delete::<()>(&route(&["v1", "nodes", &name], &[])).await?;
            gone(session, "forgot node", json!({ "name": name, "removed": true }), &name)
        }
    }
}

/// Callbacks: how events fare on their way out
#[derive(Debug, clap::Subcommand)]
pub enum WebhookCommand {
    /// Deliveries, the dead ones too
    List {
        /// Of one job only
        #[arg(long, value_name = "JOB")]
        job: Option<String>,
    },
    /// Send an event again, by its id
    Replay { event: String },
}

pub async fn webhook(session: &Session, command: WebhookCommand) -> Result<(), Error> {
    let api = session.api()?;
    match command {
        WebhookCommand::List { job } => {
            let columns = [
                ("EVENT", LEFT),
                ("JOB", LEFT),
                ("STATE", LEFT),
                ("TRIES", Side::Right),
                ("URL", LEFT),
                ("LAST ERROR", LEFT),
            ];
            let query: Vec<(&str, &str)> = job.as_deref().map(|job| ("job", job)).into_iter().collect();
            let route = (&["v1", "webhooks", "deliveries"][..], query.as_slice());
            list(session, &api, route, &columns, |delivery: &Delivery| {
                vec![
                    delivery.event.clone(),
                    delivery.job.clone(),
                    word(&delivery.state),
                    delivery.attempts.to_string(),
                    delivery.url.clone(),
                    delivery.last_error.clone().unwrap_or_else(|| "-".to_owned()),
                ]
            })
            .await
        }
        WebhookCommand::Replay { event } => {
            let path = route(&["v1", "webhooks", "deliveries", &event, "replay"], &[]);
            api.post::<_, serde::de::IgnoredAny>(&path, &json!({})).await?;
            gone(session, "sending again", json!({ "event": event, "state": "pending" }), &event)
        }
    }
}

/// One line, or the document, for calls that answer nothing.
fn gone(session: &Session, words: &str, document: serde_json::Value, what: &str) -> Result<(), Error> {
    output::show(session.format, &document, |out| writeln!(out, "{words} {}", output::clean(what)))?;
    Ok(())
}
