//! Where in an object a field is.

use std::borrow::Cow;
use std::fmt;

/// One step of a [`FieldPath`].
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum FieldStep {
    /// A field, by its JSON name.
    Field(Cow<'static, str>),
    /// An element of a list, from zero.
    Index(usize),
    /// An entry of a map.
    Key(String),
}

/// The way from an object's root to one of its fields, as `spec.containers[0].resources.limits[cpu]`.
///
/// A few paths name no field that exists, because upstream prints them so (`spec.containers[0].volumeMounts.subPath`
/// leaves the index out); the longest beginning that exists is then the place to point at.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct FieldPath(Vec<FieldStep>);

impl FieldPath {
    /// A path of one field.
    #[must_use]
    pub fn new(root: impl Into<Cow<'static, str>>) -> Self {
        Self(vec![FieldStep::Field(root.into())])
    }

    /// The field `name` below this one.
    #[must_use]
    pub fn child(&self, name: impl Into<Cow<'static, str>>) -> Self {
        self.with(FieldStep::Field(name.into()))
    }

    /// The element at `index`, from zero, of the list here.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(FieldStep::Index(index))
    }

    /// The entry `key` of the map here.
    #[must_use]
    pub fn key(&self, key: impl Into<String>) -> Self {
        self.with(FieldStep::Key(key.into()))
    }

    /// The steps from the root on.
    #[must_use]
    pub fn steps(&self) -> &[FieldStep] {
        &self.0
    }

    fn with(&self, step: FieldStep) -> Self {
        let mut steps = Vec::with_capacity(self.0.len() + 1);
        steps.extend_from_slice(&self.0);
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                FieldStep::Field(name) if i == 0 => f.write_str(name)?,
                FieldStep::Field(name) => write!(f, ".{name}")?,
                FieldStep::Index(index) => write!(f, "[{index}]")?,
                FieldStep::Key(key) => write!(f, "[{key}]")?,
            }
        }
        Ok(())
    }
}
