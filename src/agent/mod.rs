//! The `agent` room.
