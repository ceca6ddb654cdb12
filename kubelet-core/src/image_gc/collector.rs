//! Looks whether images have to go, and removes them.

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::ImageGcPolicy;
use super::ledger::{Candidate, ImageLedger, excess_bytes, usage_percent};
use crate::engine::{Shared, Stage};
use crate::error::error_chain;
use crate::event::{Event, EventSubject, EventType};
use crate::images::{PullRecords, Reference, normalized};
use crate::metrics::{Counter, MetricSet, MetricValue};
use crate::pod::{ContainerView, image_volumes};
use crate::runtime::{ImageFilesystems, ImageService, ImageSpace, RuntimeError};

/// From how many names of images on that are used no longer, the list is looked at only to forget them.
const MANY_NAMES: usize = 1024;

/// How many images were removed, and why.
#[derive(Debug, Default)]
pub(crate) struct GcMetrics {
    aged: Counter,
    for_space: Counter,
}

impl GcMetrics {
    pub(crate) fn collect(&self, metrics: &mut MetricSet) {
        for (reason, counter) in [("age", &self.aged), ("space", &self.for_space)] {
            metrics.add(
                "kubelet_image_garbage_collected_total",
                "Unused images that were removed, by why they had to go.",
                &[("reason", reason)],
                MetricValue::Counter(counter.get()),
            );
        }
    }
}

/// Why not all is as the policy wants it.
#[derive(Debug, thiserror::Error)]
enum GcError {
    #[error("{what}")]
    Call {
        what: &'static str,
        #[source]
        source: RuntimeError,
    },
    #[error("cannot measure the file system of {folder}")]
    Measure {
        folder: String,
        #[source]
        source: io::Error,
    },
    #[error("the file system of images has no capacity")]
    NoCapacity,
    #[error(
        "the images' file system is {percent} % full: {wanted_bytes} bytes should go, unused images gave {freed_bytes}"
    )]
    TooLittle {
        percent: u64,
        wanted_bytes: u64,
        freed_bytes: u64,
    },
    #[error("{failed} unused images could not be removed, the first is {image}")]
    Remove {
        failed: usize,
        image: String,
        #[source]
        source: RuntimeError,
    },
}

/// Removes images that nobody uses.
#[derive(Debug)]
pub(crate) struct ImageCollector {
    pub(crate) images: Arc<dyn ImageService>,
    pub(crate) policy: ImageGcPolicy,
    /// Who may use which image: of no use once the image is gone.
    pub(crate) records: Arc<PullRecords>,
    /// Whether the images' folders are on this machine.
    pub(crate) is_local: bool,
    pub(crate) metrics: Arc<GcMetrics>,
}

impl ImageCollector {
    /// Works until `stop`. A removal that is dropped in the middle does no harm.
    pub(crate) async fn run(
        self,
        shared: Arc<Shared>,
        mut sources_ready: watch::Receiver<bool>,
        stop: CancellationToken,
    ) {
        if self.policy.is_off() {
            stop.cancelled().await;
            return;
        }
        let working = async {
            // Before that nobody knows what is used.
            shared.gate.opened().await;
            shared.cache.first_look().await;
            if sources_ready.wait_for(|ready| *ready).await.is_err() {
                std::future::pending::<()>().await;
            }
            let mut pass = Pass {
                collector: &self,
                shared: &shared,
                ledger: ImageLedger::default(),
                place: Place::Unknown,
                has_removed: false,
            };
            pass.work().await
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = working => {}
        }
    }
}

/// The work, with what is known from one pass to the next.
struct Pass<'a> {
    collector: &'a ImageCollector,
    shared: &'a Shared,
    ledger: ImageLedger,
    place: Place,
    /// Whether a pass has removed an image.
    has_removed: bool,
}

/// Where the room for images is seen.
#[derive(Debug)]
enum Place {
    /// It has to be asked for.
    Unknown,
    /// The service says it each time.
    Service,
    /// It is the file system of a folder.
    Folder(PathBuf),
    /// Nowhere that this machine could look.
    Nowhere,
}

impl Pass<'_> {
    async fn work(&mut self) {
        // Images that are there from the start are known from now on.
        let learnt = async {
            self.list(Instant::now()).await?;
            self.space().await
        };
        if let Err(error) = learnt.await {
            debug!(error = &error as &dyn Error, "the images are not known yet");
        }
        let period = self.collector.policy.period;
        let mut wait = period;
        let mut has_failed = false;
        loop {
            tokio::time::sleep(wait).await;
            wait = period;
            let begun = self.shared.clock.now();
            let passed = self.pass().await;
            if std::mem::take(&mut self.has_removed) {
                self.prune_records(begun).await;
            }
            match passed {
                Ok(next) => {
                    has_failed = false;
                    wait = next.map_or(period, |next| next.min(period));
                }
                Err(error) => self.failed(&error, std::mem::replace(&mut has_failed, true)),
            }
        }
    }

    /// A first failure may be a hiccup.
    fn failed(&self, error: &GcError, again: bool) {
        warn!(error = error as &dyn Error, "unused images not removed");
        if let GcError::NoCapacity = error {
            self.warn_node("InvalidDiskCapacity", error);
        }
        if let GcError::TooLittle { .. } = error {
            self.warn_node("FreeDiskSpaceFailed", error);
        }
        if again {
            self.warn_node("ImageGCFailed", error);
        }
    }

    fn warn_node(&self, reason: &'static str, error: &GcError) {
        let event = Event::new(EventSubject::Node, EventType::Warning, reason, error_chain(error));
        self.shared.events.record(event);
    }

    /// One look, and what follows from it. Says how soon the next one is of use, if that is before its time.
    async fn pass(&mut self) -> Result<Option<Duration>, GcError> {
        let now = Instant::now();
        let Some(names) = self.shared.cache.images_in_use() else {
            debug!("not all containers are known, so no image counts as unused");
            return Ok(None);
        };
        let used_now = names.len();
        self.ledger.used(names, now);
        let policy = &self.collector.policy;
        let is_full = self.space().await?.is_some_and(|space| self.is_full(space));
        if !is_full && policy.max_age.is_none() {
            if self.ledger.names() > used_now + MANY_NAMES {
                self.list(now).await?;
            }
            return Ok(None);
        }
        self.learn_of_others(now).await?;
        self.list(now).await?;
        let mut named = Named::default();
        self.protect(&mut named, now).await?;
        let mut failures = Failures::default();
        if let Some(max_age) = policy.max_age {
            for image in self.ledger.aged(max_age, now) {
                if self.remove(&image, "age", &mut named, &mut failures).await? {
                    self.collector.metrics.aged.increment();
                }
            }
        }
        let next = match self.space().await? {
            Some(space) if self.is_full(space) => self.make_room(space, now, &mut named, &mut failures).await?,
            _ => None,
        };
        failures.into_result().map(|()| next)
    }

    /// They would pile up; that they stay is no harm.
    async fn prune_records(&self, begun: Timestamp) {
        let pruned = match self.call("list_images", self.collector.images.list()).await {
            Ok(present) => self.collector.records.prune(&present, begun).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = pruned {
            debug!(error = &*error as &dyn Error, "records of images that are gone stay");
        }
    }

    fn is_full(&self, space: ImageSpace) -> bool {
        let high = self.collector.policy.high_threshold_percent;
        high < 100 && usage_percent(space) >= u64::from(high)
    }

    async fn make_room(
        &mut self,
        space: ImageSpace,
        now: Instant,
        named: &mut Named,
        failures: &mut Failures,
    ) -> Result<Option<Duration>, GcError> {
        let policy = &self.collector.policy;
        let wanted_bytes = excess_bytes(space, policy.low_threshold_percent);
        let percent = usage_percent(space);
        info!(
            percent,
            wanted_bytes, "the images' file system is full, removing unused images"
        );
        let (dispensable, next) = self.ledger.dispensable(policy.min_age, now);
        let mut freed_bytes = 0u64;
        for image in dispensable {
            if freed_bytes >= wanted_bytes {
                return Ok(None);
            }
            if self.remove(&image, "space", named, failures).await? {
                self.collector.metrics.for_space.increment();
                freed_bytes = freed_bytes.saturating_add(image.size_bytes);
            }
        }
        if freed_bytes >= wanted_bytes {
            return Ok(None);
        }
        match next {
            // Some more may go soon.
            Some(_) => Ok(next),
            // It is not images that fill it.
            None if !self.ledger.has_removable() => Ok(None),
            None => Err(GcError::TooLittle {
                percent,
                wanted_bytes,
                freed_bytes,
            }),
        }
    }

    /// Removes an image, unless a pod that has come meanwhile names it. Says whether it is gone.
    async fn remove(
        &mut self,
        image: &Candidate,
        why: &'static str,
        named: &mut Named,
        failures: &mut Failures,
    ) -> Result<bool, GcError> {
        let now = Instant::now();
        if self.protect(named, now).await?.contains(image.id.as_str()) {
            return Ok(false);
        }
        info!(image = %image.id, size_bytes = image.size_bytes, why, "removing an unused image");
        match self.call("remove_image", self.collector.images.remove(&image.id)).await {
            Ok(()) => {
                self.ledger.removed(&image.id);
                self.has_removed = true;
                Ok(true)
            }
            Err(error) => {
                failures.add(image, error);
                Ok(false)
            }
        }
    }

    /// Counts what pods name as used: it may be pulled already and have no container yet, or must not be pulled again. Answers
    /// the ids of all those images.
    async fn protect<'n>(&mut self, named: &'n mut Named, now: Instant) -> Result<&'n BTreeSet<String>, GcError> {
        for text in self.texts() {
            if named.texts.contains(&text) {
                continue;
            }
            let image = normalized(&text);
            let asked = self
                .call("image_status", self.collector.images.status(&image, ""))
                .await;
            let found = match asked {
                Ok(found) => found,
                // It is no image at all.
                Err(RuntimeError::Refused { .. }) => None,
                // Neither is this, and not every runtime says so.
                Err(_) if Reference::parse(&text).is_err() => None,
                Err(source) => {
                    let what = "cannot look which images the pods name";
                    return Err(GcError::Call { what, source });
                }
            };
            if let Some(found) = found {
                self.ledger.is_used(&found.id, now);
                named.ids.insert(found.id.as_str().to_owned());
            }
            named.texts.insert(text);
        }
        Ok(&named.ids)
    }

    /// The images that pods name which may still need them.
    fn texts(&self) -> BTreeSet<String> {
        let workers = self.shared.workers();
        let active = workers.values().filter(|link| *link.stage.borrow() < Stage::Terminated);
        let mut texts = BTreeSet::new();
        for link in active {
            if let Some(pod) = &link.wish.borrow().pod {
                let of_containers = ContainerView::all(pod.spec()).map(|container| container.image());
                let of_volumes =
                    image_volumes(pod.spec()).map(|(_, source)| source.reference.as_deref().unwrap_or_default());
                let all = of_containers.chain(of_volumes).filter(|text| !text.is_empty());
                texts.extend(all.map(str::to_owned));
            }
        }
        texts
    }

    /// Counts what containers use that are none of ours.
    async fn learn_of_others(&mut self, now: Instant) -> Result<(), GcError> {
        let others = self
            .call("list_containers", self.collector.images.used_by_others())
            .await;
        let others = others.map_err(|source| GcError::Call {
            what: "cannot look which images others use",
            source,
        })?;
        self.ledger.used(others, now);
        Ok(())
    }

    async fn list(&mut self, now: Instant) -> Result<(), GcError> {
        let listed = self.call("list_images", self.collector.images.list()).await;
        let images = listed.map_err(|source| GcError::Call {
            what: "cannot list images",
            source,
        })?;
        self.ledger.present(&images, now);
        Ok(())
    }

    /// How much room there is; nothing where nobody can tell.
    async fn space(&mut self) -> Result<Option<ImageSpace>, GcError> {
        if self.collector.policy.high_threshold_percent >= 100 {
            return Ok(None);
        }
        let space = match self.place {
            Place::Unknown | Place::Service => self.ask_for_space().await?,
            Place::Folder(_) | Place::Nowhere => None,
        };
        let space = match (&self.place, space) {
            (Place::Folder(folder), _) => {
                let measured = measured(folder.clone()).await;
                if measured.is_err() {
                    // It may have been put elsewhere.
                    self.place = Place::Unknown;
                }
                Some(measured?)
            }
            (_, space) => space,
        };
        if space.is_some_and(|space| space.capacity_bytes == 0) {
            return Err(GcError::NoCapacity);
        }
        Ok(space)
    }

    /// Asks the service how much room there is, or where to look for it.
    async fn ask_for_space(&mut self) -> Result<Option<ImageSpace>, GcError> {
        let asked = self.call("image_fs_info", self.collector.images.filesystems()).await;
        let found = match asked {
            Ok(found) => found,
            Err(RuntimeError::Unsupported { .. }) => ImageFilesystems::default(),
            Err(source) => {
                let what = "cannot ask where images are kept";
                return Err(GcError::Call { what, source });
            }
        };
        self.place = match (found.space, found.images.into_iter().next()) {
            (Some(_), _) => Place::Service,
            (None, Some(folder)) if self.collector.is_local => Place::Folder(folder),
            (None, _) => Place::Nowhere,
        };
        Ok(found.space)
    }

    async fn call<T>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        let limit = self.shared.settings.runtime_request_timeout;
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(RuntimeError::unavailable(name, format!("no answer within {limit:?}"))),
        }
    }
}

/// The images that pods name, as texts and as ids of those that are present.
#[derive(Debug, Default)]
struct Named {
    texts: BTreeSet<String>,
    ids: BTreeSet<String>,
}

/// Images that could not be removed.
#[derive(Debug, Default)]
struct Failures {
    count: usize,
    first: Option<(String, RuntimeError)>,
}

impl Failures {
    fn add(&mut self, image: &Candidate, error: RuntimeError) {
        self.count += 1;
        self.first.get_or_insert((image.id.as_str().to_owned(), error));
    }

    fn into_result(self) -> Result<(), GcError> {
        match self.first {
            None => Ok(()),
            Some((image, source)) => Err(GcError::Remove {
                failed: self.count,
                image,
                source,
            }),
        }
    }
}

async fn measured(folder: PathBuf) -> Result<ImageSpace, GcError> {
    let named = folder.display().to_string();
    let measured = tokio::task::spawn_blocking(move || measure(&folder)).await;
    let measured = measured.unwrap_or_else(|error| Err(io::Error::other(error)));
    measured.map_err(|source| GcError::Measure { folder: named, source })
}

/// What an ordinary user may fill counts as the room that is left.
#[cfg(target_os = "linux")]
fn measure(folder: &Path) -> io::Result<ImageSpace> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(ImageSpace::new(
        stat.f_blocks.saturating_mul(stat.f_frsize),
        stat.f_bavail.saturating_mul(stat.f_frsize),
    ))
}

#[cfg(not(target_os = "linux"))]
fn measure(_folder: &Path) -> io::Result<ImageSpace> {
    Err(io::ErrorKind::Unsupported.into())
}
