#![doc = include_str!("../README.md")]

mod admission;
mod cache;
mod clock;
mod config;
mod defaults;
mod error;
mod event;
mod fnv;
mod http;
mod ids;
mod manifest;
mod metrics;
mod objects;
mod observation;
mod pleg;
mod pod;
mod quantity;
mod resources;
mod runtime;
mod signals;
mod source;
mod state_dir;
mod status;
mod validation;
mod volume_sources;

pub use async_trait::async_trait;
pub use bytes;
pub use futures;
pub use k8s_openapi;
pub use k8s_openapi::jiff;
pub use tokio_util::sync::CancellationToken;

pub use admission::{ActivePods, Admission, AdmitHandler, AdmitRequest, NodeView, Operation};
pub use cache::{
    CacheError, CacheWriter, PodStatusCache, RelistRequest, RelistRequester, RelistRequests, Seq, pod_status_cache,
    relist_requests,
};
pub use clock::{Clock, RandomSource, SeededRandom, SystemClock, TokioClock, jittered};
pub use config::{ConfigChanges, PodChange, PodConfig, ServesLocally};
pub use defaults::apply_defaults;
pub use error::{BoxError, error_chain};
pub use event::{Event, EventSink, EventSubject, EventType, FanOutEvents, TracingEvents};
pub use http::{BoundedRequest, BoundedResponse, HttpClient, HttpError};
pub use ids::{ContainerId, ImageId, PodKey, PodUid, SandboxId, SourceName};
pub use manifest::{
    Decoded, Locator, MAX_MANIFEST_BYTES, ManifestError, ManifestKind, UnknownField, decode_pod, decode_pods,
    manifest_kind,
};
pub use metrics::{Counter, DEFAULT_BUCKETS, Gauge, Histogram, MetricSample, MetricSet, MetricSource, MetricValue};
pub use objects::{
    DirectoryObjects, Freshness, MapObjects, Object, ObjectError, ObjectFileFault, ObjectKey, ObjectKind, ObjectQuery,
    ObjectSource, ObjectWatch, Watched,
};
pub use observation::{ObservedContainer, ObservedSandbox, PodObservation};
pub use pleg::{PlegContext, PlegError, PlegHealth, PodLifecycleEventGenerator};
pub use pod::{
    ContainerFacts, ContainerKind, ContainerView, PodFacts, PodRecord, PodRecordError, QosClass, RestartPolicy,
    container_hash, qos_class, restart_all_requested, should_restart, should_restart_exited,
};
pub use quantity::{ParseQuantityError, Quantity, QuantityFormat};
pub use resources::{
    ResourceList, aggregate_container_limits, aggregate_container_requests, is_sidecar, pod_limits, pod_requests,
};
pub use runtime::{
    CgroupDriver, ContainerAnnotations, ContainerConfig, ContainerRecord, ContainerRuntime, ContainerState,
    ContainerStatus, CreateContainer, ExecOutput, ExecRequest, IgnoreProgress, ImageFilesystems, ImageRecord, ImageRef,
    ImageService, LinuxResources, LinuxSecurity, Mount, NETWORK_READY, NamespaceMode, Namespaces, PortMapping,
    PortProtocol, PullProgress, PullRequest, RUNTIME_READY, RuntimeCondition, RuntimeError, RuntimeHandler,
    RuntimeHint, RuntimeInfo, RuntimeParts, SandboxConfig, SandboxRecord, SandboxState, SandboxStatus, Scope, Target,
    annotation, label,
};
pub use signals::{PodSignalReceiver, PodSignals, Wake, Wakes, pod_signals};
pub use source::{
    ChannelError, ChannelHandle, ChannelSource, FileSource, HttpSource, InvalidManifest, Origin, PodSource, RawPod,
    Removed, SourceContext, SourceError, SourceItem, SourceKind,
};
pub use state_dir::{MemoryDisk, StateDir, StateError};
pub use status::{Published, StatusSink, StatusUpdate};
pub use validation::{
    ApiReference, FieldError, FieldErrorKind, FieldErrors, FieldPath, FieldStep, NameKind, StaticReferenceError,
    refuse_api_references, validate_pod,
};
