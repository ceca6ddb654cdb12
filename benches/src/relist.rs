//! What one look at everything costs when nothing has changed.

use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{
    CancellationToken, ContainerConfig, ContainerRuntime, CreateContainer, ImageRef, PlegContext, PlegHealth, PodKey,
    PodLifecycleEventGenerator, PodUid, SandboxConfig, Scope, SeededRandom, label, pod_signals, pod_status_cache,
    relist_requests,
};
use kubelet_pleg::GenericPleg;
use kubelet_testing::{FakeRuntime, Op};

use crate::measure::{Row, cpu_time, simulated};
use crate::node;
use crate::sizes::Sizes;

pub(crate) fn measure(sizes: &Sizes, tell: &mut dyn FnMut(Row)) {
    for count in &sizes.pods {
        let looks = (100_000 / count).clamp(20, 1_000);
        let (whole, lists) = simulated().block_on(relist(*count, looks));
        tell(Row::new(
            "relist: two containers each, nothing changed",
            *count,
            format!("{whole:.2?} of CPU, of which the fake's lists {lists:.2?}"),
        ));
    }
}

async fn relist(count: usize, looks: usize) -> (Duration, Duration) {
    let fake = node::fake(0);
    for number in 0..count {
        run_pod(&fake, number).await;
    }
    let (writer, cache) = pod_status_cache();
    let (_requester, requests) = relist_requests();
    let (signals, _receiver) = pod_signals();
    let runtime: Arc<dyn ContainerRuntime> = Arc::new(fake.clone());
    let health = PlegHealth::new(Duration::from_secs(180));
    let random = Arc::new(SeededRandom::new(1));
    let cx = PlegContext::new(runtime.clone(), writer, requests, signals, random, health);
    let stop = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    let until = stop.clone();
    tasks.spawn(async move { GenericPleg::default().run(cx, until).await });
    // The first look inspects every pod.
    cache.first_look().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (before, looked) = (cpu_time(), fake.count(Op::ListSandboxes));
    let seconds = u64::try_from(looks).unwrap_or(u64::MAX);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let made = fake.count(Op::ListSandboxes) - looked;
    let whole = (cpu_time() - before) / u32::try_from(made).expect("few");
    stop.cancel();
    tasks.join_all().await;
    let before = cpu_time();
    for _ in 0..looks {
        let _ = std::hint::black_box(runtime.list_sandboxes(Scope::All).await);
        let _ = std::hint::black_box(runtime.list_containers(Scope::All).await);
    }
    let lists = (cpu_time() - before) / u32::try_from(looks).expect("few");
    (whole, lists)
}

async fn run_pod(fake: &FakeRuntime, number: usize) {
    let uid = format!("0f7ca5a2-3d5a-4a0e-9b1c-{number:012}");
    let key = PodKey::new("default", format!("web-{number:05}"));
    let mut sandbox = SandboxConfig::new(PodUid::from(uid.as_str()), key, 0);
    sandbox.labels.insert(label::POD_UID.to_owned(), uid);
    let id = fake.run_sandbox(&sandbox, "").await.expect("no faults");
    for name in ["app-0", "app-1"] {
        let image = ImageRef::new("registry.example.com/team/web:1.2.3");
        let mut config = ContainerConfig::new(name, 0, image);
        config.labels.clone_from(&sandbox.labels);
        let request = CreateContainer::new(&id, &sandbox, &config);
        let container = fake.create_container(request).await.expect("no faults");
        fake.start_container(&container).await.expect("no faults");
    }
}
