//! Checks of a bucket that need requests no ordinary caller makes: wrong checksums, signed URLs used as strangers would.
//!
//! None of them is fatal: packs can go through the service, and a digest guards every byte. But a store that serves what
//! nobody signed must be kept out of reach of others, and the hint says so.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use url::Url;

use super::Verdict;
use super::checks::Probe;
use crate::store::keys::Key;
use crate::store::s3::S3;
use crate::store::{Error, PutMode, Result};

impl Probe<'_> {
    /// A body that is not what its checksum says.
    ///
    /// Refused is right. A store that takes it does not check uploads, so a flipped bit on the line is found only by a
    /// reader.
    pub(super) async fn checksum(&mut self, s3: &S3) {
        let key = self.key();
        let Some(sent) = s3.put_with_wrong_checksum(&key, self.content(1_000)).await else {
            self.fine("checksum", "none is asked of this store; bodies are signed instead");
            return;
        };
        let hint = Some(
            "Dray still checks every chunk by its own digest when it is read; set `checksum = \"none\"` to sign bodies",
        );
        match sent {
            Ok(status) if status.is_client_error() => {
                self.fine("checksum", "a body that does not match its checksum is refused")
            }
            Ok(status) if status.is_success() => {
                self.note("checksum", Verdict::Degraded, "the store does not verify the checksum it is given", hint);
            }
            Ok(status) => {
                self.note("checksum", Verdict::Degraded, format!("a wrong checksum is answered {status}"), hint)
            }
            Err(error) => self.note("checksum", Verdict::Degraded, error.in_full(), hint),
        }
    }

    /// As a downloader would use it: the public endpoint, no credentials, then a range, then URLs that must fail. Where a
    /// plain signed URL does not work, the rest falls away.
    pub(super) async fn signed_urls(&mut self, s3: &S3) {
        let (key, other) = (self.key(), self.key());
        let content = self.content(10_000);
        let hint = Some(
            "set `public_endpoint` to the name under which users reach the store; without it links go through the service",
        );
        let signed = async {
            self.store.put_small(&key, content.clone(), PutMode::Overwrite).await?;
            self.store.put_small(&other, Bytes::from_static(b"another object"), PutMode::Overwrite).await?;
            s3.sign_get(&key, Duration::from_secs(300), Some("attachment; filename=\"probe.bin\"")).await
        };
        let url = match signed.await {
            Ok(signed) => signed.url,
            Err(error) => return self.note("signed_get", Verdict::Degraded, error.in_full(), hint),
        };
        match s3.get_as_stranger(&url, None).await {
            Ok((StatusCode::OK, body)) if body == content => self.fine("signed_get", "a signed URL works"),
            Ok((StatusCode::OK, _)) => {
                return self.note("signed_get", Verdict::Degraded, "a signed URL gives other bytes", hint);
            }
            Ok((status, _)) => {
                return self.note("signed_get", Verdict::Degraded, format!("a signed URL is answered {status}"), hint);
            }
            Err(error) => return self.note("signed_get", Verdict::Degraded, error.in_full(), hint),
        }
        match s3.get_as_stranger(&url, Some("bytes=100-199")).await {
            Ok((StatusCode::PARTIAL_CONTENT, body)) if body == content[100..200] => {
                self.fine("signed_range", "ranges of it too")
            }
            Ok((status, _)) => {
                self.note("signed_range", Verdict::Degraded, format!("a range is answered {status}"), hint)
            }
            Err(error) => self.note("signed_range", Verdict::Degraded, error.in_full(), hint),
        }
        self.forged(s3, &url, &key, &other).await;
    }

    /// URLs that must not work.
    ///
    /// A URL whose path was changed to another object, and one whose time is over. Takes the 3.5 s that the second must
    /// wait.
    async fn forged(&mut self, s3: &S3, url: &Url, key: &Key, other: &Key) {
        let hint =
            Some("this store serves what nobody signed: keep it out of reach of others, and do not give out its URLs");
        let tampered = Url::parse(&url.as_str().replace(key.as_str(), other.as_str()));
        let tampered = match tampered {
            Ok(tampered) => s3.get_as_stranger(&tampered, None).await,
            Err(error) => Err(Error::Unsupported { what: error.to_string() }),
        };
        self.refused("signed_tampered", "a URL changed to name another object", tampered, hint);
        let short = match s3.sign_get(key, Duration::from_secs(1), None).await {
            Ok(signed) => signed.url,
            Err(error) => return self.note("signed_expired", Verdict::Degraded, error.in_full(), hint),
        };
        // the end is told in whole seconds, and the store's clock may be a little behind
        tokio::time::sleep(Duration::from_millis(3_500)).await;
        let expired = s3.get_as_stranger(&short, None).await;
        self.refused("signed_expired", "an expired URL", expired, hint);
    }

    /// Any 4xx is a refusal; a redirect, a success or a fault of the store is not.
    fn refused(
        &mut self,
        name: &'static str,
        what: &str,
        got: Result<(StatusCode, Bytes)>,
        hint: Option<&'static str>,
    ) {
        match got {
            Ok((status, _)) if status.is_client_error() => self.fine(name, format!("{what} is refused")),
            Ok((status, _)) => self.note(name, Verdict::Degraded, format!("{what} is answered {status}"), hint),
            Err(error) => self.note(name, Verdict::Degraded, error.in_full(), hint),
        }
    }
}
