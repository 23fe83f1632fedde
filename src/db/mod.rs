//! The `db` room.
