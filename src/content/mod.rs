//! The `content` room.
