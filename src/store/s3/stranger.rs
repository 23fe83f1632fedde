//! Requests for the probe that the ordinary road never makes.
//!
//! They go around `judge` and its retries: the probe wants to see the first answer as it is. Redirects are not followed
//! here either.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use object_store::signer::{SignedUrlOptions, Signer};
use url::Url;

use super::S3;
use super::judge::Failure;
use crate::config::store::Checksum;
use crate::store::{Error, Key, Result, Settled};

/// A stranger's patience.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes a probe reads.
const MOST: usize = 1 << 20;

impl S3 {
    /// PUTs a body under a checksum that is not its own; none when no checksum is asked of this store.
    ///
    /// Signed with the wrong checksum in a signed header, so that the store must refuse for the body and not for the
    /// signature.
    pub(in crate::store) async fn put_with_wrong_checksum(&self, key: &Key, body: Bytes) -> Option<Result<StatusCode>> {
        // valid checksums, of other bytes
        let (name, wrong) = match self.settings.checksum {
            Checksum::None => return None,
            Checksum::Crc64Nvme => ("x-amz-checksum-crc64nvme", "AAAAAAAAAAA="),
            Checksum::Sha256 => ("x-amz-checksum-sha256", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        };
        let (name, wrong) = (HeaderName::from_static(name), HeaderValue::from_static(wrong));
        let options = SignedUrlOptions::new().with_signed_header(name.clone(), wrong.clone());
        let url = match self.bucket.signed_url_opts(Method::PUT, &self.path(key), PATIENCE, &options).await {
            Ok(url) => url,
            Err(error) => return Some(Err(Failure::of(key, error).error)),
        };
        let sent = self.wire.client().put(url).header(name, wrong).body(body).timeout(PATIENCE).send().await;
        Some(sent.map(|answer| answer.status()).map_err(no_answer))
    }

    /// GETs a URL as anybody would, without credentials.
    ///
    /// Any status is an answer; only silence is an error. What is longer than [`MOST`] is cut, so a hostile answer fills no
    /// memory.
    pub(in crate::store) async fn get_as_stranger(
        &self,
        url: &Url,
        range: Option<&'static str>,
    ) -> Result<(StatusCode, Bytes)> {
        let mut request = self.wire.client().get(url.clone()).timeout(PATIENCE);
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        let mut answer = request.send().await.map_err(no_answer)?;
        let (status, mut body) = (answer.status(), Vec::new());
        while let Some(piece) = answer.chunk().await.map_err(no_answer)? {
            body.extend_from_slice(&piece[..piece.len().min(MOST - body.len())]);
        }
        Ok((status, body.into()))
    }
}

/// The URL is left out of the error: it is signed.
fn no_answer(error: reqwest::Error) -> Error {
    let detail = "a signed URL gets no answer".to_owned();
    Error::Unavailable { detail, settled: Settled::Unknown, source: Some(Box::new(error.without_url())) }
}
