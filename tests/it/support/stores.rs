//! Stores to test with: a directory, or a prefix of its own in the real bucket, directly or through the fault proxy.

use std::sync::Arc;

use dray::clock::SystemClock;
use dray::config::StoreSettings;
use dray::store::Store;
use uuid::Uuid;

use super::S3;

/// Settings of a store in a directory.
pub fn local_settings(dir: &tempfile::TempDir) -> StoreSettings {
    StoreSettings { url: dir.path().join("store").to_str().unwrap().to_owned(), ..StoreSettings::default() }
}

/// Settings of a store in the real bucket under a fresh prefix, reached at `endpoint` (the server's, or a proxy's). Impatient,
/// so that faults are quickly over.
pub fn s3_settings(s3: &S3, endpoint: &str) -> StoreSettings {
    StoreSettings {
        url: format!("s3://{}/it-{}", s3.bucket, fresh()),
        endpoint: Some(endpoint.to_owned()),
        region: Some("us-east-1".to_owned()),
        access_key_id: Some(s3.access_key.clone()),
        secret_access_key: Some(s3.secret_key.clone().into()),
        retries: 4,
        retry_timeout_ms: 20_000,
        stall_timeout_ms: 5_000,
        ..StoreSettings::default()
    }
}

pub async fn open(settings: &StoreSettings) -> Store {
    Store::open(settings, Arc::new(SystemClock)).await.unwrap()
}

/// A UUID nobody else uses.
pub fn fresh() -> Uuid {
    use dray::clock::Ids;
    dray::clock::RandomIds.uuid()
}
