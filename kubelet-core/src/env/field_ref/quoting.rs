//! Text in quotes.

use std::fmt::Write;

/// Quotes as Go's `%q` does.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if is_printable(c) => quoted.push(c),
            _ => {
                let code = u32::from(c);
                // Writing to a string cannot fail.
                let _ = match code {
                    0..0x20 | 0x7f => write!(quoted, "\\x{code:02x}"),
                    0x20..0x1_0000 => write!(quoted, "\\u{code:04x}"),
                    _ => write!(quoted, "\\U{code:08x}"),
                };
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Letters, marks, numbers, punctuation, symbols and the ASCII space.
///
/// The standard library keeps such a table for `Debug`. There it also escapes a combining mark at the
/// start of a text, hence the letter before it.
fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        _ => {
            let text = String::from_iter(['a', c]);
            text.escape_debug().eq(text.chars())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn quoting_is_that_of_go() {
        for (text, expected) in [
            ("", r#""""#),
            ("plain", r#""plain""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1f}\u{7f}", r#""\x00\x1f\x7f""#),
            ("é世😀", r#""é世😀""#),
            ("e\u{301}\u{301}", "\"e\u{301}\u{301}\""),
            ("\u{301}", "\"\u{301}\""),
            ("\u{85}\u{a0}\u{200b}\u{feff}", r#""\u0085\u00a0\u200b\ufeff""#),
            ("\u{e0001}", r#""\U000e0001""#),
            ("it's", r#""it's""#),
        ] {
            assert_eq!(quoted(text), expected, "{text:?}");
        }
    }
}
