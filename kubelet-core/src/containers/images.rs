//! The image of a container or a volume: present, pulled, or a reason why not.

use std::borrow::Cow;
use std::time::Duration;

use tokio::time::Instant;

use super::ContainerSyncer;
use super::ground::Ground;
use super::memory::{BackoffWindow, FailedPull, PodMemory};
use super::start_error::StartError;
use crate::backoff::go_duration;
use crate::error::error_chain;
use crate::event::{Event, EventSubject, EventType};
use crate::ids::ImageId;
use crate::images::{BadReference, Candidates, LoggedProgress, PullFailure, Pulled, Reference, normalized};
use crate::pod::{ContainerView, PodRecord};
use crate::runtime::{ImageRecord, ImageRef};
use crate::syncer::StepContext;

/// How long the reason of a failed pull is shown before it becomes `ImagePullBackOff`.
const SHOW_BACKOFF_AFTER: Duration = Duration::from_secs(3);

/// An image that a container can be made from.
#[derive(Debug)]
pub(super) struct PresentImage {
    pub(super) image: ImageRef,
    pub(super) id: ImageId,
    pub(super) record: Option<ImageRecord>,
}

/// An image that something in a pod needs.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    image: ImageRef,
    /// Registry and path.
    repository: Result<String, BadReference>,
    pod: &'a PodRecord,
    by: WantedBy<'a>,
}

/// What of the pod needs an image.
#[derive(Debug)]
pub(super) enum WantedBy<'a> {
    /// A container, to be made from it.
    Container(&'a ContainerView<'a>),
    /// A volume, for these containers.
    Volume { name: &'a str, containers: &'a [&'a str] },
}

impl<'a> Wanted<'a> {
    pub(super) fn new(asked: &str, pod: &'a PodRecord, by: WantedBy<'a>) -> Self {
        Self {
            image: normalized(asked),
            repository: Reference::parse(asked).map(|parsed| parsed.repository()),
            pod,
            by,
        }
    }

    fn say(&self, cx: &StepContext, event_type: EventType, reason: &'static str, message: String) {
        let subject = match self.by {
            WantedBy::Container(view) => EventSubject::container(self.pod, view),
            WantedBy::Volume { .. } => EventSubject::pod(self.pod),
        };
        cx.events.record(Event::new(subject, event_type, reason, message));
    }

    /// What its back-off is told of under. No container has a slash in its name.
    fn key(&self) -> Cow<'_, str> {
        match self.by {
            WantedBy::Container(view) => Cow::Borrowed(view.name()),
            WantedBy::Volume { name, .. } => Cow::Owned(format!("volumes/{name}")),
        }
    }

    /// Whether it is asked for again only for lack of an answer from the runtime.
    fn is_repeated(&self, memory: &PodMemory) -> bool {
        let is_uncertain = |name: &str| memory.uncertain.contains_key(name);
        match self.by {
            WantedBy::Container(view) => is_uncertain(view.name()),
            WantedBy::Volume { containers, .. } => containers.iter().all(|name| is_uncertain(name)),
        }
    }
}

/// Work that goes on until it is done or the step is to stop.
async fn unless_stopped<T>(cx: &StepContext, work: impl Future<Output = T>) -> Result<T, StartError> {
    tokio::select! {
        biased;
        () = cx.stop.cancelled() => Err(StartError::Stopped),
        done = work => Ok(done),
    }
}

impl ContainerSyncer {
    /// Source: kubelet 1.36, `image_manager.go`.
    pub(super) async fn ensure_image(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        view: &ContainerView<'_>,
    ) -> Result<PresentImage, StartError> {
        let wanted = Wanted::new(view.image(), &ground.work.pod, WantedBy::Container(view));
        let policy = view.image_pull_policy().unwrap_or("IfNotPresent");
        self.ensure_wanted(cx, ground, &wanted, policy).await
    }

    pub(super) async fn ensure_wanted(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        wanted: &Wanted<'_>,
        policy: &str,
    ) -> Result<PresentImage, StartError> {
        let asked = &wanted.image.asked;
        // A runtime without registries may have images of any name.
        if policy != "Always" || wanted.repository.is_err() {
            let present = self.inspect(cx, wanted).await;
            if let (Err(bad), Ok(None) | Err(StartError::Failed { .. })) = (&wanted.repository, &present) {
                let message = format!(
                    "Failed to apply default image tag \"{asked}\": couldn't parse image name \"{asked}\": {bad}"
                );
                wanted.say(cx, EventType::Warning, "InspectFailed", message.clone());
                return Err(StartError::failed("InvalidImageName", message));
            }
            let present = present?;
            let is_allowed = match &present {
                Some(record) => self.may_use(cx, wanted, record).await?,
                None => false,
            };
            if let Some(record) = present.filter(|_| is_allowed) {
                self.tell_present(cx, wanted);
                return Ok(PresentImage {
                    image: wanted.image.clone(),
                    id: record.id.clone(),
                    record: Some(record),
                });
            }
            // Whoever may not use it is not told that it is there.
            if policy == "Never" {
                let message = format!("Container image \"{asked}\" is not present with pull policy of Never");
                wanted.say(cx, EventType::Warning, "ErrImageNeverPull", message.clone());
                return Err(StartError::failed("ErrImageNeverPull", message));
            }
        }
        self.check_pull_backoff(cx, wanted)?;
        let (id, record) = self.pull(cx, ground, wanted).await?;
        Ok(PresentImage {
            image: wanted.image.clone(),
            id,
            record,
        })
    }

    /// Whether the pod may use an image that is present.
    async fn may_use(&self, cx: &StepContext, wanted: &Wanted<'_>, record: &ImageRecord) -> Result<bool, StartError> {
        let repository = wanted.repository.as_deref().unwrap_or(&wanted.image.name);
        let ask = self.images.may_use(wanted.pod, &wanted.image, repository, record);
        unless_stopped(cx, ask).await?.map_err(|error| {
            let why = error_chain(&*error);
            let message = format!("Failed to tell who may use image \"{}\": {why}", wanted.image.asked);
            wanted.say(cx, EventType::Warning, "InspectFailed", message.clone());
            StartError::failed("ImageInspectError", message)
        })
    }

    fn tell_present(&self, cx: &StepContext, wanted: &Wanted<'_>) {
        let memory = self.memory_of(wanted.pod.uid());
        // What is repeated for lack of an answer was told before.
        if wanted.is_repeated(&super::lock(&memory)) {
            return;
        }
        let message = format!(
            "Container image \"{}\" already present on machine and can be accessed by the pod",
            wanted.image.asked
        );
        wanted.say(cx, EventType::Normal, "Pulled", message);
    }

    async fn inspect(&self, cx: &StepContext, wanted: &Wanted<'_>) -> Result<Option<ImageRecord>, StartError> {
        let error = match self.look_at_image(cx, &wanted.image).await? {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let message = format!("Failed to inspect image \"{}\": {error}", wanted.image.asked);
        if wanted.repository.is_ok() {
            wanted.say(cx, EventType::Warning, "InspectFailed", message.clone());
        }
        Err(StartError::failed("ImageInspectError", message))
    }

    async fn look_at_image(
        &self,
        cx: &StepContext,
        image: &ImageRef,
    ) -> Result<Result<Option<ImageRecord>, String>, StartError> {
        let limit = self.node.settings.runtime_request_timeout;
        let look = tokio::time::timeout(limit, self.images.service.status(image, ""));
        Ok(match unless_stopped(cx, look).await? {
            Ok(looked) => looked.map_err(|error| error_chain(&error).to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        })
    }

    fn check_pull_backoff(&self, cx: &StepContext, wanted: &Wanted<'_>) -> Result<(), StartError> {
        let image = &wanted.image;
        let memory = self.memory_of(wanted.pod.uid());
        let now = Instant::now();
        let waiting = {
            let memory = super::lock(&memory);
            let until = memory.pulls.until(&image.name, now);
            until.map(|until| (until, memory.pull_errors.get(&image.name).cloned()))
        };
        let Some((until, failed)) = waiting else {
            return Ok(());
        };
        let cause = match failed {
            // The next sync may follow at once, and nobody would see what went wrong.
            Some(failed) if now < failed.shown_until => {
                return Err(StartError::Failed {
                    reason: failed.reason,
                    message: failed.text,
                    retry_at: Some(failed.shown_until),
                });
            }
            Some(failed) => format!(": {}: {}", failed.reason, failed.text),
            None => String::new(),
        };
        let message = format!("Back-off pulling image \"{}\"", image.asked);
        let window = BackoffWindow::Pull(image.name.clone(), until);
        if super::lock(&memory).tells_backoff(&wanted.key(), window) {
            wanted.say(cx, EventType::Normal, "BackOff", message.clone());
        }
        Err(StartError::Failed {
            reason: Cow::Borrowed("ImagePullBackOff"),
            message: message + &cause,
            retry_at: Some(until),
        })
    }

    async fn pull(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        wanted: &Wanted<'_>,
    ) -> Result<(ImageId, Option<ImageRecord>), StartError> {
        let (image, pod) = (&wanted.image, wanted.pod);
        let asked = &image.asked;
        let candidates = match &wanted.repository {
            Ok(repository) => unless_stopped(cx, self.images.candidates(pod, repository)).await?,
            Err(_) => Candidates::default(),
        };
        self.tell_missing_credentials(cx, pod, &candidates);
        wanted.say(cx, EventType::Normal, "Pulling", format!("Pulling image \"{asked}\""));
        let asked_at = Instant::now();
        let turn = unless_stopped(cx, self.images.turns.take()).await?;
        let begun = Instant::now();
        let opened = unless_stopped(cx, self.images.open_records()).await?;
        let noted = match self.images.unless_never_asked_for(image, opened) {
            // What is noted is noted whole: it takes no longer than a disk does.
            Ok(()) => self.images.begin(image).await,
            Err(failure) => Err(failure),
        };
        let pulled = match noted {
            Ok(()) => self.pull_noted(cx, ground, wanted, &candidates).await,
            Err(failure) => Ok(Err(failure)),
        };
        drop(turn);
        let pulled = pulled?;
        let memory = self.memory_of(pod.uid());
        match pulled {
            Ok((id, record)) => {
                {
                    let mut memory = super::lock(&memory);
                    memory.pulls.forget(&image.name);
                    memory.pull_errors.remove(&image.name);
                }
                let size = record.as_ref().map_or(0, |record| record.size_bytes);
                let message = format!(
                    "Successfully pulled image \"{asked}\" in {} ({} including waiting). Image size: {size} bytes.",
                    go_duration(begun.elapsed()),
                    go_duration(asked_at.elapsed()),
                );
                wanted.say(cx, EventType::Normal, "Pulled", message);
                Ok((id, record))
            }
            Err(PullFailure { reason, text, .. }) => {
                let message = format!("Failed to pull image \"{asked}\": {text}");
                wanted.say(cx, EventType::Warning, "Failed", message);
                let now = Instant::now();
                let mut memory = super::lock(&memory);
                let retry_at = now + memory.pulls.next(image.name.clone(), now);
                let failed = FailedPull {
                    reason,
                    text,
                    shown_until: retry_at.min(now + SHOW_BACKOFF_AFTER),
                };
                memory.pull_errors.insert(image.name.clone(), failed.clone());
                Err(StartError::Failed {
                    reason: failed.reason,
                    message: failed.text,
                    retry_at: Some(failed.shown_until),
                })
            }
        }
    }

    /// Pulls an image once it is noted that it is pulled, and notes how that ended.
    async fn pull_noted(
        &self,
        cx: &StepContext,
        ground: &Ground<'_>,
        wanted: &Wanted<'_>,
        candidates: &Candidates,
    ) -> Result<Result<(ImageId, Option<ImageRecord>), PullFailure>, StartError> {
        let image = &wanted.image;
        let progress = LoggedProgress::new(image, wanted.pod);
        // Pulls have no deadline: a large image over a slow line is no fault. Dropping the pull ends it.
        let pull = self.images.pull(image, &ground.sandbox, candidates, &progress);
        let looked = async {
            let pulled = pull.await?;
            // Its size and user are details that may be missing. So may its id, but then nobody else sees it either.
            let limit = self.node.settings.runtime_request_timeout;
            let looked = tokio::time::timeout(limit, self.images.service.status(image, "")).await;
            Ok((pulled, looked.ok().and_then(Result::ok).flatten()))
        };
        let looked: Result<(Pulled, Option<ImageRecord>), PullFailure> = match unless_stopped(cx, looked).await {
            Ok(looked) => looked,
            Err(stopped) => {
                self.images.records.cut_off(image);
                return Err(stopped);
            }
        };
        let outcome = looked.as_ref().map(|(pulled, record)| {
            let id = record.as_ref().map_or(&pulled.id, |record| &record.id);
            (id, pulled.with.as_ref())
        });
        self.images.ended(image, outcome).await;
        Ok(looked.map(|(pulled, record)| {
            let id = record.as_ref().map_or(pulled.id, |record| record.id.clone());
            (id, record)
        }))
    }

    /// Once for each pull, not for each sync: a present image needs no secrets.
    fn tell_missing_credentials(&self, cx: &StepContext, pod: &PodRecord, candidates: &Candidates) {
        candidates.log_missing(pod);
        if candidates.bad_secrets.is_empty() {
            return;
        }
        let names: Vec<&str> = candidates.bad_secrets.iter().map(|(name, _)| name.as_str()).collect();
        cx.events.record(Event::new(
            EventSubject::pod(pod),
            EventType::Warning,
            "FailedToRetrieveImagePullSecret",
            format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                names.join(", ")
            ),
        ));
    }
}
