//! A container runtime in memory for any kubelet:
//!
//! `cargo run -p kubelet-testing --features fake-cri --example fake_cri -- --socket /tmp/fake-cri.sock`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::SystemClock;
use kubelet_testing::{FakeCri, FakeRuntime, Op};

const USAGE: &str = "fake_cri --socket PATH [--latency MILLISECONDS] [--without-logs] [--without-events]";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut socket, mut latency) = (None, Duration::ZERO);
    let mut runtime = FakeRuntime::builder()
        .clock(Arc::new(SystemClock))
        .all_images_present()
        .call_limit(0);
    let mut logs = true;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--socket" => socket = words.next(),
            "--latency" => latency = Duration::from_millis(words.next().ok_or(USAGE)?.parse()?),
            "--without-logs" => logs = false,
            "--without-events" => runtime = runtime.without_events(),
            _ => return Err(USAGE.into()),
        }
    }
    let socket = socket.ok_or(USAGE)?;
    let runtime = runtime.build();
    for op in [
        Op::RunSandbox,
        Op::CreateContainer,
        Op::StartContainer,
        Op::RemoveContainer,
    ] {
        runtime.set_latency(op, latency);
    }
    let cri = FakeCri::builder(runtime);
    let cri = if logs { cri } else { cri.without_logs() }.build();
    cri.listen(&socket).await?;
    tokio::signal::ctrl_c().await?;
    Ok(())
}
