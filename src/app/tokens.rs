//! Tokens: made, shown once, found again by their hash, revoked.

use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::{App, Caller, CallerNode};
use crate::api::teams::Role;
use crate::db::tokens;

/// Begins every token, so that scanners of leaked secrets know one when they see it.
pub const TOKEN_PREFIX: &str = "dray_";

pub const UNAUTHENTICATED: Code = Code::new(Kind::Unauthenticated, "unauthenticated", "no valid token was presented");

impl App {
    /// Who bears this token. Unknown, expired and revoked ones get one and the same answer.
    pub async fn authenticate(&self, token: &str) -> Result<Caller, Error> {
        let refused = || {
            let hint = "set DRAY_TOKEN to a valid token; an admin of the team can make one with `dray token create`";
            Error::new(UNAUTHENTICATED, "the token is unknown, expired or revoked", hint)
        };
        if !token.starts_with(TOKEN_PREFIX) || token.len() > 128 {
            return Err(refused());
        }
        let bearer = tokens::by_hash(&mut self.db.read().await?, hash(token)).await?.ok_or_else(refused)?;
        let over = bearer.expires_at.is_some_and(|end| end <= self.clock.now());
        if over || bearer.revoked_at.is_some() {
            return Err(refused());
        }
        let role = parse_role(&bearer.role)?;
        if role == Role::Node && bearer.node.is_none() {
            return Err(refused());
        }
        let node = bearer.node.map(|(id, name)| CallerNode { id, name });
        Ok(Caller { team: bearer.team, team_name: bearer.team_name, role, token_id: bearer.id, node })
    }
}

pub(super) fn hash(token: &str) -> [u8; 32] {
    *blake3::hash(token.as_bytes()).as_bytes()
}

/// As it stands in SQL and on the wire.
pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Admin => "admin",
        Role::Team => "team",
        Role::TeamRead => "team-read",
        Role::Scheduler => "scheduler",
        Role::Node => "node",
    }
}

pub(super) fn parse_role(name: &str) -> Result<Role, Error> {
    [Role::Admin, Role::Team, Role::TeamRead, Role::Scheduler, Role::Node]
        .into_iter()
        .find(|role| role_name(*role) == name)
        .ok_or_else(|| Error::internal(format!("a token has the unknown role `{name}`")))
}

/// `id` in a path or body that must be a UUID of ours.
pub fn parse_id(thing: &str, text: &str) -> Result<Uuid, Error> {
    Uuid::try_parse(text).map_err(|_| Error::not_found(thing, text.escape_debug(), "check the id; it is a UUID"))
}
