//! Volumes that break a promise.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::env::Env;
use kubelet_core::k8s_openapi::api::core::v1::{Pod, Volume, VolumeMount};
use kubelet_core::{
    BoxError, CancellationToken, ContainerVolumes, PodRecord, PodSignals, PodUid, PodVolumes, VolumeContext,
    VolumeError, VolumeManager, VolumePlace, VolumeUsage, async_trait,
};
use kubelet_testing::contract::{Unmakeable, VolumeFixture, now};
use kubelet_testing::{FakeVolumes, PodBuilder, VolumeOp};

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    LeavesOneOut,
    GivesNoPlace,
    PlacesAreEmpty,
    BeginsAnew,
    BeginsAnewInALife,
    MovesEachTime,
    NamesNone,
    NamesAll,
    TakesWhatIsMissing,
    OneForAll,
    NeverHeals,
    NeverStops,
    StopsForEver,
    PlacesElsewhere,
    PlacesAbove,
    LeavesAll,
    LeavesWhatItDidNotMake,
    UnmountWantsOne,
    UnmountFollowsPaths,
    UnmountsAll,
    OneAtATime,
    DroppedIsHalfDone,
}

#[derive(Debug)]
struct Volumes {
    memory: FakeVolumes,
    fault: Fault,
    made: Mutex<Vec<PodUid>>,
    spoilt: AtomicBool,
    busy: AtomicBool,
}

impl Volumes {
    fn new(memory: FakeVolumes, fault: Fault) -> Self {
        Self {
            memory,
            fault,
            made: Mutex::default(),
            spoilt: AtomicBool::new(false),
            busy: AtomicBool::new(false),
        }
    }

    fn knows(&self, uid: &PodUid) -> bool {
        self.made.lock().unwrap().contains(uid)
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

/// Marks a call for as long as it is not dropped.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[async_trait]
impl VolumeManager for Volumes {
    fn open(&self, context: VolumeContext) {
        self.memory.open(context);
    }

    fn lacks(&self, pod: &PodRecord) -> Option<String> {
        self.memory.lacks(pod)
    }

    async fn mount(&self, pod: &Arc<PodRecord>, stop: &CancellationToken) -> Result<PodVolumes, VolumeError> {
        let uid = pod.uid();
        let is_known = self.knows(uid);
        if self.is(Fault::OneAtATime) && self.busy.swap(true, Ordering::Relaxed) {
            return Err(VolumeError::failed("mount", "another call is under way"));
        }
        let _turn = Turn(&self.busy);
        match self.fault {
            Fault::BeginsAnew => self.memory.lose(uid),
            Fault::BeginsAnewInALife if !is_known => self.memory.lose(uid),
            Fault::StopsForEver if stop.is_cancelled() => self.spoilt.store(true, Ordering::Relaxed),
            Fault::DroppedIsHalfDone if self.spoilt.swap(true, Ordering::Relaxed) => {
                return Err(VolumeError::failed("mount", "an earlier call has left something"));
            }
            _ => {}
        }
        if self.is(Fault::StopsForEver) && self.spoilt.load(Ordering::Relaxed) {
            return Err(VolumeError::Stopped);
        }
        self.made.lock().unwrap().push(uid.clone());
        let never = CancellationToken::new();
        let stop = if self.is(Fault::NeverStops) { &never } else { stop };
        let mut mounted = self.memory.mount(pod, stop).await;
        match (self.fault, &mut mounted) {
            (Fault::LeavesOneOut, Ok(_)) => self.memory.lose(uid),
            (Fault::DroppedIsHalfDone, _) => self.spoilt.store(false, Ordering::Relaxed),
            (Fault::NamesNone, Err(VolumeError::Waiting { .. })) => {
                return Err(VolumeError::failed("mount", "something is not there"));
            }
            (Fault::NamesAll, Err(VolumeError::Waiting { unmounted, .. })) => {
                *unmounted = self.memory.of_pod(uid);
                unmounted.push("missing".to_owned());
            }
            (Fault::TakesWhatIsMissing, Err(VolumeError::Waiting { .. })) => return Ok(PodVolumes::default()),
            (Fault::OneForAll, Err(VolumeError::Waiting { .. })) => self.memory.lose(uid),
            (Fault::NeverHeals, _) if self.spoilt.load(Ordering::Relaxed) => {
                return Err(VolumeError::failed("mount", "it could not be done before"));
            }
            (Fault::NeverHeals, Err(VolumeError::Waiting { .. })) => {
                self.spoilt
                    .store(self.memory.count(VolumeOp::Mount) > 1, Ordering::Relaxed);
            }
            _ => {}
        }
        mounted
    }

    async fn container(&self, pod: &PodRecord, container: &str, env: &Env) -> Result<ContainerVolumes, VolumeError> {
        let mut given = self.memory.container(pod, container, env).await?;
        let calls = self.memory.calls().len();
        let change = |place: &mut VolumePlace| match self.fault {
            Fault::MovesEachTime => place.host_path.push(calls.to_string()),
            Fault::PlacesElsewhere => place.host_path = Path::new("/etc").into(),
            Fault::PlacesAbove => place.host_path.push("../../../../.."),
            Fault::PlacesAreEmpty => place.host_path = place.host_path.with_file_name("nothing"),
            _ => {}
        };
        given.places.iter_mut().for_each(change);
        if self.is(Fault::GivesNoPlace) {
            given.places.pop();
        }
        Ok(given)
    }

    async fn unmount(&self, uid: &PodUid, stop: &CancellationToken) -> Result<(), VolumeError> {
        let is_there = !self.memory.of_pod(uid).is_empty();
        match self.fault {
            Fault::LeavesAll => return Ok(()),
            Fault::LeavesWhatItDidNotMake if !self.knows(uid) => return Ok(()),
            Fault::UnmountWantsOne if !is_there => return Err(VolumeError::failed("unmount", "nothing is there")),
            Fault::UnmountsAll => self.memory.pods().iter().for_each(|other| self.memory.lose(other)),
            Fault::UnmountFollowsPaths => {
                if let Some(name) = Path::new(uid.as_str()).file_name().and_then(|name| name.to_str()) {
                    return self.memory.unmount(&PodUid::from(name), stop).await;
                }
            }
            _ => {}
        }
        let never = CancellationToken::new();
        let stop = if self.is(Fault::NeverStops) { &never } else { stop };
        self.memory.unmount(uid, stop).await
    }

    fn usage(&self, uid: &PodUid) -> Arc<[VolumeUsage]> {
        self.memory.usage(uid)
    }

    async fn run(&self, wake: PodSignals, stop: CancellationToken) -> Result<(), BoxError> {
        self.memory.run(wake, stop).await
    }
}

fn pod(name: &str, volumes: &[&str]) -> Pod {
    let named = |name: &&str| Volume {
        name: (*name).to_owned(),
        ..Volume::default()
    };
    let mount = |name: &&str| VolumeMount {
        name: (*name).to_owned(),
        mount_path: format!("/{name}"),
        ..VolumeMount::default()
    };
    let mounts = volumes.iter().map(mount).collect();
    PodBuilder::new(name)
        .container("app", |c| c.with(|c| c.volume_mounts = Some(mounts)))
        .spec(|spec| spec.volumes = Some(volumes.iter().map(named).collect()))
        .build()
}

fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Volumes, VolumeFixture)> {
    async move || {
        let memory = FakeVolumes::new();
        memory.hold("missing", None);
        let shared = || memory.clone();
        let (next, exists, read, write, left, made) = (shared(), shared(), shared(), shared(), shared(), shared());
        let (mend, block, free) = (shared(), shared(), shared());
        let pods = [pod("a", &["data", "more"]), pod("b", &["data"])];
        // It is waited for in vain.
        let patience = Duration::from_millis(if matches!(fault, Fault::NeverStops | Fault::NeverHeals) {
            200
        } else {
            20_000
        });
        let fixture = VolumeFixture::new(VolumeContext::new("node-1", "/var/lib/kubelet"), pods)
            .next_life(move || now(|| Arc::new(Volumes::new(next.next_life(), fault)) as _))
            .exists(move |path| now(|| exists.exists(&path)))
            .read(move |path| now(|| read.read(&path)))
            .write(move |path, text| now(|| write.write(&path, &text)))
            .left(move |uid| now(|| left.of_pod(&uid)))
            .unmakeable(Unmakeable::new(
                pod("c", &["data", "missing", "more"]),
                ["missing"],
                ["data", "more"],
            ))
            .made(move |uid, name| now(|| made.has(&uid, &name)))
            .mend(move || now(|| mend.release("missing")))
            .block(
                move || {
                    now(|| {
                        [VolumeOp::Mount, VolumeOp::Unmount]
                            .into_iter()
                            .for_each(|op| block.hang(op))
                    })
                },
                move || {
                    now(|| {
                        [VolumeOp::Mount, VolumeOp::Unmount]
                            .into_iter()
                            .for_each(|op| free.let_go(op))
                    })
                },
            )
            .patience(patience);
        Some((Volumes::new(memory, fault), fixture))
    }
}

async fn sound() -> Option<(Volumes, VolumeFixture)> {
    with(Fault::None)().await
}

kubelet_testing::volume_contract!(sound);

faults! { volumes:
    leaves_one_out: with(Fault::LeavesOneOut), mounted_volumes_are_there, "has places for";
    gives_no_place: with(Fault::GivesNoPlace), mounted_volumes_are_there, "has places for";
    places_are_empty: with(Fault::PlacesAreEmpty), mounted_volumes_are_there, "is not there after mount";
    begins_anew: with(Fault::BeginsAnew), mounting_again_loses_nothing, "is lost after another mount";
    begins_anew_in_a_life: with(Fault::BeginsAnewInALife), mounting_again_loses_nothing, "in a later life";
    moves_each_time: with(Fault::MovesEachTime), mounting_again_loses_nothing, "the places of default/a changed";
    names_none: with(Fault::NamesNone), what_cannot_be_made_is_named, "names no volume";
    names_all: with(Fault::NamesAll), what_cannot_be_made_is_named, "the volumes that are named";
    takes_what_is_missing: with(Fault::TakesWhatIsMissing), what_cannot_be_made_is_named, "succeeds without";
    one_for_all: with(Fault::OneForAll), what_cannot_be_made_is_named, "although it could be";
    never_heals: with(Fault::NeverHeals), what_cannot_be_made_is_named, "what was mended: not within";
    never_stops: with(Fault::NeverStops), stopped_calls_return_soon, "after it was stopped: not within";
    stops_for_ever: with(Fault::StopsForEver), stopped_calls_return_soon, "stopped";
    places_elsewhere: with(Fault::PlacesElsewhere), places_are_inside_of_their_pods, "is elsewhere: /etc";
    places_above: with(Fault::PlacesAbove), places_are_inside_of_their_pods, "is elsewhere";
    leaves_all: with(Fault::LeavesAll), unmounted_pods_leave_nothing, "is left after unmount";
    leaves_what_it_did_not_make: with(Fault::LeavesWhatItDidNotMake), unmounted_pods_leave_nothing, "in a later life";
    unmount_wants_one: with(Fault::UnmountWantsOne), unmounting_nothing_succeeds, "nothing is there";
    unmount_follows_paths: with(Fault::UnmountFollowsPaths), unmounting_nothing_succeeds, "is lost after unmount";
    unmounts_all: with(Fault::UnmountsAll), other_pods_are_left_alone, "is lost after calls about";
    one_at_a_time: with(Fault::OneAtATime), other_pods_are_left_alone, "another call is under way";
    dropped_is_half_done: with(Fault::DroppedIsHalfDone), a_dropped_call_may_be_repeated, "has left something";
}
