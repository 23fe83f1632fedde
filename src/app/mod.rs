//! Use cases: the only room that joins `domain`, `db` and `store`.
//!
//! Each use case is an `impl App` in a file of its own and answers with [`Error`], which says what the caller shall do. No
//! HTTP here, and no decision that `domain` could make. Whatever creates something takes an [`Idempotency`] and remembers its
//! answer in the transaction that created it.

mod access;
pub mod agents;
pub mod archives;
pub mod body;
pub mod callbacks;
mod check;
pub mod commit;
pub mod data;
mod error;
pub mod events;
pub mod grants;
mod idempotency;
mod inputs;
pub mod jobs;
pub mod keys;
pub mod known;
pub mod leases;
pub mod links;
mod making;
mod nodes;
pub mod objects;
mod open;
pub mod outputs;
mod page;
mod plan;
pub mod read;
mod receipts;
mod refs;
pub mod seal;
pub mod staging;
pub mod store_check;
mod stored;
pub mod teams;
pub mod tokens;
mod upkeep;
pub mod upload;
pub mod versions;

use std::sync::Arc;

use uuid::Uuid;

use crate::api::teams::Role;
use crate::clock::{Clock, Ids};
use crate::config::Settings;
use crate::db::Db;
use crate::store::Store;
use crate::webhook::Webhooks;

pub use crate::db::uploads::ObjectKind;
pub use error::{Code, Error, Kind};
pub use keys::Keys;
pub use open::OpenError;
pub use page::Paging;

pub use crate::db::{Listener, Woken};

/// Everything a use case needs, shared by all requests and all background work.
#[derive(Debug)]
pub struct App {
    pub db: Db,
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub settings: Settings,
    pub keys: Keys,
    /// Caches and locks of the push and read roads.
    pub data: data::Data,
    /// Sends callbacks, to addresses it has judged.
    pub webhooks: Webhooks,
    /// What URLs of ours begin with when no request says better: `public_url`, else the address we listen on. No `/` at its end.
    pub origin: String,
}

/// Whoever calls, proven by a token. Everything a use case reads or changes belongs to `team`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub team: Uuid,
    pub team_name: String,
    pub role: Role,
    pub token_id: Uuid,
    /// With role `node`: the node's id and name.
    pub node: Option<CallerNode>,
}

/// A call's `Idempotency-Key` and what it was said with. Built by the server; `Idempotency::none()` for calls of our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    pub key: Option<String>,
    /// Method and path.
    pub route: String,
    /// BLAKE3 of the body.
    pub digest: [u8; 32],
}

impl Idempotency {
    pub fn none() -> Self {
        Self { key: None, route: String::new(), digest: [0; 32] }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerNode {
    pub id: Uuid,
    pub name: String,
}
