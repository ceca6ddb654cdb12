//! Promises about single reads.

use futures::future::join_all;
use futures::{FutureExt, StreamExt};
use kubelet_core::{Freshness, ObjectError, ObjectKey, ObjectKind, ObjectQuery, ObjectSource};

use crate::contract::check::within;
use crate::contract::objects::fixture::{ObjectFixture, object, value};
use crate::contract::objects::{Bench, now};

/// All methods may overlap each other, for the same object too.
///
/// # Panics
/// If the promise is broken.
pub async fn all_methods_may_overlap(source: &dyn ObjectSource, fixture: &ObjectFixture) {
    let bench = Bench::new(source, fixture);
    let (one, other) = (bench.key("one"), bench.key("other"));
    bench.put(&one, "1").await;
    bench.put(&other, "2").await;
    let mut watch = source.watch(&one);
    let query = ObjectQuery::new(bench.kind).with_namespace("default");
    let rounds = (0..8).map(|round| {
        let (one, other, query) = (&one, &other, &query);
        async move {
            let want = if round % 2 == 0 {
                Freshness::Live
            } else {
                Freshness::NotOlderThan(now())
            };
            assert_eq!(bench.value(one, want).await, "1");
            assert_eq!(bench.value(other, want).await, "2");
            let listed = within("list objects", fixture.patience, source.list(query)).await;
            assert_eq!(
                listed.map(|listed| listed.len()).ok(),
                Some(2),
                "a list among other reads"
            );
            let mut watch = source.watch(one);
            let known = within("what a watch knows", fixture.patience, watch.next()).await;
            assert!(known.is_some(), "a watch ended");
        }
    });
    let watched = within("what a watch knows", fixture.patience, watch.next());
    let ((), watched) = futures::join!(join_all(rounds).map(drop), watched);
    assert!(watched.is_some(), "a watch ended");
}

/// A kind that is not served is answered with [`ObjectError::NotServed`], never with "not found".
///
/// # Panics
/// If the promise is broken.
pub async fn a_kind_that_is_not_served_is_said_to_be_so(source: &dyn ObjectSource, fixture: &ObjectFixture) {
    let bench = Bench::new(source, fixture);
    for kind in ObjectKind::ALL.iter().copied() {
        let key = ObjectKey::new(kind, "default", "no-such-object");
        if source.serves(kind) {
            // Some kinds may be closed to the reader; being told that they are not served is what must not be.
            let not_served = matches!(bench.now(&key).await, Err(ObjectError::NotServed { .. }));
            assert!(!not_served, "{kind:?} is served, and its objects are not");
            continue;
        }
        for want in [Freshness::Cached, Freshness::NotOlderThan(now()), Freshness::Live] {
            let answer = bench.get(&key, want).await;
            assert!(
                matches!(answer, Err(ObjectError::NotServed { .. })),
                "an object of a kind that is not served gives {answer:?}"
            );
        }
        let list = within("list objects", fixture.patience, source.list(&ObjectQuery::new(kind))).await;
        assert!(
            matches!(list, Err(ObjectError::NotServed { .. })),
            "a list of a kind that is not served gives {list:?}"
        );
        let item = within("the end of a watch", fixture.patience, source.watch(&key).next()).await;
        assert!(item.is_none(), "a watch of a kind that is not served yields {item:?}");
        assert!(!source.serves(kind), "whether {kind:?} is served changes");
    }
}

/// [`ObjectError::NotFound`] is a fact: a source that cannot look answers [`ObjectError::Unavailable`].
///
/// # Panics
/// If the promise is broken.
pub async fn not_found_is_a_fact(source: &dyn ObjectSource, fixture: &ObjectFixture) {
    let bench = Bench::new(source, fixture);
    let (there, missing) = (bench.key("there"), bench.key("missing"));
    bench.put(&there, "1").await;
    let answer = bench.now(&missing).await;
    assert!(
        matches!(&answer, Err(ObjectError::NotFound { key }) if *key == missing),
        "an object that does not exist gives {answer:?}"
    );
    let lacks = "the fixture cannot make what the source reads unreadable";
    let Some((down, up)) = fixture.outage.or_skip("not_found_is_a_fact", lacks) else {
        return;
    };
    down(()).await;
    let query = ObjectQuery::new(bench.kind);
    let answers = [
        (
            "an object that exists",
            bench.get(&there, Freshness::Live).await.map(drop),
        ),
        (
            "an object that does not",
            bench.get(&missing, Freshness::Live).await.map(drop),
        ),
        ("an object that does not, of now", bench.now(&missing).await.map(drop)),
    ];
    // What is at hand may be handed out; but that there is nothing is not at hand.
    let cached = bench.get(&missing, Freshness::Cached).await;
    let list = within("list objects", fixture.patience, source.list(&query)).await;
    up(()).await;
    for (what, answer) in answers {
        let unavailable = matches!(answer, Err(ObjectError::Unavailable { .. }));
        assert!(unavailable, "{what} gives {answer:?} where nobody can look");
    }
    assert!(
        cached.is_err(),
        "an object that does not exist gives {cached:?} where nobody can look"
    );
    assert!(
        list.as_ref().is_ok_and(|list| !list.is_empty()) || matches!(list, Err(ObjectError::Unavailable { .. })),
        "a list gives {list:?} where nobody can look"
    );
    assert_eq!(
        bench.value(&there, Freshness::Live).await,
        "1",
        "once it can be read again"
    );
}

/// `get` with [`Freshness::NotOlderThan`] answers with the state at that time or later.
///
/// # Panics
/// If the promise is broken.
pub async fn get_answers_with_the_state_that_was_asked_for(source: &dyn ObjectSource, fixture: &ObjectFixture) {
    let bench = Bench::new(source, fixture);
    let key = bench.key("a");
    // Fast, and all of one length: a source that tells changes by their looks must look closely.
    for number in 1..=50 {
        let text = format!("{number:03}");
        bench.put(&key, &text).await;
        let freshest = [Freshness::NotOlderThan(now()), Freshness::Live];
        let want = freshest[number % 2];
        assert_eq!(bench.value(&key, want).await, text, "asked for {want:?}");
    }
    bench.remove(&key).await;
    for want in [Freshness::NotOlderThan(now()), Freshness::Live] {
        let answer = bench.get(&key, want).await;
        let gone = matches!(answer, Err(ObjectError::NotFound { .. }));
        assert!(gone, "an object that was removed gives {answer:?}");
    }
    bench.put(&key, "again").await;
    assert_eq!(bench.value(&key, Freshness::NotOlderThan(now())).await, "again");
}

/// `get` and `list` may be dropped at any time and leave nothing behind.
///
/// # Panics
/// If the promise is broken.
pub async fn reads_may_be_dropped_at_any_time(source: &dyn ObjectSource, fixture: &ObjectFixture) {
    let bench = Bench::new(source, fixture);
    let key = bench.key("a");
    bench.put(&key, "1").await;
    let query = ObjectQuery::new(bench.kind);
    for _ in 0..20 {
        // Begun, and given up at its first wait.
        let _ = source.get(&key, Freshness::Live).now_or_never();
        let _ = source.get(&key, Freshness::NotOlderThan(now())).now_or_never();
        let _ = source.list(&query).now_or_never();
    }
    bench.put(&key, "2").await;
    assert_eq!(bench.value(&key, Freshness::NotOlderThan(now())).await, "2");
}

/// A list has all objects of its query and no others, sorted by namespace and name.
///
/// # Panics
/// If the promise is broken.
pub async fn a_list_is_whole_and_sorted(source: &dyn ObjectSource, fixture: &ObjectFixture) {
    let bench = Bench::new(source, fixture);
    let list = async |query: ObjectQuery| {
        let listed = within("list objects", fixture.patience, source.list(&query)).await;
        match listed {
            Ok(listed) => listed,
            Err(error) => panic!("{query}: {}", kubelet_core::error_chain(&error)),
        }
    };
    let all = ObjectQuery::new(bench.kind);
    // There may be others, which the suite has not made.
    let ours = |namespace: &str| ["kubelet-a", "kubelet-b"].contains(&namespace);
    let names = [
        ("kubelet-b", "a"),
        ("kubelet-a", "b"),
        ("kubelet-b", "b"),
        ("kubelet-a", "a"),
        ("kubelet-a", "c"),
    ];
    for (namespace, name) in names {
        (fixture.put)(object(&ObjectKey::new(bench.kind, namespace, name), name)).await;
    }
    let mut expected: Vec<_> = names
        .iter()
        .map(|(namespace, name)| format!("{namespace}/{name}"))
        .collect();
    expected.sort();
    let told = |listed: &[kubelet_core::Object]| -> Vec<_> {
        let keys = listed.iter().map(kubelet_core::Object::key);
        let keys = keys.filter(|key| ours(&key.namespace));
        keys.map(|key| format!("{}/{}", key.namespace, key.name)).collect()
    };
    let listed = list(all.clone()).await;
    assert_eq!(told(&listed), expected, "a list of all namespaces");
    let values = listed.iter().filter(|object| ours(&object.key().namespace));
    let values: Vec<_> = values.map(value).collect();
    assert_eq!(values, ["a", "b", "c", "a", "b"], "what is in the list");
    let of_one = list(all.clone().with_namespace("kubelet-b")).await;
    assert_eq!(of_one.len(), 2, "a list of one namespace has others: {of_one:?}");
    assert_eq!(told(&of_one), expected[3..], "a list of one namespace");
    bench.remove(&ObjectKey::new(bench.kind, "kubelet-a", "b")).await;
    expected.remove(1);
    assert_eq!(
        told(&list(all.clone()).await),
        expected,
        "a list once an object was removed"
    );
    let nobody = list(all.with_namespace("kubelet-nobody")).await;
    assert!(nobody.is_empty(), "a namespace without objects has {nobody:?}");
}
