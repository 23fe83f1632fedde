//! Settings of the store: where the objects lie and how to talk to it.
//!
//! Plain values with documented defaults; no component is made here, and nothing is read from the environment. What a store
//! really does is found out by `dray store check`, not believed from these settings.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

/// Settings of the object store.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSettings {
    /// A directory (`/srv/dray`, `file:///srv/dray`) or a bucket with an optional prefix (`s3://bucket/prefix`).
    /// Default: empty, which `serve` replaces by `store` under its data directory.
    pub url: String,
    /// S3: the server's base URL, `https://s3.example.net`. Default: the usual AWS chain, else AWS itself.
    pub endpoint: Option<String>,
    /// S3: base URL used in signed URLs only, where users reach the store by another name than we do. Default: `endpoint`.
    pub public_endpoint: Option<String>,
    /// S3: region. Default: the usual AWS chain, else `us-east-1`.
    pub region: Option<String>,
    /// S3: static key id. Default: the usual AWS chain (environment, profile, `credential_process`, instance role).
    pub access_key_id: Option<String>,
    /// S3: static secret key, with `access_key_id`.
    #[serde(serialize_with = "masked")]
    pub secret_access_key: Option<SecretString>,
    /// S3: named profile of the AWS chain. Default: `AWS_PROFILE`, else `default`.
    pub profile: Option<String>,
    /// S3: checksum sent as a header with every PUT and part, which the store checks. Never a trailer. Default: `crc64nvme`.
    pub checksum: Checksum,
    /// S3: also sign a SHA-256 of every body (0.7 CPU s/GiB more). Default: false; always done with `checksum = "none"`.
    pub sign_payload: bool,
    /// S3: how the bucket is named in a URL. Default: `path`.
    pub addressing: Addressing,
    /// S3: send `If-None-Match: *`, so that a key is written once even when an answer was lost. Default: true.
    pub conditional_put: bool,
    /// S3: most parts in one multipart upload. Default: 10000; some stores allow only 1000.
    pub max_parts: u32,
    /// S3: allow plain `http`. Default: false, but always allowed to a loopback address.
    pub allow_http: bool,
    /// S3: milliseconds to wait for a connection. Default: 5000.
    pub connect_timeout_ms: u64,
    /// S3: milliseconds without a single byte moving, in either direction, after which a request is given up. There is no
    /// limit on a whole transfer. Default: 30000.
    pub stall_timeout_ms: u64,
    /// S3: most times a request is sent again. Every attempt is signed anew. Default: 8.
    pub retries: u32,
    /// S3: milliseconds from the first failure (since bytes moved last) after which nothing is sent again; below 300000. Default: 120000.
    pub retry_timeout_ms: u64,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            url: String::new(),
            endpoint: None,
            public_endpoint: None,
            region: None,
            access_key_id: None,
            secret_access_key: None,
            profile: None,
            checksum: Checksum::Crc64Nvme,
            sign_payload: false,
            addressing: Addressing::Path,
            conditional_put: true,
            max_parts: 10_000,
            allow_http: false,
            connect_timeout_ms: 5_000,
            stall_timeout_ms: 30_000,
            retries: 8,
            retry_timeout_ms: 120_000,
        }
    }
}

impl PartialEq for StoreSettings {
    fn eq(&self, other: &Self) -> bool {
        let secret =
            |settings: &Self| settings.secret_access_key.as_ref().map(|secret| secret.expose_secret().to_owned());
        let plain = |settings: &Self| serde_json::to_value(Self { secret_access_key: None, ..settings.clone() }).ok();
        secret(self) == secret(other) && plain(self) == plain(other)
    }
}

/// Which checksum a store is asked to verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checksum {
    /// No checksum header; the body's SHA-256 is signed instead, for stores that refuse the header.
    None,
    Crc64Nvme,
    Sha256,
}

/// How the bucket is named in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Addressing {
    /// `https://host/bucket/key`
    Path,
    /// `https://bucket.host/key`; `endpoint` is given without the bucket.
    Virtual,
}

/// Shows that there is a secret, never which.
fn masked<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    match secret {
        Some(_) => serializer.serialize_str("***"),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_parse_from_nothing_and_unknown_keys_are_refused() {
        assert_eq!(toml::from_str::<StoreSettings>("").unwrap(), StoreSettings::default());
        assert!(toml::from_str::<StoreSettings>("bucket = 'x'").is_err());
        assert_ne!(toml::from_str::<StoreSettings>("checksum = 'sha256'").unwrap(), StoreSettings::default());
    }

    #[test]
    fn a_secret_is_neither_shown_nor_serialized() {
        let settings: StoreSettings = toml::from_str("secret_access_key = 'hunter2'").unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
        assert!(!serde_json::to_string(&settings).unwrap().contains("hunter2"));
        assert_ne!(settings, StoreSettings::default());
    }
}
