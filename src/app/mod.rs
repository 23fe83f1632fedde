//! Use cases: the only room that joins `domain`, `db` and `store`.
//!
//! Each use case is an `impl App` in a file of its own and answers with [`Error`], which says what the caller shall do. No
//! HTTP here, and no decision that `domain` could make. Whatever creates something takes an [`Idempotency`] and remembers its
//! answer in the transaction that created it.
//!
//! Who may call what by role is the server's table (`server::auth`); who may see what is decided here, by [`Caller`]. Work
//! between requests (`server::reconcilers`) calls the same methods; each takes no input, reads its work from SQL and may run
//! in several replicas at once.
//!
//! ```text
//! push       upload -> known -> seal (packs), objects (tree, layout) -> commit -> check -> making -> refs
//! read       versions -> grants -> stored | read -> archives -> links
//! jobs       jobs -> leases -> staging -> inputs -> agents -> receipts -> outputs
//! told       events -> callbacks
//! ```
//!
//! Most use cases that write are one transaction. Where several follow, or the store is written too, their file says in
//! which order and what a crash in between leaves. Facts for the outbox are collected on the way and written last.

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

/// Everything a use case needs, shared by all requests and all background work. Nothing in it is a fact: what must survive
/// is in SQL and in the store, so any number of these may serve one database.
#[derive(Debug)]
pub struct App {
    pub db: Db,
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    /// As read at the start; never changed.
    pub settings: Settings,
    /// Opened; read again each minute, for what another replica has made.
    pub keys: Keys,
    /// Caches and locks of the push and read roads.
    pub data: data::Data,
    /// Sends callbacks, to addresses it has judged.
    pub webhooks: Webhooks,
    /// What URLs of ours begin with when no request says better: `public_url`, else the address we listen on. No `/` at its end.
    pub origin: String,
}

/// Whoever calls, proven by a token. Everything a use case reads or changes belongs to `team`; a thing of another team does
/// not exist, in the same words and with the same code as one that never was. Made by [`App::authenticate`] for each request
/// and not kept beyond it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub team: Uuid,
    pub team_name: String,
    pub role: Role,
    pub token_id: Uuid,
    /// With role `node`: the node's id and name.
    pub node: Option<CallerNode>,
}

/// A call's `Idempotency-Key` and what it was said with. Built by the server; `Idempotency::none()` for calls of our own. A
/// use case that takes one calls [`App::replay`] first and [`App::remember`] last in the transaction that creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// `None` when the caller sent none: then a repeat creates again.
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

/// The node that a token of role `node` speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerNode {
    pub id: Uuid,
    pub name: String,
}
