//! Tokens: made, shown once, found again by their hash, revoked.
//!
//! A token is `dray_` and 256 random bits in base64url; SQL holds its BLAKE3. A token never changes its team or role; to
//! change either, make another and revoke it.

use data_encoding::BASE64URL_NOPAD;
use jiff::Timestamp;
use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::page::Paging;
use super::teams::DEFAULT_TEAM;
use super::{App, Caller, CallerNode, Idempotency};
use crate::api::teams::{CreateToken, CreatedToken, Page, PageQuery, Role, TokenInfo};
use crate::db::{Tx, teams, tokens};
use crate::transaction;

/// Begins every token, so that scanners of leaked secrets know one when they see it.
pub const TOKEN_PREFIX: &str = "dray_";

/// Not told apart why: an answer that differed would tell which tokens exist.
pub const UNAUTHENTICATED: Code = Code::new(Kind::Unauthenticated, "unauthenticated", "no valid token was presented");

impl App {
    /// Who bears this token. Unknown, expired and revoked ones get one and the same answer. Asked for every request, so a
    /// revocation counts at once in every replica.
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

    /// Makes a token, shown this once (and to a repeat with the same Idempotency-Key). Only the operator may name another
    /// team; a node's token comes with its node.
    pub async fn create_token(
        &self,
        caller: &Caller,
        wish: &CreateToken,
        call: &Idempotency,
    ) -> Result<CreatedToken, Error> {
        if wish.role == Role::Node {
            return Err(Error::invalid("role", "a node's token is made with its node", "use `dray node add NAME`"));
        }
        if wish.label.as_deref().is_some_and(|label| label.len() > 200 || label.chars().any(char::is_control)) {
            return Err(Error::invalid("label", "longer than 200 bytes, or with control characters", "shorten it"));
        }
        let now = self.clock.now();
        let expires_at = wish.expires_at.as_deref().map(|text| parse_end(text, now)).transpose()?;
        let secret = self.new_token();
        let id = self.ids.uuid();
        transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay(tx, caller.team, call).await? {
                return Ok(earlier);
            }
            let team = self.team_of_wish(tx, caller, wish.team.as_deref()).await?;
            let row = tokens::NewToken {
                id,
                hash: hash(&secret),
                team,
                role: role_name(wish.role),
                node: None,
                label: wish.label.as_deref(),
                created_at: now,
                expires_at,
            };
            tokens::insert(tx, &row).await?;
            let made = CreatedToken { id: id.to_string(), token: secret.clone(), role: wish.role };
            self.remember(tx, caller.team, call, &made).await?;
            Ok::<_, Error>(made)
        })
    }

    /// The caller's own team, or the one an operator names.
    async fn team_of_wish(&self, tx: &mut Tx, caller: &Caller, wished: Option<&str>) -> Result<Uuid, Error> {
        let Some(name) = wished.filter(|name| *name != caller.team_name) else { return Ok(caller.team) };
        if !caller.is_operator() {
            let detail = "only an admin of team `default` makes tokens of another team";
            return Err(Error::denied(detail, "leave `team` out, or ask the operator of the service"));
        }
        let missing = || Error::not_found("team", name.escape_debug(), "`dray team create` makes one");
        Ok(teams::by_name(tx, name).await?.ok_or_else(missing)?.id)
    }

    /// In the order they were made, revoked and expired ones too; secrets are not kept and not shown.
    pub async fn list_tokens(&self, caller: &Caller, query: &PageQuery) -> Result<Page<TokenInfo>, Error> {
        let paging = Paging::new(query)?;
        let after = Uuid::try_parse(&paging.after).ok();
        let rows = tokens::page(&mut self.db.read().await?, caller.team, after, paging.rows()).await?;
        let items = rows.into_iter().map(wire).collect::<Result<Vec<_>, _>>()?;
        Ok(paging.page(items, |token| token.id.clone()))
    }

    /// Ends a token at once; requests that were let in go on. Saying it twice is fine. A caller may revoke its own.
    pub async fn revoke_token(&self, caller: &Caller, id: &str) -> Result<(), Error> {
        let id = parse_id("token", id)?;
        transaction!(self.db, |tx| {
            if tokens::revoke(tx, caller.team, id, self.clock.now()).await? {
                return Ok::<_, Error>(());
            }
            Err(Error::not_found("token", id, "`dray token list` shows the team's tokens"))
        })
    }

    /// Sees to it that team `default` exists and that `known` is a valid token of its admin; otherwise answers a new one,
    /// which the caller writes down. Called at start: whoever loses the file gets another token, and the old one stays valid
    /// until it is revoked.
    pub async fn ensure_admin(&self, known: Option<&str>) -> Result<Option<String>, Error> {
        if let Some(known) = known
            && self.authenticate(known).await.is_ok_and(|caller| caller.is_operator())
        {
            return Ok(None);
        }
        let (secret, now) = (self.new_token(), self.clock.now());
        let (team, id) = (self.ids.uuid(), self.ids.uuid());
        transaction!(self.db, |tx| {
            teams::ensure(tx, team, DEFAULT_TEAM, now).await?;
            let team = teams::by_name(tx, DEFAULT_TEAM).await?;
            let team = team.ok_or_else(|| Error::internal("team `default` is gone"))?.id;
            let row = tokens::NewToken {
                id,
                hash: hash(&secret),
                team,
                role: role_name(Role::Admin),
                node: None,
                label: Some("admin.token"),
                created_at: now,
                expires_at: None,
            };
            tokens::insert(tx, &row).await?;
            Ok::<_, Error>(())
        })?;
        Ok(Some(secret))
    }

    /// Random and not written anywhere yet.
    pub(super) fn new_token(&self) -> String {
        format!("{TOKEN_PREFIX}{}", BASE64URL_NOPAD.encode(&self.ids.secret()))
    }
}

fn wire(token: tokens::Token) -> Result<TokenInfo, Error> {
    Ok(TokenInfo {
        id: token.id.to_string(),
        role: parse_role(&token.role)?,
        label: token.label,
        node: token.node,
        created_at: token.created_at.to_string(),
        expires_at: token.expires_at.map(|at| at.to_string()),
        revoked_at: token.revoked_at.map(|at| at.to_string()),
    })
}

fn parse_end(text: &str, now: Timestamp) -> Result<Timestamp, Error> {
    let hint = "write a future instant with an offset, like `2027-01-31T18:00:00Z`";
    let end: Timestamp = text.parse().map_err(|_| Error::invalid("expires_at", "no RFC 3339 instant", hint))?;
    if end <= now { Err(Error::invalid("expires_at", format!("{end} is over"), hint)) } else { Ok(end) }
}

/// Looked up as it is: 256 random bits need neither salt nor a slow hash.
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

/// An unknown word is an error, never a lesser role.
pub(super) fn parse_role(name: &str) -> Result<Role, Error> {
    [Role::Admin, Role::Team, Role::TeamRead, Role::Scheduler, Role::Node]
        .into_iter()
        .find(|role| role_name(*role) == name)
        .ok_or_else(|| Error::internal(format!("a token has the unknown role `{name}`")))
}

/// `id` in a path or body that must be a UUID of ours. One that is none is answered as one that does not exist.
pub fn parse_id(thing: &str, text: &str) -> Result<Uuid, Error> {
    Uuid::try_parse(text).map_err(|_| Error::not_found(thing, text.escape_debug(), "check the id; it is a UUID"))
}
