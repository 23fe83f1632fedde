//! All tests that need more than one room: one binary, a file per road.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api_base;
mod archive;
mod auth;
mod commits;
mod config;
mod damage;
mod database;
mod fault_proxy;
mod grants;
mod layering;
mod packs;
mod parity;
mod store_contract;
mod store_crash;
mod store_credentials;
mod store_faults;
mod store_probe;
mod support;
mod uploads;
