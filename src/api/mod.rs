//! Wire types: what the service and everything outside it say to each other, as JSON under `/v1`.
//!
//! Nothing here decides anything. Unknown fields in requests are refused; in responses they are ignored, so that a newer
//! service can answer an older client. Digests are lower-case hex, times RFC 3339 UTC, sizes bytes.

pub mod datasets;
pub mod events;
pub mod jobs;
pub mod links;
pub mod nodes;
pub mod plans;
pub mod problem;
pub mod teams;
pub mod uploads;
