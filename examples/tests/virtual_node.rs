//! The backend of the example keeps the contract of its trait.

#[path = "../virtual-node.rs"]
#[expect(dead_code, reason = "of the example only the backend is used here")]
mod virtual_node;

use kubelet_testing::contract::{ProviderFixture, Workload};
use virtual_node::InMemory;

async fn in_memory() -> Option<(InMemory, ProviderFixture)> {
    let fixture = ProviderFixture::new(Workload::image("anything:1"))
        .never_exits()
        .ends_at_once()
        .always_answers()
        .alone();
    Some((InMemory::default(), fixture))
}

kubelet_testing::provider_contract!(in_memory);
