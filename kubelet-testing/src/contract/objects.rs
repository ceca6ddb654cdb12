//! The promises of [`ObjectSource`].
//!
//! Each function checks one; it begins with the promise, in the words of the trait.

mod fixture;
mod reads;
mod watches;

pub use fixture::ObjectFixture;
pub use reads::{
    a_kind_that_is_not_served_is_said_to_be_so, a_list_is_whole_and_sorted, all_methods_may_overlap,
    get_answers_with_the_state_that_was_asked_for, not_found_is_a_fact, reads_may_be_dropped_at_any_time,
};
pub use watches::{
    a_watch_outlives_troubles, a_watch_yields_what_is_known_and_then_what_changes, dropping_a_watch_releases_everything,
};

use std::time::Duration;

use kubelet_core::jiff::Timestamp;
use kubelet_core::{Clock, Freshness, Object, ObjectError, ObjectKey, ObjectKind, ObjectSource, SystemClock};

use crate::contract::check::within;

/// The source under test and its fixture.
#[derive(Clone, Copy)]
struct Bench<'a> {
    source: &'a dyn ObjectSource,
    fixture: &'a ObjectFixture,
    kind: ObjectKind,
}

impl<'a> Bench<'a> {
    fn new(source: &'a dyn ObjectSource, fixture: &'a ObjectFixture) -> Self {
        let kind = fixture::kind_for(source);
        Self { source, fixture, kind }
    }

    fn patience(self) -> Duration {
        self.fixture.patience
    }

    fn key(self, name: &str) -> ObjectKey {
        ObjectKey::new(self.kind, "default", name)
    }

    async fn put(self, key: &ObjectKey, value: &str) {
        (self.fixture.put)(fixture::object(key, value)).await;
    }

    async fn remove(self, key: &ObjectKey) {
        (self.fixture.remove)(key.clone()).await;
    }

    /// Reads the state of now or later.
    async fn now(self, key: &ObjectKey) -> Result<Object, ObjectError> {
        self.get(key, Freshness::NotOlderThan(now())).await
    }

    async fn get(self, key: &ObjectKey, want: Freshness) -> Result<Object, ObjectError> {
        within("read an object", self.patience(), self.source.get(key, want)).await
    }

    /// The value of an object, which must be there.
    async fn value(self, key: &ObjectKey, want: Freshness) -> String {
        match self.get(key, want).await {
            Ok(object) => {
                assert_eq!(object.key(), *key, "the key of an object that was read");
                fixture::value(&object).to_owned()
            }
            Err(error) => panic!("read {key}: {}", kubelet_core::error_chain(&error)),
        }
    }
}

fn now() -> Timestamp {
    SystemClock.now()
}

/// Makes one `#[test]` of each promise of [`ObjectSource`].
///
/// Takes an async function without arguments that answers `Some((source, fixture))` with an
/// [`ObjectFixture`](crate::contract::ObjectFixture), or nothing where the source cannot be had. It is called once per promise.
/// The suite runs in real time: a source that looks now and then for the sake of its watches should do so often, within the
/// fixture's patience at least.
///
/// ```
/// # mod example {
/// use kubelet_core::MapObjects;
/// use kubelet_testing::contract::{ObjectFixture, now};
///
/// async fn map() -> Option<(MapObjects, ObjectFixture)> {
///     let source = MapObjects::new();
///     let (put, remove) = (source.clone(), source.clone());
///     let fixture = ObjectFixture::new(move |object| now(|| put.set(object)), move |key| now(|| remove.remove(&key)));
///     Some((source, fixture.always_readable().holds_nothing()))
/// }
///
/// kubelet_testing::object_contract!(map);
/// # }
/// ```
#[macro_export]
macro_rules! object_contract {
    ($make:path) => {
        $crate::contract_tests! { $make, objects:
            a_kind_that_is_not_served_is_said_to_be_so
            a_list_is_whole_and_sorted
            a_watch_outlives_troubles
            a_watch_yields_what_is_known_and_then_what_changes
            all_methods_may_overlap
            dropping_a_watch_releases_everything
            get_answers_with_the_state_that_was_asked_for
            not_found_is_a_fact
            reads_may_be_dropped_at_any_time
        }
    };
}
