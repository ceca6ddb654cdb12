//! The mux fed by the file source, from real files and with its state on disk.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{config_of, manifest, said};
use crate::clock::SystemClock;
use crate::config::{ConfigChanges, PodConfig};
use crate::source::{FileSource, PodSource, SourceContext, SourceItem};
use crate::state_dir::StateDir;

struct Agent {
    config: PodConfig,
    source: FileSource,
    items: futures::stream::BoxStream<'static, SourceItem>,
}

impl Agent {
    fn start(manifests: &Path, state: &Path) -> Self {
        let source = FileSource::new(manifests).period(Duration::from_secs(3600));
        let stop = CancellationToken::new();
        let items = source.open(SourceContext::new("node-1".into(), Arc::new(SystemClock), stop));
        Self {
            config: config_of(&StateDir::on_disk(state), &["file"]),
            source,
            items,
        }
    }

    async fn next(&mut self) -> ConfigChanges {
        let item = timeout(Duration::from_secs(20), self.items.next()).await;
        self.config.apply(self.source.name(), item.unwrap().unwrap()).await
    }
}

#[tokio::test]
async fn a_bad_file_keeps_its_pod_over_a_restart_and_a_good_one_replaces_it() {
    let (manifests, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let file = manifests.path().join("web.yaml");
    let put = |text: &str| {
        fs::write(manifests.path().join(".new"), text).unwrap();
        fs::rename(manifests.path().join(".new"), &file).unwrap();
    };
    put(&manifest("web", "1"));
    let mut agent = Agent::start(manifests.path(), state.path());
    assert_eq!(said(&agent.next().await), ["+web=1"]);
    put("apiVersion: v1\nkind: Pod\nspec: [");
    let changes = agent.next().await;
    assert!(changes.changes.is_empty() && changes.events.len() == 1);
    drop(agent);
    let mut agent = Agent::start(manifests.path(), state.path());
    let changes = agent.next().await;
    assert_eq!(
        (said(&changes), changes.became_ready),
        (vec!["+web=1".to_owned()], true)
    );
    put(&manifest("web", "2"));
    assert_eq!(said(&agent.next().await), ["-web=1", "+web=2"]);
    fs::remove_file(&file).unwrap();
    assert_eq!(said(&agent.next().await), ["-web=2"]);
}

#[tokio::test]
async fn the_mux_can_move_between_threads() {
    fn send<T: Send>(value: T) -> T {
        value
    }
    let mut config = config_of(&StateDir::in_memory(), &["file"]);
    let name = "file".into();
    send(config.apply(&name, SourceItem::snapshot(Vec::new()))).await;
}
