//! What containers really have, beside what they are granted.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::ids::ContainerId;

/// The resources that a container was made with, or was given since.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ActualResources {
    /// The container.
    pub container: ContainerId,
    /// What it has.
    pub resources: Option<ResourceRequirements>,
}

impl ActualResources {
    /// What a container has.
    pub fn new(container: ContainerId, resources: Option<ResourceRequirements>) -> Self {
        Self { container, resources }
    }
}

/// What became of changes of resources since that was last shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResizeNotes {
    /// What containers have.
    pub(crate) actual: Vec<ActualResources>,
    /// Why the last change failed.
    pub(crate) error: Option<String>,
    /// Something of it is not shown yet.
    pub(crate) is_news: bool,
}
