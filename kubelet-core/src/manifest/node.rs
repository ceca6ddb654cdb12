//! The tree that both syntaxes are read into. Shared subtrees keep aliases cheap.

use std::sync::Arc;

/// A place in the text, both counted from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// Nesting beyond this is refused, aliases counted in full: everything that walks the tree recurses.
pub(super) const MAX_DEPTH: u16 = 100;

/// Most nodes in one text, and most that decoding visits when aliases repeat subtrees.
pub(super) const MAX_NODES: u32 = 1_000_000;

/// One value and where it starts.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: Mark,
    pub(super) value: Value,
    /// Levels of collections from here down; 0 for a scalar.
    pub(super) depth: u16,
}

#[derive(Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    /// The text is kept because quantities are decimal and must not go through a float.
    Float(f64, Box<str>),
    Text(Box<str>),
    Seq(Vec<Arc<Node>>),
    Map(Vec<(Key, Arc<Node>)>),
}

#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: Box<str>,
    pub(super) at: Mark,
}

impl Node {
    pub(super) fn new(at: Mark, value: Value) -> Self {
        let depth = match &value {
            Value::Seq(items) => 1 + items.iter().map(|node| node.depth).max().unwrap_or(0),
            Value::Map(entries) => 1 + entries.iter().map(|(_, node)| node.depth).max().unwrap_or(0),
            _ => 0,
        };
        Self { at, value, depth }
    }

    /// The value of a key, if this is a mapping that has it.
    pub(super) fn field(&self, name: &str) -> Option<&Self> {
        self.entry(name).map(|(_, node)| &**node)
    }

    pub(super) fn entry(&self, name: &str) -> Option<&(Key, Arc<Self>)> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(key, _)| &*key.name == name),
            _ => None,
        }
    }

    /// A scalar as text.
    pub(super) fn scalar(&self) -> Option<String> {
        match &self.value {
            Value::Null => Some("null".to_owned()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Int(value) => Some(value.to_string()),
            Value::Float(_, text) | Value::Text(text) => Some(text.to_string()),
            Value::Seq(_) | Value::Map(_) => None,
        }
    }

    /// The beginning of this value as compact JSON, for messages.
    pub(super) fn excerpt(&self) -> String {
        const LIMIT: usize = 256;
        let mut out = String::new();
        self.write_json(&mut out, LIMIT);
        if out.len() > LIMIT {
            out.truncate(prefix(&out, LIMIT).len());
            out.push('…');
        }
        out
    }

    /// Stops soon after `limit` bytes, however large the value is once its aliases are followed.
    fn write_json(&self, out: &mut String, limit: usize) {
        match &self.value {
            Value::Text(text) => write_text(out, text, limit),
            Value::Seq(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if out.len() > limit {
                        return;
                    }
                    out.push_str(if index == 0 { "" } else { "," });
                    item.write_json(out, limit);
                }
                out.push(']');
            }
            Value::Map(entries) => {
                out.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    if out.len() > limit {
                        return;
                    }
                    out.push_str(if index == 0 { "" } else { "," });
                    write_text(out, &key.name, limit);
                    out.push(':');
                    value.write_json(out, limit);
                }
                out.push('}');
            }
            _ => out.push_str(&self.scalar().unwrap_or_default()),
        }
    }
}

fn write_text(out: &mut String, text: &str, limit: usize) {
    out.push_str(&serde_json::Value::from(prefix(text, limit)).to_string());
}

/// The longest beginning of `text` that has at most `max` bytes and ends between characters.
pub(super) fn prefix(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
