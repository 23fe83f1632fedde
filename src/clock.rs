//! The `clock` room.
