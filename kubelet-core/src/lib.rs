#![doc = include_str!("../README.md")]

mod actions;
mod admission;
mod allocator;
mod backoff;
mod builder;
mod cache;
mod cgroups;
mod clock;
mod config;
mod containers;
mod defaults;
pub mod dns;
mod engine;
pub mod env;
mod error;
mod event;
mod files;
mod fnv;
mod handle;
mod http;
mod ids;
mod image_gc;
mod images;
mod kubelet;
mod logs;
mod manifest;
mod metrics;
mod objects;
mod observation;
mod pleg;
mod pod;
mod probes;
mod provider;
mod quantity;
mod resources;
mod runnable;
mod runtime;
mod settings;
mod signals;
mod source;
mod state_dir;
mod stats;
mod status;
mod syncer;
mod tokens;
mod validation;
mod volume_sources;
mod volumes;
mod whole_pods;

pub use async_trait::async_trait;
pub use bytes;
pub use futures;
pub use k8s_openapi;
pub use k8s_openapi::jiff;
pub use tokio_util::sync::CancellationToken;

pub use actions::{
    ActionInputs, ContainerKillCause, KillAction, PodActions, ResetAction, SandboxAction, StartAction,
    compute_pod_actions,
};
pub use admission::{
    Abilities, AbsentParts, ActivePods, Admission, AdmitHandler, AdmitRequest, Ledger, MachineError, MachineInfo,
    NodeFit, NodeSettings, NodeView, Operation, Shortage, node_selector_matches,
};
pub use allocator::{ContainerResources, ResourceAllocator};
pub use backoff::{BackoffDecision, CrashBackoff, CrashBackoffSettings, CrashKey, KeyedBackoff, go_duration};
pub use builder::{Backend, BuildError, KubeletBuilder};
pub use cache::{
    CacheError, CacheWriter, PodStatusCache, RelistRequest, RelistRequester, RelistRequests, Seq, pod_status_cache,
    relist_requests,
};
pub use cgroups::{
    CgroupContext, CgroupError, CgroupLimits, ContainerCgroup, NodeLimits, PodCgroups, PodLimits, cpu_quota,
    cpu_shares, cpu_weight,
};
pub use clock::{Clock, RandomSource, SeededRandom, SystemClock, TokioClock, jittered};
pub use config::{ConfigChanges, PodChange, PodConfig, ServesLocally};
pub use containers::Containers;
pub use defaults::apply_defaults;
pub use engine::Stage;
pub use error::{BoxError, error_chain};
pub use event::{Event, EventSink, EventSubject, EventType, FanOutEvents, TracingEvents};
pub use handle::{ContainerTarget, HandleError, Health, KubeletHandle, PodSnapshot};
pub use http::{BoundedRequest, BoundedResponse, HttpClient, HttpError};
pub use ids::{ContainerId, ImageId, PodKey, PodUid, SandboxId, SourceName};
pub use image_gc::ImageGcPolicy;
pub use images::{
    CredentialConfigError, CredentialError, CredentialProvider, CredentialRequest, DockerConfigError,
    DockerConfigFiles, ExecCredentialProviders, ImageVerification, Keyring, ProvidedCredential, ServiceAccountKey,
};
pub use kubelet::{Kubelet, OnStop, RunError, StopReport};
pub use logs::{
    ContainerEnded, LogCompressor, LogError, LogFormat, LogLiveness, LogOptions, LogPaths, LogReader, LogRecord,
    LogRotation, LogStream, LogWriter, MAX_RECORD_CONTENT, RecordError, RotateError, Rotated, container_log_link,
    container_log_name, pod_uid_of_log_dir, remove_logs, restart_count_from_log_dir, tail_of_log,
};
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
    container_hash, made_volumes, qos_class, restart_all_requested, should_restart, should_restart_exited,
};
pub use probes::{
    ContainerProbes, GrpcProbe, HttpProbe, PodProbes, ProbeAction, ProbeKind, ProbeOutcome, ProbeTarget, Prober,
    TcpProbe,
};
pub use provider::{PodProvider, ProvidedPod, ProviderError, ProviderHint, ResolvedPod};
pub use quantity::{ParseQuantityError, Quantity, QuantityFormat};
pub use resources::{
    ResourceList, aggregate_container_limits, aggregate_container_requests, is_sidecar, pod_limits, pod_requests,
};
pub use runnable::{NodeContext, Runnable, RunnableError, StartPhase};
pub use runtime::{
    CgroupDriver, ContainerAnnotations, ContainerConfig, ContainerRecord, ContainerRuntime, ContainerState,
    ContainerStatus, CreateContainer, Device, ExecOutput, ExecRequest, IdMapping, IgnoreProgress, ImageFilesystems,
    ImageMount, ImageMounts, ImageRecord, ImageRef, ImageService, ImageSpace, LinuxResources, LinuxSecurity, Mount,
    MountError, MountPropagation, NETWORK_READY, NamespaceMode, Namespaces, PortMapping, PortProtocol, PullProgress,
    PullRequest, RUNTIME_READY, RegistryAuth, RuntimeCondition, RuntimeError, RuntimeHandler, RuntimeHint, RuntimeInfo,
    RuntimeParts, SandboxConfig, SandboxRecord, SandboxState, SandboxStatus, Scope, SecurityProfile, SelinuxOptions,
    Target, UserNamespace, annotation, label,
};
pub use settings::{ContainerGcPolicy, ResourceSettings, Settings, StartLimits, SwapBehavior, UserNamespaceSettings};
pub use signals::{PodSignalReceiver, PodSignals, Wake, Wakes, pod_signals};
pub use source::{
    ChannelError, ChannelHandle, ChannelSource, FileSource, HttpSource, InvalidManifest, Origin, PodSource, RawPod,
    Removed, SourceContext, SourceError, SourceItem, SourceKind,
};
pub use state_dir::{MemoryDisk, StateDir, StateError};
pub use stats::{
    ContainerUsage, CpuUsage, FilesystemUsage, InterfaceUsage, MemoryUsage, NetworkUsage, PodUsage, Pressure,
    PressureShare, PressureStalls, StatsError, StatsProvider, StatsScope, StatsSnapshot, SwapUsage,
};
pub use status::{
    JsonLinesSink, PodPhase, Published, SetOutcome, SetStatus, StartReason, StartReasons, StatusChange, StatusInput,
    StatusManager, StatusOverride, StatusReader, StatusSettings, StatusSink, StatusUpdate, WatchSink, active_deadline,
    equal_for_publishing, final_status, generate_pod_status, is_kubelet_condition, pod_is_terminal,
    read_termination_message, reason, rejected_status, waiting_status,
};
pub use syncer::{
    AcquireError, ActualResources, BackendStatus, Doomed, KillCause, ORPHAN_GRACE, PendingResize, PodSyncer, PodWish,
    PodWork, Remains, ResizeRefusal, Standing, StepContext, StepNotes, SyncError, Synced, Termination,
};
pub use tokens::{Token, TokenRequest, TokenSource};
pub use validation::{
    ApiReference, FieldError, FieldErrorKind, FieldErrors, FieldPath, FieldStep, NameKind, StaticReferenceError,
    refuse_api_references, validate_pod,
};
pub use volumes::{
    ContainerVolumes, NodeViews, PodVolumes, VolumeContext, VolumeError, VolumeManager, VolumePlace, VolumeUsage,
    volume_sub_path,
};
pub use whole_pods::WholePods;
