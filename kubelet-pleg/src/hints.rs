//! The runtime's hints, over as many connections as it takes.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kubelet_core::{ContainerRuntime, PodUid, RandomSource, RuntimeError, RuntimeHint, jittered};
use tokio::time::Instant;
use tracing::{debug, info, warn};

const FIRST_DELAY: Duration = Duration::from_secs(1);
const LAST_DELAY: Duration = Duration::from_secs(30);

/// What to do about a hint.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    Look(PodUid),
    LookAtAll,
    /// Hints come from now on; whether some may have been missed.
    Connected {
        gap: bool,
    },
    /// None come until the next connection.
    Cut,
}

/// Receives hints and reconnects with back-off.
pub(crate) struct Hints {
    runtime: Arc<dyn ContainerRuntime>,
    random: Arc<dyn RandomSource>,
    stream: Stream,
    /// How long the next wait for a connection is, before jitter.
    delay: Duration,
    /// Whether hints may have been missed since the last connection.
    gap: bool,
}

enum Stream {
    Open(BoxStream<'static, Result<RuntimeHint, RuntimeError>>),
    Waiting(Instant),
    /// This runtime sends none.
    Unsupported,
}

impl fmt::Debug for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hints").field("gap", &self.gap).finish_non_exhaustive()
    }
}

impl Hints {
    /// Connects at the first [`Hints::next`].
    pub(crate) fn new(runtime: Arc<dyn ContainerRuntime>, random: Arc<dyn RandomSource>) -> Self {
        let stream = Stream::Open(runtime.events());
        Self {
            runtime,
            random,
            stream,
            delay: FIRST_DELAY,
            gap: false,
        }
    }

    /// The next hint; never returns where the runtime sends none. A dropped call loses nothing.
    pub(crate) async fn next(&mut self) -> Hint {
        loop {
            let item = match &mut self.stream {
                Stream::Open(stream) => stream.next().await,
                Stream::Waiting(until) => {
                    tokio::time::sleep_until(*until).await;
                    self.stream = Stream::Open(self.runtime.events());
                    continue;
                }
                Stream::Unsupported => std::future::pending().await,
            };
            match item {
                Some(Ok(RuntimeHint::Pod(uid))) => return Hint::Look(uid),
                Some(Ok(RuntimeHint::Lost)) => return Hint::LookAtAll,
                Some(Ok(RuntimeHint::Ready)) => {
                    self.delay = FIRST_DELAY;
                    let gap = std::mem::take(&mut self.gap);
                    if gap {
                        info!("runtime events are back");
                    }
                    return Hint::Connected { gap };
                }
                // A kind of hint that is not known here tells at least that something happened.
                Some(Ok(_)) => return Hint::LookAtAll,
                Some(Err(RuntimeError::Unsupported { .. })) => {
                    debug!("the runtime sends no events");
                    self.stream = Stream::Unsupported;
                }
                Some(Err(error)) => {
                    self.reconnect(Some(&error));
                    return Hint::Cut;
                }
                None => {
                    self.reconnect(None);
                    return Hint::Cut;
                }
            }
        }
    }

    /// Opens another stream, since this one does not tell of what happens.
    pub(crate) fn is_deaf(&mut self) {
        self.gap = true;
        self.wait();
    }

    /// Opens another stream after a while. Says after how long.
    fn wait(&mut self) -> Duration {
        let delay = jittered(self.delay, 0.5, &*self.random);
        self.stream = Stream::Waiting(Instant::now() + delay);
        self.delay = (self.delay * 2).min(LAST_DELAY);
        delay
    }

    fn reconnect(&mut self, error: Option<&RuntimeError>) {
        let delay = self.wait();
        let error = error.map(|error| error as &dyn Error);
        if std::mem::replace(&mut self.gap, true) {
            debug!(error, ?delay, "runtime events are still cut off");
        } else {
            warn!(error, ?delay, "runtime events were cut off, reconnecting");
        }
    }
}
