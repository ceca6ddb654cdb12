//! Why a manifest could not be decoded, and where.

use std::fmt;

use super::node::{Mark, Node, prefix};
use super::path::Path;

/// Longest message and value kept; a manifest may hold megabytes of text in one scalar.
const MAX_TEXT: usize = 1024;

/// Why a manifest is no pod. The last good version of the pod stays in force; only a changed manifest helps.
///
/// Shown as one line: `line 12, column 9: spec.containers[0].ports[0].containerPort: invalid type: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    message: String,
    line: Option<u32>,
    column: Option<u32>,
    path: Option<String>,
    value: Option<String>,
}

impl ManifestError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: cut(message.into()),
            line: None,
            column: None,
            path: None,
            value: None,
        }
    }

    pub(super) fn at(node: &Node, message: impl Into<String>) -> Self {
        let mut error = Self::new(message).with_mark(node.at);
        error.value = node.scalar().map(cut);
        error
    }

    pub(super) fn with_mark(mut self, at: Mark) -> Self {
        self.line = Some(at.line);
        self.column = Some(at.column);
        self
    }

    pub(super) fn with_line(mut self, line: Option<u32>) -> Self {
        self.line = line;
        self
    }

    pub(super) fn with_path(self, path: &Path<'_>) -> Self {
        self.with_field(&path.to_string())
    }

    pub(super) fn with_field(mut self, path: &str) -> Self {
        self.path = Some(path).filter(|path| !path.is_empty()).map(str::to_owned);
        self
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The line, counted from 1, where that is known.
    pub fn line(&self) -> Option<u32> {
        self.line
    }

    /// The column in characters, counted from 1, where that is known.
    pub fn column(&self) -> Option<u32> {
        self.column
    }

    /// The field, like `spec.containers[0].image`; none when the text itself is malformed.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// The offending scalar, where there is one.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, "line {line}, column {column}: ")?,
            (Some(line), None) => write!(f, "line {line}: ")?,
            _ => {}
        }
        if let Some(path) = &self.path {
            write!(f, "{path}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ManifestError {}

/// One line of bounded length.
fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(prefix(&text, MAX_TEXT).len());
        text.push('…');
    }
    if text.contains(['\n', '\r']) {
        text.replace('\r', "\\r").replace('\n', "\\n")
    } else {
        text
    }
}
