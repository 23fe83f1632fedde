//! The outside house: client, agent, command line; HTTP out, disk, terminal. It never sees the service's house. The map is the crate `dray`.

use dray_ground::{api, clock, content, direct, domain};

pub mod agent;
pub mod cli;
pub mod client;
