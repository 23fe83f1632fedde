//! The rules of the business: what may follow what, and what is refused.
//!
//! Pure: no async, no files, no network, no clock, no log. Facts go in, decisions come out; `app` reads the one and carries out
//! the other in one transaction.
//!
//! States that stand in SQL and on the wire have a `word`, one spelling for both, which rows and scripts rely on. What may
//! follow what is a function from (state, act) to a state or a typed refusal, so that a random walk in the tests can try all
//! of it and `app` cannot take a step that is not written here.

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
