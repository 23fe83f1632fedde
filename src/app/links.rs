//! Links: made, revoked, and looked up for whoever holds one.

use uuid::Uuid;

use super::App;
use super::error::Error;
use crate::api::links::Link;
use crate::db::Tx;

impl App {
    pub(super) async fn links_of(&self, _tx: &mut Tx, _version: Uuid, _origin: &str) -> Result<Vec<Link>, Error> {
        Ok(Vec::new())
    }
}
