#![doc = include_str!("../README.md")]

mod clock;
mod error;
mod event;
mod ids;
mod runtime;

pub use async_trait::async_trait;
pub use bytes;
pub use futures;
pub use k8s_openapi;
pub use k8s_openapi::jiff;
pub use tokio_util::sync::CancellationToken;

pub use clock::{Clock, RandomSource, SeededRandom, SystemClock, TokioClock, jittered};
pub use error::{BoxError, error_chain};
pub use event::{Event, EventSink, EventSubject, EventType, FanOutEvents, TracingEvents};
pub use ids::{ContainerId, ImageId, PodKey, PodUid, SandboxId, SourceName};
pub use runtime::{
    CgroupDriver, ContainerAnnotations, ContainerConfig, ContainerRecord, ContainerRuntime, ContainerState,
    ContainerStatus, CreateContainer, ExecOutput, ExecRequest, IgnoreProgress, ImageFilesystems, ImageRecord, ImageRef,
    ImageService, LinuxResources, LinuxSecurity, Mount, NETWORK_READY, NamespaceMode, Namespaces, PortMapping,
    PortProtocol, PullProgress, PullRequest, RUNTIME_READY, RuntimeCondition, RuntimeError, RuntimeHandler,
    RuntimeHint, RuntimeInfo, RuntimeParts, SandboxConfig, SandboxRecord, SandboxState, SandboxStatus, Scope, Target,
    annotation, label,
};
mod quantity;

pub use quantity::{ParseQuantityError, Quantity, QuantityFormat};
mod manifest;

pub use manifest::{
    Decoded, Locator, MAX_MANIFEST_BYTES, ManifestError, ManifestKind, UnknownField, decode_pod,
    decode_pods, manifest_kind,
mod objects;

pub use objects::{
    DirectoryObjects, Freshness, MapObjects, Object, ObjectError, ObjectFileFault, ObjectKey,
    ObjectKind, ObjectQuery, ObjectSource, ObjectWatch, Watched,
};
