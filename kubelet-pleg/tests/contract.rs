//! The contract suite of generators.

use std::time::Duration;

use kubelet_pleg::{GenericPleg, GenericPlegSettings};
use kubelet_testing::contract::GeneratorFixture;

fn every(period: Duration) -> GenericPleg {
    let mut settings = GenericPlegSettings::default();
    settings.period = period;
    GenericPleg::new(settings)
}

async fn generic() -> Option<(GenericPleg, GeneratorFixture)> {
    let fixture = GeneratorFixture::new().unhurried(every(Duration::from_secs(3600)));
    Some((every(Duration::from_millis(20)), fixture))
}

kubelet_testing::generator_contract!(generic);
