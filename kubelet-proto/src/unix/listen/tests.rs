use std::os::unix::fs::MetadataExt;

use futures::StreamExt;
use tempfile::TempDir;

use super::*;

fn endpoint(folder: &TempDir) -> Endpoint {
    Endpoint::new(folder.path().join("a.sock")).unwrap()
}

async fn open(endpoint: &Endpoint) -> Result<Incoming, ListenError> {
    listen(endpoint, ListenSettings::default()).await
}

fn mode(endpoint: &Endpoint) -> u32 {
    fs::symlink_metadata(endpoint.path()).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn a_socket_has_the_mode_that_was_asked_for_and_goes_with_its_listener() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let incoming = open(&endpoint).await.unwrap();
    assert_eq!(mode(&endpoint), 0o660);
    drop(incoming);
    assert!(!endpoint.path().exists());

    for asked in [0o600, 0o666, 0o777] {
        let incoming = listen(&endpoint, ListenSettings { mode: asked }).await.unwrap();
        assert_eq!(mode(&endpoint), asked);
        drop(incoming);
    }
}

#[tokio::test]
async fn connections_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let mut incoming = open(&endpoint).await.unwrap();
    let near = UnixStream::connect(endpoint.path()).await.unwrap();
    let far = incoming.next().await.unwrap().unwrap();
    drop(incoming);
    near.try_write(b"x").unwrap();
    far.readable().await.unwrap();
    assert_eq!(far.try_read(&mut [0; 2]).unwrap(), 1);
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    drop(std::os::unix::net::UnixListener::bind(endpoint.path()).unwrap());
    let mut incoming = open(&endpoint).await.unwrap();
    let _near = UnixStream::connect(endpoint.path()).await.unwrap();
    incoming.next().await.unwrap().unwrap();
}

#[tokio::test]
async fn a_socket_in_use_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let mut incoming = open(&endpoint).await.unwrap();
    let error = open(&endpoint).await.unwrap_err();
    assert!(
        matches!(&error, ListenError::Taken { path } if path == endpoint.path()),
        "{error}"
    );
    // What asked whether somebody listens.
    incoming.next().await.unwrap().unwrap();
    let _near = UnixStream::connect(endpoint.path()).await.unwrap();
    incoming.next().await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    fs::write(endpoint.path(), "kept").unwrap();
    let error = open(&endpoint).await.unwrap_err();
    assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read_to_string(endpoint.path()).unwrap(), "kept");

    fs::remove_file(endpoint.path()).unwrap();
    std::os::unix::fs::symlink("nowhere", endpoint.path()).unwrap();
    let error = open(&endpoint).await.unwrap_err();
    assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
    assert!(endpoint.path().is_symlink());
}

#[tokio::test]
async fn a_missing_folder_is_an_error_that_names_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::new(folder.path().join("absent/a.sock")).unwrap();
    let error = open(&endpoint).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen on {}", endpoint.path().display())
    );
    assert!(matches!(error, ListenError::Failed { source, .. } if source.kind() == io::ErrorKind::NotFound));
}

#[tokio::test]
async fn a_successor_keeps_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let first = open(&endpoint).await.unwrap();
    // As a program does that asks nobody.
    fs::remove_file(endpoint.path()).unwrap();
    let mut second = open(&endpoint).await.unwrap();
    drop(first);
    let _near = UnixStream::connect(endpoint.path()).await.unwrap();
    second.next().await.unwrap().unwrap();
    fs::remove_file(endpoint.path()).unwrap();
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_that_find_a_stale_socket_one_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    for _ in 0..20 {
        drop(std::os::unix::net::UnixListener::bind(endpoint.path()).unwrap());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let endpoint = endpoint.clone();
            tasks.spawn(async move { open(&endpoint).await });
        }
        let (mut won, mut lost) = (Vec::new(), 0);
        while let Some(outcome) = tasks.join_next().await {
            match outcome.unwrap() {
                Ok(incoming) => won.push(incoming),
                Err(ListenError::Taken { .. }) => lost += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((won.len(), lost), (1, 7));
        UnixStream::connect(endpoint.path()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_later_sees_what_the_earlier_one_made() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    drop(std::os::unix::net::UnixListener::bind(endpoint.path()).unwrap());
    let earlier = File::open(folder.path()).unwrap();
    earlier.lock().unwrap();
    let later = open(&endpoint);
    tokio::pin!(later);
    assert!(futures::poll!(&mut later).is_pending());
    fs::remove_file(endpoint.path()).unwrap();
    let _made = UnixListener::bind(endpoint.path()).unwrap();
    drop(earlier);
    assert!(matches!(later.await, Err(ListenError::Taken { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_somebody_keeps_locked_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let lock = File::open(folder.path()).unwrap();
    lock.lock().unwrap();
    drop(open(&endpoint).await.unwrap());
}
