//! `dray agent`: flags in, the agent's room runs until it is told to end.
//!
//! A URL given by `--server` needs a token given beside it: one from the login file belongs to the URL there. Ctrl-C ends
//! the agent with exit 0, since ending it is what was asked for.

use super::error::Error;
use super::session::Session;
use super::units::parse_size;
use crate::agent::{self, Options};
use crate::client::Context;
use crate::client::progress::Silent;
use crate::clock::{RandomIds, SystemClock};
use std::path::PathBuf;
use std::sync::Arc;

/// Run a node's agent: brings inputs near, outputs home; outbound connections only
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// The service's base URLs; `--url` and `DRAY_URL` count too. The node's token is `--token` or `DRAY_TOKEN`
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Where staged files and the node's key lie; made when missing
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Name of the node; refused when the token is another node's
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Zone of the node, as `dray node add --zone` set it
    #[arg(long, value_name = "ZONE", hide = true)]
    zone: Option<String>,
    /// NVML library to ask for GPUs instead of the system's
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    nvml: Option<PathBuf>,
    /// Most memory of one staging or return
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    memory: u64,
}

pub async fn run(session: &Session, args: AgentArgs) -> Result<(), Error> {
    let api = match (&args.server, session.global.token.clone()) {
        (Some(url), Some(token)) => session.connect(url, token)?,
        (Some(_), None) => return Err(no_token()),
        (None, _) => session.api()?,
    };
    if let Some(zone) = &args.zone {
        tracing::info!(zone, "the zone of a node is what `dray node add --zone` said");
    }
    let context = Context {
        api,
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
        reporter: Arc::new(Silent),
        cancel: session.cancel.clone(),
    };
    let nvml = args.nvml.map(PathBuf::into_os_string);
    let options = Options { cache: args.cache, node: args.node, nvml, memory: args.memory };
    Ok(agent::run(context, options).await?)
}

fn no_token() -> Error {
    Error::Usage {
        what: "the agent has no token".to_owned(),
        hint: "set `DRAY_TOKEN` or say `--token`, with what `dray node add` printed",
    }
}
