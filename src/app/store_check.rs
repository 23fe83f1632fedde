//! What the store really does: before a service starts on it, and for `dray store check`.
//!
//! A service that starts runs the quick part of it ([`super::App::open`]); the command runs all.

use std::sync::Arc;

use crate::clock::{Clock, Ids};
use crate::config::StoreSettings;
use crate::store::probe::Depth;
use crate::store::{Error, Store};

pub use crate::store::probe::{Check, Report, Verdict};

/// Opens a store and tries out everything, under keys of its own that it removes. An error only when the store cannot be
/// opened; all else is in the report.
pub async fn check_store(settings: &StoreSettings, clock: Arc<dyn Clock>, ids: &dyn Ids) -> Result<Report, Error> {
    let store = Store::open(settings, clock).await?;
    let report = store.probe(ids.uuid(), Depth::Full).await;
    store.close().await;
    Ok(report)
}
