//! Several sources of usage as one: merged, asked once for all who ask at the same time, and with rates.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use k8s_openapi::jiff::Timestamp;

use super::{ContainerUsage, CpuUsage, PodUsage, StatsError, StatsProvider, StatsScope, StatsSnapshot};
use crate::ids::{ContainerId, PodUid};

/// A rate is that of at least so long: shorter ones are noise.
const RATE_OVER: Duration = Duration::from_secs(5);

type Answer = Result<Arc<StatsSnapshot>, StatsError>;
type Asked = Shared<BoxFuture<'static, Answer>>;

/// What processor time was used when, for a rate.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Timestamp,
    used: u64,
    /// The last rate.
    rate: Option<u64>,
    /// Whether it was in the snapshot of everything that was taken last.
    seen: bool,
}

/// What has a rate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Container(ContainerId),
    Pod(PodUid),
}

#[derive(Debug, Default)]
struct Rates(BTreeMap<Of, Sample>);

impl Rates {
    /// Fills in the rate, where the source does not tell it.
    fn fill(&mut self, of: Of, cpu: Option<&mut CpuUsage>) {
        let Some(cpu) = cpu else { return };
        let Some(used) = cpu.usage_core_nanoseconds else {
            return;
        };
        let first = Sample {
            at: cpu.at,
            used,
            rate: None,
            seen: true,
        };
        let sample = self.0.entry(of).or_insert(first);
        sample.seen = true;
        let passed = cpu.at.duration_since(sample.at);
        let passed = Duration::try_from(passed).unwrap_or_default();
        if used < sample.used {
            // It was started anew: what was used before is no part of this.
            *sample = first;
        } else if passed >= RATE_OVER {
            let used_meanwhile = u128::from(used - sample.used);
            let rate = used_meanwhile * 1_000_000_000 / passed.as_nanos().max(1);
            *sample = Sample {
                rate: u64::try_from(rate).ok(),
                ..first
            };
        }
        cpu.usage_nano_cores = cpu.usage_nano_cores.or(sample.rate);
    }

    fn fill_all(&mut self, snapshot: &mut StatsSnapshot, scope: &StatsScope) {
        for sample in self.0.values_mut() {
            sample.seen = false;
        }
        for container in &mut snapshot.containers {
            self.fill(Of::Container(container.id.clone()), container.cpu.as_mut());
        }
        for pod in &mut snapshot.pods {
            self.fill(Of::Pod(pod.uid.clone()), pod.cpu.as_mut());
        }
        if *scope == StatsScope::All {
            self.0.retain(|_, sample| sample.seen);
        }
    }
}

/// All sources of a node.
#[derive(Debug, Default)]
pub(crate) struct StatsLayers {
    providers: Vec<Arc<dyn StatsProvider>>,
    /// How long one of them may take.
    limit: Duration,
    rates: Arc<Mutex<Rates>>,
    asked: Mutex<BTreeMap<StatsScope, Asked>>,
}

impl StatsLayers {
    /// What a later one tells takes the place of what an earlier one tells.
    pub(crate) fn new(providers: Vec<Arc<dyn StatsProvider>>, limit: Duration) -> Self {
        Self {
            providers,
            limit,
            ..Self::default()
        }
    }

    /// Whether nobody measures.
    pub(crate) fn is_empty(&self) -> bool {
        self.providers.is_empty()
    }

    /// Measures now. Whoever asks for the same meanwhile gets the same answer.
    ///
    /// # Cancellation
    /// Safe: the measuring goes on as long as somebody waits for it.
    pub(crate) async fn collect(&self, scope: StatsScope) -> Answer {
        if self.providers.is_empty() {
            return Err(StatsError::NoProvider);
        }
        let asked = {
            let mut asked = lock(&self.asked);
            // What nobody waits for any more would never come to its end.
            asked.retain(|_, call| call.peek().is_none() && call.strong_count().is_some_and(|count| count > 1));
            let call = asked.entry(scope.clone()).or_insert_with(|| self.measure(scope));
            call.clone()
        };
        asked.await
    }

    fn measure(&self, scope: StatsScope) -> Asked {
        let (providers, rates, limit) = (self.providers.clone(), self.rates.clone(), self.limit);
        let measuring = async move {
            let mut whole: Option<StatsSnapshot> = None;
            let mut failure = None;
            for provider in providers {
                let measured = match tokio::time::timeout(limit, provider.collect(&scope)).await {
                    Ok(measured) => measured,
                    Err(_) => Err(StatsError::failed(
                        "cannot measure what pods use",
                        format!("no answer within {limit:?}"),
                    )),
                };
                match measured {
                    Ok(layer) => match &mut whole {
                        None => whole = Some(layer),
                        Some(whole) => merge(whole, layer),
                    },
                    // The others still tell what they know.
                    Err(error) => {
                        tracing::debug!(error = &error as &dyn Error, ?provider, "usage not measured");
                        failure = Some(error);
                    }
                }
            }
            match (whole, failure) {
                (Some(mut whole), _) => {
                    lock(&rates).fill_all(&mut whole, &scope);
                    Ok(Arc::new(whole))
                }
                (None, Some(error)) => Err(error),
                (None, None) => Err(StatsError::NoProvider),
            }
        };
        measuring.boxed().shared()
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lays what is known in `layer` over what is known already.
fn merge(whole: &mut StatsSnapshot, layer: StatsSnapshot) {
    let mut containers: BTreeMap<ContainerId, ContainerUsage> = by(layer.containers, |usage| usage.id.clone());
    for below in &mut whole.containers {
        if let Some(above) = containers.remove(&below.id) {
            over(&mut below.cpu, above.cpu);
            over(&mut below.memory, above.memory);
            over(&mut below.swap, above.swap);
            over(&mut below.writable_layer, above.writable_layer);
            over(&mut below.pressure, above.pressure);
        }
    }
    whole.containers.extend(containers.into_values());
    let mut pods: BTreeMap<PodUid, PodUsage> = by(layer.pods, |usage| usage.uid.clone());
    for below in &mut whole.pods {
        if let Some(above) = pods.remove(&below.uid) {
            over(&mut below.cpu, above.cpu);
            over(&mut below.memory, above.memory);
            over(&mut below.network, above.network);
            over(&mut below.process_count, above.process_count);
            over(&mut below.pressure, above.pressure);
        }
    }
    whole.pods.extend(pods.into_values());
}

fn by<K: Ord, V>(values: Vec<V>, key: impl Fn(&V) -> K) -> BTreeMap<K, V> {
    values.into_iter().map(|value| (key(&value), value)).collect()
}

fn over<T>(below: &mut Option<T>, above: Option<T>) {
    if above.is_some() {
        *below = above;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use async_trait::async_trait;
    use k8s_openapi::jiff::Timestamp;

    use super::{StatsLayers, merge};
    use crate::ids::{ContainerId, PodUid};
    use crate::stats::{
        ContainerUsage, CpuUsage, MemoryUsage, PodUsage, StatsError, StatsProvider, StatsScope, StatsSnapshot,
    };

    fn container(id: &str, seconds: i64, core_seconds: u64) -> ContainerUsage {
        let mut usage = ContainerUsage::new(ContainerId::from(id), PodUid::from("u"), "app");
        usage.cpu = Some(CpuUsage {
            at: Timestamp::from_second(seconds).unwrap(),
            usage_core_nanoseconds: Some(core_seconds * 1_000_000_000),
            usage_nano_cores: None,
        });
        usage
    }

    fn layered(providers: Vec<Arc<dyn StatsProvider>>) -> StatsLayers {
        StatsLayers::new(providers, Duration::from_secs(120))
    }

    fn rate(answer: &StatsSnapshot) -> Option<u64> {
        answer.containers[0].cpu.as_ref().unwrap().usage_nano_cores
    }

    /// Tells one container, from a script of seconds and seconds of a core.
    #[derive(Debug)]
    struct Scripted {
        script: Vec<(i64, u64)>,
        calls: AtomicU64,
    }

    #[async_trait]
    impl StatsProvider for Scripted {
        async fn collect(&self, _want: &StatsScope) -> Result<StatsSnapshot, StatsError> {
            let call = self.calls.fetch_add(1, Ordering::SeqCst) as usize;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let (at, used) = self.script[call % self.script.len()];
            let mut snapshot = StatsSnapshot::default();
            snapshot.containers.push(container("c", at, used));
            Ok(snapshot)
        }
    }

    fn scripted(script: &[(i64, u64)]) -> Arc<Scripted> {
        Arc::new(Scripted {
            script: script.to_vec(),
            calls: AtomicU64::new(0),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn rates_come_of_two_looks_and_stay_until_the_next_and_never_of_a_new_start() {
        let provider = scripted(&[(0, 10), (10, 15), (12, 17), (20, 35), (30, 2), (40, 7)]);
        let layers = layered(vec![provider]);
        let mut rates = Vec::new();
        for _ in 0..6 {
            rates.push(rate(&layers.collect(StatsScope::All).await.unwrap()));
        }
        let nano = |half_cores: u64| Some(half_cores * 500_000_000);
        assert_eq!(rates, [None, nano(1), nano(1), nano(4), None, nano(1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_at_the_same_time_gets_the_same_answer_and_who_asks_later_a_new_one() {
        let provider = scripted(&[(0, 1)]);
        let layers = layered(vec![provider.clone()]);
        let ask = || layers.collect(StatsScope::All);
        let (a, b, c) = tokio::join!(ask(), ask(), layers.collect(StatsScope::Pod(PodUid::from("u"))));
        assert!(Arc::ptr_eq(&a.unwrap(), &b.unwrap()));
        c.unwrap();
        assert_eq!(provider.calls.load(Ordering::SeqCst), 2);
        // One that gave up leaves nobody waiting.
        let gave_up = tokio::time::timeout(Duration::from_millis(10), ask()).await;
        assert!(gave_up.is_err());
        ask().await.unwrap();
        assert_eq!(provider.calls.load(Ordering::SeqCst), 4);
    }

    #[derive(Debug)]
    struct Broken;

    #[async_trait]
    impl StatsProvider for Broken {
        async fn collect(&self, _want: &StatsScope) -> Result<StatsSnapshot, StatsError> {
            Err(StatsError::failed("cannot measure", "no reason"))
        }
    }

    #[derive(Debug)]
    struct Hangs;

    #[async_trait]
    impl StatsProvider for Hangs {
        async fn collect(&self, _want: &StatsScope) -> Result<StatsSnapshot, StatsError> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_fails_or_hangs_takes_nothing_from_the_others() {
        let provider = scripted(&[(0, 1)]);
        let layers = layered(vec![Arc::new(Broken), provider, Arc::new(Hangs)]);
        assert_eq!(layers.collect(StatsScope::All).await.unwrap().containers.len(), 1);
        let layers = layered(vec![Arc::new(Broken)]);
        assert!(matches!(
            layers.collect(StatsScope::All).await,
            Err(StatsError::Failed { .. })
        ));
        let none = layered(Vec::new());
        assert!(matches!(
            none.collect(StatsScope::All).await,
            Err(StatsError::NoProvider)
        ));
    }

    #[test]
    fn what_a_later_source_knows_takes_the_place_of_what_an_earlier_one_does() {
        let mut whole = StatsSnapshot {
            containers: vec![container("both", 1, 1), container("below", 1, 1)],
            pods: vec![PodUsage::new(PodUid::from("u"))],
        };
        let mut above = container("both", 2, 2);
        above.memory = Some(MemoryUsage::default());
        let mut without_cpu = container("below", 2, 2);
        without_cpu.cpu = None;
        let mut pod = PodUsage::new(PodUid::from("u"));
        pod.process_count = Some(7);
        let layer = StatsSnapshot {
            containers: vec![above.clone(), without_cpu, container("above", 2, 2)],
            pods: vec![pod.clone(), PodUsage::new(PodUid::from("v"))],
        };
        merge(&mut whole, layer);
        assert_eq!(
            whole.containers,
            [above, container("below", 1, 1), container("above", 2, 2)]
        );
        assert_eq!(whole.pods, [pod, PodUsage::new(PodUid::from("v"))]);
    }
}
