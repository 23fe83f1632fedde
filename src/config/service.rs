//! Settings of the service's smaller parts: database, callbacks, TLS, log.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

use super::network::Cidr;
use super::units::Period;

/// Where rows lie.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Database {
    /// `postgres://user:password@host/name` or `sqlite:PATH`. Default: `dray.sqlite` in the data directory.
    #[serde(serialize_with = "masked_url", skip_serializing_if = "Option::is_none")]
    pub url: Option<SecretString>,
    /// Connections to Postgres, or concurrent readers of SQLite. Default: 16.
    pub connections: u32,
    /// How long a statement may run and a connection or lock be waited for, until a caller is told to come again. Default: `10s`.
    pub timeout: Period,
}

impl Default for Database {
    fn default() -> Self {
        Self { url: None, connections: 16, timeout: Period::seconds(10) }
    }
}

impl PartialEq for Database {
    fn eq(&self, other: &Self) -> bool {
        (self.expose_url(), self.connections, self.timeout) == (other.expose_url(), other.connections, other.timeout)
    }
}

impl Database {
    /// The URL with its password. Not for logs.
    pub fn expose_url(&self) -> Option<&str> {
        self.url.as_ref().map(ExposeSecret::expose_secret)
    }

    /// The scheme is judged here, the rest of the URL by who connects.
    pub(super) fn contradictions(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if self.connections == 0 {
            faults.push(("database.connections", "0 connections cannot serve anybody".to_owned()));
        }
        if self.timeout < Period::seconds(1) {
            faults.push(("database.timeout", format!("`{}` is too short; at least `1s`", self.timeout)));
        }
        let known = ["sqlite:", "postgres://", "postgresql://"];
        if self.expose_url().is_some_and(|url| !known.iter().any(|scheme| url.starts_with(scheme))) {
            faults.push(("database.url", "must begin with `sqlite:`, `postgres://` or `postgresql://`".to_owned()));
        }
        faults
    }
}

/// For whoever prints the settings: password and query are starred, and a URL that cannot be read is starred whole.
fn masked_url<S: Serializer>(url: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(url) = url else { return serializer.serialize_none() };
    match url::Url::parse(url.expose_secret()) {
        Ok(mut parsed) if parsed.password().is_some() || parsed.query().is_some() => {
            // a refused `set_password` means that the URL cannot have one
            let _ = parsed.password().is_some() && parsed.set_password(Some("***")).is_ok();
            if parsed.query().is_some() {
                parsed.set_query(Some("***")); // `?password=` is allowed there too
            }
            serializer.collect_str(&parsed)
        }
        Ok(_) => serializer.serialize_str(url.expose_secret()),
        Err(_) => serializer.serialize_str("***"),
    }
}

/// Where events may be sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Callbacks {
    /// Private or local ranges that callbacks may reach, plain http included; public addresses are reached by https without
    /// being listed. Default: loopback while `listen` is loopback, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Cidr>>,
}

impl Callbacks {
    /// The ranges that hold for a service listening on `listen`.
    pub fn allowed(&self, listen: SocketAddr) -> Vec<Cidr> {
        let loopback = || ["127.0.0.0/8", "::1/128"].map(|range| range.parse().expect("a range")).to_vec();
        match &self.allow {
            Some(ranges) => ranges.clone(),
            None if IpAddr::is_loopback(&listen.ip()) => loopback(),
            None => Vec::new(),
        }
    }
}

/// HTTPS without a proxy in front.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// PEM file with the certificate chain, read at start and on SIGHUP. Default: plain http.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// What the service says about itself, on stderr.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `text` for people, `json` for collectors. Default: `text`.
    pub format: LogFormat,
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) or a filter like `info,dray_service::app=debug`. Default: `info`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://dray:hunter2@db/dray", "postgres://dray:***@db/dray"),
            ("postgres://db/dray?user=dray&password=hunter2", "postgres://db/dray?***"),
            ("sqlite:/srv/dray.sqlite", "sqlite:/srv/dray.sqlite"),
        ] {
            let database = Database { url: Some(url.to_owned().into()), ..Database::default() };
            assert!(!format!("{database:?}").contains("hunter2"));
            let text = toml::to_string(&database).unwrap();
            assert!(text.contains(shown), "{text}");
        }
    }

    #[test]
    fn callbacks_reach_loopback_only_from_a_loopback_service() {
        let callbacks = Callbacks::default();
        assert_eq!(callbacks.allowed("127.0.0.1:7420".parse().unwrap()).len(), 2);
        assert!(callbacks.allowed("0.0.0.0:7420".parse().unwrap()).is_empty());
        let listed = Callbacks { allow: Some(Vec::new()) };
        assert!(listed.allowed("127.0.0.1:7420".parse().unwrap()).is_empty());
    }
}
