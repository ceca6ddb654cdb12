//! Whole-pod backends that break a promise: the fake, with something between it and its caller.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::futures::stream::{self, BoxStream, StreamExt};
use kubelet_core::{
    ContainerId, PodObservation, PodProvider, PodUid, ProvidedPod, ProviderError, ProviderHint, ResolvedPod,
    async_trait,
};
use kubelet_testing::FakeProvider;
use kubelet_testing::contract::{ProviderFixture, Workload, now};

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NameOfTwoWords,
    OneStepAtATime,
    ShowsLate,
    ListHasOtherIds,
    CreateStartsAnew,
    UpdateStartsAnew,
    DeleteWaitsForTheEnd,
    DeleteMustFindAPod,
    OnlyTheFirstGraceCounts,
    TakesOtherPodsForItsOwn,
    NoAnswerIsNothing,
    EndedIsNotListed,
    NeverHints,
}

#[derive(Debug)]
struct Broken {
    fake: FakeProvider,
    fault: Fault,
    busy: AtomicBool,
    /// Pods that are created and do not show yet, or that were deleted.
    noted: Mutex<BTreeSet<PodUid>>,
}

impl Broken {
    async fn step(&self) -> Result<(), ProviderError> {
        if self.fault == Fault::OneStepAtATime {
            let busy = self.busy.swap(true, Ordering::SeqCst);
            tokio::task::yield_now().await;
            self.busy.store(false, Ordering::SeqCst);
            if busy {
                return Err(ProviderError::Refused {
                    message: "another step goes on".to_owned(),
                });
            }
        }
        Ok(())
    }
}

#[async_trait]
impl PodProvider for Broken {
    fn name(&self) -> &str {
        match self.fault {
            Fault::NameOfTwoWords => "my cloud",
            _ => self.fake.name(),
        }
    }

    async fn list(&self) -> Result<Vec<ProvidedPod>, ProviderError> {
        let mut pods = match self.fake.list().await {
            Err(_) if self.fault == Fault::NoAnswerIsNothing => return Ok(Vec::new()),
            answer => answer?,
        };
        match self.fault {
            Fault::EndedIsNotListed => pods.retain(|pod| pod.observed.may_run()),
            Fault::ListHasOtherIds => {
                for container in pods.iter_mut().flat_map(|pod| &mut pod.observed.containers) {
                    container.id = ContainerId::new(format!("listed-{}", container.id));
                }
            }
            _ => {}
        }
        Ok(pods)
    }

    async fn create(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        self.step().await?;
        match self.fault {
            Fault::CreateStartsAnew => self.fake.vanish(pod.pod.uid()),
            Fault::ShowsLate => self.noted.lock().unwrap().extend([pod.pod.uid().clone()]),
            _ => {}
        }
        self.fake.create(pod).await
    }

    async fn update(&self, pod: &ResolvedPod) -> Result<(), ProviderError> {
        if self.fault == Fault::UpdateStartsAnew {
            self.fake.vanish(pod.pod.uid());
            return self.fake.create(pod).await;
        }
        self.fake.update(pod).await
    }

    async fn delete(&self, uid: &PodUid, grace: Duration) -> Result<(), ProviderError> {
        self.step().await?;
        match self.fault {
            Fault::DeleteMustFindAPod if !self.fake.has(uid) => {
                return Err(ProviderError::Refused {
                    message: format!("there is no pod {uid}"),
                });
            }
            Fault::OnlyTheFirstGraceCounts if !self.noted.lock().unwrap().insert(uid.clone()) => return Ok(()),
            _ => {}
        }
        self.fake.delete(uid, grace).await?;
        while self.fault == Fault::DeleteWaitsForTheEnd && self.fake.has(uid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn status(&self, uid: &PodUid) -> Result<Option<PodObservation>, ProviderError> {
        if self.fault == Fault::ShowsLate && self.noted.lock().unwrap().remove(uid) {
            return Ok(None);
        }
        match self.fake.status(uid).await {
            Err(_) if self.fault == Fault::NoAnswerIsNothing => Ok(None),
            answer => answer,
        }
    }

    fn changes(&self) -> BoxStream<'static, ProviderHint> {
        match self.fault {
            Fault::NeverHints => stream::pending().boxed(),
            _ => self.fake.changes(),
        }
    }
}

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Broken, ProviderFixture)> {
    async move || {
        let fake = FakeProvider::new();
        let (down, up, others) = (fake.clone(), fake.clone(), fake.clone());
        let foreign = move |pod| {
            let others = others.clone();
            async move {
                if fault == Fault::TakesOtherPodsForItsOwn {
                    // Nothing tells such a pod from one of ours.
                    let record = kubelet_core::PodRecord::new(&pod, "else".into(), kubelet_core::SourceKind::Managed);
                    let record = Arc::new(record.unwrap());
                    others.create(&ResolvedPod::new(record.clone())).await.unwrap();
                    record.uid().clone()
                } else {
                    others.add_foreign(&pod)
                }
            }
        };
        let fixture = ProviderFixture::new(Workload::image("fake/forever"))
            .exits(|code| Workload::image("fake/app:1").args([format!("exit={code}")]))
            .ignores_term(Workload::image("fake/ignore-term"))
            .outage(move || now(|| down.go_down()), move || now(|| up.come_up()))
            .foreign(foreign)
            .hints()
            .patience(Duration::from_secs(2));
        let broken = Broken {
            fake,
            fault,
            busy: AtomicBool::new(false),
            noted: Mutex::default(),
        };
        Some((broken, fixture))
    }
}

faults! { providers, check_provider:
    a_name_of_two_words: with(Fault::NameOfTwoWords), name_can_be_part_of_container_ids, "my cloud";
    one_step_at_a_time: with(Fault::OneStepAtATime), steps_of_different_pods_overlap, "another step goes on";
    shows_late: with(Fault::ShowsLate), what_was_created_shows, "has no status";
    list_has_other_ids: with(Fault::ListHasOtherIds), list_and_status_agree, "listed-";
    create_starts_anew: with(Fault::CreateStartsAnew), create_is_idempotent, "created twice";
    update_starts_anew: with(Fault::UpdateStartsAnew), update_with_what_the_pod_is_changes_nothing, "updated with what";
    delete_waits_for_the_end: with(Fault::DeleteWaitsForTheEnd), delete_returns_when_the_end_is_asked_for, "delete a pod: not";
    delete_must_find_a_pod: with(Fault::DeleteMustFindAPod), deleting_a_pod_that_is_gone_succeeds, "there is no pod";
    only_the_first_grace_counts: with(Fault::OnlyTheFirstGraceCounts), a_second_delete_with_less_grace_takes_effect, "has ended";
    takes_other_pods_for_its_own: with(Fault::TakesOtherPodsForItsOwn), only_pods_with_our_mark_are_told_of, "is listed";
    no_answer_is_nothing: with(Fault::NoAnswerIsNothing), no_answer_is_no_truth_about_pods, "list of a backend";
    ended_is_not_listed: with(Fault::EndedIsNotListed), an_ended_pod_is_listed_until_it_is_deleted, "is not listed";
    never_hints: with(Fault::NeverHints), an_end_that_is_hinted_at_shows, "a hint after which";
}
