//! A store in an S3-compatible bucket.
//!
//! `object_store` makes and signs the requests, [`wire`] carries them, [`judge`] says what a failure means and when to try again.
//! Writes are plain signed PUTs with a checksum in a header, never a trailer, so that a store that does not understand them
//! cannot put their framing into an object. An answer that was lost is settled by asking for the object's size and checksum.
//! Memory: two parts (8 MiB each up to 80 GB objects) a writer; what the network gives at once a reader.
//!
//! How a call goes:
//!
//! ```text
//! S3::put, get ... -> object_store: builds, signs -> wire: sends, watches -> the store
//!        ^                                              | refusal or broken line
//!        +--- judge: again, with fresh credentials, or an error <---+
//! ```
//!
//! Retries of `object_store` are off: it would send an old signature again. What is asked under the same key twice is
//! either idempotent (GET, HEAD, DELETE, a part, an overwrite) or settled first (a PUT that creates, a completion).

mod chain;
mod connect;
mod credentials;
mod judge;
mod plan;
mod reader;
mod stranger;
mod uploads;
mod wire;
mod writer;
mod xml;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderValue, Method};
use jiff::{SignedDuration, Timestamp};
use object_store::aws::AmazonS3;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutOptions, PutPayload, PutResult};
use tokio_util::task::TaskTracker;

use self::credentials::Credentials;
use self::judge::{Failure, Tries};
pub use self::uploads::OrphanUpload;
use self::wire::{Checksummed, Wire};
pub(super) use self::writer::S3Writer;
use super::keys::{Key, Prefix};
use super::{Error, Length, Meta, PutMode, Result, Settled, SignedUrl, Stored, Stream};
use crate::clock::Clock;
use crate::config::store::StoreSettings;

/// The longest a signature of this kind can hold.
const LONGEST_SIGNATURE: Duration = Duration::from_secs(7 * 24 * 3600);

/// One bucket and prefix. Everything mutable in it (connections, credentials, the clock's skew) is shared by all calls.
#[derive(Debug)]
pub(super) struct S3 {
    bucket: AmazonS3,
    /// The same, asking for checksums in answers.
    checksums: AmazonS3,
    /// The same under the name by which users reach it; only signs.
    public: AmazonS3,
    wire: Wire,
    credentials: Arc<Credentials>,
    /// As they were when it was opened; checked by `connect`.
    settings: StoreSettings,
    /// `s3://bucket/prefix`
    name: String,
    /// Empty, or ends with `/`.
    prefix: String,
    clock: Arc<dyn Clock>,
    /// Aborts of uploads whose writers were dropped.
    aborts: TaskTracker,
}

/// What is known of the bytes of an object that was sent.
///
/// CRC64/NVME, the checksum that S3 keeps for a whole object also where it was sent in parts; others it keeps per part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Expected {
    bytes: u64,
    crc64: u64,
}

/// What lies under a key whose write went unanswered.
enum Found {
    /// The very bytes: the write has happened, whoever's attempt it was.
    Same(Stored),
    /// Something else: another writer's, or parts of an older attempt. Never ours to claim.
    Other,
    Nothing,
}

impl S3 {
    /// The only way from a key to a name in the bucket.
    fn path(&self, key: &Key) -> Path {
        Path::parse(format!("{}{key}", self.prefix)).expect("keys and checked prefixes are plain paths")
    }

    /// None for what lies under the prefix and was not named by us.
    fn key(&self, path: &Path) -> Option<Key> {
        path.as_ref().strip_prefix(&self.prefix)?.parse().ok()
    }

    /// For one request; a call of several requests takes a fresh one for each.
    fn tries(&self) -> Tries {
        Tries::new(&self.settings)
    }

    /// Waits as `judge` says, or fails with what the failure means.
    async fn again(&self, tries: &mut Tries, key: &Key, error: object_store::Error) -> Result<()> {
        tries.again(Failure::of(key, error), &self.credentials).await
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Our clock minus the store's, by its last answer.
    ///
    /// Positive when ours is ahead; none before the first answer.
    pub(super) fn skew_seconds(&self) -> Option<i64> {
        self.wire.skew_seconds()
    }

    /// Waits until the aborts of dropped writers are through.
    pub(super) async fn close(&self) {
        self.aborts.close();
        self.aborts.wait().await;
    }

    /// Refuses a key that is taken, where the write itself cannot carry the condition. Two may both find it free: our keys
    /// are UUIDs, so nobody races for them.
    async fn vacant(&self, key: &Key) -> Result<()> {
        match self.head(key).await {
            Ok(_) => Err(Error::AlreadyExists { key: key.clone() }),
            Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn put_small(&self, key: &Key, bytes: Bytes, mode: PutMode) -> Result<Stored> {
        let expected = Expected { bytes: bytes.len() as u64, crc64: crc64(&bytes) };
        self.put(key, bytes.into(), mode, expected).await
    }

    /// One PUT, sent until it is settled.
    ///
    /// An attempt that may have been done is settled by looking before another one is sent and before an error is returned:
    /// so a lost answer ends as a success where the bytes are there, and never as [`Error::AlreadyExists`] against our own
    /// write.
    async fn put(&self, key: &Key, payload: PutPayload, mode: PutMode, expected: Expected) -> Result<Stored> {
        let path = self.path(key);
        if mode == PutMode::Create && !self.settings.conditional_put {
            self.vacant(key).await?;
        }
        let mode = match mode {
            PutMode::Create if self.settings.conditional_put => object_store::PutMode::Create,
            PutMode::Create | PutMode::Overwrite => object_store::PutMode::Overwrite,
        };
        let mut tries = self.tries();
        loop {
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            let failure = match self.bucket.put_opts(&path, payload.clone(), options).await {
                Ok(result) => return self.stored(key, &result, expected),
                Err(error) => Failure::of(key, error),
            };
            let ended = tries.again(failure, &self.credentials).await;
            // an attempt whose answer was lost may have done it
            if tries.lost {
                match self.settle(key, expected).await? {
                    Found::Same(stored) => return Ok(stored),
                    Found::Other | Found::Nothing => {}
                }
            }
            ended?;
        }
    }

    /// An answer whose checksum contradicts ours is damage, although the store said yes.
    fn stored(&self, key: &Key, result: &PutResult, expected: Expected) -> Result<Stored> {
        let checksum = result.extensions.get::<Checksummed>().map(|Checksummed(checksum)| checksum.clone());
        if contradicts(checksum.as_deref(), expected.crc64) {
            return Err(Error::Corrupt {
                key: key.clone(),
                detail: "the store's checksum is not that of what was sent".into(),
            });
        }
        Ok(Stored { bytes: expected.bytes, e_tag: result.e_tag.clone(), checksum })
    }

    /// Finds out what the store holds under a key, after an answer was lost or an upload was completed.
    ///
    /// Size first, then checksum. Where the store keeps no checksum to compare, the object is read back, which costs its
    /// whole size. An absent object may still appear, if the lost request is on its way: its key is then not to be used by
    /// anybody else.
    async fn settle(&self, key: &Key, expected: Expected) -> Result<Found> {
        let meta = match self.head(key).await {
            Ok(meta) => meta,
            Err(Error::NotFound { .. }) => return Ok(Found::Nothing),
            Err(Error::Unavailable { detail, source, .. }) => {
                return Err(Error::Unavailable { detail, settled: Settled::Unknown, source });
            }
            Err(error) => return Err(error),
        };
        if meta.size != expected.bytes || contradicts(meta.checksum.as_deref(), expected.crc64) {
            return Ok(Found::Other);
        }
        if !meta.checksum.as_deref().is_some_and(|checksum| checksum.starts_with("crc64nvme:")) {
            let (_, mut stream) = self.get(key, None).await?;
            let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
            while let Some(piece) = stream.try_next().await? {
                digest.update(&piece);
            }
            if digest.finalize() != expected.crc64 {
                return Ok(Found::Other);
            }
        }
        Ok(Found::Same(Stored { bytes: meta.size, e_tag: meta.e_tag, checksum: meta.checksum }))
    }

    pub(super) async fn writer(self: &Arc<Self>, key: &Key, length: Length) -> Result<S3Writer> {
        S3Writer::new(Arc::clone(self), key.clone(), length)
    }

    pub(super) async fn get(&self, key: &Key, range: Option<Range<u64>>) -> Result<(Meta, Stream<Bytes>)> {
        reader::open(self, key, range).await
    }

    /// Asks for checksums, which some stores answer only to this header. A refused HEAD has no body, so its 404 is believed
    /// by status.
    pub(super) async fn head(&self, key: &Key) -> Result<Meta> {
        let path = self.path(key);
        let mut tries = self.tries();
        loop {
            let options = GetOptions { head: true, ..GetOptions::default() };
            match self.checksums.get_opts(&path, options).await {
                Ok(result) => {
                    let checksum = result.extensions.get::<Checksummed>().map(|Checksummed(checksum)| checksum.clone());
                    return Ok(Meta { checksum, ..meta(&result.meta) });
                }
                Err(error) => self.again(&mut tries, key, error).await?,
            }
        }
    }

    pub(super) async fn delete(&self, key: &Key) -> Result<()> {
        let path = self.path(key);
        let mut tries = self.tries();
        loop {
            match self.bucket.delete(&path).await.map_err(|error| Failure::of(key, error)) {
                Ok(()) | Err(Failure { error: Error::NotFound { .. }, .. }) => break,
                Err(failure) => tries.again(failure, &self.credentials).await?,
            }
        }
        match self.head(key).await {
            Err(Error::NotFound { .. }) => Ok(()),
            Ok(_) => Err(Error::Corrupt { key: key.clone(), detail: "it is still there after it was deleted".into() }),
            Err(error) => Err(error),
        }
    }

    /// A page at a time, each sent again when it fails. A token that comes back unchanged is [`Error::Unsupported`], or it
    /// would go on for ever.
    pub(super) fn list(self: &Arc<Self>, prefix: Prefix) -> Stream<(Key, Meta)> {
        self.list_by(prefix, None)
    }

    /// Lists by pages of so many keys; the store's own choice when none.
    pub(super) fn list_by(self: &Arc<Self>, prefix: Prefix, max_keys: Option<usize>) -> Stream<(Key, Meta)> {
        enum At {
            Start,
            Token(String),
            End,
        }
        let pages = futures::stream::try_unfold((Arc::clone(self), At::Start), move |(s3, at)| async move {
            let token = match at {
                At::Start => None,
                At::Token(token) => Some(token),
                At::End => return Ok(None),
            };
            let (page, next) = s3.page(prefix, token, max_keys).await?;
            Ok::<_, Error>(Some((
                futures::stream::iter(page.into_iter().map(Ok)),
                (s3, next.map_or(At::End, At::Token)),
            )))
        });
        pages.try_flatten().boxed()
    }

    /// `nowhere` only names the request in an error: a listing has no key.
    async fn page(
        &self,
        prefix: Prefix,
        page_token: Option<String>,
        max_keys: Option<usize>,
    ) -> Result<(Vec<(Key, Meta)>, Option<String>)> {
        let folder = format!("{}{}/", self.prefix, prefix.folder());
        let nowhere = Key::pack(prefix.team.unwrap_or_default(), uuid::Uuid::nil());
        let mut tries = self.tries();
        loop {
            let options =
                PaginatedListOptions { page_token: page_token.clone(), max_keys, ..PaginatedListOptions::default() };
            match self.bucket.list_paginated(Some(&folder), options).await {
                Ok(page) if page_token.is_some() && page.page_token == page_token => {
                    let what = "its listing gives the same page for ever".to_owned();
                    return Err(Error::Unsupported { what });
                }
                Ok(page) => {
                    let found = page.result.objects.iter();
                    let keys = found.filter_map(|object| Some((self.key(&object.location)?, meta(object)))).collect();
                    return Ok((keys, page.page_token));
                }
                Err(error) => self.again(&mut tries, &nowhere, error).await?,
            }
        }
    }

    /// Counted in whole seconds, as SigV4 query parameters are, and at least one; refused where the credentials do not hold
    /// so long. `response-content-disposition` is signed with the rest, so that nobody can change the name or turn a
    /// download into a page.
    pub(super) async fn sign_get(&self, key: &Key, ttl: Duration, disposition: Option<&str>) -> Result<SignedUrl> {
        let denied = |error: object_store::Error| Failure::of(key, error).error;
        let now = wire::whole_seconds(self.clock.now());
        let ends = self.credentials.ends().await.map_err(denied)?;
        let lapsed = || Error::Denied { detail: "the credentials have lapsed, and no others were found".to_owned() };
        let ttl = life(ttl, ends.map(|ends| ends.duration_since(now))).ok_or_else(lapsed)?;
        let query = disposition.map(|value| ("response-content-disposition", value));
        let options = SignedUrlOptions::new().with_query(query);
        let seconds = Duration::from_secs(ttl);
        let url = self.public.signed_url_opts(Method::GET, &self.path(key), seconds, &options).await.map_err(denied)?;
        let expires_at = now.saturating_add(SignedDuration::try_from(seconds).expect("7 days at most"));
        Ok(SignedUrl { url, expires_at: expires_at.expect("a plain duration can be added") })
    }
}

/// How many seconds a signature may hold, with credentials that hold for `left`. None where that is less than one.
fn life(wish: Duration, left: Option<SignedDuration>) -> Option<u64> {
    let wish = wish.min(LONGEST_SIGNATURE).as_secs().max(1);
    match left {
        None => Some(wish),
        Some(left) => u64::try_from(left.as_secs()).ok().filter(|left| *left > 0).map(|left| wish.min(left)),
    }
}

/// 1970 stands for a date that the store did not send.
fn meta(meta: &object_store::ObjectMeta) -> Meta {
    let modified =
        Timestamp::from_second(meta.last_modified.timestamp()).ok().filter(|at| *at != Timestamp::UNIX_EPOCH);
    Meta { size: meta.size, e_tag: meta.e_tag.clone(), modified, checksum: None }
}

/// Whether the store's checksum is of a kind we know and another than ours.
///
/// A checksum of another kind proves nothing either way.
fn contradicts(checksum: Option<&str>, crc64: u64) -> bool {
    let ours = || data_encoding::BASE64.encode(&crc64.to_be_bytes());
    checksum.and_then(|checksum| checksum.strip_prefix("crc64nvme:")).is_some_and(|theirs| theirs != ours())
}

fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// The header by which a store is asked for its checksum.
fn checksum_mode() -> http::HeaderMap {
    http::HeaderMap::from_iter([(
        http::HeaderName::from_static("x-amz-checksum-mode"),
        HeaderValue::from_static("ENABLED"),
    )])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_promises_no_more_than_its_credentials_hold() {
        let hour = Duration::from_secs(3_600);
        assert_eq!(life(hour, None), Some(3_600));
        assert_eq!(life(Duration::ZERO, None), Some(1));
        assert_eq!(life(Duration::MAX, None), Some(LONGEST_SIGNATURE.as_secs()));
        assert_eq!(life(hour, Some(SignedDuration::from_secs(60))), Some(60));
        for lapsed in [SignedDuration::from_millis(999), SignedDuration::ZERO, SignedDuration::from_secs(-5)] {
            assert_eq!(life(hour, Some(lapsed)), None, "{lapsed:?}");
        }
    }
}
