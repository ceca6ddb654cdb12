//! A kubelet inside another program, which pushes the pods: processes of this machine, without a daemon.
//!
//! Run: `cargo run -p kubelet-examples --bin embed`, and end it with Ctrl-C.

use kubelet_core::{CancellationToken, ChannelSource, Containers, Kubelet, NodeFit, OnStop};
use kubelet_pleg::GenericPleg;
use kubelet_process::{ProcessRuntime, Settings};
use kubelet_testing::PodBuilder;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let supervisor = kubelet_process::init(); // first of all
    tokio::runtime::Runtime::new()?.block_on(async {
        let dir = std::env::temp_dir().join("kubelet-embed");
        let settings = Settings::new(dir.join("process"), dir.join("images"));
        let runtime = ProcessRuntime::open(Some(supervisor), settings).await?;
        let (pods, source) = ChannelSource::new("embedder");
        let kubelet = Kubelet::builder("embedded", Containers::new(runtime, GenericPleg::default()))
            .source(source)
            .fit(NodeFit::on_shared_network())
            .root_dir(dir.join("root"))
            .pod_logs_dir(dir.join("logs"))
            .on_stop(OnStop::StopPods)
            .build()?;
        let pod = PodBuilder::new("clock").uid("clock-1").container("app", |c| {
            c.image("localhost/host")
                .command(["/bin/sh", "-c", "while date; do sleep 1; done"])
        });
        pods.set(vec![pod.build()]).await?;
        let mut interrupt = signal(SignalKind::interrupt())?; // before anybody can press Ctrl-C
        println!("the pod's log is below {}", dir.join("logs").display());
        let stop = CancellationToken::new();
        let asked = stop.clone();
        let (report, ()) = tokio::join!(kubelet.run(stop), async move {
            interrupt.recv().await;
            asked.cancel();
        });
        println!("{:?}", report?);
        Ok(())
    })
}
