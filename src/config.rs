//! The `config` room.

pub mod store;
