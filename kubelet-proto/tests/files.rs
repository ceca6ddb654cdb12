//! A listener outlives a shortage of file descriptors. Alone in its process, since it takes them all.

use std::fs::File;
use std::time::Duration;

use futures::StreamExt;
use kubelet_proto::unix::{Endpoint, ListenSettings, listen};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::UnixStream;
use tokio::time::timeout;

#[tokio::test(start_paused = true)]
async fn a_connection_waits_until_there_are_files_again() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::new(folder.path().join("a.sock")).unwrap();
    let mut incoming = listen(&endpoint, ListenSettings::default()).await.unwrap();
    let _near = UnixStream::connect(endpoint.path()).await.unwrap();

    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(256),
            ..limit
        },
    )
    .unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let waited = timeout(Duration::from_secs(60), incoming.next()).await;
    assert!(waited.is_err(), "{waited:?}");

    drop(taken);
    incoming.next().await.unwrap().unwrap();
}
