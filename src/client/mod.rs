//! The outside house's way to the service: one HTTP client, and the roads that use it.
//!
//! [`api`] is the only place that speaks HTTP; everything above it sees typed calls and [`Error`].
//!
//! ```text
//! cli, agent -> push | pull | verify | stored      what is wanted of a version
//!                     |
//!              fetch, index, download              packs by grants, indexes, a version's two documents
//!                     |
//!              transfer -> api -> retry            streams and calls; one attempt after the other
//!                            |
//!                         address, document        URLs and JSON, pure
//! ```
//!
//! Whoever calls from outside gives a [`Context`] and options and gets a report or a [`TransferError`] back. Everything here may be
//! cancelled at any await and run again: what the service has acknowledged stays, and files at DEST are whole or not there.

mod address;
pub mod api;
mod context;
mod document;
mod download;
mod error;
pub mod fetch;
mod index;
pub mod progress;
pub mod pull;
pub mod push;
pub mod rate;
mod report;
mod retry;
mod select;
mod stat_cache;
pub mod stored;
pub mod transfer;
pub mod verify;
pub mod walk;

#[cfg(test)]
mod tests;

pub use context::{Context, TransferError};
pub use error::{Error, Exit};
