//! The image of a container: present, pulled, or a reason why not.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::ContainerSyncer;
use super::memory::BackoffWindow;
use super::start::StartError;
use crate::backoff::go_duration;
use crate::error::error_chain;
use crate::event::{Event, EventSubject, EventType};
use crate::pod::{ContainerView, PodRecord};
use crate::runtime::{IgnoreProgress, ImageRecord, ImageRef, ImageService, PullRequest, RuntimeError};
use crate::syncer::StepContext;

/// How long the reason of a failed pull is shown before it becomes `ImagePullBackOff`.
const SHOW_BACKOFF_AFTER: Duration = Duration::from_secs(3);

/// Pulls images, so many at once.
#[derive(Debug)]
pub(super) struct ImageManager {
    images: Arc<dyn ImageService>,
    turns: Semaphore,
}

impl ImageManager {
    pub(super) fn new(images: Arc<dyn ImageService>, parallel: usize) -> Self {
        Self {
            images,
            turns: Semaphore::new(parallel.max(1)),
        }
    }
}

/// An image that a container can be made from.
#[derive(Debug)]
pub(super) struct PresentImage {
    pub(super) image: ImageRef,
    pub(super) record: Option<ImageRecord>,
}

/// The reference to look for: `:latest` is implied where there is neither tag nor digest.
pub(crate) fn normalized(asked: &str) -> ImageRef {
    let name = asked.rsplit('/').next().unwrap_or(asked);
    if name.contains([':', '@']) {
        ImageRef::new(asked)
    } else {
        ImageRef::with_asked(format!("{asked}:latest"), asked)
    }
}

impl ContainerSyncer {
    /// Source: kubelet 1.36, `image_manager.go`.
    pub(super) async fn ensure_image(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        view: &ContainerView<'_>,
    ) -> Result<PresentImage, StartError> {
        let asked = view.image();
        let image = normalized(asked);
        let policy = view.image_pull_policy().unwrap_or("IfNotPresent");
        if policy != "Always" {
            let present = self.inspect(cx, pod, view, &image).await?;
            if let Some(record) = present {
                let is_repeated = super::lock(&self.memory_of(pod.uid()))
                    .uncertain
                    .contains_key(view.name());
                if !is_repeated {
                    let message = format!(
                        "Container image \"{asked}\" already present on machine and can be accessed by the pod"
                    );
                    self.say(cx, pod, view, EventType::Normal, "Pulled", message);
                }
                return Ok(PresentImage {
                    image,
                    record: Some(record),
                });
            }
            if policy == "Never" {
                let message = format!("Container image \"{asked}\" is not present with pull policy of Never");
                self.say(cx, pod, view, EventType::Warning, "ErrImageNeverPull", message.clone());
                return Err(StartError::failed("ErrImageNeverPull", message));
            }
        }
        self.check_pull_backoff(cx, pod, view, &image)?;
        let record = self.pull(cx, pod, view, &image).await?;
        Ok(PresentImage { image, record })
    }

    async fn inspect(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        view: &ContainerView<'_>,
        image: &ImageRef,
    ) -> Result<Option<ImageRecord>, StartError> {
        let looked = tokio::select! {
            biased;
            () = cx.stop.cancelled() => return Err(StartError::Stopped),
            looked = tokio::time::timeout(self.node.settings.runtime_request_timeout, self.images.images.status(image, "")) => looked,
        };
        let error = match looked {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => error_chain(&error),
            Err(_) => "no answer in time".to_owned(),
        };
        let message = format!("Failed to inspect image \"{}\": {error}", image.asked);
        self.say(cx, pod, view, EventType::Warning, "InspectFailed", message.clone());
        Err(StartError::failed("ImageInspectError", message))
    }

    fn check_pull_backoff(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        view: &ContainerView<'_>,
        image: &ImageRef,
    ) -> Result<(), StartError> {
        let memory = self.memory_of(pod.uid());
        let waiting = {
            let memory = super::lock(&memory);
            memory.pulls.until(&image.name, Instant::now()).map(|until| {
                let error = memory.pull_errors.get(&image.name).cloned().unwrap_or_default();
                (until, error)
            })
        };
        let Some((until, (reason, error))) = waiting else {
            return Ok(());
        };
        let message = format!("Back-off pulling image \"{}\"", image.asked);
        let window = BackoffWindow::Pull(image.name.clone(), until);
        if super::lock(&memory).tells_backoff(view.name(), window) {
            self.say(cx, pod, view, EventType::Normal, "BackOff", message.clone());
        }
        Err(StartError::Failed {
            reason: Cow::Borrowed("ImagePullBackOff"),
            message: format!("{message}: {reason}: {error}"),
            retry_at: Some(until),
        })
    }

    async fn pull(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        view: &ContainerView<'_>,
        image: &ImageRef,
    ) -> Result<Option<ImageRecord>, StartError> {
        let asked = &image.asked;
        self.say(
            cx,
            pod,
            view,
            EventType::Normal,
            "Pulling",
            format!("Pulling image \"{asked}\""),
        );
        let asked_at = Instant::now();
        let turn = tokio::select! {
            biased;
            () = cx.stop.cancelled() => return Err(StartError::Stopped),
            turn = self.images.turns.acquire() => turn,
        };
        let begun = Instant::now();
        // Pulls have no deadline: a large image over a slow line is no fault. Dropping the pull ends it.
        let pulled = tokio::select! {
            biased;
            () = cx.stop.cancelled() => return Err(StartError::Stopped),
            pulled = self.images.images.pull(PullRequest::new(image), &IgnoreProgress) => pulled,
        };
        drop(turn);
        let memory = self.memory_of(pod.uid());
        match pulled {
            Ok(_) => {
                {
                    let mut memory = super::lock(&memory);
                    memory.pulls.forget(&image.name);
                    memory.pull_errors.remove(&image.name);
                }
                // Its size and user are details that may be missing.
                let looked = tokio::select! {
                    biased;
                    () = cx.stop.cancelled() => return Err(StartError::Stopped),
                    looked = tokio::time::timeout(
                        self.node.settings.runtime_request_timeout,
                        self.images.images.status(image, ""),
                    ) => looked,
                };
                let record = looked.ok().and_then(Result::ok).flatten();
                let size = record.as_ref().map_or(0, |record| record.size_bytes);
                let message = format!(
                    "Successfully pulled image \"{asked}\" in {} ({} including waiting). Image size: {size} bytes.",
                    go_duration(begun.elapsed()),
                    go_duration(asked_at.elapsed()),
                );
                self.say(cx, pod, view, EventType::Normal, "Pulled", message);
                Ok(record)
            }
            Err(error) => {
                let reason = match &error {
                    RuntimeError::Refused {
                        reason: Some(reason), ..
                    } => *reason,
                    _ => "ErrImagePull",
                };
                let text = error_chain(&error);
                let message = format!("Failed to pull image \"{asked}\": {text}");
                self.say(cx, pod, view, EventType::Warning, "Failed", message);
                let retry_at = {
                    let mut memory = super::lock(&memory);
                    memory
                        .pull_errors
                        .insert(image.name.clone(), (reason.to_owned(), text.clone()));
                    Instant::now() + memory.pulls.next(image.name.clone(), Instant::now())
                };
                Err(StartError::Failed {
                    reason: Cow::Borrowed(reason),
                    message: text,
                    retry_at: Some(retry_at.min(Instant::now() + SHOW_BACKOFF_AFTER)),
                })
            }
        }
    }

    fn say(
        &self,
        cx: &StepContext,
        pod: &PodRecord,
        view: &ContainerView<'_>,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) {
        cx.events.record(Event::new(
            EventSubject::container(pod, view),
            event_type,
            reason,
            message,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::normalized;

    #[test]
    fn latest_is_implied_only_without_tag_and_digest() {
        for (asked, name) in [
            ("app", "app:latest"),
            ("app:1", "app:1"),
            ("host:5000/app", "host:5000/app:latest"),
            ("host:5000/app:1", "host:5000/app:1"),
            ("app@sha256:00", "app@sha256:00"),
        ] {
            assert_eq!(normalized(asked).name, name);
            assert_eq!(normalized(asked).asked, asked);
        }
    }
}
