//! The promises of [`ContainerRuntime`](kubelet_core::ContainerRuntime).
//!
//! Each function checks one; its first line is the promise, in the words of the trait.

mod bench;
mod events;
mod exec;
mod identity;
mod life;
mod stopping;

pub use events::{an_end_gives_a_hint, events_begin_with_ready_or_end_as_unsupported};
pub use exec::{
    an_exec_ends_at_its_own_timeout, an_exec_reports_how_its_command_ended, an_exec_where_nothing_runs_fails,
};
pub use identity::{
    a_list_of_one_pod_holds_only_its_own, a_second_object_of_one_identity_is_taken_and_can_be_found,
    a_status_brings_back_labels_and_annotations, an_uncertain_call_may_still_happen, no_answer_is_never_an_empty_list,
    only_objects_with_our_mark_are_listed, what_is_gone_is_not_found,
};
pub use life::{
    a_call_that_returned_success_shows_in_every_list_begun_later, a_container_starts_at_most_once,
    a_container_that_cannot_be_started_is_exited, an_end_is_reported_with_its_code,
    containers_are_created_in_a_sandbox_that_is_ready, info_has_a_name_and_is_ready,
};
pub use stopping::{
    a_second_stop_with_less_grace_takes_effect_while_the_first_still_waits, a_stop_kills_once_its_grace_has_passed,
    a_stop_without_grace_kills_at_once, logs_outlive_their_container, reads_exec_and_stop_may_overlap_anything,
    removing_a_running_container_or_sandbox_stops_it_first, stopping_a_sandbox_kills_what_still_runs_in_it,
    stopping_or_removing_what_is_gone_succeeds,
};

/// Makes one `#[test]` of each promise of [`ContainerRuntime`](kubelet_core::ContainerRuntime).
///
/// Takes an async function without arguments that answers `Some((runtime, fixture))` with a
/// [`RuntimeFixture`](crate::contract::RuntimeFixture), or nothing where the runtime is missing: the tests then say so
/// and pass, unless `KUBELET_TEST_REQUIRE` is `1`. It is called once per promise, and must not rely on another.
///
/// `runtime_contract!(make, fn name)` makes one plain function that checks all promises, for runtimes that take long to set
/// up: a test sets one up, calls the function, and ends it.
///
/// ```
/// # mod example {
/// use kubelet_testing::FakeRuntime;
/// use kubelet_testing::contract::{RuntimeFixture, Workload};
///
/// async fn fake() -> Option<(FakeRuntime, RuntimeFixture)> {
///     let forever = Workload::image("fake/forever");
///     let ignores_term = Workload::image("fake/ignore-term");
///     let exits = |code| Workload::image("fake/exit").args([format!("exit={code}")]);
///     let fixture = RuntimeFixture::new(std::env::temp_dir(), forever, exits, ignores_term);
///     Some((FakeRuntime::new(), fixture))
/// }
///
/// kubelet_testing::runtime_contract!(fake);
/// # }
/// ```
#[macro_export]
macro_rules! runtime_contract {
    ($make:path) => {
        $crate::runtime_contract! { @promises each [$make] }
    };
    ($make:path, fn $name:ident) => {
        $crate::runtime_contract! { @promises all [$make, $name] }
    };
    (@promises $form:ident $with:tt) => {
        $crate::runtime_contract! { @$form $with
            a_call_that_returned_success_shows_in_every_list_begun_later
            a_container_starts_at_most_once
            a_container_that_cannot_be_started_is_exited
            a_list_of_one_pod_holds_only_its_own
            a_second_object_of_one_identity_is_taken_and_can_be_found
            a_second_stop_with_less_grace_takes_effect_while_the_first_still_waits
            a_status_brings_back_labels_and_annotations
            a_stop_kills_once_its_grace_has_passed
            a_stop_without_grace_kills_at_once
            an_end_gives_a_hint
            an_end_is_reported_with_its_code
            an_exec_ends_at_its_own_timeout
            an_exec_reports_how_its_command_ended
            an_exec_where_nothing_runs_fails
            an_uncertain_call_may_still_happen
            containers_are_created_in_a_sandbox_that_is_ready
            events_begin_with_ready_or_end_as_unsupported
            info_has_a_name_and_is_ready
            logs_outlive_their_container
            no_answer_is_never_an_empty_list
            only_objects_with_our_mark_are_listed
            reads_exec_and_stop_may_overlap_anything
            removing_a_running_container_or_sandbox_stops_it_first
            stopping_a_sandbox_kills_what_still_runs_in_it
            stopping_or_removing_what_is_gone_succeeds
            what_is_gone_is_not_found
        }
    };
    (@each [$make:path] $($promise:ident)*) => { $(
        #[test]
        fn $promise() {
            $crate::contract::check_runtime(stringify!($promise), $make, $crate::contract::runtime::$promise);
        }
    )* };
    (@all [$make:path, $name:ident] $($promise:ident)*) => {
        fn $name() { $(
            $crate::contract::check_runtime(stringify!($promise), $make, $crate::contract::runtime::$promise);
        )* }
    };
}
