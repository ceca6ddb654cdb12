//! Admission handlers: what fits the node, and what needs absent parts.

#![allow(clippy::unwrap_used, reason = "a helper of tests: a panic is the failure")]

use kubelet_core::k8s_openapi::api::core::v1::{ContainerPort, Volume, VolumeMount};
use kubelet_core::{Abilities, AbsentParts, NodeFit, NodeView};
use kubelet_testing::PodBuilder;
use kubelet_testing::contract::AdmitFixture;

fn node() -> NodeView {
    let mut node = NodeView::new("edge-7");
    for (resource, amount) in [("pods", "10"), ("cpu", "4"), ("memory", "8Gi")] {
        node.allocatable.insert(resource.to_owned(), amount.parse().unwrap());
    }
    node
}

async fn node_fit() -> Option<(NodeFit, AdmitFixture)> {
    let pod = |name: &str, cpu: &str| {
        PodBuilder::new(name)
            .container("app", |container| container.request("cpu", cpu))
            .build()
    };
    let fixture = AdmitFixture::new(node(), &pod("small", "1"))
        .rejected(&pod("large", "3"))
        .never_holds_back()
        .others([&pod("other", "2")]);
    Some((NodeFit::default(), fixture))
}

async fn on_shared_network() -> Option<(NodeFit, AdmitFixture)> {
    let pod = |name: &str, port| {
        let port = ContainerPort {
            container_port: port,
            ..ContainerPort::default()
        };
        let listens = |container: kubelet_testing::ContainerBuilder| container.with(|c| c.ports = Some(vec![port]));
        PodBuilder::new(name).container("app", listens).build()
    };
    let fixture = AdmitFixture::new(node(), &pod("free", 8081))
        .rejected(&pod("taken", 8080))
        .never_holds_back()
        .others([&pod("other", 8080)]);
    Some((NodeFit::on_shared_network(), fixture))
}

async fn absent_parts() -> Option<(AbsentParts, AdmitFixture)> {
    let plain = PodBuilder::new("plain").container("app", |container| container).build();
    let volume = Volume {
        name: "data".to_owned(),
        empty_dir: Some(Default::default()),
        ..Volume::default()
    };
    let mount = VolumeMount {
        name: "data".to_owned(),
        mount_path: "/data".to_owned(),
        ..VolumeMount::default()
    };
    let stores = PodBuilder::new("stores")
        .container("app", |container| container)
        .spec(|spec| {
            spec.volumes = Some(vec![volume]);
            spec.containers[0].volume_mounts = Some(vec![mount]);
        })
        .build();
    let fixture = AdmitFixture::new(node(), &plain).rejected(&stores).never_holds_back();
    Some((AbsentParts::new(Abilities::default()), fixture))
}

mod of_node_fit {
    kubelet_testing::admit_contract!(super::node_fit);
}

mod of_node_fit_on_a_shared_network {
    kubelet_testing::admit_contract!(super::on_shared_network);
}

mod of_absent_parts {
    kubelet_testing::admit_contract!(super::absent_parts);
}
