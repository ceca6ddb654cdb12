//! Allocators that break a promise.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use kubelet_core::{ContainerResources, PodUid, ResourceAllocator};
use kubelet_testing::FakeAllocator;
use kubelet_testing::contract::AllocatorFixture;

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    WaitsForAnother,
    OneAtATime,
    GivesOnAsking,
    GivesOnlyOnce,
    KnowsNamesOnly,
    KnowsPodsOnly,
    DefaultIsSomething,
}

#[derive(Debug)]
struct Allocator {
    memory: FakeAllocator,
    fault: Fault,
    asked: Mutex<Vec<(PodUid, String)>>,
    busy: Mutex<()>,
}

fn cpu(text: impl ToString) -> ContainerResources {
    let mut given = ContainerResources::default();
    given.cpuset_cpus = text.to_string();
    given
}

impl ResourceAllocator for Allocator {
    fn container(&self, pod: &PodUid, container: &str) -> ContainerResources {
        let key = (pod.clone(), container.to_owned());
        let times = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.push(key.clone());
            asked.iter().filter(|one| **one == key).count()
        };
        let given = self.memory.container(pod, container);
        match self.fault {
            Fault::WaitsForAnother => loop {
                thread::park();
            },
            Fault::OneAtATime => {
                let Ok(_turn) = self.busy.try_lock() else {
                    return ContainerResources::default();
                };
                // Long enough for another thread to come.
                thread::park_timeout(Duration::from_millis(1));
                given
            }
            Fault::GivesOnlyOnce if times > 1 => ContainerResources::default(),
            Fault::GivesOnAsking if given == ContainerResources::default() && times > 1 => cpu(times),
            Fault::DefaultIsSomething if given == ContainerResources::default() => cpu("0-7"),
            Fault::KnowsNamesOnly => self.memory.container(&PodUid::from("u1"), container),
            Fault::KnowsPodsOnly if given != ContainerResources::default() => self.memory.container(pod, "app"),
            _ => given,
        }
    }
}

fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Allocator, AllocatorFixture)> {
    async move || {
        let memory = FakeAllocator::default();
        let given = [("u1", "app", "0"), ("u1", "side", "1"), ("u2", "app", "2")].map(|(pod, name, number)| {
            memory.give(&PodUid::from(pod), name, cpu(number));
            (PodUid::from(pod), name.to_owned(), cpu(number))
        });
        let allocator = Allocator {
            memory,
            fault,
            asked: Mutex::default(),
            busy: Mutex::default(),
        };
        let fixture = AllocatorFixture::new(given, (PodUid::from("u2"), "side".to_owned()));
        // With little patience, since what is broken is waited for in vain.
        let patience = if fault == Fault::None { 20 } else { 3 };
        Some((allocator, fixture.patience(Duration::from_secs(patience))))
    }
}

async fn sound() -> Option<(Allocator, AllocatorFixture)> {
    with(Fault::None)().await
}

kubelet_testing::allocator_contract!(sound);

faults! { allocators, check_allocator:
    waits_for_another: with(Fault::WaitsForAnother), container_does_not_wait, "not within";
    one_at_a_time: with(Fault::OneAtATime), container_does_not_wait, "";
    gives_only_once: with(Fault::GivesOnlyOnce), the_same_container_gets_the_same_answer, "asked for the 2. time";
    gives_on_asking: with(Fault::GivesOnAsking), who_was_given_nothing_has_nothing, "which was given nothing";
    the_default_is_something: with(Fault::DefaultIsSomething), who_was_given_nothing_has_nothing, "which was given nothing";
    knows_names_only: with(Fault::KnowsNamesOnly), containers_are_told_apart, "app of u2 has what app of u1 was given";
    knows_pods_only: with(Fault::KnowsPodsOnly), containers_are_told_apart, "side of u1 has what app of u1 was given";
}
