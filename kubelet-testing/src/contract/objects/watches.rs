//! Promises about watches.

use std::time::Duration;

use futures::StreamExt;
use kubelet_core::{Object, ObjectSource, ObjectWatch, Watched};

use crate::contract::check::{eventually, within};
use crate::contract::objects::Bench;
use crate::contract::objects::fixture::{ObjectFixture, value};

/// A watch, and what it said last.
struct Following<'a> {
    bench: Bench<'a>,
    watch: ObjectWatch,
    last: Option<Watched>,
}

impl<'a> Following<'a> {
    fn new(bench: Bench<'a>, name: &str) -> Self {
        Self {
            bench,
            watch: bench.source.watch(&bench.key(name)),
            last: None,
        }
    }

    /// Takes items until one shows that value, or that there is no object.
    async fn until(&mut self, wanted: Option<&str>) {
        let what = format!("a watch shows {wanted:?}");
        within(&what, self.bench.patience(), async {
            loop {
                let Some(item) = self.watch.next().await else {
                    panic!("a watch of a kind that is served ended; waited for {wanted:?}");
                };
                let shown = match &item {
                    Watched::Present(object) => Some(value(object).to_owned()),
                    _ => None,
                };
                assert_ne!(self.last.as_ref(), Some(&item), "a watch says twice: {:?}", shown);
                self.last = Some(item);
                if shown.as_deref() == wanted {
                    return;
                }
            }
        })
        .await;
    }
}

/// A watch yields what is known when it starts, then each later state; fast changes may collapse into the last one.
///
/// # Panics
/// If the promise is broken.
pub async fn a_watch_yields_what_is_known_and_then_what_changes(source: &dyn ObjectSource, fixture: &ObjectFixture) {
    let bench = Bench::new(source, fixture);
    let (there, later) = (bench.key("there"), bench.key("later"));
    bench.put(&there, "1").await;
    let (mut of_there, mut of_later) = (Following::new(bench, "there"), Following::new(bench, "later"));
    of_there.until(Some("1")).await;
    of_later.until(None).await;
    bench.put(&later, "1").await;
    of_later.until(Some("1")).await;
    // Seen one by one, and of one length.
    for number in 2..=6 {
        bench.put(&there, &number.to_string()).await;
        of_there.until(Some(&number.to_string())).await;
    }
    // While nobody polls.
    for number in 7..=9 {
        bench.put(&there, &number.to_string()).await;
    }
    of_there.until(Some("9")).await;
    bench.remove(&there).await;
    of_there.until(None).await;
    bench.put(&there, "again").await;
    of_there.until(Some("again")).await;
    // A second watch of the same object begins with what is known.
    let mut second = Following::new(bench, "there");
    second.until(Some("again")).await;
    assert_eq!(
        second.last.as_ref().and_then(present).map(Object::key),
        Some(there),
        "what a watch shows is another object"
    );
}

fn present(watched: &Watched) -> Option<&Object> {
    match watched {
        Watched::Present(object) => Some(object),
        _ => None,
    }
}

/// A watch outlives troubles of the source, and tells nothing of them.
///
/// # Panics
/// If the promise is broken.
pub async fn a_watch_outlives_troubles(source: &dyn ObjectSource, fixture: &ObjectFixture) {
    let lacks = "the fixture cannot make what the source reads unreadable";
    let Some((down, up)) = fixture.outage.or_skip("a_watch_outlives_troubles", lacks) else {
        return;
    };
    let bench = Bench::new(source, fixture);
    let key = bench.key("a");
    bench.put(&key, "1").await;
    let mut before = Following::new(bench, "a");
    before.until(Some("1")).await;
    down(()).await;
    // Looks during the trouble, so that it is known; for as long as they take, the watch has nothing to say.
    let looks = async {
        for _ in 0..20 {
            let answer = bench.get(&key, kubelet_core::Freshness::Live).await;
            assert!(answer.is_err(), "an object gives {answer:?} where nobody can look");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        biased;
        item = before.watch.next() => panic!("a watch yields {item:?} since nobody can look"),
        () = looks => {}
    }
    let mut during = Following::new(bench, "a");
    up(()).await;
    bench.put(&key, "2").await;
    within("a watch goes on", fixture.patience, async {
        loop {
            let item = before.watch.next().await;
            let Some(Watched::Present(object)) = item else {
                panic!("a watch yields {item:?} since nobody could look");
            };
            if value(&object) == "2" {
                return;
            }
        }
    })
    .await;
    during.until(Some("2")).await;
}

/// Dropping the watch releases everything the source held for it.
///
/// # Panics
/// If the promise is broken.
pub async fn dropping_a_watch_releases_everything(source: &dyn ObjectSource, fixture: &ObjectFixture) {
    let lacks = "the fixture does not tell what is held for watches";
    let Some(held) = fixture.held.or_skip("dropping_a_watch_releases_everything", lacks) else {
        return;
    };
    let bench = Bench::new(source, fixture);
    bench.put(&bench.key("a"), "1").await;
    bench.now(&bench.key("a")).await.ok();
    let before = held();
    let mut watches = [
        Following::new(bench, "a"),
        Following::new(bench, "a"),
        Following::new(bench, "missing"),
    ];
    watches[0].until(Some("1")).await;
    watches[2].until(None).await;
    // One that was polled to its wait, and one that never was.
    let _ = futures::poll!(watches[0].watch.next());
    assert!(held() > before, "nothing is held for three watches, says the fixture");
    drop(watches);
    eventually("what was held for watches is released", fixture.patience, async || {
        (held() <= before).then_some(())
    })
    .await;
}
