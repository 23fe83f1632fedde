//! All tests that need more than one room: one binary, a file per road.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod archive;
mod auth;
mod commits;
mod damage;
mod fault_proxy;
mod grants;
mod packs;
mod pull;
mod push;
mod store_contract;
mod store_faults;
mod support;
mod trees;
mod uploads;
