//! From a pod as its source has it to a record.

use std::fmt::Write;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::{ServesLocally, decorate};
use crate::clock::Clock;
use crate::defaults::apply_defaults;
use crate::ids::{PodKey, SourceName};
use crate::manifest::Locator;
use crate::runtime::annotation;
use crate::source::{RawPod, SourceKind};
use crate::validation::{refuse_api_references, validate_pod};

/// More than this is not said of one manifest.
const MAX_SAID: usize = 20;

/// What all pods of a node are checked against.
pub(super) struct Intake {
    node_name: Arc<str>,
    clock: Arc<dyn Clock>,
    local: ServesLocally,
}

impl Intake {
    pub(super) fn new(node_name: Arc<str>, clock: Arc<dyn Clock>, local: ServesLocally) -> Self {
        Self {
            node_name,
            clock,
            local,
        }
    }

    /// Defaults, decorates and checks a pod. The error is a sentence that names line, field and value.
    pub(super) fn check(&self, raw: &RawPod, kind: SourceKind) -> Result<Pod, String> {
        let mut pod = raw.pod.clone();
        if raw.checked {
            return Ok(pod);
        }
        apply_defaults(&mut pod);
        let locator = raw.locator.as_ref();
        // A generateName is of no use without a server that completes it.
        if pod.metadata.name.as_deref().unwrap_or_default().is_empty() {
            return Err(at(locator, "metadata.name", "invalid pod: name is needed for the pod"));
        }
        match kind {
            SourceKind::Static => decorate::decorate(&mut pod, &raw.pod, &self.node_name, raw.origin.as_ref()),
            SourceKind::Managed => decorate::place(&mut pod, &self.node_name),
        }
        let errors = validate_pod(&pod);
        if !errors.is_empty() {
            let mut text = "invalid pod: ".to_owned();
            for (index, error) in errors.iter().take(MAX_SAID).enumerate() {
                text.push_str(if index == 0 { "" } else { "; " });
                text.push_str(&at(locator, &error.path().to_string(), &error.to_string()));
            }
            if errors.len() > MAX_SAID {
                let _ = write!(text, "; and {} more", errors.len() - MAX_SAID);
            }
            return Err(text);
        }
        if kind == SourceKind::Static {
            refuse_api_references(&pod, &*self.local).map_err(|error| format!("invalid pod: {error}"))?;
        }
        Ok(pod)
    }

    /// The name that a pod of a manifest will have here.
    pub(super) fn key_here(&self, key: &PodKey, kind: SourceKind) -> PodKey {
        match kind {
            SourceKind::Static => {
                let name = format!("{}-{}", key.name, self.node_name.to_lowercase());
                PodKey::new(Arc::clone(&key.namespace), name)
            }
            SourceKind::Managed => key.clone(),
        }
    }

    /// Marks a pod that is new with its source and the time.
    pub(super) fn mark(&self, pod: &mut Pod, source: &SourceName) {
        // Nine digits always. Source: kubelet 1.36, `types/types.go`.
        let now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%S%.9fZ").to_string();
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::CONFIG_SOURCE.to_owned(), source.as_str().to_owned());
        annotations.insert(annotation::CONFIG_SEEN.to_owned(), now);
    }
}

/// The unknown fields of a pod as a sentence.
pub(super) fn unknown_fields(raw: &RawPod) -> Option<String> {
    let first = raw.unknown_fields.first()?;
    let mut text = String::new();
    if let Some(origin) = &raw.origin {
        let _ = write!(text, "{origin}: ");
    }
    for field in raw.unknown_fields.iter().take(MAX_SAID) {
        text.push_str(if std::ptr::eq(field, first) { "" } else { "; " });
        if let Some(line) = field.line {
            let _ = write!(text, "line {line}: ");
        }
        let _ = write!(text, "unknown field {}", field.path);
    }
    if raw.unknown_fields.len() > MAX_SAID {
        let _ = write!(text, "; and {} more", raw.unknown_fields.len() - MAX_SAID);
    }
    text.push_str(", ignored");
    Some(text)
}

fn at(locator: Option<&Locator>, path: &str, text: &str) -> String {
    match locator.and_then(|locator| locator.line_of(path)) {
        Some(line) => format!("line {line}: {text}"),
        None => text.to_owned(),
    }
}
