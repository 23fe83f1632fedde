//! Budgets: what one caller, one request and one connection may take.

use serde::{Deserialize, Serialize};

use super::units::{Period, Size};

/// Limits of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest pack taken; clients cut theirs to it. Between `1MiB` and `1GiB`. Default: `64MiB`.
    pub max_pack_bytes: Size,
    /// Largest body of a JSON call. Default: `1MiB`.
    pub json_body: Size,
    /// Largest compressed tree or layout. Default: `1GiB`.
    pub metadata_body: Size,
    /// Most open uploads of one team; one more is answered 429. Default: 256.
    pub open_uploads_per_team: u32,
    /// Requests a second that one token may send, with bursts of twice that; more are answered 429. 0: no limit. Default: 2000.
    pub requests_per_second: u32,
    /// Requests being answered at one moment, up to the head of the answer: long polls count, downloads that stream do not. More
    /// are answered 503. Default: 4096.
    pub requests_in_flight: u32,
    /// From the opening of a connection (or the end of an answer) to the end of the next request's head. Default: `30s`.
    pub header_timeout: Period,
    /// A body must bring 1 KiB for every second we wait for it, counted over this period. Default: `30s`.
    pub body_idle: Period,
    /// A JSON call, long polls included, is answered within it. Default: `90s`.
    pub request_timeout: Period,
    /// Longest `?wait=`. Shorter than `request_timeout`. Default: `60s`.
    pub longest_wait: Period,
    /// How long a URL for a pack works. Default: `1h`.
    pub grant_ttl: Period,
    /// How long an upload may stay open without a sign of life. Default: `3d`.
    pub upload_ttl: Period,
    /// How long the answer to an Idempotency-Key is remembered. Default: `1d`.
    pub idempotency_ttl: Period,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pack_bytes: Size::mib(64),
            json_body: Size::mib(1),
            metadata_body: Size::mib(1024),
            open_uploads_per_team: 256,
            requests_per_second: 2_000,
            requests_in_flight: 4_096,
            header_timeout: Period::seconds(30),
            body_idle: Period::seconds(30),
            request_timeout: Period::seconds(90),
            longest_wait: Period::seconds(60),
            grant_ttl: Period::hours(1),
            upload_ttl: Period::hours(72),
            idempotency_ttl: Period::hours(24),
        }
    }
}

impl Limits {
    /// What no single value shows: each fault with the key that is to be changed. Asked once all layers are joined.
    pub(super) fn contradictions(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if !(Size::mib(1)..=Size::mib(1024)).contains(&self.max_pack_bytes) {
            faults
                .push(("limits.max_pack_bytes", format!("`{}` is not between `1MiB` and `1GiB`", self.max_pack_bytes)));
        }
        // 4,096 chunk ids and their JSON
        if self.json_body < Size(512 << 10) {
            faults.push(("limits.json_body", "calls of the client need `512KiB`".to_owned()));
        }
        if self.longest_wait >= self.request_timeout {
            faults.push(("limits.longest_wait", "must be shorter than `limits.request_timeout`".to_owned()));
        }
        for (key, period) in [
            ("limits.header_timeout", self.header_timeout),
            ("limits.body_idle", self.body_idle),
            ("limits.request_timeout", self.request_timeout),
            ("limits.grant_ttl", self.grant_ttl),
            ("limits.upload_ttl", self.upload_ttl),
            ("limits.idempotency_ttl", self.idempotency_ttl),
        ] {
            if period < Period::seconds(1) {
                faults.push((key, format!("`{period}` is too short; at least `1s`")));
            }
        }
        for (key, count) in [
            ("limits.open_uploads_per_team", self.open_uploads_per_team),
            ("limits.requests_in_flight", self.requests_in_flight),
        ] {
            if count == 0 {
                faults.push((key, "0 would refuse everything".to_owned()));
            }
        }
        faults
    }
}
