//! Matchers that the name rules are made of.

/// A text cut at a separator.
pub(super) enum Parts<'a> {
    One(&'a str),
    Two(&'a str, &'a str),
    More,
}

pub(super) fn parts_by(text: &str, separator: char) -> Parts<'_> {
    match text.split_once(separator) {
        None => Parts::One(text),
        Some((_, rest)) if rest.contains(separator) => Parts::More,
        Some((first, second)) => Parts::Two(first, second),
    }
}

/// Whether all bytes are `inner` and the first and the last are `edge`; never so for an empty text.
pub(super) fn with_edges(text: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [only] => edge(*only),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|b| inner(*b)),
    }
}

/// Whether each part between separators passes.
pub(super) fn every_part(text: &str, separator: char, part: impl Fn(&str) -> bool) -> bool {
    text.split(separator).all(part)
}

/// Lower case letters, digits and inner dashes, of any length.
pub(super) fn dashed(text: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    with_edges(text, edge, |b| edge(b) || b == b'-')
}

/// Parts of [`dashed`] joined by dots, of any length.
pub(super) fn subdomain(text: &str) -> bool {
    every_part(text, '.', dashed)
}
