//! The `server` room.
