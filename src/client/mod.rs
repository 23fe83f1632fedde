//! The outside house's way to the service: one HTTP client, and the roads that use it.
//!
//! [`api`] is the only place that speaks HTTP; everything above it sees typed calls and [`Error`].

mod address;
pub mod api;
mod error;
mod retry;
pub mod transfer;

#[cfg(test)]
mod tests;

pub use error::{Error, Exit};
