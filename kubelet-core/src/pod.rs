//! Pods as records: one exact-capacity copy of the pod, its status apart, and facts computed once.

mod containers;
mod facts;
mod hash;
mod qos;
mod resize;
mod restart;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::ids::{PodKey, PodUid, SourceName};
use crate::source::SourceKind;

pub use containers::{ContainerKind, ContainerView};
pub use facts::{ContainerFacts, PodFacts};
pub use hash::container_hash;
pub(crate) use hash::go_json;
pub use qos::{QosClass, qos_class};
pub(crate) use resize::{Difference, only_shrinks, resizable_containers, resize_summary};
pub(crate) use restart::asks_restart_all;
pub use restart::{RestartPolicy, restart_all_requested, should_restart, should_restart_exited};
pub use volumes::made_volumes;
pub(crate) use volumes::{has_made_volumes, image_volumes};

/// Why a pod cannot become a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PodRecordError {
    /// The pod lacks a field without which it cannot be told from others.
    #[error("pod has no {field}")]
    Missing {
        /// The field's path.
        field: &'static str,
    },
    /// The UID would not be one safe element of a path.
    #[error("metadata.uid: invalid value: {uid:?}: must be a single path element")]
    UnsafeUid {
        /// The UID.
        uid: String,
    },
}

/// A pod that a source wishes for, behind accessors. Cheap to share: `Arc<PodRecord>`.
#[derive(Debug)]
pub struct PodRecord {
    pod: Pod,
    facts: Arc<PodFacts>,
    api_status: Option<Arc<PodStatus>>,
    source: SourceName,
    source_kind: SourceKind,
}

impl PodRecord {
    /// Makes a record of a pod from a source.
    ///
    /// # Errors
    /// [`PodRecordError`] if the pod has no UID, name, namespace or spec, or a UID that is not safe as a path element.
    pub fn new(pod: &Pod, source: SourceName, source_kind: SourceKind) -> Result<Self, PodRecordError> {
        // Cloning field by field gives exact capacities, which parsed pods do not have.
        let copy = Pod {
            metadata: ObjectMeta {
                // Bookkeeping of the API server; nothing here reads it, and it is often half of a pod's size.
                managed_fields: None,
                ..pod.metadata.clone()
            },
            spec: pod.spec.clone(),
            status: None,
        };
        let facts = Arc::new(PodFacts::compute(&copy, source_kind)?);
        Ok(Self {
            pod: copy,
            facts,
            // An empty one says nothing, and most pods come with one.
            api_status: pod
                .status
                .as_ref()
                .filter(|status| **status != PodStatus::default())
                .map(|status| Arc::new(status.clone())),
            source,
            source_kind,
        })
    }

    /// The pod, without its status.
    #[must_use]
    pub fn pod(&self) -> &Pod {
        &self.pod
    }

    /// The pod with a status put in: a full copy.
    #[must_use]
    pub fn pod_with_status(&self, status: PodStatus) -> Pod {
        Pod {
            status: Some(status),
            ..self.pod.clone()
        }
    }

    /// The pod's metadata.
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        &self.pod.metadata
    }

    /// The pod's spec.
    #[must_use]
    pub fn spec(&self) -> &PodSpec {
        // `PodFacts::compute` refuses a pod without a spec.
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&EMPTY)
    }

    /// What was computed once.
    #[must_use]
    pub fn facts(&self) -> &PodFacts {
        &self.facts
    }

    /// The status that its source brought along: for a pod of an API server what the cluster knows.
    #[must_use]
    pub fn api_status(&self) -> Option<&Arc<PodStatus>> {
        self.api_status.as_ref()
    }

    /// The pod's identity.
    #[must_use]
    pub fn uid(&self) -> &PodUid {
        &self.facts.uid
    }

    /// Its namespace and name.
    #[must_use]
    pub fn key(&self) -> &PodKey {
        &self.facts.key
    }

    /// How messages name it: `<name>_<namespace>(<uid>)`.
    #[must_use]
    pub fn describe(&self) -> String {
        self.key().describe(self.uid())
    }

    /// The source that it came from.
    #[must_use]
    pub fn source(&self) -> &SourceName {
        &self.source
    }

    /// The kind of that source.
    #[must_use]
    pub fn source_kind(&self) -> SourceKind {
        self.source_kind
    }

    /// Whether it is a static pod: its source is the only place that knows it.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.source_kind == SourceKind::Static
    }

    /// Whether its source asked for its end.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// The grace that its deletion gives it, where it is being deleted.
    #[must_use]
    pub fn deletion_grace(&self) -> Option<Duration> {
        self.is_deleted().then(|| {
            self.pod
                .metadata
                .deletion_grace_period_seconds
                .map_or(self.facts.termination_grace, facts::duration_of_seconds)
        })
    }

    /// When it was made, as far as its source knows.
    #[must_use]
    pub fn created_at(&self) -> Option<Timestamp> {
        self.pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
    }

    /// Its generation, which statuses repeat as `observedGeneration`.
    #[must_use]
    pub fn generation(&self) -> Option<i64> {
        self.pod.metadata.generation
    }

    /// The phase that its source reported, if any.
    #[must_use]
    pub fn api_phase(&self) -> Option<&str> {
        self.api_status.as_ref().and_then(|status| status.phase.as_deref())
    }

    /// Whether its source reported a final phase: it will never run again.
    #[must_use]
    pub fn is_finished_in_api(&self) -> bool {
        matches!(self.api_phase(), Some("Succeeded" | "Failed"))
    }

    /// All its containers: init (sidecars among them), regular, ephemeral, each in the order of the spec.
    pub fn containers(&self) -> impl Iterator<Item = ContainerView<'_>> {
        ContainerView::all(self.spec())
    }

    /// One of its containers by name.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<ContainerView<'_>> {
        self.containers().find(|container| container.name() == name)
    }

    /// The same pod with another status from its source.
    #[must_use]
    pub fn with_api_status(&self, status: Option<PodStatus>) -> Self {
        Self {
            pod: self.pod.clone(),
            facts: self.facts.clone(),
            api_status: status.map(Arc::new),
            source: self.source.clone(),
            source_kind: self.source_kind,
        }
    }
}

impl crate::event::EventSubject {
    /// A pod as the subject of an event.
    #[must_use]
    pub fn pod(record: &PodRecord) -> Self {
        Self::Pod {
            uid: record.uid().clone(),
            key: record.key().clone(),
            field_path: None,
        }
    }

    /// One container of a pod as the subject of an event.
    #[must_use]
    pub fn container(record: &PodRecord, container: &ContainerView<'_>) -> Self {
        Self::Pod {
            uid: record.uid().clone(),
            key: record.key().clone(),
            field_path: Some(container.field_path()),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use k8s_openapi::api::core::v1::Pod;

    use super::PodRecord;
    use crate::ids::SourceName;
    use crate::source::SourceKind;

    /// A record of a pod given as JSON; UID, namespace and name are filled in where they lack.
    pub(crate) fn record(mut value: serde_json::Value) -> PodRecord {
        let metadata = value
            .as_object_mut()
            .unwrap()
            .entry("metadata")
            .or_insert_with(|| serde_json::json!({}));
        for (key, default) in [("name", "pod"), ("namespace", "default"), ("uid", "uid-1")] {
            metadata
                .as_object_mut()
                .unwrap()
                .entry(key)
                .or_insert_with(|| default.into());
        }
        let pod: Pod = serde_json::from_value(value).unwrap();
        PodRecord::new(&pod, SourceName::from("test"), SourceKind::Managed).unwrap()
    }
}
