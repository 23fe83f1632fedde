//! The rules of the business: what may follow what, and what is refused.
//!
//! Pure: no async, no files, no network, no clock, no log. Facts go in, decisions come out; `app` reads the one and carries out
//! the other in one transaction.

pub mod delivery;
pub mod disposition;
pub mod id;
pub mod job;
pub mod lease;
pub mod near;
pub mod output;
pub mod receipt;
pub mod selection;
pub mod shard;
pub mod staging;
pub mod version;
