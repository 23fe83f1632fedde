//! All tests that need more than one room: one binary, a file per road.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api_base;
mod archive;
mod auth;
mod cli;
mod commits;
mod config;
mod crash;
mod damage;
mod database;
mod demo;
mod fault_proxy;
mod grants;
mod layering;
mod metadata;
mod packs;
mod parity;
mod pull;
mod push;
mod replicas;
mod store_contract;
mod store_crash;
mod store_credentials;
mod store_faults;
mod store_probe;
mod support;
mod trees;
mod uploads;
