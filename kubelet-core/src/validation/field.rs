//! Where in an object something is wrong, and what.

mod path;
mod value;

use std::borrow::Cow;
use std::fmt::{self, Write};

pub use path::{FieldPath, FieldStep};
pub(super) use value::{FieldValue, Json};

/// In which way a field is wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum FieldErrorKind {
    /// It must be set.
    Required,
    /// Its value is there already and must not repeat.
    Duplicate,
    /// Its value breaks a rule.
    Invalid,
    /// It names something that is not there.
    NotFound,
    /// Its value is none of a fixed set.
    NotSupported,
    /// It must not be set here.
    Forbidden,
    /// It holds too many bytes.
    TooLong,
    /// It holds too many items.
    TooMany,
}

impl FieldErrorKind {
    fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid => "Invalid value",
            Self::NotFound => "Not found",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }
}

/// One thing that is wrong with an object. The person who wrote the object has to change it.
///
/// It prints as `<path>: <kind>[: <value>][: <detail>]`.
/// Source: Kubernetes 1.36, `apimachinery/pkg/util/validation/field`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FieldError {
    path: FieldPath,
    kind: FieldErrorKind,
    value: Option<String>,
    detail: Cow<'static, str>,
}

impl FieldError {
    /// Where it is wrong.
    #[must_use]
    pub fn path(&self) -> &FieldPath {
        &self.path
    }

    /// In which way it is wrong.
    #[must_use]
    pub fn kind(&self) -> FieldErrorKind {
        self.kind
    }

    /// The offending value as it is printed: text in quotes, numbers bare, anything else as JSON.
    ///
    /// `None` for the kinds that show no value: required, forbidden, too long.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// What the rule is; may be empty.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.kind.text())?;
        if let Some(value) = &self.value {
            write!(f, ": {value}")?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for FieldError {}

/// Everything that is wrong with an object, in the order it was found.
///
/// It prints in brackets with blanks between, repeats included, even if there is only one: `[<first> <second>]`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FieldErrors(Vec<FieldError>);

impl FieldErrors {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How much is wrong.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The errors in the order they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.0.iter()
    }

    /// `Ok` if nothing is wrong.
    ///
    /// # Errors
    /// All of `self`, if there is anything.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    pub(super) fn required(&mut self, path: FieldPath, detail: impl Into<Cow<'static, str>>) {
        self.add(path, FieldErrorKind::Required, None, detail);
    }

    pub(super) fn forbidden(&mut self, path: FieldPath, detail: impl Into<Cow<'static, str>>) {
        self.add(path, FieldErrorKind::Forbidden, None, detail);
    }

    pub(super) fn invalid(&mut self, path: FieldPath, value: impl FieldValue, detail: impl Into<Cow<'static, str>>) {
        self.add(path, FieldErrorKind::Invalid, Some(value.render()), detail);
    }

    /// One error for each detail, in their order.
    pub(super) fn invalid_each(&mut self, path: &FieldPath, value: &str, details: Vec<String>) {
        for detail in details {
            self.invalid(path.clone(), value, detail);
        }
    }

    pub(super) fn duplicate(&mut self, path: FieldPath, value: impl FieldValue) {
        self.add(path, FieldErrorKind::Duplicate, Some(value.render()), "");
    }

    pub(super) fn not_found(&mut self, path: FieldPath, value: impl FieldValue, detail: impl Into<Cow<'static, str>>) {
        self.add(path, FieldErrorKind::NotFound, Some(value.render()), detail);
    }

    /// The supported values are listed in the order given.
    pub(super) fn not_supported(&mut self, path: FieldPath, value: &str, supported: &[&str]) {
        let quoted: Vec<_> = supported.iter().map(FieldValue::render).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        let value = Json(&value).render();
        self.add(path, FieldErrorKind::NotSupported, Some(value), detail);
    }

    pub(super) fn too_long(&mut self, path: FieldPath, most: usize) {
        let detail = format!("may not be more than {most} bytes");
        self.add(path, FieldErrorKind::TooLong, None, detail);
    }

    pub(super) fn too_many(&mut self, path: FieldPath, count: usize, most: usize) {
        let detail = format!("must have at most {most} items");
        self.add(path, FieldErrorKind::TooMany, Some(count.to_string()), detail);
    }

    fn add(
        &mut self,
        path: FieldPath,
        kind: FieldErrorKind,
        value: Option<String>,
        detail: impl Into<Cow<'static, str>>,
    ) {
        self.0.push(FieldError {
            path,
            kind,
            value,
            detail: detail.into(),
        });
    }
}

impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('[')?;
        for (i, error) in self.0.iter().enumerate() {
            let blank = if i == 0 { "" } else { " " };
            write!(f, "{blank}{error}")?;
        }
        f.write_char(']')
    }
}

impl std::error::Error for FieldErrors {}

impl IntoIterator for FieldErrors {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a FieldErrors {
    type Item = &'a FieldError;
    type IntoIter = std::slice::Iter<'a, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::{FieldErrors, FieldPath, Json};

    #[test]
    fn errors_print_like_upstream() {
        let spec = FieldPath::new("spec");
        let port = spec.child("containers").index(0).child("ports").index(1);
        let mut errors = FieldErrors::default();
        errors.required(port.child("name"), "");
        errors.required(port.child("name"), "d");
        errors.invalid(port.child("hostPort"), 70_000, "d");
        errors.invalid(port.clone(), "a\"\\\n\x01é\u{85}", "d");
        errors.invalid(port.clone(), Json(&"<&>"), "d");
        errors.invalid(port.clone(), Json(&None::<i64>), "");
        errors.duplicate(port.clone(), "TCP//80");
        errors.not_found(spec.child("limits").key("a/b"), "v", "");
        errors.not_supported(spec.child("os"), "x", &["", "linux"]);
        errors.too_long(spec.clone(), 5);
        errors.too_many(spec, 7, 5);
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.containers[0].ports[1].name: Required value",
                "spec.containers[0].ports[1].name: Required value: d",
                "spec.containers[0].ports[1].hostPort: Invalid value: 70000: d",
                r#"spec.containers[0].ports[1]: Invalid value: "a\"\\\n\x01é\u0085": d"#,
                r#"spec.containers[0].ports[1]: Invalid value: "\u003c\u0026\u003e": d"#,
                "spec.containers[0].ports[1]: Invalid value: null",
                r#"spec.containers[0].ports[1]: Duplicate value: "TCP//80""#,
                r#"spec.limits[a/b]: Not found: "v""#,
                r#"spec.os: Unsupported value: "x": supported values: "", "linux""#,
                "spec: Too long: may not be more than 5 bytes",
                "spec: Too many: 7: must have at most 5 items",
            ]
        );
        let two: Vec<_> = texts[..2].to_vec();
        let errors = FieldErrors(errors.into_iter().take(2).collect());
        assert_eq!(errors.to_string(), format!("[{} {}]", two[0], two[1]));
    }
}
