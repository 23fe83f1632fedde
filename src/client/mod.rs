//! The outside house's way to the service: one HTTP client, and the roads that use it.
//!
//! [`api`] is the only place that speaks HTTP; everything above it sees typed calls and [`Error`].

pub mod api;
mod error;
mod retry;
pub mod transfer;

pub use error::{Error, Exit};
