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
    /// The earliest end that was ever given: a grace that is cut late does not start over.
    least: Option<Instant>,
    wish: watch::Receiver<PodWish>,
}

impl GraceClock {
    /// The grace of the pod's termination, from the moment that its containers were first asked to stop.
    pub(super) fn of_termination(began: Instant, wish: watch::Receiver<PodWish>) -> Self {
        Self {
            began,
            own: None,
            least: None,
            wish,
        }
    }

    /// A grace of its own, from now on, or the termination's if that ends earlier.
    pub(super) fn own(grace: Duration, wish: watch::Receiver<PodWish>) -> Self {
        Self {
            began: Instant::now(),
            own: Some(grace),
            least: None,
            wish,
        }
    }

    /// When the grace ends, as things stand.
    pub(super) fn deadline(&mut self) -> Instant {
        let own = self.own.map(|grace| self.began + grace);
        let wished = self
            .wish
            .borrow()
            .terminate
            .as_ref()
            .map(|end| self.began.max(end.shortened_at) + end.grace);
        let least = [own, wished, self.least].into_iter().flatten().min();
        let least = least.unwrap_or(self.began);
        self.least = Some(least);
        least
    }

    /// What is left.
    pub(super) fn remaining(&mut self) -> Duration {
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

    /// Returns when the grace ends earlier than `asked`, the end that somebody was told.
    pub(super) async fn cut_below(&mut self, asked: Instant) {
        while self.deadline() >= asked {
            Self::changed(&mut self.wish).await;
        }
    }

    async fn changed(wish: &mut watch::Receiver<PodWish>) {
        if wish.changed().await.is_err() {
            // The worker is gone; so is everybody who could shorten it.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::json;
    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::GraceClock;
    use crate::pod::testing::record;
    use crate::syncer::{KillCause, PodWish, Standing, Termination};

    fn ending(seconds: u64) -> Termination {
        Termination::new(KillCause::Deleted, Duration::from_secs(seconds))
    }

    #[tokio::test(start_paused = true)]
    async fn a_grace_cut_late_does_not_start_over() {
        let pod = Arc::new(record(json!({"spec": {"containers": []}})));
        let mut wish = PodWish::run(pod, Standing::Admitted);
        wish.end(ending(60));
        let (sender, receiver) = watch::channel(wish);
        let began = Instant::now();
        let mut clock = GraceClock::of_termination(began, receiver);
        assert_eq!(clock.deadline() - began, Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(59)).await;
        sender.send_modify(|wish| wish.end(ending(50)));
        assert_eq!(clock.deadline() - began, Duration::from_secs(60));
        sender.send_modify(|wish| wish.end(ending(0)));
        assert_eq!(clock.deadline() - began, Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_that_came_before_anybody_waits_is_noticed() {
        let pod = Arc::new(record(json!({"spec": {"containers": []}})));
        let mut wish = PodWish::run(pod, Standing::Admitted);
        wish.end(ending(600));
        let (sender, receiver) = watch::channel(wish);
        let mut clock = GraceClock::of_termination(Instant::now(), receiver);
        let asked = clock.deadline();
        sender.send_modify(|wish| wish.end(ending(5)));
        tokio::time::timeout(Duration::from_secs(1), clock.cut_below(asked))
            .await
            .unwrap();
        assert_eq!(clock.remaining().as_secs(), 5);
    }
}
