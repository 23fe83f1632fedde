//! All tests that need more than one room: one binary, a file per road.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod archive;
mod auth;
mod commits;
mod crash;
mod damage;
mod fault_proxy;
mod grants;
mod packs;
mod store_contract;
mod store_faults;
mod support;
mod uploads;
