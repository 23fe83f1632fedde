//! Teams, and who a caller is.
//!
//! Whether a caller may do it at all is the server's table; here only the operator is told from others, since that depends
//! on the team.

use super::error::{Code, Error, Kind};
use super::page::Paging;
use super::{App, Caller, Idempotency};
use crate::api::teams::{CreateTeam, Page, PageQuery, Role, Team, WhoAmI};
use crate::db::teams;
use crate::transaction;

/// The team that exists from the start; its admins operate the service. By its name: no other team can take it.
pub const DEFAULT_TEAM: &str = "default";

/// Names of teams are unique over the whole service; only the operator learns of it.
pub const TEAM_EXISTS: Code = Code::new(Kind::Conflict, "team_exists", "a team of that name exists already");

impl Caller {
    /// Operates the service: creates teams, and tokens of any team.
    pub fn is_operator(&self) -> bool {
        self.role == Role::Admin && self.team_name == DEFAULT_TEAM
    }
}

impl App {
    pub async fn whoami(&self, caller: &Caller) -> Result<WhoAmI, Error> {
        let team = teams::by_id(&mut self.db.read().await?, caller.team).await?;
        let team = team.ok_or_else(|| Error::internal("the token's team is gone"))?;
        let node = caller.node.as_ref().map(|node| node.name.clone());
        Ok(WhoAmI { team: wire(team), role: caller.role, token_id: caller.token_id.to_string(), node })
    }

    /// Makes a team. The caller is the operator, which the server has checked. A team cannot be deleted or renamed.
    pub async fn create_team(&self, caller: &Caller, wish: &CreateTeam, call: &Idempotency) -> Result<Team, Error> {
        check_name(&wish.name)?;
        if wish.quota_bytes.is_some_and(|quota| i64::try_from(quota).is_err()) {
            return Err(Error::invalid("quota_bytes", "too large", "leave it out for no limit"));
        }
        let id = self.ids.uuid();
        transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay(tx, caller.team, call).await? {
                return Ok(earlier);
            }
            teams::insert(tx, id, &wish.name, wish.quota_bytes, self.clock.now()).await.map_err(|error| {
                Error::on_taken(
                    error,
                    TEAM_EXISTS,
                    || format!("there is a team `{}`", wish.name),
                    "choose another name",
                )
            })?;
            let team =
                Team { id: id.to_string(), name: wish.name.clone(), quota_bytes: wish.quota_bytes, used_bytes: 0 };
            self.remember(tx, caller.team, call, &team).await?;
            Ok::<_, Error>(team)
        })
    }

    /// All teams for the operator, the own one for anybody else.
    pub async fn list_teams(&self, caller: &Caller, query: &PageQuery) -> Result<Page<Team>, Error> {
        let paging = Paging::new(query)?;
        let mut session = self.db.read().await?;
        let rows = if caller.is_operator() {
            teams::page(&mut session, &paging.after, paging.rows()).await?
        } else {
            let own = teams::by_id(&mut session, caller.team).await?;
            own.into_iter().filter(|team| team.name > paging.after).collect()
        };
        Ok(paging.page(rows.into_iter().map(wire).collect(), |team| team.name.clone()))
    }
}

pub(super) fn wire(team: teams::Team) -> Team {
    Team { id: team.id.to_string(), name: team.name, quota_bytes: team.quota_bytes, used_bytes: team.used_bytes }
}

fn check_name(name: &str) -> Result<(), Error> {
    let usual = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_');
    let begins = name.as_bytes().first().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if begins && name.len() <= 64 && name.bytes().all(usual) {
        return Ok(());
    }
    let what = format!("`{}` is no team name", name.chars().take(80).collect::<String>().escape_debug());
    Err(Error::invalid("name", what, "use 1 to 64 of a-z, 0-9, `.`, `-`, `_`, beginning with a letter or digit"))
}
