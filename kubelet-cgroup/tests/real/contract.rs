//! The suite of `PodCgroups`.

use std::fs;
use std::sync::Arc;

use kubelet_cgroup::CgroupManager;
use kubelet_core::PodCgroups;
use kubelet_testing::PodBuilder;
use kubelet_testing::contract::{CgroupFixture, now};

use crate::root::{Root, context, limits, record};

async fn cgroups() -> Option<(CgroupManager, CgroupFixture)> {
    let root = Arc::new(Root::new("cgroups of this machine")?);
    let (next, process, stranger, lost) = (root.clone(), root.clone(), root.clone(), root.clone());
    let fixture = CgroupFixture::new()
        .next_life(move || now(|| Arc::new(next.manager()) as Arc<dyn PodCgroups>))
        .process(move |uid| {
            let child = Root::process(&process.pod_folders(&uid), "sleep 4711 & sleep 4711");
            now(move || move || child.is_alive())
        })
        .stranger(move || {
            let other = stranger.manager();
            async move {
                other.open(&context("another")).await.unwrap();
                let pod = record(
                    &PodBuilder::new("stranger")
                        .uid("stranger")
                        .container("app", |c| c)
                        .build(),
                );
                other.apply(&pod, &limits(&pod)).await.unwrap();
                pod.uid().clone()
            }
        })
        .lost(move |uid| now(|| fs::remove_dir(lost.pod_folders(&uid).last().unwrap()).unwrap()));
    // The root goes with the fixture's hooks.
    Some((root.manager(), fixture))
}

kubelet_testing::cgroup_contract!(cgroups);
