//! From settings to an open bucket: names, endpoints, and the HTTP client.
//!
//! Nothing is sent here but what the AWS chain needs. Plain `http` is for loopback, or where the settings allow it.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AwsCredentialProvider, S3ConditionalPut};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use tokio_util::task::TaskTracker;
use url::{Host, Url};

use super::chain::chain;
use super::credentials::Credentials;
use super::wire::Wire;
use super::{S3, checksum_mode};
use crate::clock::Clock;
use crate::config::store::{Addressing, Checksum, StoreSettings};
use crate::store::{Error, Result};

/// Idle connections kept.
const IDLE: usize = 32;
/// Kept for less than servers usually keep them, so that one is rarely closed under a request.
const IDLE_FOR: Duration = Duration::from_secs(15);

impl S3 {
    /// Opens `s3://bucket/prefix`.
    pub(in crate::store) async fn open(url: &Url, settings: &StoreSettings, clock: Arc<dyn Clock>) -> Result<Self> {
        check(settings)?;
        let wrong = |detail: String| Error::Settings { field: "url", detail };
        let bucket =
            url.host_str().filter(|bucket| !bucket.is_empty()).ok_or_else(|| wrong("names no bucket".to_owned()))?;
        let prefix = prefix(url.path()).ok_or_else(|| {
            wrong(format!(
                "prefix `{}` may hold letters, digits, `.`, `_`, `-` and single slashes only",
                url.path().escape_debug()
            ))
        })?;
        let found = match settings.access_key_id.is_some() && settings.region.is_some() && settings.endpoint.is_some() {
            true => None,
            false => Some(chain(settings.profile.as_deref()).await),
        };
        let chain_region = found.as_ref().and_then(|found| found.region().map(ToString::to_string));
        let region = settings.region.clone().or(chain_region).unwrap_or_else(|| "us-east-1".to_owned());
        let chain_endpoint = found.as_ref().and_then(|found| found.endpoint_url().map(str::to_owned));
        let endpoint = settings
            .endpoint
            .clone()
            .or(chain_endpoint)
            .unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let endpoint = self::endpoint("endpoint", &endpoint, settings)?;
        let public = match &settings.public_endpoint {
            Some(public) => self::endpoint("public_endpoint", public, settings)?,
            None => endpoint.clone(),
        };
        let wire =
            Wire::new(http_client(settings)?, Duration::from_millis(settings.stall_timeout_ms), Arc::clone(&clock));
        let credentials = Arc::new(Credentials::new(settings, Arc::clone(&clock)));
        let make = |endpoint: &Url, options: ClientOptions| {
            let builder = builder(settings, bucket, &region, endpoint).with_client_options(options);
            // after the options, which would replace it; what may be plain was decided above
            let builder =
                builder.with_allow_http(true).with_credentials(Arc::clone(&credentials) as AwsCredentialProvider);
            build(builder.with_http_connector(wire.clone()))
        };
        Ok(Self {
            bucket: make(&endpoint, ClientOptions::new())?,
            checksums: make(&endpoint, ClientOptions::new().with_default_headers(checksum_mode()))?,
            public: make(&public, ClientOptions::new())?,
            credentials,
            settings: settings.clone(),
            name: format!("s3://{bucket}/{prefix}").trim_end_matches('/').to_owned(),
            prefix,
            wire: wire.clone(),
            clock,
            aborts: TaskTracker::new(),
        })
    }
}

fn check(settings: &StoreSettings) -> Result<()> {
    let wrong = |field: &'static str, detail: &str| Err(Error::Settings { field, detail: detail.to_owned() });
    if settings.access_key_id.is_some() != settings.secret_access_key.is_some() {
        return wrong("access_key_id", "and `secret_access_key` belong together; give both or neither");
    }
    if settings.retry_timeout_ms >= 300_000 {
        return wrong("retry_timeout_ms", "must be below 300000, since a signature holds little longer");
    }
    if settings.max_parts == 0 || settings.max_parts > 10_000 {
        return wrong("max_parts", "must be 1 to 10000");
    }
    if settings.stall_timeout_ms == 0 || settings.connect_timeout_ms == 0 {
        return wrong("stall_timeout_ms", "and `connect_timeout_ms` must be at least 1");
    }
    Ok(())
}

/// `/a/b/` to `a/b/`, `/` to nothing; none where it is no plain path.
fn prefix(path: &str) -> Option<String> {
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Some(String::new());
    }
    let plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    path.split('/').all(plain).then(|| format!("{path}/"))
}

fn endpoint(field: &'static str, text: &str, settings: &StoreSettings) -> Result<Url> {
    let wrong = |detail: String| Error::Settings { field, detail };
    let url = Url::parse(text).map_err(|error| wrong(format!("`{}` is no URL: {error}", text.escape_debug())))?;
    let loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    match url.scheme() {
        "https" => {}
        "http" if loopback || settings.allow_http => {}
        "http" => {
            return Err(wrong(format!(
                "`{url}` is not encrypted; use `https`, or set `allow_http` if the network is yours"
            )));
        }
        other => return Err(wrong(format!("`{other}` is no scheme of an S3 store; use `https`"))),
    }
    if url.path() != "/" || url.query().is_some() || !url.username().is_empty() {
        return Err(wrong("is a scheme, a host and a port only".to_owned()));
    }
    Ok(url)
}

fn builder(settings: &StoreSettings, bucket: &str, region: &str, endpoint: &Url) -> AmazonS3Builder {
    let mut base = endpoint.clone();
    let is_virtual = settings.addressing == Addressing::Virtual;
    if is_virtual {
        let host = format!("{bucket}.{}", endpoint.host_str().unwrap_or_default());
        // a host that cannot carry a bucket's name stays as it is, and the store will say so
        let _ = base.set_host(Some(&host));
    }
    let builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(region)
        .with_endpoint(base.as_str().trim_end_matches('/'))
        .with_virtual_hosted_style_request(is_virtual)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true)
        .with_unsigned_payload(!settings.sign_payload && settings.checksum != Checksum::None)
        // none: it would send an old signature again
        .with_retry(RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::ZERO });
    match settings.checksum {
        Checksum::None => builder,
        Checksum::Crc64Nvme => builder.with_checksum_algorithm(object_store::aws::Checksum::CRC64NVME),
        Checksum::Sha256 => builder.with_checksum_algorithm(object_store::aws::Checksum::SHA256),
    }
}

fn build(builder: AmazonS3Builder) -> Result<AmazonS3> {
    builder.build().map_err(|error| Error::Settings { field: "url", detail: error.to_string() })
}

fn http_client(settings: &StoreSettings) -> Result<reqwest::Client> {
    // no limit on a whole request, and no read timeout either, since it would count a long upload as silence: `Wire` watches
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_millis(settings.connect_timeout_ms))
        .pool_max_idle_per_host(IDLE)
        .pool_idle_timeout(IDLE_FOR)
        .user_agent(concat!("dray/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| Error::Settings { field: "endpoint", detail: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_plain_paths() {
        assert_eq!(prefix(""), Some(String::new()));
        assert_eq!(prefix("/"), Some(String::new()));
        assert_eq!(prefix("/a/b-1/"), Some("a/b-1/".to_owned()));
        for wrong in ["/a//b", "/a/../b", "/a b", "/a%20b", "/\u{fc}"] {
            assert_eq!(prefix(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn plain_http_is_for_loopback_or_by_consent() {
        let strict = StoreSettings::default();
        let lax = StoreSettings { allow_http: true, ..StoreSettings::default() };
        for (text, by_default, by_consent) in [
            ("https://s3.example.net", true, true),
            ("http://127.0.0.1:9000", true, true),
            ("http://localhost:9000/", true, true),
            ("http://[::1]:9000", true, true),
            ("http://10.0.0.1:9000", false, true),
            ("http://s3.example.net", false, true),
            ("ftp://127.0.0.1", false, false),
            ("https://s3.example.net/bucket", false, false),
            ("s3.example.net", false, false),
        ] {
            assert_eq!(endpoint("endpoint", text, &strict).is_ok(), by_default, "{text}");
            assert_eq!(endpoint("endpoint", text, &lax).is_ok(), by_consent, "{text}");
        }
    }
}
