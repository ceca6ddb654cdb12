//! Facts of a pod, computed once.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::{ContainerKind, ContainerView, PodRecordError, QosClass, RestartPolicy, container_hash, qos_class};
use crate::ids::{PodKey, PodUid};
use crate::runtime::annotation;
use crate::source::SourceKind;

/// The priority from which a pod counts as critical. Source: kubelet 1.36, `types/pod_update.go`.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// A time from the API: never negative, and at most ten years, so that it can be added to any instant.
pub(super) fn duration_of_seconds(seconds: i64) -> Duration {
    const MOST: u64 = 10 * 365 * 86_400;
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(MOST))
}

/// What was computed of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerFacts {
    /// Its name.
    pub name: Box<str>,
    /// Its part in the pod.
    pub kind: ContainerKind,
    /// Hash of its image and name: another one means that it is started anew.
    pub hash: u32,
}

/// What was computed of a pod.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PodFacts {
    /// Identity.
    pub uid: PodUid,
    /// Namespace and name.
    pub key: PodKey,
    /// Quality of service.
    pub qos: QosClass,
    /// Whether it is a mirror pod: the API server's picture of a static one.
    pub is_mirror: bool,
    /// Whether it may push others out and is never evicted: static, mirror, or of system priority.
    pub is_critical: bool,
    /// Whether it shares the host's network.
    pub host_network: bool,
    /// The pod's restart policy.
    pub restart_policy: RestartPolicy,
    /// The time that its containers get to end.
    pub termination_grace: Duration,
    /// The longest time that it may be active, if limited.
    pub active_deadline: Option<Duration>,
    /// Whether it has init containers of any kind.
    pub has_init: bool,
    /// Whether it has sidecars.
    pub has_sidecars: bool,
    /// Whether any container that may be restarted has probes.
    pub has_probes: bool,
    /// Whether a restart rule of it can restart all containers.
    pub can_restart_all: bool,
    /// Its containers, in the order of [`ContainerView::all`].
    pub containers: Box<[ContainerFacts]>,
}

impl PodFacts {
    pub(super) fn compute(pod: &Pod, kind: SourceKind) -> Result<Self, PodRecordError> {
        let text = |field: &Option<String>, name| {
            field
                .as_deref()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
                .ok_or(PodRecordError::Missing { field: name })
        };
        let uid = text(&pod.metadata.uid, "metadata.uid")?;
        if uid == "." || uid == ".." || uid.contains(['/', '\0']) {
            return Err(PodRecordError::UnsafeUid { uid });
        }
        let name = text(&pod.metadata.name, "metadata.name")?;
        let namespace = text(&pod.metadata.namespace, "metadata.namespace")?;
        let spec = pod.spec.as_ref().ok_or(PodRecordError::Missing { field: "spec" })?;
        let is_mirror = pod
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|a| a.contains_key(annotation::CONFIG_MIRROR));
        let seconds = |value: Option<i64>| value.map(duration_of_seconds);
        Ok(Self {
            uid: PodUid::from(uid),
            key: PodKey::new(namespace, name),
            qos: qos_class(pod),
            is_mirror,
            is_critical: kind == SourceKind::Static
                || is_mirror
                || spec.priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY),
            host_network: spec.host_network.unwrap_or(false),
            restart_policy: RestartPolicy::of_pod(spec),
            termination_grace: seconds(spec.termination_grace_period_seconds).unwrap_or(Duration::from_secs(30)),
            active_deadline: seconds(spec.active_deadline_seconds),
            has_init: spec.init_containers.as_ref().is_some_and(|list| !list.is_empty()),
            has_sidecars: ContainerView::init(spec).any(|c| c.kind() == ContainerKind::Sidecar),
            has_probes: ContainerView::all(spec)
                .filter(|c| matches!(c.kind(), ContainerKind::Regular | ContainerKind::Sidecar))
                .any(|c| c.probes().into_iter().any(|probe| probe.is_some())),
            can_restart_all: ContainerView::all(spec).any(|c| {
                c.restart_rules()
                    .iter()
                    .any(|rule| rule.action == "RestartAllContainers")
            }),
            containers: ContainerView::all(spec)
                .map(|c| ContainerFacts {
                    name: c.name().into(),
                    kind: c.kind(),
                    hash: container_hash(c.name(), c.image()),
                })
                .collect(),
        })
    }

    /// The facts of a container by name.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&ContainerFacts> {
        self.containers.iter().find(|c| *c.name == *name)
    }
}
