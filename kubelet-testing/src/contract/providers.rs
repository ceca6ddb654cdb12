//! The promises of [`PodProvider`](kubelet_core::PodProvider).
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

mod bench;
mod ends;
mod fixture;
mod life;

pub use ends::{
    a_second_delete_with_less_grace_takes_effect, an_end_that_is_hinted_at_shows,
    an_ended_pod_is_listed_until_it_is_deleted, delete_returns_when_the_end_is_asked_for,
    deleting_a_pod_that_is_gone_succeeds,
};
pub use fixture::ProviderFixture;
pub use life::{
    create_is_idempotent, list_and_status_agree, name_can_be_part_of_container_ids, no_answer_is_no_truth_about_pods,
    only_pods_with_our_mark_are_told_of, steps_of_different_pods_overlap, update_with_what_the_pod_is_changes_nothing,
    what_was_created_shows,
};

/// Makes one `#[test]` of each promise of [`PodProvider`](kubelet_core::PodProvider).
///
/// Takes an async function without arguments that answers `Some((provider, fixture))` with a
/// [`ProviderFixture`](crate::contract::ProviderFixture), or nothing where the backend cannot be had. It is called once per
/// promise. The suite runs in real time, also on a backend that follows `tokio::time`.
///
/// ```
/// # mod example {
/// use kubelet_testing::FakeProvider;
/// use kubelet_testing::contract::{ProviderFixture, Workload};
///
/// async fn fake() -> Option<(FakeProvider, ProviderFixture)> {
///     let provider = FakeProvider::new();
///     let fixture = ProviderFixture::new(Workload::image("fake/forever")).never_exits().ends_at_once();
///     Some((provider, fixture.always_answers().alone()))
/// }
///
/// kubelet_testing::provider_contract!(fake);
/// # }
/// ```
#[macro_export]
macro_rules! provider_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, providers, check_provider:
            a_second_delete_with_less_grace_takes_effect
            an_end_that_is_hinted_at_shows
            an_ended_pod_is_listed_until_it_is_deleted
            create_is_idempotent
            delete_returns_when_the_end_is_asked_for
            deleting_a_pod_that_is_gone_succeeds
            list_and_status_agree
            name_can_be_part_of_container_ids
            no_answer_is_no_truth_about_pods
            only_pods_with_our_mark_are_told_of
            steps_of_different_pods_overlap
            update_with_what_the_pod_is_changes_nothing
            what_was_created_shows
        }
    };
}
