//! What a browser is told to call a download: a `Content-Disposition` that no file name can break.
//!
//! Pure (RFC 6266, RFC 8187). The value holds visible ASCII only, whatever the name holds: an old reader gets a plain fallback, every other one the name
//! itself, percent-encoded. Long names keep their end, where the extension is.

/// Longest name handed out, in bytes: what file systems hold.
const MOST: usize = 240;

/// `attachment; filename="..."; filename*=UTF-8''...`. Nothing of a path survives: only what follows the last `/` counts.
/// Any name gives one valid header value of less than 1,200 bytes: quotes, backslashes, line ends and `;` appear in it only
/// where the grammar has them.
pub fn content_disposition(name: &str) -> String {
    let name = shortened(name.rsplit('/').next().unwrap_or_default());
    let safe =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '.' | '_' | '-' | '(' | ')' | '+' | ',' | '@' | '=');
    let fallback: String = name.chars().map(|c| if safe(c) { c } else { '_' }).collect();
    let mut encoded = String::new();
    for byte in name.bytes() {
        // attr-char of RFC 8187
        if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    format!("attachment; filename=\"{fallback}\"; filename*=UTF-8''{encoded}")
}

/// The name as one segment of a URL's path: never empty, no `/`, unreserved characters of RFC 3986 and percent-encoding
/// only. For looks; what a link opens is told by its id and signature.
pub fn url_segment(name: &str) -> String {
    let name = shortened(name.rsplit('/').next().unwrap_or_default());
    let mut encoded = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// A name that can be a file's: not empty, not `.` or `..`, no control characters, within [`MOST`] bytes. Cut at its front,
/// on a character's boundary.
fn shortened(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    if name.is_empty() || name == "." || name == ".." {
        return "download".to_owned();
    }
    let mut start = name.len().saturating_sub(MOST);
    while !name.is_char_boundary(start) {
        start += 1;
    }
    name.get(start..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_kept_and_nothing_is_injected() {
        assert_eq!(content_disposition("a b.mov"), "attachment; filename=\"a b.mov\"; filename*=UTF-8''a%20b.mov");
        let hostile = content_disposition("a\"\r\nX: y.mov");
        assert_eq!(hostile, "attachment; filename=\"a___X_ y.mov\"; filename*=UTF-8''a%22__X%3A%20y.mov");
        assert!(content_disposition("🎬.mp4").ends_with("filename*=UTF-8''%F0%9F%8E%AC.mp4"));
        let long = content_disposition(&format!("{}.mov", "ä".repeat(300)));
        assert!(long.ends_with(".mov") && long.len() < 1_200, "{}", long.len());
        for nameless in ["", ".", "..", "a/..", "/"] {
            assert!(content_disposition(nameless).contains("\"download\""), "{nameless}");
        }
        assert_eq!(url_segment("a/b c%.zip"), "b%20c%25.zip");
    }

    proptest! {
        #[test]
        fn one_valid_header_for_any_name(name in ".*") {
            let value = content_disposition(&name);
            prop_assert!(value.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
            prop_assert_eq!(value.matches('"').count(), 2);
            prop_assert_eq!(value.matches(';').count(), 2);
            prop_assert!(!value.contains('\\') && !value.contains('/'));
            prop_assert!(value.len() < 1_200);
            let segment = url_segment(&name);
            prop_assert!(!segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte)));
        }
    }
}
