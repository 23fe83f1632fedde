//! The little XML that is read by hand: error documents and the listing of open uploads.
//!
//! Only the text of elements by name, unescaped; no attributes, no namespaces. Stores write nothing else in these documents, and
//! what is not found is simply absent.

/// The text of the first element of this name.
pub(super) fn text(document: &str, name: &str) -> Option<String> {
    elements(document, name).next().map(unescape)
}

/// The insides of all elements of this name; those that hold others of the same name are not told apart.
pub(super) fn elements<'a>(document: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = document;
    std::iter::from_fn(move || {
        let start = rest.find(&open)? + open.len();
        let end = start + rest[start..].find(&close)?;
        let inside = &rest[start..end];
        rest = &rest[end + close.len()..];
        Some(inside)
    })
}

fn unescape(text: &str) -> String {
    // `&amp;` last, so that nothing is unescaped twice
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&#34;", "\""), ("&#39;", "'"), ("&amp;", "&")]
        .into_iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_name() {
        let document = "<?xml?><R xmlns='x'><Upload><Key>a&amp;lt;b</Key></Upload><Upload><Key>c</Key></Upload></R>";
        let keys: Vec<_> = elements(document, "Upload").map(|upload| text(upload, "Key")).collect();
        assert_eq!(keys, [Some("a&lt;b".to_owned()), Some("c".to_owned())]);
        assert_eq!(text(document, "Code"), None);
        assert_eq!(text("<Code>cut off", "Code"), None);
    }
}
