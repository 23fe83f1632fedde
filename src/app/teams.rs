//! Teams, and who a caller is.

use super::error::Error;
use super::{App, Caller};
use crate::api::teams::{Role, Team, WhoAmI};
use crate::db::teams;

/// The team that exists from the start; its admins operate the service.
pub const DEFAULT_TEAM: &str = "default";

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
}

pub(super) fn wire(team: teams::Team) -> Team {
    Team { id: team.id.to_string(), name: team.name, quota_bytes: team.quota_bytes, used_bytes: team.used_bytes }
}
