//! Credentials for the bucket: static keys, or whatever the usual AWS chain finds.
//!
//! The chain is asked anew for every renewal, so that a profile rewritten on disk, a `credential_process` or an instance role is
//! read again. Credentials are kept until five minutes before their end, or half their time where that is shorter; those without an end are re-read every quarter of an
//! hour. One renewal serves all requests that wait for it, and while the old ones still hold, a failed renewal is only logged.

use std::sync::Arc;

use async_trait::async_trait;
use aws_credential_types::provider::ProvideCredentials;
use jiff::{SignedDuration, Timestamp};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use secrecy::ExposeSecret;
use tokio::sync::Mutex;

use super::chain::chain;
use crate::clock::Clock;
use crate::config::store::StoreSettings;

/// How long before their end credentials are renewed.
const EARLY: SignedDuration = SignedDuration::from_mins(5);
/// How often credentials without an end are re-read.
const REREAD: SignedDuration = SignedDuration::from_mins(15);

#[derive(Debug)]
pub(super) struct Credentials {
    source: Source,
    clock: Arc<dyn Clock>,
    slot: Mutex<Option<Cached>>,
}

#[derive(Debug)]
enum Source {
    Fixed(Arc<AwsCredential>),
    Chain { profile: Option<String> },
}

#[derive(Debug, Clone)]
struct Cached {
    credential: Arc<AwsCredential>,
    /// Their true end.
    ends: Option<Timestamp>,
    renew_at: Timestamp,
}

/// The chain gave nothing.
#[derive(Debug, thiserror::Error)]
enum Missing {
    #[error("no credentials were found; set `access_key_id` and `secret_access_key`, or any source of the AWS chain")]
    NoProvider,
    #[error("the AWS chain gave no credentials")]
    Refused(#[source] aws_credential_types::provider::error::CredentialsError),
}

impl Credentials {
    pub(super) fn new(settings: &StoreSettings, clock: Arc<dyn Clock>) -> Self {
        let source = match (&settings.access_key_id, &settings.secret_access_key) {
            (Some(id), Some(secret)) => Source::Fixed(Arc::new(AwsCredential {
                key_id: id.clone(),
                secret_key: secret.expose_secret().to_owned(),
                token: None,
            })),
            _ => Source::Chain { profile: settings.profile.clone() },
        };
        Self { source, clock, slot: Mutex::new(None) }
    }

    /// Drops what is kept: the store says it lapsed, whatever its end was.
    pub(super) async fn forget(&self) {
        *self.slot.lock().await = None;
    }

    /// The end of the credentials in use; none when they have none.
    pub(super) async fn ends(&self) -> object_store::Result<Option<Timestamp>> {
        self.get_credential().await?;
        Ok(self.slot.lock().await.as_ref().and_then(|cached| cached.ends))
    }

    async fn load(&self, profile: Option<&str>) -> Result<Cached, Missing> {
        let provider = chain(profile).await.credentials_provider().ok_or(Missing::NoProvider)?;
        let found = provider.provide_credentials().await.map_err(Missing::Refused)?;
        let ends = found.expiry().and_then(|at| Timestamp::try_from(at).ok());
        let now = self.clock.now();
        // those that hold only minutes are renewed at half their time, not at every request
        let renew_at = match ends {
            None => now.saturating_add(REREAD),
            Some(ends) => ends.saturating_sub(EARLY.min(ends.duration_since(now) / 2)),
        };
        Ok(Cached {
            credential: Arc::new(AwsCredential {
                key_id: found.access_key_id().to_owned(),
                secret_key: found.secret_access_key().to_owned(),
                token: found.session_token().map(str::to_owned),
            }),
            ends,
            renew_at: renew_at.expect("a plain duration can be added and subtracted"),
        })
    }
}

#[async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let profile = match &self.source {
            Source::Fixed(credential) => return Ok(Arc::clone(credential)),
            Source::Chain { profile } => profile.as_deref(),
        };
        // held while the chain is asked, so that it is asked once
        let mut slot = self.slot.lock().await;
        let now = self.clock.now();
        if let Some(cached) = slot.as_ref().filter(|cached| now < cached.renew_at) {
            return Ok(Arc::clone(&cached.credential));
        }
        match self.load(profile).await {
            Ok(cached) => Ok(Arc::clone(&slot.insert(cached).credential)),
            Err(error) => match slot.as_mut() {
                Some(old) if old.ends.is_none_or(|ends| now < ends) => {
                    tracing::warn!(%error, "store credentials could not be renewed; the old ones still hold");
                    old.renew_at =
                        now.saturating_add(SignedDuration::from_secs(30)).expect("a plain duration can be added");
                    Ok(Arc::clone(&old.credential))
                }
                _ => Err(object_store::Error::Unauthenticated { path: String::new(), source: Box::new(error) }),
            },
        }
    }
}
