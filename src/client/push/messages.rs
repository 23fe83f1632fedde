//! What the threads of a push tell each other.
//!
//! Every channel has a bound. The inbox of the ordering thread has room for all that can be under way, so that those who answer never wait
//! for it while it waits for them.

use super::batch::Batch;
use super::pack::Sealed;
use crate::api::datasets::PackInfo;
use crate::client::context::TransferError;
use crate::content::digest::Digest;
use crate::content::pack::{PackId, PackIndex};
use std::time::Duration;

/// What arrives in the inbox.
#[derive(Debug)]
pub(super) enum Event {
    Hashed(Batch),
    Encoded(Batch),
    /// The walk is over: so many batches were handed out.
    SourceEnded {
        batches: u64,
        warnings: Vec<String>,
    },
    Known {
        group: u64,
        packs: Vec<PackInfo>,
    },
    Loaded {
        group: u64,
        indexes: Vec<PackIndex>,
    },
    /// A pack is acknowledged: verified by the service and durable.
    Sent {
        bytes: u64,
        took: Duration,
    },
    /// The caller has cancelled.
    Stop,
    /// Nobody waits for this push any more, and nothing under way will answer.
    Abandoned,
    /// Ends the push.
    Failed(TransferError),
}

/// What a worker is to do. The batch comes back as [`Event::Hashed`] or [`Event::Encoded`].
#[derive(Debug)]
pub(super) enum Job {
    Hash(Batch),
    Encode(Batch),
}

/// What the ordering thread wants done. Each is answered by one [`Event`].
#[derive(Debug)]
pub(super) enum Command {
    /// Ask which packs hold these chunks.
    Ask {
        group: u64,
        chunks: Vec<Digest>,
    },
    /// Fetch the indexes of these packs.
    Load {
        group: u64,
        packs: Vec<PackId>,
    },
    Put(Sealed),
}
