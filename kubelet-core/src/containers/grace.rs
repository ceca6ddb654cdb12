//! How long containers that are being stopped still have: it may only get less.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::syncer::PodWish;

/// The least grace that a runtime is asked to give. Source: kubelet 1.36, `kuberuntime_container.go`.
pub(super) const LEAST_STOP_GRACE: Duration = Duration::from_secs(2);

/// The grace of one stop, which a termination that comes meanwhile may shorten.
#[derive(Clone, Debug)]
pub(super) struct GraceClock {
    began: Instant,
    own: Option<Duration>,
    wish: watch::Receiver<PodWish>,
}

impl GraceClock {
    /// The grace of the pod's termination, from now on.
    pub(super) fn of_termination(wish: watch::Receiver<PodWish>) -> Self {
        Self {
            began: Instant::now(),
            own: None,
            wish,
        }
    }

    /// A grace of its own, from now on, or the termination's if that ends earlier.
    pub(super) fn own(grace: Duration, wish: watch::Receiver<PodWish>) -> Self {
        Self {
            began: Instant::now(),
            own: Some(grace),
            wish,
        }
    }

    fn deadline(&self) -> Instant {
        let own = self.own.map(|grace| self.began + grace);
        let wished = self
            .wish
            .borrow()
            .terminate
            .as_ref()
            .map(|end| self.began.max(end.shortened_at) + end.grace);
        match (own, wished) {
            (Some(own), Some(wished)) => own.min(wished),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => self.began,
        }
    }

    /// What is left.
    pub(super) fn remaining(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    /// Returns when nothing is left.
    pub(super) async fn expired(&mut self) {
        loop {
            let deadline = self.deadline();
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(deadline) => return,
                () = Self::changed(&mut self.wish) => {}
            }
        }
    }

    /// Returns when less is left than time alone explains.
    pub(super) async fn shortened(&mut self) {
        let before = self.deadline();
        loop {
            Self::changed(&mut self.wish).await;
            if self.deadline() < before {
                return;
            }
        }
    }

    async fn changed(wish: &mut watch::Receiver<PodWish>) {
        if wish.changed().await.is_err() {
            // The worker is gone; so is everybody who could shorten it.
            std::future::pending::<()>().await;
        }
    }
}
