//! Nodes of a team: added with a token that is shown once, listed, removed.
//!
//! Removing a node ends its token and its key's validity at once; leases and receipts that name it stay readable.
//!
//! A node's name may be used again once it was removed; the new one is another node, with a key of its own.

use super::error::{Code, Error, Kind};
use super::page::Paging;
use super::tokens::{hash, role_name};
use super::{App, Caller, Idempotency};
use crate::api::nodes::{CreateNode, CreatedNode, Inventory, Node};
use crate::api::teams::{Page, PageQuery, Role};
use crate::db::{keys, nodes, tokens};
use crate::transaction;

/// Removed nodes do not count.
pub const NODE_EXISTS: Code = Code::new(Kind::Conflict, "node_exists", "a node of that name exists already");

impl App {
    /// Adds a node and makes its token, which is shown this once (and to a repeat with the same Idempotency-Key).
    /// [`NODE_EXISTS`] when a live node of the team has the name.
    pub async fn add_node(&self, caller: &Caller, wish: &CreateNode, call: &Idempotency) -> Result<CreatedNode, Error> {
        check_name("name", &wish.name)?;
        wish.zone.as_deref().map_or(Ok(()), |zone| check_name("zone", zone))?;
        let (id, now) = (self.ids.uuid(), self.clock.now());
        let secret = self.new_token();
        let node = nodes::NewNode { id, team: caller.team, name: &wish.name, zone: wish.zone.as_deref() };
        let token = tokens::NewToken {
            id: self.ids.uuid(),
            hash: hash(&secret),
            team: caller.team,
            role: role_name(Role::Node),
            node: Some(id),
            label: None,
            created_at: now,
            expires_at: None,
        };
        transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay(tx, caller.team, call).await? {
                return Ok(earlier);
            }
            nodes::insert(tx, &node, now).await.map_err(|error| {
                let hint = "choose another name, or remove the old node with `dray node rm`";
                Error::on_taken(error, NODE_EXISTS, || format!("there is a node `{}`", wish.name), hint)
            })?;
            tokens::insert(tx, &token).await?;
            let made = CreatedNode { name: wish.name.clone(), token: secret.clone() };
            self.remember(tx, caller.team, call, &made).await?;
            Ok::<_, Error>(made)
        })
    }

    pub async fn list_nodes(&self, caller: &Caller, query: &PageQuery) -> Result<Page<Node>, Error> {
        let paging = Paging::new(query)?;
        let rows = nodes::page(&mut self.db.read().await?, caller.team, &paging.after, paging.rows()).await?;
        Ok(paging.page(rows.into_iter().map(wire).collect(), |node| node.name.clone()))
    }

    /// One transaction: token revoked, key retired, node gone. What runs on it is ended by a reconciler
    /// ([`App::bury_removed_nodes`]); its leases stay until they are released or run out.
    pub async fn remove_node(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        let now = self.clock.now();
        transaction!(self.db, |tx| {
            let missing = || Error::not_found("node", name.escape_debug(), "`dray node list` shows the team's nodes");
            let node = nodes::by_name(tx, caller.team, name).await?.ok_or_else(missing)?;
            tokens::revoke_of_node(tx, node.id, now).await?;
            keys::retire_node(tx, node.id, now).await?;
            nodes::remove(tx, node.id, now).await?;
            Ok::<_, Error>(())
        })
    }
}

fn wire(node: nodes::Node) -> Node {
    Node {
        name: node.name,
        zone: node.zone,
        seen_at: node.seen_at.map(|at| at.to_string()),
        // an inventory that a newer release wrote and this one cannot read is not worth failing a listing
        inventory: node.inventory.and_then(|json| serde_json::from_str::<Inventory>(&json).ok()),
    }
}

/// Names of nodes and zones: what host names are made of.
fn check_name(field: &str, name: &str) -> Result<(), Error> {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let begins = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if begins && name.len() <= 64 && name.bytes().all(usual) {
        return Ok(());
    }
    let what = format!("`{}` is no name", name.chars().take(80).collect::<String>().escape_debug());
    Err(Error::invalid(field, what, "use 1 to 64 letters, digits, `.`, `-`, `_`, beginning with a letter or digit"))
}
