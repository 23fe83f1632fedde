//! Settings of the service: plain values, one file per concern, defaults documented where they stand.
//!
//! Order: default, then file, then environment (`DRAY_...`), then flag; a later one wins. All faults are reported at once,
//! each with where it was said. No component is made here (clocks, pools and stores are passed to those who need them), and
//! the environment is read nowhere else. `config/dray.toml` is the complete sample; a test holds it against the defaults.

mod keys;
pub mod limits;
mod load;
pub mod network;
pub mod service;
pub mod store;
pub mod units;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use url::Url;

pub use limits::Limits;
pub use load::{Error, Flags};
pub use network::Cidr;
pub use service::{Callbacks, Database, Log, LogFormat, Tls};
pub use store::StoreSettings;
pub use units::{Period, Size};

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Address the service listens on. Default: `127.0.0.1:7420`.
    pub listen: SocketAddr,
    /// Directory of the embedded database, the embedded store and `admin.token`; made when missing. Default: `dray-data`.
    pub data: PathBuf,
    /// URLs the service makes (links, events) begin with it. Default: the origin of the request itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_url: Option<Url>,
    /// File that seals the service's keys in the database. Default: `secret.key` in the data directory, made when missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_file: Option<PathBuf>,
    /// Other replicas serve the same database: needs Postgres, a store they share, and the same `secret_key_file`. Default: false.
    pub multi_replica: bool,
    /// How long requests in flight may take to end after SIGTERM. Default: `30s`.
    pub drain: Period,
    pub database: Database,
    pub store: StoreSettings,
    pub limits: Limits,
    pub callbacks: Callbacks,
    pub tls: Tls,
    pub log: Log,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7420)),
            data: "dray-data".into(),
            public_url: None,
            secret_key_file: None,
            multi_replica: false,
            drain: Period::seconds(30),
            database: Database::default(),
            store: StoreSettings::default(),
            limits: Limits::default(),
            callbacks: Callbacks::default(),
            tls: Tls::default(),
            log: Log::default(),
        }
    }
}

impl Settings {
    /// As TOML, secrets masked: what `serve --check` prints.
    pub fn to_masked_toml(&self) -> String {
        toml::to_string_pretty(self).expect("settings are tables of plain values")
    }

    /// The database's URL: as set, else SQLite in the data directory.
    pub fn database_url(&self) -> String {
        match self.database.expose_url() {
            Some(url) => url.to_owned(),
            None => format!("sqlite:{}", self.data.join("dray.sqlite").display()),
        }
    }

    /// The store's settings with the default directory filled in.
    pub fn store_resolved(&self) -> StoreSettings {
        let mut store = self.store.clone();
        if store.url.is_empty() {
            store.url = self.data.join("store").display().to_string();
        }
        store
    }

    pub fn secret_key_path(&self) -> PathBuf {
        self.secret_key_file.clone().unwrap_or_else(|| self.data.join("secret.key"))
    }

    /// What no single value can show: `(key, what is wrong and what to do)`.
    fn contradictions(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if self.multi_replica && !self.database_url().starts_with("postgres") {
            faults.push(("multi_replica", "SQLite serves one process; set `database.url` to a Postgres".to_owned()));
        }
        if self.multi_replica && !self.store_resolved().url.starts_with("s3://") {
            faults
                .push(("multi_replica", "a local store serves one process; set `store.url` to `s3://...`".to_owned()));
        }
        if self.tls.cert.is_some() != self.tls.key.is_some() {
            faults.push(("tls.cert", "set both `tls.cert` and `tls.key`, or neither".to_owned()));
        }
        if let Some(url) = &self.public_url
            && !(matches!(url.scheme(), "http" | "https") && url.query().is_none() && url.fragment().is_none())
        {
            faults.push(("public_url", "must be an http or https URL without query or fragment".to_owned()));
        }
        faults.extend(self.limits.contradictions());
        faults.extend(self.database.contradictions());
        faults
    }
}
