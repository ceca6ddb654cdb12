//! The whole engine on a fake runtime: no containers, no files, nothing to install.
//!
//! Run: `cargo run -p kubelet-examples --bin first`

use kubelet_core::{CancellationToken, ChannelSource, Containers, Kubelet, NodeView, StateDir};
use kubelet_pleg::GenericPleg;
use kubelet_testing::{FakeRuntime, PodBuilder};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (pods, source) = ChannelSource::new("example");
    let mut node = NodeView::new("first");
    node.allocatable.insert("pods".to_owned(), "10".parse()?);
    let kubelet = Kubelet::builder("first", Containers::new(FakeRuntime::new(), GenericPleg::default()))
        .source(source)
        .node_view(node)
        .state_only(StateDir::in_memory())
        .build()?;
    let mut statuses = kubelet.handle().statuses();
    let stop = CancellationToken::new();
    let watch = async {
        let job = PodBuilder::new("job")
            .uid("1")
            .restart_policy("Never")
            .container("work", |c| c.args(["exit=0", "after=1s"]));
        pods.set(vec![job.build()]).await?;
        while let Some(change) = statuses.next().await {
            let phase = change.update().status.phase.clone().unwrap_or_default();
            println!("{} is {phase}", change.update().pod.key());
            if phase == "Succeeded" {
                break;
            }
        }
        stop.cancel();
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    let (run, watched) = tokio::join!(kubelet.run(stop.clone()), watch);
    watched?;
    run?;
    Ok(())
}
