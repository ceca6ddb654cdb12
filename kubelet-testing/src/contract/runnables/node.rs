//! A kubelet that runs, and what it gives its parts.

use async_trait::async_trait;
use kubelet_core::{
    CancellationToken, ChannelSource, Kubelet, NodeContext, Runnable, RunnableError, StartPhase, StopReport,
    error_chain,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::contract::check::within;
use crate::contract::runnables::fixture::RunnableFixture;

/// A part that hands on what it was given.
#[derive(Debug)]
struct Listener(watch::Sender<Option<NodeContext>>);

#[async_trait]
impl Runnable for Listener {
    fn name(&self) -> &str {
        "contract-suite"
    }
    fn phase(&self) -> StartPhase {
        StartPhase::SourcesReady
    }
    async fn run(&self, node: NodeContext, stop: CancellationToken) -> Result<(), RunnableError> {
        self.0.send_replace(Some(node));
        stop.cancelled().await;
        Ok(())
    }
}

/// A kubelet that has started, without pods of the suite's.
pub(super) struct Node {
    context: NodeContext,
    stop: CancellationToken,
    task: JoinSet<()>,
}

impl Node {
    pub(super) async fn start(fixture: &RunnableFixture) -> Self {
        let (pods, source) = ChannelSource::new("contract-suite");
        let (sender, mut receiver) = watch::channel(None);
        let built = (fixture.kubelet)().source(source).run(Listener(sender)).build();
        let kubelet = built.unwrap_or_else(|error| panic!("build a kubelet: {}", error_chain(&error)));
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(run(kubelet, stop.clone()));
        let started = async {
            if let Err(error) = pods.set(Vec::new()).await {
                panic!("say that there are no pods: {}", error_chain(&error));
            }
            match receiver.wait_for(Option::is_some).await {
                Ok(context) => context.clone(),
                Err(_) => panic!("the kubelet ends before its parts start"),
            }
        };
        let Some(context) = within("a kubelet starts", fixture.patience, started).await else {
            unreachable!("it was waited for")
        };
        Self { context, stop, task }
    }

    /// What a part of this kubelet is given.
    pub(super) fn context(&self) -> NodeContext {
        self.context.clone()
    }

    pub(super) async fn stop(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.task.join_next().await {
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }
}

async fn run(kubelet: Kubelet, stop: CancellationToken) {
    let ended: Result<StopReport, _> = kubelet.run(stop).await;
    if let Err(error) = ended {
        panic!("the kubelet fails: {}", error_chain(&error));
    }
}
