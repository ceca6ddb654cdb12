//! How a value is shown.

use serde::Serialize;

/// A value as an error shows it.
pub(in crate::validation) trait FieldValue {
    fn render(&self) -> String;
}

/// A value shown as JSON: what has a type of its own upstream, such as an enumeration.
pub(in crate::validation) struct Json<'a, T>(pub(in crate::validation) &'a T);

/// In quotes, as Go's `%q` prints it.
impl FieldValue for &str {
    fn render(&self) -> String {
        let mut text = String::with_capacity(self.len() + 2);
        text.push('"');
        for c in self.chars() {
            match c {
                '"' | '\\' => text.extend(['\\', c]),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                '\x07' => text.push_str("\\a"),
                '\x08' => text.push_str("\\b"),
                '\x0b' => text.push_str("\\v"),
                '\x0c' => text.push_str("\\f"),
                c if c.is_ascii_control() => text.push_str(&format!("\\x{:02x}", u32::from(c))),
                c if c.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => text.push(c),
            }
        }
        text.push('"');
        text
    }
}

impl FieldValue for i64 {
    fn render(&self) -> String {
        self.to_string()
    }
}

impl FieldValue for i32 {
    fn render(&self) -> String {
        self.to_string()
    }
}

impl FieldValue for bool {
    fn render(&self) -> String {
        self.to_string()
    }
}

impl<T: Serialize> FieldValue for Json<'_, T> {
    fn render(&self) -> String {
        // Only a map with keys that are not text fails, and no type of the API holds one.
        let text = serde_json::to_string(self.0).unwrap_or_default();
        text.replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026")
    }
}
