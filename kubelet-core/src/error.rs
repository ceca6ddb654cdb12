//! What all error types here share.

/// A boxed cause, for `source` fields.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Writes an error and its causes as one line, each part once.
#[must_use]
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let part = cause.to_string();
        // Foreign errors often repeat their source in their own text.
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = cause.source();
    }
    text
}
