//! Service addresses: the list of base URLs, and request paths that a user's text cannot bend.
//!
//! Pure. What may be shown of a URL is its origin; paths are joined beneath a base URL's own path.

use super::error::Error;
use std::fmt::Write as _;
use url::Url;

/// Reads a comma-separated list of base URLs (`DRAY_URL`).
/// The order is the order of fail-over. Credentials in a URL are refused, because URLs are shown and logged.
pub fn parse_urls(list: &str) -> Result<Vec<Url>, Error> {
    let mut urls = Vec::new();
    for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let bad = |why| Error::BadUrl { url: text.to_owned(), why };
        let url = Url::parse(text).map_err(|_| bad("it is not an absolute URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("only http and https are spoken"));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(bad("it names no host"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::BadUrl { url: origin(&url), why: "credentials belong in `DRAY_TOKEN`" });
        }
        urls.push(url);
    }
    if urls.is_empty() {
        return Err(Error::BadUrl { url: list.to_owned(), why: "it is empty" });
    }
    Ok(urls)
}

/// Builds a request path: each segment percent-encoded whole, so that a user's text never adds a segment or a query.
pub fn route(segments: &[&str], query: &[(&str, &str)]) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        if matches!(*segment, "." | ".." | "") {
            // URL parsers fold dot segments even where encoded once; encoded twice they are an unknown id.
            path.push_str("%252E");
            continue;
        }
        for byte in segment.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => path.push(char::from(byte)),
                _ => _ = write!(path, "%{byte:02X}"),
            }
        }
    }
    if !query.is_empty() {
        let mut encoded = url::form_urlencoded::Serializer::new(String::new());
        encoded.extend_pairs(query);
        path.push('?');
        path.push_str(&encoded.finish());
    }
    path
}

/// Scheme, host and port: what may be shown of any URL.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// `path` (with its query) beneath a base URL that may have a path of its own.
/// `path` begins with `/`, as [`route`] makes it or as the service hands it out in a grant.
pub(super) fn join(base: &Url, path: &str) -> Result<Url, Error> {
    let text = format!("{}{}{path}", origin(base), base.path().trim_end_matches('/'));
    Url::parse(&text).map_err(|_| Error::BadUrl { url: origin(base), why: "a path cannot be joined to it" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_base_urls() {
        let urls = parse_urls(" http://a:1, https://b/dray/ ,").unwrap();
        assert_eq!(urls.iter().map(Url::as_str).collect::<Vec<_>>(), ["http://a:1/", "https://b/dray/"]);
        assert_eq!(join(&urls[1], "/v1/jobs?x=1").unwrap().as_str(), "https://b/dray/v1/jobs?x=1");
    }

    #[test]
    fn unusable_urls_are_told_without_their_secrets() {
        for (list, why) in [
            ("", "it is empty"),
            ("localhost:7878", "only http and https are spoken"),
            ("ftp://x", "only http and https are spoken"),
            ("http://u:secret@x", "credentials belong in `DRAY_TOKEN`"),
            ("nonsense", "it is not an absolute URL"),
        ] {
            let error = parse_urls(list).unwrap_err();
            assert!(error.to_string().contains(why), "{list}: {error}");
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn a_users_text_stays_one_segment() {
        assert_eq!(route(&["v1", "jobs", "a/../b?c#d"], &[]), "/v1/jobs/a%2F..%2Fb%3Fc%23d");
        let base = Url::parse("http://x").unwrap();
        for id in [".", "..", "", "%2e%2e"] {
            let url = join(&base, &route(&["v1", "jobs", id], &[])).unwrap();
            assert_eq!(url.path_segments().unwrap().count(), 3, "{id}: {url}");
        }
        assert_eq!(route(&["v1"], &[("ref", "w/t@v1"), ("q", "ä &")]), "/v1?ref=w%2Ft%40v1&q=%C3%A4+%26");
    }
}
