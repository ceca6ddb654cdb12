//! Whether a pod that no API server has checked may run.

mod field;
mod names;
#[cfg(test)]
pub(crate) mod sample;

pub use field::{FieldError, FieldErrorKind, FieldErrors, FieldPath, FieldStep};
pub use names::NameKind;
