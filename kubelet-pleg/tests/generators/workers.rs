//! Many workers that change their pods and wait for what they did to be seen, with everything slow and failing at random.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc;
use kubelet_core::ContainerState::{Created, Exited, Running};
use kubelet_core::{
    ContainerState, PodStatusCache, PodUid, RandomSource, RelistRequester, RuntimeHint, SandboxState, SeededRandom,
};
use kubelet_pleg::GenericPleg;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::node::{Node, ms};
use crate::runtime::{HintResult, Pod, Scripted};

const WORKERS: usize = 12;
const STEPS: usize = 60;

struct Worker {
    uid: PodUid,
    runtime: Arc<Scripted>,
    cache: PodStatusCache,
    ask: RelistRequester,
    hints: mpsc::Sender<HintResult>,
    random: SeededRandom,
}

impl Worker {
    fn one_in(&self, n: u64) -> bool {
        self.random.next_u64().is_multiple_of(n)
    }

    /// Up to `most`, and nothing half of the time.
    fn some(&self, most: u64) -> Duration {
        if self.one_in(2) {
            Duration::ZERO
        } else {
            ms(self.random.next_u64() % most)
        }
    }

    /// Changes what there is of the pod, and how well the runtime answers.
    fn act(&self, step: usize) {
        let uid = self.uid.as_str();
        let mut world = self.runtime.world();
        world.lists_fail = self.one_in(20);
        match self.one_in(10) {
            true => world.broken.insert(uid.to_owned()),
            false => world.broken.remove(uid),
        };
        world.status_takes.insert(uid.to_owned(), self.some(4000));
        if self.one_in(8) {
            world.pods.remove(uid);
            return;
        }
        let pod = world.pods.entry(uid.to_owned()).or_insert_with(|| Pod {
            sandbox: SandboxState::Ready,
            containers: BTreeMap::new(),
        });
        // States go forward only, as with any runtime.
        for state in pod.containers.values_mut().filter(|_| self.one_in(2)) {
            *state = if *state == Created { Running } else { Exited };
        }
        if self.one_in(3) {
            let id = format!("{uid}/{step}");
            pod.containers.insert(id.clone(), Created);
            world.status_takes.insert(id, self.some(1000));
        }
    }

    async fn work(mut self) {
        for step in 0..STEPS {
            self.act(step);
            let mark = self.cache.mark();
            // Before or after the mark, now or later or not at all: it must not matter.
            if self.one_in(2) {
                self.ask.relist(&self.uid);
            }
            if self.one_in(3) {
                let _ = self.hints.try_send(Ok(RuntimeHint::Pod(self.uid.clone())));
            }
            self.runtime.list_takes.send_replace(self.some(3000));
            sleep(self.some(2000)).await;
            let seen = loop {
                let wait = self.cache.since(&self.uid, mark);
                match tokio::time::timeout(Duration::from_secs(300), wait).await.unwrap() {
                    Ok(seen) => break seen,
                    // Repeated, and the runtime gets better in time.
                    Err(_) => {
                        sleep(ms(100)).await;
                        let mut world = self.runtime.world();
                        world.lists_fail = false;
                        world.broken.remove(self.uid.as_str());
                    }
                }
            };
            let seen: BTreeMap<String, ContainerState> = seen
                .containers
                .iter()
                .map(|container| (container.id.as_str().to_owned(), container.state))
                .collect();
            let world = self.runtime.world();
            let there = world.pods.get(self.uid.as_str());
            let there = there.map(|pod| pod.containers.clone()).unwrap_or_default();
            assert_eq!(seen, there, "{} at step {step}", self.uid);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_look_after_its_change_sees_the_change() {
    for seed in 0..20 {
        let runtime = Scripted::with_pods(0);
        let (hints, receive) = mpsc::channel(16);
        runtime.world().streams.push_back(receive);
        let node = Node::start_with(Arc::new(runtime), Arc::new(GenericPleg::default()));
        let mut workers = JoinSet::new();
        for index in 0..WORKERS {
            let worker = Worker {
                uid: PodUid::from(format!("w{index:02}")),
                runtime: node.runtime.clone(),
                cache: node.cache.clone(),
                ask: node.ask.clone(),
                hints: hints.clone(),
                random: SeededRandom::new(seed * 1000 + index as u64),
            };
            workers.spawn(worker.work());
        }
        while let Some(ended) = workers.join_next().await {
            ended.unwrap();
        }
        let world = node.runtime.world();
        assert!(world.overlaps == 0 && world.inspected.len() > STEPS);
    }
}
