//! All tests that need more than one room: one binary, a file per road.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api_base;
mod archive;
mod auth;
mod commits;
mod crash;
mod damage;
mod database;
mod cli;
mod fault_proxy;
mod grants;
mod layering;
mod metadata;
mod packs;
mod replicas;
mod pull;
mod push;
mod store_contract;
mod store_crash;
mod store_credentials;
mod store_faults;
mod store_probe;
mod support;
mod trees;
mod uploads;
