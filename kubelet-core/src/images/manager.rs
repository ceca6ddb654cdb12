//! Pulls with the credentials of the pod and the node.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::provider::{CredentialProvider, CredentialRequest};
use super::pull_secrets::{CredentialOrigin, PullCredential, PullSecrets};
use super::records::PullRecords;
use super::turns::PullTurns;
use super::verification::{ImageVerification, Verdict, covering, verdict};
use crate::error::{BoxError, error_chain};
use crate::ids::ImageId;
use crate::objects::ObjectSource;
use crate::pod::PodRecord;
use crate::runtime::{ImageRecord, ImageRef, ImageService, PullProgress, PullRequest, RuntimeError, SandboxConfig};
use crate::settings::Settings;
use crate::tokens::TokenSource;

/// How often the progress of a pull is logged.
const PROGRESS_PERIOD: Duration = Duration::from_secs(10);

/// What a node has for images, beside the service.
#[derive(Debug)]
pub(crate) struct ImageParts {
    pub(crate) credentials: Vec<Arc<dyn CredentialProvider>>,
    pub(crate) tokens: Option<Arc<dyn TokenSource>>,
    pub(crate) verification: ImageVerification,
    pub(crate) records: Arc<PullRecords>,
}

/// What pulls images.
#[derive(Debug)]
pub(crate) struct ImageManager {
    pub(crate) service: Arc<dyn ImageService>,
    pub(crate) turns: PullTurns,
    pub(crate) records: Arc<PullRecords>,
    pub(crate) verification: ImageVerification,
    objects: Option<Arc<dyn ObjectSource>>,
    tokens: Option<Arc<dyn TokenSource>>,
    providers: Vec<Arc<dyn CredentialProvider>>,
    limit: Duration,
}

/// The credentials that may be tried for an image, in order.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    pub(crate) found: Vec<PullCredential>,
    /// The pull secrets that give nothing, and why.
    pub(crate) bad_secrets: Vec<(String, String)>,
    /// The providers that did not answer, and why.
    pub(crate) silent_providers: Vec<(String, String)>,
}

/// Why an image could not be pulled.
#[derive(Debug)]
pub(crate) struct PullFailure {
    pub(crate) reason: Cow<'static, str>,
    pub(crate) text: String,
    /// Whether nothing can have come of it.
    pub(crate) is_certain: bool,
}

/// A pulled image.
#[derive(Debug)]
pub(crate) struct Pulled {
    pub(crate) id: ImageId,
    /// With what it was pulled; nothing: without credentials.
    pub(crate) with: Option<PullCredential>,
}

impl ImageManager {
    pub(crate) fn new(
        service: Arc<dyn ImageService>,
        objects: Option<Arc<dyn ObjectSource>>,
        images: ImageParts,
        settings: &Settings,
    ) -> Self {
        Self {
            service,
            turns: PullTurns::new(settings),
            records: images.records,
            verification: images.verification,
            objects,
            tokens: images.tokens,
            providers: images.credentials,
            limit: settings.runtime_request_timeout,
        }
    }

    /// The credentials that a pod's own secrets have for a repository.
    pub(crate) async fn of_secrets(&self, pod: &PodRecord, repository: &str) -> Candidates {
        let secrets = PullSecrets::read(self.objects.as_deref(), pod, self.limit).await;
        let mut candidates = Candidates::default();
        candidates.add(secrets.lookup(repository));
        candidates.bad_secrets = secrets.faults;
        candidates
    }

    /// The credentials for a repository: of the pod first, then of the node.
    pub(crate) async fn candidates(&self, pod: &PodRecord, repository: &str) -> Candidates {
        let mut candidates = self.of_secrets(pod, repository).await;
        self.ask_providers(pod, repository, &mut candidates).await;
        candidates
    }

    /// Adds what the providers have.
    async fn ask_providers(&self, pod: &PodRecord, repository: &str, candidates: &mut Candidates) {
        let mut request = CredentialRequest::new(repository, pod);
        (request.tokens, request.objects) = (self.tokens.as_deref(), self.objects.as_deref());
        let ask = |provider: &Arc<dyn CredentialProvider>| {
            let provider = Arc::clone(provider);
            async move {
                match tokio::time::timeout(self.limit, provider.credentials(&request)).await {
                    Ok(Ok(found)) => Ok(found),
                    Ok(Err(error)) => Err(error_chain(&error).to_string()),
                    Err(_) => Err(format!("no answer within {:?}", self.limit)),
                }
            }
        };
        let asked = join_all(self.providers.iter().map(ask)).await;
        for (provider, answer) in self.providers.iter().zip(asked) {
            match answer {
                Ok(found) => candidates.add(found.into_iter().map(|found| PullCredential {
                    auth: found.auth,
                    origin: match found.service_account {
                        None => CredentialOrigin::Node,
                        Some(account) => CredentialOrigin::ServiceAccount(account),
                    },
                })),
                Err(why) => candidates.silent_providers.push((provider.name().to_owned(), why)),
            }
        }
    }

    /// Whether a pod may use an image that is present. The error says why that cannot be told now.
    ///
    /// Source: kubelet 1.36, `image_pull_manager.go` (`MustAttemptImagePull`).
    pub(crate) async fn may_use(
        &self,
        pod: &PodRecord,
        image: &ImageRef,
        repository: &str,
        record: &ImageRecord,
    ) -> Result<bool, BoxError> {
        if self.verification == ImageVerification::NeverVerify {
            return Ok(true);
        }
        self.open_records().await?;
        let known = self.records.known(image, record).await;
        match verdict(&self.verification, &image.name, repository, &known) {
            Verdict::Use => Ok(true),
            Verdict::Pull => Ok(false),
            Verdict::AskCredentials(access) => {
                let mut of_pod = self.of_secrets(pod, repository).await;
                let is_for_accounts = !access.kubernetes_service_accounts.is_empty();
                if is_for_accounts && covering(&access, &of_pod.found).is_none() {
                    // Only who is given credentials for its account may use what they have brought.
                    self.ask_providers(pod, repository, &mut of_pod).await;
                }
                let Some(with) = covering(&access, &of_pod.found) else {
                    // In no event: whoever may not use an image is not told that it is there.
                    of_pod.log_missing(pod);
                    return Ok(false);
                };
                // The next pod with this secret then needs neither the old content nor the old object.
                if let Err(error) = self.records.grant(image, &record.id, with).await {
                    tracing::warn!(image = %image, error = %error_chain(&*error), "who may use an image cannot be noted");
                }
                Ok(true)
            }
        }
    }

    /// Makes the records ready to be asked.
    ///
    /// # Cancellation
    /// A dropped call is begun anew by the next.
    pub(crate) async fn open_records(&self) -> Result<(), BoxError> {
        tokio::time::timeout(self.limit, self.records.open(&*self.service))
            .await
            .map_err(|_| format!("the images are not listed within {:?}", self.limit))?
    }

    /// Notes that a pull begins. Where present images are verified nothing is pulled that could not be noted.
    pub(crate) async fn begin(&self, image: &ImageRef) -> Result<(), PullFailure> {
        self.unless_never_asked_for(image, self.records.begin(image).await)
    }

    /// Makes of a failure to note a pull one of the pull, unless nobody asks for the records.
    pub(crate) fn unless_never_asked_for(
        &self,
        image: &ImageRef,
        noted: Result<(), BoxError>,
    ) -> Result<(), PullFailure> {
        match noted {
            Err(error) if self.verification != ImageVerification::NeverVerify => {
                let why = error_chain(&*error);
                Err(PullFailure::new(format!(
                    "cannot note that image {image} is pulled: {why}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Notes how a pull ended; `id` is that of the image as the service shows it.
    pub(crate) async fn ended(
        &self,
        image: &ImageRef,
        outcome: Result<(&ImageId, Option<&PullCredential>), &PullFailure>,
    ) {
        let noted = match outcome {
            Ok((id, with)) => self.records.succeeded(image, id, with).await,
            Err(failure) if failure.is_certain => self.records.failed(image).await,
            Err(_) => {
                self.records.cut_off(image);
                Ok(())
            }
        };
        if let Err(error) = noted {
            tracing::warn!(image = %image, error = %error_chain(&*error), "the end of a pull cannot be noted");
        }
    }

    /// Tries one after the other; without credentials only where there are none.
    ///
    /// # Cancellation
    /// Dropping the call ends the pull that runs.
    pub(crate) async fn pull(
        &self,
        image: &ImageRef,
        sandbox: &SandboxConfig,
        candidates: &Candidates,
        progress: &dyn PullProgress,
    ) -> Result<Pulled, PullFailure> {
        let mut errors: Vec<RuntimeError> = Vec::new();
        let anonymous = candidates.found.is_empty().then_some(None);
        for with in candidates.to_try().into_iter().map(Some).chain(anonymous) {
            let mut request = PullRequest::new(image).with_sandbox(sandbox);
            request.auth = with.map(|credential| &credential.auth);
            match self.service.pull(request, progress).await {
                Ok(id) => {
                    return Ok(Pulled {
                        id,
                        with: with.cloned(),
                    });
                }
                Err(error) => {
                    let is_refused = matches!(error, RuntimeError::Refused { .. });
                    errors.push(error);
                    if !is_refused {
                        // It is not for the credentials that it failed.
                        break;
                    }
                }
            }
        }
        Err(PullFailure::of(&errors, candidates))
    }
}

impl Candidates {
    /// The same credentials may be there twice, of a secret and of an account: each shows something of the pod.
    fn add(&mut self, more: impl IntoIterator<Item = PullCredential>) {
        for candidate in more {
            if !self.found.contains(&candidate) {
                self.found.push(candidate);
            }
        }
    }

    /// A second try with the same credentials would fail in the same way.
    fn to_try(&self) -> Vec<&PullCredential> {
        let mut tried: Vec<&PullCredential> = Vec::new();
        for candidate in &self.found {
            if tried.iter().all(|other| other.auth != candidate.auth) {
                tried.push(candidate);
            }
        }
        tried
    }

    /// Logs what gives no credentials.
    pub(crate) fn log_missing(&self, pod: &PodRecord) {
        for (provider, why) in &self.silent_providers {
            tracing::warn!(pod = %pod.key(), provider, %why, "no credentials for an image");
        }
        for (name, why) in &self.bad_secrets {
            tracing::warn!(pod = %pod.key(), secret = %name, %why, "image pull secret is of no use");
        }
    }
}

impl PullFailure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            reason: Cow::Borrowed("ErrImagePull"),
            text: text.into(),
            is_certain: true,
        }
    }

    fn of(errors: &[RuntimeError], candidates: &Candidates) -> Self {
        let reason_of = |error: &RuntimeError| match error {
            RuntimeError::Refused { reason, .. } => reason.unwrap_or("ErrImagePull"),
            _ => "ErrImagePull",
        };
        let reason = errors.first().map_or("ErrImagePull", reason_of);
        let is_common = errors.iter().all(|error| reason_of(error) == reason);
        let mut texts: Vec<String> = errors.iter().map(|error| error_chain(error).to_string()).collect();
        texts.dedup();
        let mut text = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        for (name, why) in &candidates.bad_secrets {
            text.push_str(&format!("; pull secret {name:?} is of no use: {why}"));
        }
        for (name, why) in &candidates.silent_providers {
            text.push_str(&format!("; no credentials from {name}: {why}"));
        }
        Self {
            reason: Cow::Borrowed(if is_common { reason } else { "ErrImagePull" }),
            text,
            is_certain: errors.iter().all(nothing_happened),
        }
    }
}

/// Whether nothing can have come of a pull, now or later.
fn nothing_happened(error: &RuntimeError) -> bool {
    matches!(
        error,
        RuntimeError::Refused { .. }
            | RuntimeError::Unavailable { .. }
            | RuntimeError::Unsupported { .. }
            | RuntimeError::NotFound { .. }
    )
}

/// Logs the progress of a pull now and then.
pub(crate) struct LoggedProgress<'a> {
    image: &'a ImageRef,
    pod: &'a PodRecord,
    last: std::sync::Mutex<Instant>,
}

impl<'a> LoggedProgress<'a> {
    pub(crate) fn new(image: &'a ImageRef, pod: &'a PodRecord) -> Self {
        Self {
            image,
            pod,
            last: std::sync::Mutex::new(Instant::now()),
        }
    }
}

impl fmt::Debug for LoggedProgress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggedProgress")
            .field("image", &self.image)
            .finish_non_exhaustive()
    }
}

impl PullProgress for LoggedProgress<'_> {
    fn progress(&self, done_bytes: u64, total_bytes: Option<u64>) {
        let now = Instant::now();
        {
            let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if now.saturating_duration_since(*last) < PROGRESS_PERIOD {
                return;
            }
            *last = now;
        }
        tracing::info!(pod = %self.pod.key(), image = %self.image, done_bytes, total_bytes, "image is being pulled");
    }
}
