//! All tests that need more than one room: one binary, a file per road.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api_base;
mod archive;
mod auth;
mod commits;
mod damage;
mod database;
mod fault_proxy;
mod grants;
mod layering;
mod metadata;
mod packs;
mod replicas;
mod store_contract;
mod store_faults;
mod support;
mod uploads;
