//! The contract suite of generators.
//!
//! The fake runtime has hints, so that the evented one relies on them.

use std::time::Duration;

use kubelet_pleg::{EventedPleg, EventedPlegSettings, GenericPleg, GenericPlegSettings};
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

mod evented {
    use super::*;

    fn every(period: Duration, without_events: Duration) -> EventedPleg {
        let mut settings = EventedPlegSettings::default();
        settings.period = period;
        settings.without_events.period = without_events;
        EventedPleg::new(settings)
    }

    async fn evented() -> Option<(EventedPleg, GeneratorFixture)> {
        let hour = Duration::from_secs(3600);
        let fixture = GeneratorFixture::new().unhurried(every(hour, hour));
        Some((every(Duration::from_secs(300), Duration::from_millis(20)), fixture))
    }

    kubelet_testing::generator_contract!(evented);
}
