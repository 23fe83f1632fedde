//! The fetch plan: which byte ranges of which packs to read, and where each chunk of them goes. Pure.
//!
//! Files are fed in tree order; windows of bounded raw bytes come out, each with its reads coalesced. A chunk wanted in
//! several places of a window is read once. The planner fetches nothing and waits for nothing: it says which pack index
//! it needs next, so that the caller may hold as few of them as it likes.
//!
//! Invariant: over all windows every wanted byte of every file is covered exactly once, by a place or by a hole.

mod planner;
#[cfg(test)]
mod tests;
mod window;

pub use planner::{Planner, Step};
pub use window::{Error, Hole, Limits, Place, Read, Wanted, Window};
