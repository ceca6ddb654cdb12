#![doc = include_str!("../README.md")]

mod logs;
mod manifest;

pub use logs::{
    ContainerEnded, LogCompressor, LogError, LogFormat, LogLiveness, LogOptions, LogPaths,
    LogReader, LogRecord, LogRotation, LogStream, LogWriter, MAX_RECORD_CONTENT, RecordError,
    RotateError, Rotated, container_log_link, container_log_name, pod_uid_of_log_dir, remove_logs,
    restart_count_from_log_dir, tail_of_log,
};
pub use manifest::{
    Decoded, Locator, MAX_MANIFEST_BYTES, ManifestError, ManifestKind, UnknownField, decode_pod,
    decode_pods, manifest_kind,
};
