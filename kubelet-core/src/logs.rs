//! Container logs on disk: where they lie, their format, writing, reading, following and rotation.
//!
//! Source: kubelet 1.36, `cri-client/pkg/logs/logs.go`, `logs/container_log_manager.go`,
//! `kuberuntime_logs.go`.

mod assemble;
mod error;
mod file;
mod link;
mod path;
mod reader;
mod record;
mod rotate;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

pub use self::error::LogError;
pub(crate) use self::link::{default_links_dir, link_log, remove_dangling_links, unlink_log};
pub(crate) use self::path::{LogLink, remove_logs_before};
pub use self::path::{
    LogPaths, container_log_link, container_log_name, pod_uid_of_log_dir, restart_count_from_log_dir,
};
pub use self::reader::{ContainerEnded, LogLiveness, LogOptions, LogReader, tail_of_log};
pub use self::record::{LogFormat, LogRecord, LogStream, RecordError};
pub use self::rotate::{LogCompressor, LogRotation, RotateError, Rotated, remove_logs};
pub use self::writer::{LogWriter, MAX_RECORD_CONTENT};
