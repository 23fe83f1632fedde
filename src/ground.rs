//! The floors that both houses stand on: what is pure, what is said over the wire, settings and the clock. The map is the crate `dray`.

pub mod api;
pub mod clock;
pub mod config;
pub mod content;
pub mod direct;
pub mod domain;
