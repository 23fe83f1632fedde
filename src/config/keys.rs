//! Every key by its dotted name, with the kind of value that an environment variable's text becomes.
//!
//! `limits.json_body` is `DRAY_LIMITS_JSON_BODY` in the environment. A test holds this list against the sample file, and the
//! sample file is held against the defaults.
//!
//! A setting that does not stand here is refused wherever it is said.

/// How an environment variable's text is read. Text stays text even where it looks like a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    /// `true` or `false`
    Flag,
    /// Comma separated.
    List,
}

use Kind::{Flag, List, Number, Text};

/// Tables are one level deep. Sizes and periods are text: their units are read by `units`.
pub(super) const KEYS: &[(&str, Kind)] = &[
    ("listen", Text),
    ("data", Text),
    ("public_url", Text),
    ("secret_key_file", Text),
    ("multi_replica", Flag),
    ("drain", Text),
    ("database.url", Text),
    ("database.connections", Number),
    ("database.timeout", Text),
    ("store.url", Text),
    ("store.endpoint", Text),
    ("store.public_endpoint", Text),
    ("store.region", Text),
    ("store.access_key_id", Text),
    ("store.secret_access_key", Text),
    ("store.profile", Text),
    ("store.checksum", Text),
    ("store.sign_payload", Flag),
    ("store.addressing", Text),
    ("store.conditional_put", Flag),
    ("store.max_parts", Number),
    ("store.allow_http", Flag),
    ("store.connect_timeout_ms", Number),
    ("store.stall_timeout_ms", Number),
    ("store.retries", Number),
    ("store.retry_timeout_ms", Number),
    ("limits.max_pack_bytes", Text),
    ("limits.json_body", Text),
    ("limits.metadata_body", Text),
    ("limits.open_uploads_per_team", Number),
    ("limits.requests_per_second", Number),
    ("limits.requests_in_flight", Number),
    ("limits.header_timeout", Text),
    ("limits.body_idle", Text),
    ("limits.request_timeout", Text),
    ("limits.longest_wait", Text),
    ("limits.grant_ttl", Text),
    ("limits.upload_ttl", Text),
    ("limits.idempotency_ttl", Text),
    ("callbacks.allow", List),
    ("tls.cert", Text),
    ("tls.key", Text),
    ("log.format", Text),
    ("log.level", Text),
];

/// Names of tables: a variable `DRAY_LIMITS_...` that is no key is a fault, while `DRAY_URL` is somebody else's.
pub(super) const TABLES: &[&str] = &["database", "store", "limits", "callbacks", "tls", "log"];

/// The environment variable of a key.
pub(super) fn variable(key: &str) -> String {
    format!("DRAY_{}", key.replace('.', "_").to_ascii_uppercase())
}
