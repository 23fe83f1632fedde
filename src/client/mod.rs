//! The outside house's way to the service: one HTTP client, and the roads that use it.
//!
//! [`api`] is the only place that speaks HTTP; everything above it sees typed calls and [`Error`].

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
