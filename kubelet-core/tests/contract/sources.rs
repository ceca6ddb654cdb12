//! Sources of pods: a folder, a file, a URL, a channel.

#![allow(clippy::unwrap_used, reason = "a helper of tests: a panic is the failure")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{
    BoundedRequest, BoundedResponse, ChannelSource, FileSource, HttpClient, HttpError, HttpSource, async_trait,
};
use kubelet_testing::contract::{SourceFixture, now};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Often enough for the suite where nothing tells of changes.
const OFTEN: Duration = Duration::from_millis(20);
/// So seldom that only the watch can tell.
const SELDOM: Duration = Duration::from_secs(3600);

fn manifest(pod: &Pod) -> Value {
    let mut manifest = serde_json::to_value(pod).unwrap();
    manifest["apiVersion"] = json!("v1");
    manifest["kind"] = json!("Pod");
    manifest
}

/// Replaces a file as a whole, as an editor does.
fn put(dir: &Path, file: &Path, text: &str) {
    let new = dir.join(".new");
    fs::write(&new, text).unwrap();
    fs::rename(new, file).unwrap();
}

/// Makes a path go away and come back.
fn outage(path: PathBuf) -> (impl Fn() + Clone, impl Fn() + Clone) {
    let away = path.with_extension("away");
    let (from, to) = (path.clone(), away.clone());
    let down = move || fs::rename(&from, &to).unwrap();
    let up = move || fs::rename(&away, &path).unwrap();
    (down, up)
}

fn folder_fixture(outer: TempDir) -> SourceFixture {
    let dir = outer.path().join("manifests");
    let (down, up) = outage(dir.clone());
    let at = dir.clone();
    // The folder lives as long as the fixture.
    let outer = Arc::new(outer);
    let set = move |pods: Vec<Pod>| {
        let mut files = BTreeSet::new();
        for pod in &pods {
            let file = at.join(format!("{}.yaml", pod.metadata.name.as_deref().unwrap()));
            let text = manifest(pod).to_string();
            if fs::read_to_string(&file).ok().as_ref() != Some(&text) {
                put(outer.path(), &file, &text);
            }
            files.insert(file);
        }
        for entry in fs::read_dir(&at).unwrap() {
            let file = entry.unwrap().path();
            if !files.contains(&file) {
                fs::remove_file(file).unwrap();
            }
        }
        now(|| ())
    };
    SourceFixture::new(set)
        .outage(move || now(&down), move || now(&up))
        .spoil(move || now(|| fs::write(dir.join("bad.yaml"), "kind: Pod\nspec: 7\n").unwrap()))
}

async fn folder() -> Option<(FileSource, SourceFixture)> {
    let outer = TempDir::new().unwrap();
    let dir = outer.path().join("manifests");
    fs::create_dir(&dir).unwrap();
    Some((FileSource::new(dir).period(SELDOM), folder_fixture(outer)))
}

async fn unwatched_folder() -> Option<(FileSource, SourceFixture)> {
    let outer = TempDir::new().unwrap();
    let dir = outer.path().join("manifests");
    fs::create_dir(&dir).unwrap();
    Some((FileSource::new(dir).period(OFTEN).rescan_only(), folder_fixture(outer)))
}

async fn file() -> Option<(FileSource, SourceFixture)> {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pod.yaml");
    let source = FileSource::new(&file).period(SELDOM);
    let (down, up) = outage(file.clone());
    let bad = file.clone();
    let set = move |pods: Vec<Pod>| {
        let [pod] = &pods[..] else {
            panic!("one file has one pod");
        };
        put(dir.path(), &file, &manifest(pod).to_string());
        now(|| ())
    };
    let fixture = SourceFixture::new(set)
        .one_pod()
        .outage(move || now(&down), move || now(&up))
        .spoil(move || now(|| fs::write(&bad, "kind: Pod\nspec: 7\n").unwrap()));
    Some((source, fixture))
}

/// A server with one list of pods.
#[derive(Clone, Debug, Default)]
struct Served(Arc<Mutex<(Vec<Value>, bool)>>);

#[async_trait]
impl HttpClient for Served {
    async fn send(&self, _req: BoundedRequest) -> Result<BoundedResponse, HttpError> {
        let (items, down) = self.0.lock().unwrap().clone();
        if down {
            return Ok(BoundedResponse::new(503, "no pods here"));
        }
        let list = json!({"apiVersion": "v1", "kind": "PodList", "items": items});
        Ok(BoundedResponse::new(200, list.to_string()))
    }
}

async fn url() -> Option<(HttpSource, SourceFixture)> {
    let served = Served::default();
    let source = HttpSource::new("http://pods.example/", served.clone()).period(OFTEN);
    let (down, up, bad) = (served.clone(), served.clone(), served.clone());
    let set = move |pods: Vec<Pod>| now(|| served.0.lock().unwrap().0 = pods.iter().map(manifest).collect());
    let spoilt = json!({"metadata": {"name": "bad"}, "spec": 7});
    let fixture = SourceFixture::new(set)
        .outage(
            move || now(|| down.0.lock().unwrap().1 = true),
            move || now(|| up.0.lock().unwrap().1 = false),
        )
        .spoil(move || now(|| bad.0.lock().unwrap().0.push(spoilt.clone())));
    Some((source, fixture))
}

async fn channel() -> Option<(ChannelSource, SourceFixture)> {
    let (handle, source) = ChannelSource::new("embedder");
    let set = move |pods| {
        let handle = handle.clone();
        async move { handle.set(pods).await.unwrap() }
    };
    Some((source, SourceFixture::new(set).always_readable().only_pods()))
}

mod of_a_folder {
    kubelet_testing::source_contract!(super::folder);
}

mod of_an_unwatched_folder {
    kubelet_testing::source_contract!(super::unwatched_folder);
}

mod of_a_file {
    kubelet_testing::source_contract!(super::file);
}

mod of_a_url {
    kubelet_testing::source_contract!(super::url);
}

mod of_a_channel {
    kubelet_testing::source_contract!(super::channel);
}
