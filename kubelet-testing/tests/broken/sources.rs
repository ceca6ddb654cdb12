//! Sources that break a promise.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::futures::stream::{self, BoxStream, StreamExt};
use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    CancellationToken, InvalidManifest, Origin, PodSource, RawPod, SourceContext, SourceError, SourceItem, SourceKind,
    SourceName,
};
use kubelet_testing::contract::{SourceFixture, now};
use tokio::sync::watch;

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    UnreadableIsEmpty,
    EndsInTrouble,
    NeverStops,
    NeverForgets,
    BadSpoilsAll,
    BadIsNotTold,
    SilentWhileEmpty,
    NewUidWithEachChange,
    MissesWhatIsNotWaitedFor,
    KindDependsOnPods,
}

#[derive(Clone, Debug, Default)]
struct World {
    pods: Vec<Pod>,
    bad: bool,
    down: bool,
}

/// Wishes for what a test has set.
#[derive(Debug)]
struct Memory {
    name: SourceName,
    world: watch::Receiver<World>,
    fault: Fault,
}

impl PodSource for Memory {
    fn name(&self) -> &SourceName {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        if self.fault == Fault::KindDependsOnPods && !self.world.borrow().pods.is_empty() {
            SourceKind::Static
        } else {
            SourceKind::Managed
        }
    }

    fn open(&self, cx: SourceContext) -> BoxStream<'static, SourceItem> {
        let mut world = self.world.clone();
        world.mark_changed();
        let follower = Follower {
            world,
            stop: cx.stop,
            fault: self.fault,
            told: None,
        };
        stream::unfold(follower, Follower::next).flat_map(stream::iter).boxed()
    }
}

struct Follower {
    world: watch::Receiver<World>,
    stop: CancellationToken,
    fault: Fault,
    told: Option<Vec<Pod>>,
}

impl Follower {
    async fn next(mut self) -> Option<(Vec<SourceItem>, Self)> {
        if self.told.is_some() && self.fault == Fault::MissesWhatIsNotWaitedFor {
            self.world.mark_unchanged();
        }
        tokio::select! {
            biased;
            () = self.stop.cancelled(), if self.fault != Fault::NeverStops => return None,
            changed = self.world.changed() => changed.ok()?,
        }
        let world = self.world.borrow_and_update().clone();
        if world.down {
            let trouble = SourceItem::Trouble(SourceError::unreadable("memory", "it is away"));
            return match self.fault {
                Fault::EndsInTrouble => None,
                Fault::UnreadableIsEmpty => Some((vec![trouble, SourceItem::snapshot(Vec::new())], self)),
                _ => Some((vec![trouble], self)),
            };
        }
        let items = self.items(world);
        Some((items, self))
    }

    fn items(&mut self, World { mut pods, bad, .. }: World) -> Vec<SourceItem> {
        match self.fault {
            Fault::NewUidWithEachChange => {
                for pod in &mut pods {
                    let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone());
                    pod.metadata.uid = image.map(|image| format!("{:?} {image}", pod.metadata.name));
                }
            }
            Fault::NeverForgets => {
                let before = self.told.take().unwrap_or_default();
                let gone = before
                    .into_iter()
                    .filter(|old| pods.iter().all(|pod| pod.metadata.uid != old.metadata.uid));
                let gone: Vec<_> = gone.collect();
                pods.extend(gone);
            }
            Fault::BadSpoilsAll if bad => pods.clear(),
            Fault::SilentWhileEmpty if pods.is_empty() => return Vec::new(),
            _ => {}
        }
        self.told = Some(pods.clone());
        let mut invalid = Vec::new();
        if bad && self.fault != Fault::BadIsNotTold {
            let error = SourceError::invalid("memory/bad", "no pod");
            invalid.push(InvalidManifest::new(Origin::Named("memory/bad".into()), None, error));
        }
        let pods = pods.into_iter().map(RawPod::new).collect();
        match SourceItem::snapshot(pods) {
            SourceItem::Snapshot { pods, remembered, .. } => vec![SourceItem::Snapshot {
                pods,
                invalid,
                remembered,
            }],
            other => vec![other],
        }
    }
}

fn memory(fault: Fault, patience: Duration) -> (Memory, SourceFixture) {
    let (sender, world) = watch::channel(World::default());
    let source = Memory {
        name: SourceName::from("memory"),
        world,
        fault,
    };
    let sender = Arc::new(sender);
    let change = |how: fn(&mut World)| {
        let sender = sender.clone();
        move || now(|| sender.send_modify(how))
    };
    let (down, up) = (change(|world| world.down = true), change(|world| world.down = false));
    let spoil = change(|world| world.bad = true);
    let set = move |pods| now(|| sender.send_modify(|world| (world.pods, world.bad) = (pods, false)));
    let fixture = SourceFixture::new(set).outage(down, up).spoil(spoil).patience(patience);
    (source, fixture)
}

async fn sound() -> Option<(Memory, SourceFixture)> {
    Some(memory(Fault::None, Duration::from_secs(20)))
}

kubelet_testing::source_contract!(sound);

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Memory, SourceFixture)> {
    async move || Some(memory(fault, Duration::from_secs(2)))
}

faults! { sources:
    unreadable_is_empty: with(Fault::UnreadableIsEmpty), what_cannot_be_read_is_trouble, "no longer wished for";
    unreadable_is_ready: with(Fault::UnreadableIsEmpty), a_source_that_was_never_read_is_not_ready, "empty snapshot of what";
    ends_in_trouble: with(Fault::EndsInTrouble), what_cannot_be_read_is_trouble, "ended before it was stopped";
    never_stops: with(Fault::NeverStops), the_stream_ends_only_once_stop_is_cancelled, "the end of a stream";
    never_stops_at_once: with(Fault::NeverStops), a_source_that_is_stopped_when_it_is_opened_ends, "the end of a stream";
    never_forgets: with(Fault::NeverForgets), a_snapshot_is_the_whole_truth, "not within";
    a_bad_pod_spoils_all: with(Fault::BadSpoilsAll), a_pod_that_cannot_be_understood_hurts_no_other, "pod a is hurt";
    a_bad_pod_is_not_told: with(Fault::BadIsNotTold), a_pod_that_cannot_be_understood_hurts_no_other, "reported as invalid";
    silent_while_empty: with(Fault::SilentWhileEmpty), a_source_without_pods_says_so, "an empty snapshot";
    a_new_uid: with(Fault::NewUidWithEachChange), pods_of_a_managed_source_carry_a_uid, "UID of a pod that changed";
    misses_changes: with(Fault::MissesWhatIsNotWaitedFor), what_changes_while_nobody_polls_is_told_later, "the last change";
    changes_its_kind: with(Fault::KindDependsOnPods), name_and_kind_never_change, "once it is open";
}
