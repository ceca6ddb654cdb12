//! The seam of whole-pod backends: virtual-kubelet style providers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::error::BoxError;
use crate::ids::{PodUid, SourceName};
use crate::objects::ObjectSource;
use crate::observation::PodObservation;
use crate::pod::PodRecord;

/// Why a provider call failed, sorted by what the engine does next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// No answer. Tried again with back-off.
    #[error("provider unavailable during {op}")]
    Unavailable {
        /// The call.
        op: &'static str,
        /// The cause.
        source: BoxError,
    },
    /// Understood and refused. Shown on the pod, and tried again with back-off.
    #[error("{message}")]
    Refused {
        /// What the provider says.
        message: String,
    },
    /// The provider can never run this pod: its phase becomes `Failed`.
    #[error("{reason}: {message}")]
    Rejected {
        /// One CamelCase word.
        reason: String,
        /// A sentence.
        message: String,
    },
}

/// A pod with all that its provider needs resolved.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResolvedPod {
    /// The pod.
    pub pod: Arc<PodRecord>,
    /// The environment of each container, in order, each name once.
    pub env: BTreeMap<String, Vec<(String, String)>>,
    /// Where secrets, config maps and the like can be read and watched, if anywhere.
    pub objects: Option<Arc<dyn ObjectSource>>,
}

impl ResolvedPod {
    /// A pod without any environment.
    #[must_use]
    pub fn new(pod: Arc<PodRecord>) -> Self {
        Self {
            pod,
            env: BTreeMap::new(),
            objects: None,
        }
    }
}

/// A pod that a provider has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProvidedPod {
    /// Its identity.
    pub uid: PodUid,
    /// The source that it came from, as it was created with.
    pub source: Option<SourceName>,
    /// How it is.
    pub observed: PodObservation,
}

impl ProvidedPod {
    /// A pod, and how it is.
    #[must_use]
    pub fn new(observed: PodObservation) -> Self {
        Self {
            uid: observed.uid.clone(),
            source: observed.source.as_deref().map(SourceName::from),
            observed,
        }
    }
}

/// Says that something happened to a pod, so that it is looked at. Carries no truth.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProviderHint {
    /// Look at this pod.
    Pod(PodUid),
    /// Hints were lost: look at everything.
    Lost,
}

/// A whole-pod backend.
///
/// # Contract
/// - `name` is one word that can be part of container ids, and never changes.
/// - Steps of one pod never overlap; steps of different pods do.
/// - What was created shows in every `list` and `status` begun later, until it was deleted and has ended.
/// - `list` says of a pod what `status` says.
/// - `create` is idempotent per UID: repeating it for a pod that exists changes nothing.
/// - `update` with what the pod is already changes nothing.
/// - `delete` returns when the end is asked for; the end itself shows in `list` and `status`.
/// - Deleting a pod that is gone is no error.
/// - Deleting again with less grace takes effect.
/// - `list` and `status` tell only of pods that carry our mark: what others made is never listed, and so never ended.
/// - An error of `list` or `status` is no truth about pods: without an answer it is `Unavailable`, never nothing.
/// - An ended pod is listed, with its containers exited, until it is deleted.
/// - `changes` may be opened again and again. A hint tells that a pod is to be looked at, once the change shows.
#[async_trait]
pub trait PodProvider: fmt::Debug + Send + Sync + 'static {
    /// What container ids are prefixed with in statuses: `<name>://<id>`.
    fn name(&self) -> &str;

    /// All pods that carry our mark.
    ///
    /// # Errors
    /// [`ProviderError::Unavailable`] if there was no answer: never an empty list instead.
    async fn list(&self) -> Result<Vec<ProvidedPod>, ProviderError>;

    /// Starts a pod.
    ///
    /// # Errors
    /// [`ProviderError`].
    async fn create(&self, pod: &ResolvedPod) -> Result<(), ProviderError>;

    /// Changes a pod that was created before. Called when its spec or metadata changed, and once for each pod that was
    /// there when the agent started, since it may have changed meanwhile.
    ///
    /// # Errors
    /// [`ProviderError`].
    async fn update(&self, pod: &ResolvedPod) -> Result<(), ProviderError>;

    /// Asks that a pod end within `grace`.
    ///
    /// # Errors
    /// [`ProviderError::Unavailable`].
    async fn delete(&self, uid: &PodUid, grace: Duration) -> Result<(), ProviderError>;

    /// How a pod is; nothing if there is none.
    ///
    /// # Errors
    /// [`ProviderError::Unavailable`] if there was no answer.
    async fn status(&self, uid: &PodUid) -> Result<Option<PodObservation>, ProviderError>;

    /// Hints that something happened. A stream that ends is opened again with back-off; one that gives nothing is made
    /// up for by polling, which goes on in any case.
    fn changes(&self) -> BoxStream<'static, ProviderHint>;
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: PodProvider + ?Sized> PodProvider for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }
    async fn list(&self) -> Result<Vec<ProvidedPod>, ProviderError> {
        (**self).list().await
    }
    async fn create(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        (**self).create(pod).await
    }
    async fn update(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        (**self).update(pod).await
    }
    async fn delete(&self, uid: &PodUid, grace: Duration) -> Result<(), ProviderError> {
        (**self).delete(uid, grace).await
    }
    async fn status(&self, uid: &PodUid) -> Result<Option<PodObservation>, ProviderError> {
        (**self).status(uid).await
    }
    fn changes(&self) -> BoxStream<'static, ProviderHint> {
        (**self).changes()
    }
}

/// Keeps the trait usable as a trait object.
const _: fn(&dyn PodProvider) = |_| {};
