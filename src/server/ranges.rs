//! Downloads of stored bytes: `Range`, `If-Range`, `If-None-Match`, one answer for all who stream.
//!
//! One range is served, as RFC 9110 has it; a header that asks for several, or cannot be read, is as if it were not there, and
//! the whole is answered. The tag names the very bytes, so a resumed download can never join two different ones.
//!
//! Only GET and HEAD come here. Names are RFC 9110's, sections 13 and 14: an `If-Range` that does not match answers the
//! whole, never an error, and a range beyond the end is 416 with the true length, by which a client that resumes learns
//! that it has all.

use std::ops::Range;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::app::Error;

/// What a download is, before anything of it is read.
///
/// What the headers are made of. Immutable: a download is of one object, never of "the newest".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Download {
    /// Length of the whole, also where a part is sent.
    pub bytes: u64,
    /// Opaque; without the quotes.
    pub tag: String,
    /// Sent with `nosniff`, so that a browser shows nothing as something else.
    pub media_type: &'static str,
}

/// What of it is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    Whole,
    /// Never empty, and within the whole.
    Part(Range<u64>),
    /// The caller has these bytes.
    ///
    /// 304 without a body.
    NotModified,
    /// The range lies beyond the end.
    ///
    /// 416 without a body.
    Unsatisfiable,
}

impl Download {
    /// Reads the request's conditions.
    ///
    /// `If-None-Match` wins over `Range`, as RFC 9110 orders them. Its tags, of all its lines, are compared weakly: a copy that
    /// is as good as ours needs no other. `If-Range` is compared strongly: a weak tag never equals ours.
    pub fn wanted(&self, headers: &HeaderMap) -> Wanted {
        let lines = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|line| line.to_str().ok());
        let mut tags = lines.flat_map(|line| line.split(',')).map(str::trim);
        if tags.any(|tag| tag == "*" || self.is_tag(tag.strip_prefix("W/").unwrap_or(tag))) {
            return Wanted::NotModified;
        }
        let Some(range) = text(headers, header::RANGE) else { return Wanted::Whole };
        // a date cannot name bytes, so only an equal tag lets a range through
        if text(headers, header::IF_RANGE).is_some_and(|tag| !self.is_tag(tag)) {
            return Wanted::Whole;
        }
        parse(range, self.bytes)
    }

    fn is_tag(&self, tag: &str) -> bool {
        tag.trim().strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) == Some(&self.tag)
    }

    /// The bytes that `wanted` stands for; nothing is to be read for the other two.
    pub fn range(&self, wanted: &Wanted) -> Option<Range<u64>> {
        match wanted {
            Wanted::Whole if self.bytes > 0 => Some(0..self.bytes),
            Wanted::Part(range) => Some(range.clone()),
            Wanted::Whole | Wanted::NotModified | Wanted::Unsatisfiable => None,
        }
    }

    /// The answer. `stream` yields exactly the bytes of [`range`](Self::range), or fails, which cuts the connection.
    pub fn respond(&self, wanted: &Wanted, stream: Option<BoxStream<'static, Result<Bytes, Error>>>) -> Response {
        let (status, length) = match wanted {
            Wanted::Whole => (StatusCode::OK, Some(self.bytes)),
            Wanted::Part(range) => (StatusCode::PARTIAL_CONTENT, Some(range.end - range.start)),
            Wanted::NotModified => (StatusCode::NOT_MODIFIED, None),
            Wanted::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, Some(0)),
        };
        let body = stream.map_or_else(Body::empty, Body::from_stream);
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        set(headers, header::ETAG, &format!("\"{}\"", self.tag));
        if let Some(length) = length {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        match wanted {
            Wanted::Part(range) => {
                set(headers, header::CONTENT_RANGE, &format!("bytes {}-{}/{}", range.start, range.end - 1, self.bytes));
            }
            Wanted::Unsatisfiable => set(headers, header::CONTENT_RANGE, &format!("bytes */{}", self.bytes)),
            Wanted::Whole | Wanted::NotModified => {}
        }
        response
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Leaves a header out rather than fail the download.
fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // tags are digests and ids; one that is not plain text is left out rather than sent wrong
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// `bytes=a-b`, `bytes=a-` or `bytes=-n`; anything else is [`Wanted::Whole`].
///
/// An end beyond the whole is cut to it. Digits that no `u64` holds count as the largest, so that an absurd end is still an
/// end.
fn parse(range: &str, bytes: u64) -> Wanted {
    let spec = range.trim().strip_prefix("bytes=").filter(|spec| !spec.contains(','));
    let Some((first, last)) = spec.and_then(|spec| spec.split_once('-')) else { return Wanted::Whole };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().unwrap_or(u64::MAX));
    match (first.is_empty(), last.is_empty()) {
        (true, true) => Wanted::Whole,
        (true, false) => match number(last) {
            None => Wanted::Whole,
            Some(0) => Wanted::Unsatisfiable,
            Some(_) if bytes == 0 => Wanted::Unsatisfiable,
            Some(count) => Wanted::Part(bytes.saturating_sub(count)..bytes),
        },
        (false, open) => match (number(first), if open { Some(u64::MAX) } else { number(last) }) {
            (Some(first), Some(last)) if first <= last => {
                if first >= bytes {
                    Wanted::Unsatisfiable
                } else {
                    Wanted::Part(first..last.saturating_add(1).min(bytes))
                }
            }
            _ => Wanted::Whole,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn download(bytes: u64) -> Download {
        Download { bytes, tag: "abc".into(), media_type: "application/octet-stream" }
    }

    fn wanted(pairs: &[(HeaderName, &str)], bytes: u64) -> Wanted {
        let headers = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect();
        download(bytes).wanted(&headers)
    }

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        let range = |text: &str| wanted(&[(header::RANGE, text)], 100);
        assert_eq!(range("bytes=0-0"), Wanted::Part(0..1));
        assert_eq!(range("bytes=10-"), Wanted::Part(10..100));
        assert_eq!(range("bytes=-10"), Wanted::Part(90..100));
        assert_eq!(range("bytes=-1000"), Wanted::Part(0..100));
        assert_eq!(range("bytes=99-99999999999999999999999"), Wanted::Part(99..100));
        assert_eq!(range("bytes=100-"), Wanted::Unsatisfiable);
        assert_eq!(range("bytes=-0"), Wanted::Unsatisfiable);
        for odd in
            ["bytes=", "bytes=-", "bytes=5-4", "bytes=a-b", "bytes=0-1,3-4", "lines=0-1", "0-1", "bytes=--1", "bytes=1"]
        {
            assert_eq!(range(odd), Wanted::Whole, "{odd}");
        }
        assert_eq!(wanted(&[(header::RANGE, "bytes=0-")], 0), Wanted::Unsatisfiable);
    }

    #[test]
    fn a_range_of_other_bytes_is_never_joined() {
        let range = (header::RANGE, "bytes=5-");
        assert_eq!(wanted(&[range.clone(), (header::IF_RANGE, "\"abc\"")], 10), Wanted::Part(5..10));
        for other in ["\"abd\"", "W/\"abc\"", "abc", "Mon, 30 Nov 2026 00:00:00 GMT"] {
            assert_eq!(wanted(&[range.clone(), (header::IF_RANGE, other)], 10), Wanted::Whole, "{other}");
        }
    }

    #[test]
    fn who_has_the_bytes_gets_none() {
        assert_eq!(wanted(&[(header::IF_NONE_MATCH, "\"x\", \"abc\"")], 10), Wanted::NotModified);
        assert_eq!(wanted(&[(header::IF_NONE_MATCH, "\"x\"")], 10), Wanted::Whole);
        assert_eq!(wanted(&[(header::IF_NONE_MATCH, "W/\"abc\"")], 10), Wanted::NotModified, "weakly");
        let mut lines = HeaderMap::new();
        lines.append(header::IF_NONE_MATCH, HeaderValue::from_static("\"x\""));
        lines.append(header::IF_NONE_MATCH, HeaderValue::from_static("\"abc\""));
        assert_eq!(download(10).wanted(&lines), Wanted::NotModified, "on any of its lines");
    }

    #[test]
    fn answers_say_what_they_hold() {
        let file = download(100);
        let part = Wanted::Part(10..20);
        let response = file.respond(&part, None);
        assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
        assert_eq!(response.headers()[header::CONTENT_RANGE], "bytes 10-19/100");
        assert_eq!(response.headers()[header::CONTENT_LENGTH], "10");
        assert_eq!(response.headers()[header::ETAG], "\"abc\"");
        let response = file.respond(&Wanted::Unsatisfiable, None);
        assert_eq!(
            (response.status().as_u16(), &response.headers()[header::CONTENT_RANGE]),
            (416, &HeaderValue::from_static("bytes */100"))
        );
        assert_eq!(file.range(&Wanted::Whole), Some(0..100));
        assert_eq!(download(0).range(&Wanted::Whole), None);
    }
}
