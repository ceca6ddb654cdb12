//! Providers of usage that break a promise.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{
    ContainerId, ContainerUsage, CpuUsage, MemoryUsage, PodUid, PodUsage, StatsError, StatsProvider, StatsScope,
    StatsSnapshot, async_trait,
};
use kubelet_testing::contract::StatsFixture;

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    TellsOfTheUnmarked,
    TellsOfTheEnded,
    TellsTwice,
    TellsOfAllPods,
    AbsentIsAnError,
    UnknownIsZero,
    NoLimitIsZero,
    NoTime,
    CountersGoBack,
    FaultsGoBack,
    OneAtATime,
    BusyAfterADroppedCall,
}

#[derive(Debug)]
struct Meter {
    fault: Fault,
    looks: AtomicU64,
    busy: AtomicBool,
}

impl Meter {
    fn container(&self, id: &str, uid: &str, look: u64) -> ContainerUsage {
        let at = if self.fault == Fault::NoTime {
            Timestamp::UNIX_EPOCH
        } else {
            Timestamp::from_second(1_700_000_000).unwrap()
        };
        let (mut cpu, mut memory) = (CpuUsage::default(), MemoryUsage::default());
        (cpu.at, memory.at) = (at, at);
        let back = |goes: Fault| if self.fault == goes { 100 - look } else { 100 + look };
        cpu.usage_core_nanoseconds = Some(back(Fault::CountersGoBack));
        memory.page_faults = Some(back(Fault::FaultsGoBack));
        memory.working_set_bytes = Some(4096);
        memory.rss_bytes = (self.fault == Fault::UnknownIsZero).then_some(0);
        memory.available_bytes = (self.fault == Fault::NoLimitIsZero).then_some(0);
        let mut usage = ContainerUsage::new(ContainerId::from(id), PodUid::from(uid), "app");
        (usage.cpu, usage.memory) = (Some(cpu), Some(memory));
        usage
    }
}

#[async_trait]
impl StatsProvider for Meter {
    async fn collect(&self, want: &StatsScope) -> Result<StatsSnapshot, StatsError> {
        let failed = |why: &'static str| StatsError::failed("cannot measure", why);
        let alone = matches!(self.fault, Fault::OneAtATime | Fault::BusyAfterADroppedCall);
        if alone && self.busy.swap(true, Ordering::SeqCst) {
            return Err(failed("somebody else asks"));
        }
        tokio::task::yield_now().await;
        self.busy.store(false, Ordering::SeqCst);
        let look = self.looks.fetch_add(1, Ordering::SeqCst);
        let mut snapshot = StatsSnapshot::default();
        let mut told = vec![("c1", "u1"), ("c2", "u2")];
        match self.fault {
            Fault::TellsOfTheUnmarked => told.push(("c3", "")),
            Fault::TellsOfTheEnded => told.push(("c4", "u3")),
            Fault::TellsTwice => told.push(("c1", "u1")),
            _ => {}
        }
        for (id, uid) in told {
            snapshot.containers.push(self.container(id, uid, look));
            if !snapshot.pods.iter().any(|pod| pod.uid.as_str() == uid) {
                snapshot.pods.push(PodUsage::new(PodUid::from(uid)));
            }
        }
        if let StatsScope::Pod(uid) = want {
            snapshot.containers.retain(|container| container.pod_uid == *uid);
            if self.fault != Fault::TellsOfAllPods {
                snapshot.pods.retain(|pod| pod.uid == *uid);
            }
            if self.fault == Fault::AbsentIsAnError && snapshot.containers.is_empty() {
                return Err(failed("there is no such pod"));
            }
        }
        Ok(snapshot)
    }
}

fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Meter, StatsFixture)> {
    async move || {
        let meter = Meter {
            fault,
            looks: AtomicU64::new(0),
            busy: AtomicBool::new(false),
        };
        let running = ["u1", "u2"].map(|uid| (PodUid::from(uid), "app".to_owned()));
        let fixture = StatsFixture::new(running)
            .ended(PodUid::from("u3"), "app")
            .unmarked(ContainerId::from("c3"));
        Some((meter, fixture.patience(Duration::from_secs(3))))
    }
}

async fn sound() -> Option<(Meter, StatsFixture)> {
    with(Fault::None)().await
}

kubelet_testing::stats_contract!(sound);

faults! { stats:
    tells_of_the_unmarked: with(Fault::TellsOfTheUnmarked), only_what_is_marked_and_runs_is_told_of, "c3 has no mark";
    tells_of_the_ended: with(Fault::TellsOfTheEnded), only_what_is_marked_and_runs_is_told_of, "app of u3 has ended";
    tells_twice: with(Fault::TellsTwice), only_what_is_marked_and_runs_is_told_of, "c1 is told of 2 times";
    tells_of_all_pods: with(Fault::TellsOfAllPods), asked_for_one_pod_it_tells_of_no_other, "asked for u1";
    absent_is_an_error: with(Fault::AbsentIsAnError), asked_for_one_pod_it_tells_of_no_other, "no such pod";
    unknown_is_zero: with(Fault::UnknownIsZero), what_is_not_known_is_absent, "anonymous memory of app";
    no_limit_is_zero: with(Fault::NoLimitIsZero), what_is_not_known_is_absent, "what is left of no limit";
    no_time: with(Fault::NoTime), what_is_not_known_is_absent, "without the time";
    counters_go_back: with(Fault::CountersGoBack), counters_never_go_back, "processor time";
    faults_go_back: with(Fault::FaultsGoBack), counters_never_go_back, "page faults";
    one_at_a_time: with(Fault::OneAtATime), calls_may_overlap, "somebody else asks";
    busy_after_a_dropped_call: with(Fault::BusyAfterADroppedCall), a_call_may_be_dropped_at_any_time, "somebody else asks";
}
