//! All tests that need more than one room: one binary, a file per road.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "seeds, figures and skipped parts are for who runs the tests"
)]

mod agent;
mod agent_faults;
mod api_base;
mod archive;
mod auth;
mod callbacks;
mod cli;
mod cli_faults;
mod commits;
mod config;
mod crash;
mod damage;
mod database;
mod demo;
mod failover;
mod fault_proxy;
mod full_disk;
mod grants;
mod hard_inputs;
mod layering;
mod links;
mod many_and_large;
mod metadata;
mod packs;
mod parity;
mod plan;
mod pull;
mod push;
mod receipts;
mod replicas;
mod staging;
mod store_contract;
mod store_crash;
mod store_credentials;
mod store_faults;
mod store_orphans;
mod store_probe;
mod support;
mod trees;
mod two_replicas;
mod uploads;
