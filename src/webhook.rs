//! The `webhook` room.
