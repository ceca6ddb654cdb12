//! Strict JSON as a tree. Only the structure is read here; tokens are left to `serde_json`, which keeps no places.

use std::collections::HashSet;
use std::sync::Arc;

use super::error::ManifestError;
use super::node::{Key, MAX_DEPTH, MAX_NODES, Mark, Node, Value};
use super::yaml::{duplicate, too_deep};

/// Reads one value that fills the whole text.
pub(super) fn parse(text: &str) -> Result<Arc<Node>, ManifestError> {
    let mut reader = Reader {
        text,
        at: 0,
        start: 0,
        mark: Mark { line: 1, column: 1 },
        nodes: 0,
    };
    let root = reader.node(0)?;
    match reader.peek() {
        None => Ok(root),
        Some(_) => Err(reader.wrong("the end of the text")),
    }
}

struct Reader<'t> {
    text: &'t str,
    /// Bytes consumed.
    at: usize,
    /// What `mark` is the place of, at most `at`.
    start: usize,
    mark: Mark,
    nodes: u32,
}

impl<'t> Reader<'t> {
    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest
            .iter()
            .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
            .count();
        self.text.as_bytes().get(self.at).copied()
    }

    /// The place of the next byte. Counts on from the last place asked for.
    fn mark(&mut self) -> Mark {
        let passed = &self.text[self.start..self.at];
        let lines = passed.bytes().filter(|byte| *byte == b'\n').count();
        let tail = passed.rsplit('\n').next().unwrap_or_default().chars().count();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let column = if lines == 0 {
            self.mark.column.saturating_add(number(tail))
        } else {
            number(tail + 1)
        };
        self.mark = Mark {
            line: self.mark.line.saturating_add(number(lines)),
            column,
        };
        self.start = self.at;
        self.mark
    }

    fn wrong(&mut self, expected: &str) -> ManifestError {
        let message = match self.text[self.at..].chars().next() {
            Some(found) => format!("expected {expected}, found {found:?}"),
            None => format!("expected {expected}, but the text ends"),
        };
        ManifestError::new(message).with_mark(self.mark())
    }

    fn node(&mut self, level: u16) -> Result<Arc<Node>, ManifestError> {
        let first = self.peek();
        let at = self.mark();
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(ManifestError::new("the manifest has too many values").with_mark(at));
        }
        if level > MAX_DEPTH {
            return Err(too_deep(at));
        }
        let value = match first {
            Some(b'{') => self.object(level)?,
            Some(b'[') => self.array(level)?,
            Some(b'"') => Value::Text(self.string()?),
            Some(b't' | b'f' | b'n' | b'-' | b'0'..=b'9') => self.literal(at)?,
            _ => return Err(self.wrong("a value")),
        };
        Ok(Arc::new(Node::new(at, value)))
    }

    fn object(&mut self, level: u16) -> Result<Value, ManifestError> {
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        self.at += 1;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Map(entries));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.wrong("a key in double quotes"));
            }
            let at = self.mark();
            let name = self.string()?;
            if self.peek() != Some(b':') {
                return Err(self.wrong("':'"));
            }
            self.at += 1;
            let value = self.node(level + 1)?;
            if !seen.insert(name.clone()) {
                return Err(duplicate(&entries, &name, at));
            }
            entries.push((Key { name, at }, value));
            if self.ends(b'}', "',' or '}'")? {
                return Ok(Value::Map(entries));
            }
        }
    }

    fn array(&mut self, level: u16) -> Result<Value, ManifestError> {
        let mut items = Vec::new();
        self.at += 1;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Seq(items));
        }
        loop {
            items.push(self.node(level + 1)?);
            if self.ends(b']', "',' or ']'")? {
                return Ok(Value::Seq(items));
            }
        }
    }

    /// Consumes a comma (`false`) or the closing bracket (`true`).
    fn ends(&mut self, close: u8, expected: &str) -> Result<bool, ManifestError> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(false)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(true)
            }
            _ => Err(self.wrong(expected)),
        }
    }

    fn string(&mut self) -> Result<Box<str>, ManifestError> {
        let at = self.mark();
        let bytes = self.text.as_bytes();
        let mut end = self.at + 1;
        loop {
            match bytes.get(end) {
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(_) => end += 1,
                None => return Err(ManifestError::new("this string does not end").with_mark(at)),
            }
        }
        let token = &self.text[self.at..=end];
        self.at = end + 1;
        serde_json::from_str(token).map_err(|err| token_error(&err, at))
    }

    fn literal(&mut self, at: Mark) -> Result<Value, ManifestError> {
        let rest = &self.text[self.at..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.'))
            .unwrap_or(rest.len());
        let token = &rest[..end];
        let value: serde_json::Value = serde_json::from_str(token).map_err(|err| token_error(&err, at))?;
        self.at += end;
        Ok(match value {
            serde_json::Value::Bool(value) => Value::Bool(value),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(value), ..) => Value::Int(value.into()),
                (_, Some(value), _) => Value::Int(value.into()),
                (.., value) => Value::Float(value.unwrap_or(f64::INFINITY), token.into()),
            },
            _ => Value::Null,
        })
    }
}

/// The place that `serde_json` adds counts from the token, so it is left out.
fn token_error(err: &serde_json::Error, at: Mark) -> ManifestError {
    let text = err.to_string();
    ManifestError::new(text.split(" at line ").next().unwrap_or(&text)).with_mark(at)
}
