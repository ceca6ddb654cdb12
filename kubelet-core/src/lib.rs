#![doc = include_str!("../README.md")]

mod defaults;
mod quantity;
mod resources;
mod validation;
mod volume_sources;

pub use defaults::apply_defaults;
pub use quantity::{ParseQuantityError, Quantity, QuantityFormat};
pub use resources::{
    ResourceList, aggregate_container_limits, aggregate_container_requests, is_sidecar, pod_limits,
    pod_requests,
};
pub use validation::{
    ApiReference, FieldError, FieldErrorKind, FieldErrors, FieldPath, FieldStep, NameKind,
    StaticReferenceError, refuse_api_references, validate_pod,
};
