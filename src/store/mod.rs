//! The store: where objects lie, in a local directory or in an S3-compatible bucket.
//!
//! The invariants it guards: an acknowledged object survives the crash of this process and the loss of power; a key is written
//! once; nothing partial is ever visible; memory is bounded however large an object is. It knows nothing of what the bytes mean:
//! that a pack's chunks are right is for the caller to check between `write` and `finish`.
//!
//! Layers: [`Store`] hands each call to one backend; `local` is a directory, `s3` a bucket. `keys` makes every name, `probe`
//! finds out what a store really does.
//!
//! What a write goes through, and what a crash leaves at each step:
//!
//! ```text
//!                local                          S3                             a crash here leaves
//! writer()       file in tmp/                   nothing is sent                a stale file | nothing
//! write()        batches of 1 MiB               parts, beyond 16 MiB           a stale file | an unfinished upload
//! finish()       sync, rename, sync the folder  complete, then HEAD            the whole object, or none
//! Ok(Stored)     durable                        durable, size and crc proven   the whole object
//! ```
//!
//! Two rules make this enough for the rooms above. A key is used for one attempt only: a write that failed is begun again
//! under a new key, so an answer that arrives late can never change what was acknowledged. And nothing is believed by its
//! name: readers verify digests, so a store may be restored, copied or moved by other tools as long as the bytes are right.

mod error;
pub mod keys;
mod local;
pub mod probe;
mod s3;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use url::Url;

pub use self::error::{Error, Settled};
pub use self::keys::{Key, Kind, Prefix};
use self::local::{Local, LocalWriter};
pub use self::s3::OrphanUpload;
use self::s3::{S3, S3Writer};
use crate::clock::Clock;
use crate::config::store::StoreSettings;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An object's bytes as they come, or the listing of a store.
///
/// Lazy: nothing more is read while nobody polls, but for what a backend reads ahead. Dropping it ends the work behind it.
/// After an error the stream is over; what was yielded before is right.
pub type Stream<T> = BoxStream<'static, Result<T>>;

/// An open store. Cheap to clone; all clones share their connections.
///
/// It keeps no state about objects: any number of stores may be open on one place, in one process or in several (a local
/// one by one service only, which the server sees to). No call here retries what it reports as [`Error::Unavailable`]: S3
/// has tried within `retry_timeout_ms` by then, and the caller decides whether to begin anew.
#[derive(Debug, Clone)]
pub struct Store {
    backend: Backend,
}

/// Chosen once, by the URL's scheme. An enum and not a trait object: there are two, and the probe looks behind it.
#[derive(Debug, Clone)]
enum Backend {
    Local(Arc<Local>),
    S3(Arc<S3>),
}

/// What is known of an object without reading it.
///
/// All of one moment. `size` is always there; the rest is what the store tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Bytes of the whole object, also where only a range of it is read.
    pub size: u64,
    /// Changes when the bytes do; opaque.
    pub e_tag: Option<String>,
    /// When it was written, by the store's clock, to the second on S3. None where the store does not say.
    pub modified: Option<Timestamp>,
    /// The store's own checksum as `name:base64`, where it keeps one.
    pub checksum: Option<String>,
}

/// The receipt of a finished write: the object is durable.
///
/// Only `finish` and `put_small` make one, after the last step of durability: a row that refers to the key may be written
/// from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of the object, as taken from the writer and, on S3 in parts, as the store shows them.
    pub bytes: u64,
    pub e_tag: Option<String>,
    /// The checksum the store verified, as `name:base64`; none where it does not.
    pub checksum: Option<String>,
}

/// What to do when the key is already taken.
///
/// On S3 without `conditional_put` a `Create` looks first and then writes, which two writers can both win. Keys are random
/// UUIDs, so nobody races for one in earnest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutMode {
    /// Refuse with [`Error::AlreadyExists`].
    Create,
    /// Replace it. Only for documents that are the same for ever, or that nobody reads yet.
    Overwrite,
}

/// How many bytes a writer will be given.
///
/// With `Exact` a bucket's part size is fixed to fit before the first byte is sent, and an object too large is refused at
/// once. With `Unknown` parts are 16 MiB and the object ends where `max_parts` of them end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Exactly so many; `finish` refuses anything else.
    Exact(u64),
    /// Not known beforehand.
    Unknown,
}

impl From<u64> for Length {
    fn from(bytes: u64) -> Self {
        Self::Exact(bytes)
    }
}

/// A URL by which anybody can GET one object until `expires_at`.
///
/// Whoever holds it reads the object: it belongs in answers to callers who may read it, never in a log. `Debug` leaves the
/// query out.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedUrl {
    pub url: Url,
    /// The true end: the wish, the end of the credentials that signed it, or 7 days, whichever comes first.
    pub expires_at: Timestamp,
}

impl std::fmt::Debug for SignedUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SignedUrl({}?***, until {})", self.url.path(), self.expires_at)
    }
}

impl Store {
    /// Opens the store that `settings.url` names. A local directory is created when missing; a bucket is not, and is not even
    /// looked at: `probe` is for that.
    ///
    /// Fails with [`Error::Settings`] for a URL or setting that makes no sense, with [`Error::Disk`] where the directory
    /// cannot be used. `file://` and a bare path mean a directory, `s3://` a bucket; any other scheme with a host is
    /// refused, not taken for a path.
    pub async fn open(settings: &StoreSettings, clock: Arc<dyn Clock>) -> Result<Self> {
        let local = |path: &str| -> Result<std::path::PathBuf> {
            if path.is_empty() {
                return Err(Error::Settings {
                    field: "url",
                    detail: "is empty; give a directory or `s3://bucket/prefix`".into(),
                });
            }
            Ok(path.into())
        };
        let path = match Url::parse(&settings.url) {
            Ok(url) if url.scheme() == "file" => url.to_file_path().map_err(|()| Error::Settings {
                field: "url",
                detail: format!("`{url}` names no directory of this machine"),
            })?,
            Ok(url) if url.scheme() == "s3" => {
                let opened = S3::open(&url, settings, clock).await?;
                return Ok(Self { backend: Backend::S3(Arc::new(opened)) });
            }
            Ok(url) if url.has_authority() => {
                return Err(Error::Settings {
                    field: "url",
                    detail: format!(
                        "`{}:` is no kind of store; use a directory, `file:///dir` or `s3://bucket/prefix`",
                        url.scheme()
                    ),
                });
            }
            _ => local(&settings.url)?,
        };
        let opened = Local::open(path, clock.now()).await?;
        Ok(Self { backend: Backend::Local(Arc::new(opened)) })
    }

    /// Writes a small object (documents, a few MiB at most) in one go; durable when it returns. The bytes stay in memory
    /// until then.
    ///
    /// May be said again with `Overwrite`, or under a new key. A failed `Create` whose `settled` is unknown may have
    /// written: the same key then answers [`Error::AlreadyExists`] although the bytes are the caller's own.
    pub async fn put_small(&self, key: &Key, bytes: Bytes, mode: PutMode) -> Result<Stored> {
        match &self.backend {
            Backend::Local(local) => local.put_small(key, bytes, mode).await,
            Backend::S3(s3) => s3.put_small(key, bytes, mode).await,
        }
    }

    /// Begins a new object. Nothing is visible under `key` until [`PackWriter::finish`] returns.
    ///
    /// Whether the key is free is told by `finish`, not here, since another writer could take it meanwhile.
    pub async fn writer(&self, key: &Key, length: impl Into<Length>) -> Result<PackWriter> {
        let length = length.into();
        match &self.backend {
            Backend::Local(local) => Ok(PackWriter(Writer::Local(local.writer(key, length).await?))),
            Backend::S3(s3) => Ok(PackWriter(Writer::S3(Box::new(s3.writer(key, length).await?)))),
        }
    }

    /// Reads an object or a range of it. The stream yields exactly the asked bytes, or ends with an error: never fewer.
    ///
    /// `Meta.size` is the whole object's. An empty range, or one that reaches beyond the end, is [`Error::Range`].
    ///
    /// The first bytes have been asked for when this returns, so [`Error::NotFound`] and [`Error::Range`] come from here
    /// and not from the stream. The bytes are not verified: their digest is for the caller to check.
    pub async fn get(&self, key: &Key, range: Option<Range<u64>>) -> Result<(Meta, Stream<Bytes>)> {
        match &self.backend {
            Backend::Local(local) => local.get(key, range).await,
            Backend::S3(s3) => s3.get(key, range).await,
        }
    }

    /// Reads a whole object into memory; one of more than `limit` bytes is [`Error::Corrupt`].
    ///
    /// The size is checked before a byte is kept: memory is bounded by `limit`, whatever lies in the store. For documents
    /// whose largest size the format knows; anything longer was not written by Dray.
    pub async fn get_small(&self, key: &Key, limit: u64) -> Result<Bytes> {
        let (meta, mut stream) = self.get(key, None).await?;
        if meta.size > limit {
            let detail = format!("it has {} bytes where at most {limit} belong", meta.size);
            return Err(Error::Corrupt { key: key.clone(), detail });
        }
        let mut whole = BytesMut::new();
        while let Some(piece) = stream.next().await.transpose()? {
            if piece.len() as u64 == meta.size {
                return Ok(piece);
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// What is known of an object, or [`Error::NotFound`]. Only a proof that a key exists: what lies there is not read.
    pub async fn head(&self, key: &Key) -> Result<Meta> {
        match &self.backend {
            Backend::Local(local) => local.head(key).await,
            Backend::S3(s3) => s3.head(key).await,
        }
    }

    /// Deletes an object and checks that it is gone. Deleting what does not exist is fine.
    ///
    /// [`Error::Corrupt`] when it is still there afterwards (a bucket that keeps old versions, an object lock): then
    /// nothing may be said to be deleted. Idempotent, and safe while somebody reads the object: a local reader goes on with
    /// the open file, a reader of a bucket whose body breaks off afterwards fails.
    pub async fn delete(&self, key: &Key) -> Result<()> {
        match &self.backend {
            Backend::Local(local) => local.delete(key).await,
            Backend::S3(s3) => s3.delete(key).await,
        }
    }

    /// Lists the objects under `prefix`, in no particular order, a page at a time. Names that are no keys are left out.
    ///
    /// What is written or deleted meanwhile may be seen or not. Memory does not grow with the number of objects.
    pub fn list(&self, prefix: Prefix) -> Stream<(Key, Meta)> {
        match &self.backend {
            Backend::Local(local) => local.list(prefix),
            Backend::S3(s3) => s3.list(prefix),
        }
    }

    /// A URL that anybody can GET until it expires; none where the store cannot sign, and the service must stream instead.
    ///
    /// `disposition` becomes the answer's `Content-Disposition`.
    ///
    /// The URL is signed by this process alone, no request is sent: it may be given out for an object that does not exist,
    /// and its reader gets the store's 404. `ttl` is cut to 7 days, the longest a SigV4 query signature holds, and to the
    /// life of the credentials. Revoking one is not possible; short lives are the only remedy.
    pub async fn sign_get(&self, key: &Key, ttl: Duration, disposition: Option<&str>) -> Result<Option<SignedUrl>> {
        match &self.backend {
            Backend::Local(_) => Ok(None),
            Backend::S3(s3) => s3.sign_get(key, ttl, disposition).await.map(Some),
        }
    }

    /// Multipart uploads of ours that were begun at least so long ago and never ended: what a crash leaves in a bucket.
    ///
    /// They cost money and are in no listing of objects. `older_than` must be longer than any upload can last: an upload
    /// that a living writer feeds looks the same. Some ten thousand at a time: abort them, then ask again. Empty on a local
    /// store, which clears its `tmp/` when it is opened.
    pub async fn orphan_uploads(&self, older_than: Duration) -> Result<Vec<OrphanUpload>> {
        match &self.backend {
            Backend::Local(_) => Ok(Vec::new()),
            Backend::S3(s3) => s3.orphan_uploads(older_than).await,
        }
    }

    /// Frees what an unfinished upload holds. One that is gone is fine. An upload whose writer lives fails at its next
    /// part.
    pub async fn abort_upload(&self, upload: &OrphanUpload) -> Result<()> {
        match &self.backend {
            Backend::Local(_) => Ok(()),
            Backend::S3(s3) => s3.abort_upload(&upload.key, &upload.id).await,
        }
    }

    /// Waits for the aborts of writers that were dropped. To be called once, last, before the runtime ends: an abort that
    /// is cut leaves an unfinished upload in the bucket. Nothing is refused afterwards.
    pub async fn close(&self) {
        match &self.backend {
            Backend::Local(_) => {}
            Backend::S3(s3) => s3.close().await,
        }
    }

    /// The store's place, for people and logs; holds no secret.
    pub fn name(&self) -> String {
        match &self.backend {
            Backend::Local(local) => local.name(),
            Backend::S3(s3) => s3.name().to_owned(),
        }
    }

    /// Whether only this machine can reach the store, so that there can be no second replica.
    pub fn is_local(&self) -> bool {
        match &self.backend {
            Backend::Local(_) => true,
            Backend::S3(_) => false,
        }
    }
}

/// A new object on its way into the store.
///
/// Dropped without [`finish`](Self::finish), it leaves nothing visible. After an error no byte is written any more and
/// `finish` fails: the key is then burnt, and the bytes must be written again under a new one.
///
/// ```text
/// writer -> write* -> finish   durable and visible
///                  -> abort    gone, waited for
///                  -> drop     gone soon: a file at once, an S3 upload by a task that `Store::close` waits for
/// ```
#[derive(Debug)]
pub struct PackWriter(Writer);

#[derive(Debug)]
enum Writer {
    Local(LocalWriter),
    S3(Box<S3Writer>),
}

impl PackWriter {
    /// Takes the next bytes. They are kept, not copied; at most a few MiB (local) or two parts (S3) wait to be written.
    ///
    /// Slow stores slow the caller down here, which is the only bound on memory. More bytes than [`Length::Exact`]
    /// announced are [`Error::Length`]. The pieces may have any size; none is cut or joined for the reader.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match &mut self.0 {
            Writer::Local(writer) => writer.write(bytes).await,
            Writer::S3(writer) => writer.write(bytes).await,
        }
    }

    /// Makes the object durable and visible, all of it at once.
    ///
    /// An existing one is refused with [`Error::AlreadyExists`]: surely by a local store, and by a bucket with
    /// `conditional_put` where the object is sent by one PUT. Without the setting, and for an upload in parts, whose
    /// completion carries no condition, the key is looked at before: two writers at once could both win, so the key must be
    /// a fresh one. Fewer bytes than announced are [`Error::Length`], and nothing is made. When it fails with `settled: Unknown` the object may exist or come to exist; it is garbage without a row,
    /// never a dangling reference.
    pub async fn finish(self) -> Result<Stored> {
        match self.0 {
            Writer::Local(writer) => writer.finish().await,
            Writer::S3(writer) => writer.finish().await,
        }
    }

    /// Gives up and waits until what was sent is gone. Dropping does the same without waiting. An error means that
    /// something may be left in a bucket, found later by [`Store::orphan_uploads`]; the object is invisible all the same.
    pub async fn abort(self) -> Result<()> {
        match self.0 {
            Writer::Local(writer) => writer.abort().await,
            Writer::S3(writer) => writer.abort().await,
        }
    }
}
