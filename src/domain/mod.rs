//! The `domain` room.
