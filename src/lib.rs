//! Dray carries a team's data to the GPU it rented and carries the results home.
//!
//! This page is the map of the house. One package, one library, one binary; roles are subcommands.
//!
//! # Floors
//!
//! ```text
//! floor 0  content, domain                     PURE: no async, no files, no network, no clock, no log
//! floor 1  api                                 wire types that both houses speak
//! floor 2  store, db, webhook, clock, config   EDGES: one outside thing each
//! floor 3  app                                 use cases: the only room that joins domain, db and store
//! floor 4  server                              HTTP in, ticks in, calls app            -- the service's house
//!          client -> agent, cli                HTTP out, disk, terminal                -- the outside house
//! ```
//!
//! The two houses meet only in `content`, `domain`, `api`, `clock` and `config`. `agent` and `cli` never see `app`, `db`,
//! `store` or `webhook`. `src/main.rs` is the composition root, the only file that knows both houses.
//! `tests/it/layering.rs` holds this table against the code.

pub mod agent;
pub mod api;
pub mod app;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod content;
pub mod db;
pub mod domain;
pub mod server;
pub mod store;
pub mod webhook;
