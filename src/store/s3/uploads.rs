//! Multipart uploads that nobody will finish: listed, and aborted.
//!
//! `object_store` cannot list them, so the listing is a signed GET of our own.

use std::time::Duration;

use http::Method;
use jiff::{SignedDuration, Timestamp};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use uuid::Uuid;

use super::judge::Failure;
use super::{S3, xml};
use crate::store::{Error, Key, Result};

/// Uploads that are answered at once. Bounds the memory; once these are aborted, the others are found.
const MOST: usize = 10_000;

/// An upload that was begun and neither completed nor aborted.
///
/// Named by both key and id: one key may have several, of attempts that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanUpload {
    pub key: Key,
    /// The store's own, opaque.
    pub id: String,
    /// By the store's clock; none where it is not told or cannot be read.
    pub started: Option<Timestamp>,
}

impl S3 {
    /// Idempotent. Parts that are still on their way may land afterwards; S3 asks to abort again then.
    pub(in crate::store) async fn abort_upload(&self, key: &Key, id: &str) -> Result<()> {
        let (path, id) = (self.path(key), id.to_owned());
        let mut tries = self.tries();
        loop {
            match self.bucket.abort_multipart(&path, &id).await.map_err(|error| Failure::of(key, error)) {
                Ok(()) | Err(Failure { error: Error::NotFound { .. }, .. }) => return Ok(()),
                Err(failure) => tries.again(failure, &self.credentials).await?,
            }
        }
    }

    /// Our unfinished uploads that are at least so old; those without a date count as old. Keys that are not ours are left
    /// out. [`MOST`] at a time, and a page more at most.
    pub(in crate::store) async fn orphan_uploads(&self, older_than: Duration) -> Result<Vec<OrphanUpload>> {
        let age = SignedDuration::try_from(older_than).unwrap_or(SignedDuration::MAX);
        let mut found = Vec::new();
        let mut markers: Option<(String, String)> = None;
        loop {
            let document = self.list_uploads(markers.as_ref()).await?;
            for upload in xml::elements(&document, "Upload") {
                let key = xml::text(upload, "Key").and_then(|key| self.key(&Path::parse(key).ok()?));
                let (Some(key), Some(id)) = (key, xml::text(upload, "UploadId")) else { continue };
                let started = xml::text(upload, "Initiated").and_then(|at| at.parse::<Timestamp>().ok());
                if started.is_none_or(|started| self.clock.now().duration_since(started) >= age) {
                    found.push(OrphanUpload { key, id, started });
                }
            }
            let next = (xml::text(&document, "NextKeyMarker"), xml::text(&document, "NextUploadIdMarker"));
            let next = next.0.map(|key| (key, next.1.unwrap_or_default()));
            let is_last = xml::text(&document, "IsTruncated").as_deref() != Some("true") || next.is_none();
            if is_last || next == markers || found.len() >= MOST {
                return Ok(found);
            }
            markers = next;
        }
    }

    /// One page as the store cuts it (`ListMultipartUploads`), as text. Markers that repeat end the caller's loop.
    async fn list_uploads(&self, markers: Option<&(String, String)>) -> Result<String> {
        let nowhere = Key::pack(Uuid::nil(), Uuid::nil());
        let mut query = vec![("uploads", String::new())];
        if !self.prefix.is_empty() {
            query.push(("prefix", self.prefix.clone()));
        }
        if let Some((key, id)) = markers {
            query.push(("key-marker", key.clone()));
            query.push(("upload-id-marker", id.clone()));
        }
        let mut tries = self.tries();
        loop {
            let options = SignedUrlOptions::new().with_query(query.clone());
            let url =
                self.bucket.signed_url_opts(Method::GET, &Path::default(), Duration::from_secs(300), &options).await;
            let sent = match url {
                Ok(url) => self.wire.page(&url).await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(document) => return Ok(String::from_utf8_lossy(&document).into_owned()),
                Err(error) => self.again(&mut tries, &nowhere, error).await?,
            }
        }
    }
}
