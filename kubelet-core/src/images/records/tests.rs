use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::jiff::Timestamp;

use super::{Known, PullRecords, credential_hash};
use crate::clock::TokioClock;
use crate::error::BoxError;
use crate::ids::ImageId;
use crate::images::normalized;
use crate::images::pull_secrets::{CredentialOrigin, PullCredential};
use crate::images::verification::{ImageVerification, Verdict, covering, verdict};
use crate::runtime::{
    ImageFilesystems, ImageRecord, ImageRef, ImageService, PullProgress, PullRequest, RegistryAuth, RuntimeError,
};
use crate::state_dir::{MemoryDisk, StateDir};

const ID: &str = "sha256:0123";

/// The images that are present.
#[derive(Debug, Default)]
struct Store(Vec<ImageRecord>);

#[async_trait]
impl ImageService for Store {
    async fn status(&self, _image: &ImageRef, _handler: &str) -> Result<Option<ImageRecord>, RuntimeError> {
        Ok(None)
    }
    async fn list(&self) -> Result<Vec<ImageRecord>, RuntimeError> {
        Ok(self.0.clone())
    }
    async fn pull(&self, _req: PullRequest<'_>, _progress: &dyn PullProgress) -> Result<ImageId, RuntimeError> {
        Err(RuntimeError::unsupported("pull"))
    }
    async fn remove(&self, _id: &ImageId) -> Result<(), RuntimeError> {
        Ok(())
    }
    async fn filesystems(&self) -> Result<ImageFilesystems, RuntimeError> {
        Ok(ImageFilesystems::default())
    }
}

fn present() -> ImageRecord {
    let mut record = ImageRecord::new(ImageId::from(ID));
    record.tags = vec!["docker.io/team/app:1".to_owned()];
    record.digests = vec![format!("docker.io/team/app@sha256:{}", "0".repeat(64))];
    record
}

fn records(state: StateDir) -> PullRecords {
    let clock = TokioClock::starting_at(Timestamp::from_second(1_700_000_000).unwrap());
    PullRecords::new(state, "", Arc::new(clock))
}

fn credential(name: &str, password: &str) -> PullCredential {
    PullCredential {
        auth: RegistryAuth::basic("me", password),
        origin: CredentialOrigin::Secret {
            uid: format!("uid-of-{name}"),
            namespace: "default".to_owned(),
            name: name.to_owned(),
        },
    }
}

fn image() -> ImageRef {
    normalized("team/app:1")
}

fn allows(known: &Known, with: Option<&PullCredential>) -> bool {
    let policy = ImageVerification::default();
    match verdict(&policy, &image().name, "docker.io/team/app", known) {
        Verdict::Use => true,
        Verdict::Pull => false,
        Verdict::AskCredentials(access) => covering(&access, with.map_or(&[], std::slice::from_ref)).is_some(),
    }
}

#[tokio::test(start_paused = true)]
async fn files_are_those_of_an_upstream_kubelet() {
    let state = StateDir::in_memory();
    let records = records(state.clone());
    records.begin(&image()).await.unwrap();
    let names = state.list("pulling").await.unwrap();
    assert_eq!(names, [super::file_name("team/app:1")]);
    let text = state.read(&format!("pulling/{}", names[0])).await.unwrap().unwrap();
    assert_eq!(
        std::str::from_utf8(&text).unwrap(),
        r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"team/app:1"}"#
    );
    let id = ImageId::from(ID);
    records
        .succeeded(&image(), &id, Some(&credential("a", "x")))
        .await
        .unwrap();
    assert!(state.list("pulling").await.unwrap().is_empty());
    let names = state.list("pulled").await.unwrap();
    let text = state.read(&format!("pulled/{}", names[0])).await.unwrap().unwrap();
    let hash = credential_hash(&credential("a", "x").auth);
    let expected = format!(
        r#"{{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2023-11-14T22:13:20Z","imageRef":"{ID}","credentialMapping":{{"team/app":{{"kubernetesSecrets":[{{"uid":"uid-of-a","namespace":"default","name":"a","credentialHash":"{hash}"}}]}}}}}}"#
    );
    assert_eq!(std::str::from_utf8(&text).unwrap(), expected);
    assert!(!expected.contains("\"x\""));
}

#[test]
fn a_hash_is_that_of_gos_json() {
    let expected = super::hex(br#"{"username":"me","password":"a\u003cb"}"#);
    assert_eq!(credential_hash(&RegistryAuth::basic("me", "a<b")), expected);
    assert_eq!(
        super::hex(b""),
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    );
    assert_eq!(credential_hash(&RegistryAuth::default()), "");
}

/// One pull, from its intent to its record; cut off wherever the disk ends.
async fn pull(records: &PullRecords, store: &mut Store, with: Option<&PullCredential>) -> Result<(), BoxError> {
    records.open(store).await?;
    records.begin(&image()).await?;
    store.0 = vec![present()];
    records.succeeded(&image(), &ImageId::from(ID), with).await
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_any_two_steps_lets_nobody_in_and_loses_nothing() {
    let (mine, theirs) = (credential("a", "x"), credential("b", "guess"));
    let restarts: [fn(&MemoryDisk); 3] = [MemoryDisk::restart, MemoryDisk::crash, MemoryDisk::crash_keeping_names];
    for restart in restarts {
        for earlier in [false, true] {
            let (mut after, mut is_whole) = (0, false);
            while !is_whole {
                let disk = MemoryDisk::new();
                let mut store = Store::default();
                if earlier {
                    let records = records(StateDir::simulated(&disk));
                    pull(&records, &mut store, Some(&credential("earlier", "y")))
                        .await
                        .unwrap();
                }
                disk.crash_after(after);
                is_whole = pull(&records(StateDir::simulated(&disk)), &mut store, Some(&mine))
                    .await
                    .is_ok();
                restart(&disk);
                let records = records(StateDir::simulated(&disk));
                records.open(&store).await.unwrap();
                if let Some(record) = store.0.first() {
                    let known = records.known(&image(), record).await;
                    assert!(!allows(&known, None), "a bypass after {after} steps: {known:?}");
                    assert!(
                        !allows(&known, Some(&theirs)),
                        "a bypass after {after} steps: {known:?}"
                    );
                    assert!(!is_whole || allows(&known, Some(&mine)), "lost: {known:?}");
                    assert!(
                        !earlier || allows(&known, Some(&credential("earlier", "y"))),
                        "lost: {known:?}"
                    );
                }
                assert!(StateDir::simulated(&disk).list("pulling").await.unwrap().is_empty());
                after += 1;
            }
            assert!(after > 6, "a pull has steps");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_being_pulled_is_for_nobody_else_under_any_name() {
    let records = records(StateDir::in_memory());
    records.open(&Store::default()).await.unwrap();
    assert_eq!(records.known(&image(), &present()).await, Known::Nothing);
    records.begin(&image()).await.unwrap();
    records.begin(&image()).await.unwrap();
    for name in ["team/app:1", "docker.io/team/app:1", &present().digests[0]] {
        assert_eq!(
            records.known(&normalized(name), &present()).await,
            Known::Intended,
            "{name}"
        );
    }
    records.failed(&image()).await.unwrap();
    assert_eq!(
        records.known(&image(), &present()).await,
        Known::Intended,
        "another pull goes on"
    );
    records.cut_off(&image());
    assert_eq!(
        records.known(&image(), &present()).await,
        Known::Intended,
        "nobody knows what it has left"
    );
    records.begin(&image()).await.unwrap();
    records.succeeded(&image(), &ImageId::from(ID), None).await.unwrap();
    assert!(allows(&records.known(&image(), &present()).await, None));
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_pulls_nothing_and_keeps_what_is_noted() {
    let disk = MemoryDisk::new();
    let state = StateDir::simulated(&disk);
    let records = records(state.clone());
    records.begin(&image()).await.unwrap();
    disk.fill();
    let other = normalized("other:1");
    assert!(records.begin(&other).await.is_err());
    assert!(records.succeeded(&image(), &ImageId::from(ID), None).await.is_err());
    assert_eq!(records.known(&image(), &present()).await, Known::Intended);
    disk.make_room();
    assert_eq!(state.list("pulling").await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_lets_nobody_in_until_somebody_pulls() {
    let state = StateDir::in_memory();
    let path = format!("pulled/{}", super::file_name(ID));
    for text in [
        "half of",
        r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"","imageRef":"sha256:other"}"#,
    ] {
        state.write(&path, text).await.unwrap();
        state.write("pulling/sha256-00", text).await.unwrap();
        let records = records(state.clone());
        let mut store = Store(vec![present()]);
        records.open(&store).await.unwrap();
        assert_eq!(records.known(&image(), &present()).await, Known::Unreadable);
        pull(&records, &mut store, Some(&credential("a", "x"))).await.unwrap();
        assert!(allows(
            &records.known(&image(), &present()).await,
            Some(&credential("a", "x"))
        ));
    }
}
