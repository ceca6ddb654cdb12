//! From a field path back to a line of the text.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::node::{Node, Value};
use super::{parse, path};

/// Finds the lines of a manifest's fields.
///
/// Holds the text; it is read again at the first question, so that a manifest without errors costs nothing more.
/// Cheap to clone: clones share the text.
#[derive(Clone)]
pub struct Locator {
    text: Arc<[u8]>,
    /// Which item of a list the paths start at.
    item: Option<usize>,
    root: Arc<OnceLock<Option<Arc<Node>>>>,
}

impl Locator {
    pub(super) fn new(text: &Arc<[u8]>, item: Option<usize>) -> Self {
        Self {
            text: Arc::clone(text),
            item,
            root: Arc::default(),
        }
    }

    /// The line, counted from 1, of a field such as `spec.containers[0].ports[0].hostPort`.
    ///
    /// Map keys stand in brackets (`metadata.labels[app]`). A field that is not in the text, because it is missing or
    /// came from defaulting, is at its nearest parent that is.
    pub fn line_of(&self, path: &str) -> Option<u32> {
        let root = self.root.get_or_init(|| parse(&self.text).ok()).as_ref()?;
        let mut node: &Node = root;
        let mut line = node.at.line;
        if let Some(index) = self.item {
            (node, line) = step(node, "items")?;
            if let Value::Seq(items) = &node.value {
                node = items.get(index)?;
                line = node.at.line;
            }
        }
        for segment in path::segments(path) {
            let Some(next) = step(node, segment) else {
                break;
            };
            (node, line) = next;
        }
        Some(line)
    }
}

impl fmt::Debug for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text may hold secrets in environment variables.
        f.debug_struct("Locator")
            .field("bytes", &self.text.len())
            .field("item", &self.item)
            .finish_non_exhaustive()
    }
}

fn step<'a>(node: &'a Node, segment: &str) -> Option<(&'a Node, u32)> {
    match &node.value {
        Value::Seq(items) => items
            .get(segment.parse::<usize>().ok()?)
            .map(|item| (&**item, item.at.line)),
        _ => node.entry(segment).map(|(key, value)| (&**value, key.at.line)),
    }
}
