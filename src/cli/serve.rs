//! Arguments of the roles that `main` hands to their own rooms: `serve`, `store check`.
//!
//! Types only: nothing of the service's house is known here.

use std::path::PathBuf;

/// Run the service
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Where SQLite, the local store, keys and `admin.token` lie
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Address to listen at
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// `s3://bucket/prefix`, or a directory
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// `postgres://...`; SQLite under `--data` without it
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// Settings in TOML, see config/dray.toml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the settings in force, secrets masked, and end
    #[arg(long)]
    pub check: bool,
}

/// Look at a store
#[derive(Debug, clap::Subcommand)]
pub enum StoreCommand {
    /// Probe what a store really does, before data is trusted to it
    Check(StoreCheckArgs),
}

#[derive(Debug, clap::Args)]
pub struct StoreCheckArgs {
    /// `s3://bucket/prefix`, or a directory
    #[arg(value_name = "STORE")]
    pub url: String,
    /// Settings in TOML with the store's endpoint and credentials
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}
