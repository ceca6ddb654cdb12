//! Events: what a person should be able to read about a pod or the node.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::ids::{PodKey, PodUid};

/// How serious an [`Event`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventType {
    /// Something expected happened.
    Normal,
    /// Something a person may want to act on.
    Warning,
}

impl EventType {
    /// The text of the API: `Normal` or `Warning`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What an [`Event`] is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventSubject {
    /// A pod, or one container of it.
    Pod {
        /// The pod's UID; for a static pod the static one.
        uid: PodUid,
        /// Namespace and name.
        key: PodKey,
        /// Such as `spec.containers{app}`.
        field_path: Option<String>,
    },
    /// A manifest that did not become a pod; the text names it (a path or a URL).
    Manifest(String),
    /// The node itself.
    Node,
}

/// One event, before a sink gives it a time, an aggregation and a home.
///
/// Source: kubelet 1.36; reasons and messages are those of the upstream kubelet where it has them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What it is about.
    pub subject: EventSubject,
    /// How serious it is.
    pub event_type: EventType,
    /// One CamelCase word for programs.
    pub reason: Cow<'static, str>,
    /// A sentence for people.
    pub message: String,
}

impl Event {
    /// An event about `subject`.
    pub fn new(
        subject: EventSubject,
        event_type: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            subject,
            event_type,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// Is told events. Aggregation, rate limits and delivery are the sink's.
///
/// # Contract
/// - `record` never blocks: what cannot be kept is dropped by the sink, which counts it.
/// - It may be called by any thread, by several at once, inside a tokio runtime and outside.
/// - It takes an event about anything, with any text.
/// - What is recorded while the sink keeps up is heard on the other side, in order.
pub trait EventSink: fmt::Debug + Send + Sync + 'static {
    /// Takes one event.
    fn record(&self, event: Event);
}

impl<T: EventSink + ?Sized> EventSink for Arc<T> {
    fn record(&self, event: Event) {
        (**self).record(event);
    }
}

/// Writes events to the process's tracing subscriber: warnings at `warn`, others at `info`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingEvents;

impl EventSink for TracingEvents {
    fn record(&self, event: Event) {
        let Event {
            subject,
            event_type,
            reason,
            message,
        } = event;
        let about = match &subject {
            EventSubject::Pod { key, .. } => key.to_string(),
            EventSubject::Manifest(origin) => origin.clone(),
            EventSubject::Node => "node".to_owned(),
        };
        let field = match &subject {
            EventSubject::Pod { field_path, .. } => field_path.as_deref(),
            EventSubject::Manifest(_) | EventSubject::Node => None,
        };
        match event_type {
            EventType::Normal => tracing::info!(about, field, %reason, message, "event"),
            EventType::Warning => tracing::warn!(about, field, %reason, message, "event"),
        }
    }
}

/// Hands each event to several sinks, in order.
#[derive(Clone, Debug, Default)]
pub struct FanOutEvents(Vec<Arc<dyn EventSink>>);

impl FanOutEvents {
    /// A sink that tells all of `sinks`.
    #[must_use]
    pub fn new(sinks: Vec<Arc<dyn EventSink>>) -> Self {
        Self(sinks)
    }
}

impl EventSink for FanOutEvents {
    fn record(&self, event: Event) {
        for sink in &self.0 {
            sink.record(event.clone());
        }
    }
}
