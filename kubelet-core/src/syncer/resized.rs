//! What containers really have, beside what they are granted.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::ids::ContainerId;

/// The resources that a container was made with, or was given since.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ActualResources {
    /// Its name in the pod's spec.
    pub name: String,
    /// The container.
    pub container: ContainerId,
    /// What it has.
    pub resources: Option<ResourceRequirements>,
}

impl ActualResources {
    /// What a container has.
    pub fn new(name: impl Into<String>, container: ContainerId, resources: Option<ResourceRequirements>) -> Self {
        Self {
            name: name.into(),
            container,
            resources,
        }
    }
}

/// What became of changes of resources since that was last shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResizeNotes {
    /// What containers have.
    pub(crate) actual: Vec<ActualResources>,
    /// What the pod as a whole has.
    pub(crate) whole: Option<Box<ResourceRequirements>>,
    /// Why the last change failed.
    pub(crate) error: Option<String>,
    /// A change was begun, and was not brought to its end: what containers have may be either.
    pub(crate) is_unsettled: bool,
    /// Something of it is not shown yet.
    pub(crate) is_news: bool,
}

impl ResizeNotes {
    /// One of each name: a container that was never told of and has made way for another is of no interest any more.
    pub(crate) fn note(&mut self, name: &str, container: &ContainerId, resources: Option<&ResourceRequirements>) {
        self.actual.retain(|one| one.name != name);
        self.actual
            .push(ActualResources::new(name, container.clone(), resources.cloned()));
    }
}
