//! The service's house: metadata, store, use cases, HTTP in. It never sees the outside house. The map is the crate `dray`.

use dray_ground::{api, clock, config, content, direct, domain};

pub mod app;
pub mod db;
pub mod server;
pub mod store;
pub mod webhook;
