//! The forms of names that the API server would have checked.

/// A DNS-1123 label: lower-case letters, digits and inner dashes, at most 63 bytes.
pub(super) fn is_dns_label(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(allowed) && !text.starts_with('-') && !text.ends_with('-')
}

/// A DNS-1123 subdomain: parts joined by dots, at most 253 bytes. The parts have no limit of their own.
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 253
        && text
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(allowed) && !part.starts_with('-') && !part.ends_with('-'))
}

/// The key of a label or annotation: a name, perhaps after a DNS subdomain and a slash.
pub(super) fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    prefix.is_none_or(is_dns_subdomain)
        && name.len() <= 63
        && edge(name.bytes().next())
        && edge(name.bytes().last())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::{is_dns_label, is_dns_subdomain, is_qualified_name};

    #[test]
    fn forms_are_told_apart() {
        let long = "a".repeat(64);
        for (text, label, subdomain, qualified) in [
            ("web", true, true, true),
            ("web-1", true, true, true),
            ("-web", false, false, false),
            ("web-", false, false, false),
            ("", false, false, false),
            ("a.b", false, true, true),
            ("a..b", false, false, true),
            ("Web", false, false, true),
            ("example.com/Web_1", false, false, true),
            ("example.com/", false, false, false),
            ("/web", false, false, false),
            ("a/b/c", false, false, false),
            (&long, false, true, false),
        ] {
            assert_eq!(is_dns_label(text), label, "label {text:?}");
            assert_eq!(is_dns_subdomain(text), subdomain, "subdomain {text:?}");
            assert_eq!(is_qualified_name(text), qualified, "qualified {text:?}");
        }
    }
}
