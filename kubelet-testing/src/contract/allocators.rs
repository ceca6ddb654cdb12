//! The promises of [`ResourceAllocator`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

#![allow(
    clippy::unused_async,
    reason = "promises are checked in one way, and none of these has anything to wait for"
)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{ContainerResources, PodUid, ResourceAllocator};

use crate::contract::thread::on_a_thread;

/// Tells the suite of [`ResourceAllocator`] what was given to which containers.
pub struct AllocatorFixture {
    given: Vec<(PodUid, String, ContainerResources)>,
    nothing: (PodUid, String),
    patience: Duration,
}

impl fmt::Debug for AllocatorFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocatorFixture")
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}

impl AllocatorFixture {
    /// A fixture for an allocator that has given that to containers, by pod and name: to two of one pod at least, and to one
    /// of their names in another pod, to each something else. `nothing` is a container of one of these pods to which nothing
    /// was given.
    ///
    /// # Panics
    /// If it is not so.
    #[must_use]
    pub fn new(
        given: impl IntoIterator<Item = (PodUid, String, ContainerResources)>,
        nothing: (PodUid, String),
    ) -> Self {
        let given: Vec<_> = given.into_iter().collect();
        let pairs = || given.iter().flat_map(|a| given.iter().map(move |b| (a, b)));
        assert!(
            pairs().any(|(a, b)| a.0 == b.0 && a.1 != b.1) && pairs().any(|(a, b)| a.0 != b.0 && a.1 == b.1),
            "the fixture needs two containers of one pod, and one of their names in another"
        );
        assert!(
            pairs().all(|(a, b)| (&a.0, &a.1) == (&b.0, &b.1) || a.2 != b.2),
            "the fixture has two containers with the same"
        );
        let is_known = given
            .iter()
            .any(|(pod, name, _)| (pod, name) == (&nothing.0, &nothing.1));
        let is_of_pod = given.iter().any(|(pod, ..)| *pod == nothing.0);
        assert!(!is_known && is_of_pod, "the container to which nothing was given");
        Self {
            given,
            nothing,
            patience: Duration::from_secs(20),
        }
    }

    /// How long anything may take that should take no time; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The answer to one question, which must not take long.
    fn ask(&self, allocator: &Arc<dyn ResourceAllocator>, pod: &PodUid, container: &str) -> ContainerResources {
        let (allocator, pod, container) = (allocator.clone(), pod.clone(), container.to_owned());
        on_a_thread("an answer", self.patience, move || {
            allocator.container(&pod, &container)
        })
    }
}

/// `container` does not wait, and may be asked by any thread, by several at once.
///
/// # Panics
/// If the promise is broken.
pub async fn container_does_not_wait(allocator: &Arc<dyn ResourceAllocator>, fixture: &AllocatorFixture) {
    let (allocator, given) = (allocator.clone(), fixture.given.clone());
    on_a_thread("answers to several threads", fixture.patience, move || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for (pod, name, want) in given.iter().cycle().take(100) {
                        let answer = allocator.container(pod, name);
                        assert_eq!(answer, *want, "{name} of {pod}, among other threads");
                    }
                });
            }
        });
    });
}

/// The same container gets the same answer for as long as its pod is on the node, whatever else is asked.
///
/// # Panics
/// If the promise is broken.
pub async fn the_same_container_gets_the_same_answer(
    allocator: &Arc<dyn ResourceAllocator>,
    fixture: &AllocatorFixture,
) {
    for round in 0..3 {
        // In another order each time, so that no answer follows from the one before.
        let order = (0..fixture.given.len()).map(|at| (at + round) % fixture.given.len());
        for at in order.rev() {
            let (pod, name, want) = &fixture.given[at];
            let answer = fixture.ask(allocator, pod, name);
            assert_eq!(answer, *want, "{name} of {pod}, asked for the {}. time", round + 1);
            fixture.ask(allocator, &PodUid::from("no-such-pod"), name);
        }
    }
}

/// Containers are told apart by their pod and their name.
///
/// # Panics
/// If the promise is broken.
pub async fn containers_are_told_apart(allocator: &Arc<dyn ResourceAllocator>, fixture: &AllocatorFixture) {
    for (pod, name, want) in &fixture.given {
        let answer = fixture.ask(allocator, pod, name);
        let other = fixture
            .given
            .iter()
            .find(|(.., given)| given == &answer && given != want);
        if let Some((of, whose, _)) = other {
            panic!("{name} of {pod} has what {whose} of {of} was given");
        }
        assert_eq!(answer, *want, "{name} of {pod}");
    }
}

/// Who was given nothing has nothing, which is the default, and asking gives nothing.
///
/// # Panics
/// If the promise is broken.
pub async fn who_was_given_nothing_has_nothing(allocator: &Arc<dyn ResourceAllocator>, fixture: &AllocatorFixture) {
    let (pod, name) = &fixture.nothing;
    let elsewhere = PodUid::from("no-such-pod");
    for (pod, name) in [(pod, name.as_str()), (&elsewhere, name), (pod, ""), (&elsewhere, "")] {
        for _ in 0..3 {
            let answer = fixture.ask(allocator, pod, name);
            let nothing = ContainerResources::default();
            assert_eq!(answer, nothing, "{name:?} of {pod}, which was given nothing");
        }
    }
}

/// Makes one `#[test]` of each promise of [`ResourceAllocator`].
///
/// Takes an async function without arguments that answers `Some((allocator, fixture))` with an
/// [`AllocatorFixture`](crate::contract::AllocatorFixture). It is called once per promise. The suite asks on threads of its
/// own, on which there is no tokio runtime.
///
/// ```
/// # mod example {
/// use kubelet_core::{ContainerResources, PodUid};
/// use kubelet_testing::FakeAllocator;
/// use kubelet_testing::contract::AllocatorFixture;
///
/// async fn mine() -> Option<(FakeAllocator, AllocatorFixture)> {
///     let allocator = FakeAllocator::default();
///     let given = [("u1", "app", "0"), ("u1", "side", "1"), ("u2", "app", "2")].map(|(pod, name, cpu)| {
///         let mut given = ContainerResources::default();
///         given.cpuset_cpus = cpu.to_owned();
///         allocator.give(&PodUid::from(pod), name, given.clone());
///         (PodUid::from(pod), name.to_owned(), given)
///     });
///     Some((allocator, AllocatorFixture::new(given, (PodUid::from("u2"), "side".to_owned()))))
/// }
///
/// kubelet_testing::allocator_contract!(mine);
/// # }
/// ```
#[macro_export]
macro_rules! allocator_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, allocators, check_allocator:
            container_does_not_wait
            containers_are_told_apart
            the_same_container_gets_the_same_answer
            who_was_given_nothing_has_nothing
        }
    };
}
