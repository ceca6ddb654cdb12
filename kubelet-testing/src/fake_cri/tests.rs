#![allow(clippy::unwrap_used, reason = "a test: a panic is the failure")]

use std::time::Duration;

use futures::StreamExt;
use kubelet_proto::cri::v1::{self, ContainerEventType as Kind};
use kubelet_proto::cri::{image_client, runtime_client};
use kubelet_proto::tonic::Code;

use crate::{CriFault, CriScript, FakeCri, FakeImage, FakeRuntime, Rpc};

fn sandbox(uid: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "web".to_owned(),
            uid: uid.to_owned(),
            namespace: "shop".to_owned(),
            attempt: 0,
        }),
        labels: [("io.kubernetes.pod.uid".to_owned(), uid.to_owned())].into(),
        ..v1::PodSandboxConfig::default()
    }
}

fn run(uid: &str) -> v1::RunPodSandboxRequest {
    v1::RunPodSandboxRequest {
        config: Some(sandbox(uid)),
        ..v1::RunPodSandboxRequest::default()
    }
}

fn create(sandbox_id: &str, uid: &str, command: &[&str]) -> v1::CreateContainerRequest {
    let from = sandbox(uid);
    v1::CreateContainerRequest {
        pod_sandbox_id: sandbox_id.to_owned(),
        config: Some(v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: "app".to_owned(),
                attempt: 0,
            }),
            image: Some(v1::ImageSpec {
                image: "app:1".to_owned(),
                ..v1::ImageSpec::default()
            }),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            labels: from.labels.clone(),
            devices: vec![v1::Device::default()],
            log_path: "app/0.log".to_owned(),
            ..v1::ContainerConfig::default()
        }),
        sandbox_config: Some(from),
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_does_what_its_command_says_and_tells_its_events() {
    let fake = FakeCri::builder(FakeRuntime::new()).without_logs().build();
    let mut client = runtime_client(fake.channel());
    let mut events = client
        .get_container_events(v1::GetEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    let sandbox = client
        .run_pod_sandbox(run("u-1"))
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id;
    let request = create(&sandbox, "u-1", &["sh", "-c", "sleep 5; exit 3"]);
    let id = client
        .create_container(request)
        .await
        .unwrap()
        .into_inner()
        .container_id;
    let start = v1::StartContainerRequest {
        container_id: id.clone(),
    };
    client.start_container(start).await.unwrap();
    let mut told = Vec::new();
    while told.len() < 5 {
        let event = events.next().await.unwrap().unwrap();
        told.push((event.container_id, Kind::try_from(event.container_event_type).unwrap()));
    }
    let expected = [
        (&sandbox, Kind::ContainerCreatedEvent),
        (&sandbox, Kind::ContainerStartedEvent),
        (&id, Kind::ContainerCreatedEvent),
        (&id, Kind::ContainerStartedEvent),
        (&id, Kind::ContainerStoppedEvent),
    ];
    assert_eq!(told, expected.map(|(id, kind)| (id.clone(), kind)));
    let request = v1::ContainerStatusRequest {
        container_id: id.clone(),
        verbose: false,
    };
    let status = client
        .container_status(request)
        .await
        .unwrap()
        .into_inner()
        .status
        .unwrap();
    assert_eq!(status.exit_code, 3);
    assert_eq!(status.finished_at - status.started_at, 5_000_000_000);
    // Nothing of what was sent is lost.
    assert_eq!(fake.container_config(&id.into()).unwrap().devices.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_reserved_and_what_is_gone_may_be_removed_again() {
    let fake = FakeCri::new(FakeRuntime::new());
    let mut client = runtime_client(fake.channel());
    let id = client
        .run_pod_sandbox(run("u-1"))
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id;
    let again = client.run_pod_sandbox(run("u-1")).await.unwrap_err();
    assert_eq!(again.code(), Code::Unknown);
    assert!(
        again.message().contains("name \"web_shop_u-1_0\" is reserved for"),
        "{again}"
    );
    for _ in 0..2 {
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.clone(),
        };
        client.remove_pod_sandbox(request).await.unwrap();
    }
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: id,
        verbose: false,
    };
    assert_eq!(
        client.pod_sandbox_status(request).await.unwrap_err().code(),
        Code::NotFound
    );
    assert_eq!(
        client.exec(v1::ExecRequest::default()).await.unwrap_err().code(),
        Code::Unimplemented
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_of_a_call_that_was_done_and_answers_can_be_changed() {
    let fake = FakeCri::new(FakeRuntime::new());
    let mut client = runtime_client(fake.channel());
    fake.script(CriScript::next(Rpc::RunPodSandbox, CriFault::LostAnswer).about("u-2"));
    client.run_pod_sandbox(run("u-1")).await.unwrap();
    let lost = tokio::time::timeout(Duration::from_secs(1), client.run_pod_sandbox(run("u-2"))).await;
    assert!(lost.is_err());
    assert_eq!(fake.runtime().sandboxes().len(), 2);
    fake.on_answer(|list: &mut v1::ListPodSandboxResponse| list.items.iter_mut().for_each(|item| item.state = 9));
    let list = client
        .list_pod_sandbox(v1::ListPodSandboxRequest::default())
        .await
        .unwrap();
    assert!(list.into_inner().items.iter().all(|item| item.state == 9));
    fake.heal();
    let pieces = client
        .stream_pod_sandboxes(v1::StreamPodSandboxesRequest::default())
        .await
        .unwrap();
    let pieces: Vec<_> = pieces.into_inner().collect().await;
    assert_eq!(pieces[0].as_ref().unwrap().pod_sandboxes.len(), 2);
    assert_eq!(fake.count(Rpc::RunPodSandbox), 2);
}

#[tokio::test(start_paused = true)]
async fn a_killed_runtime_cuts_its_calls_and_keeps_its_containers() {
    let fake = FakeCri::new(FakeRuntime::new());
    let mut client = runtime_client(fake.channel());
    client.run_pod_sandbox(run("u-1")).await.unwrap();
    fake.script(CriScript::next(Rpc::Version, CriFault::Hang));
    let mut second = client.clone();
    let (cut, ()) = tokio::join!(second.version(v1::VersionRequest::default()), async {
        tokio::task::yield_now().await;
        while fake.count(Rpc::Version) == 0 {
            tokio::task::yield_now().await;
        }
        fake.go_down().await;
    });
    assert!(cut.is_err());
    assert_eq!(
        client.version(v1::VersionRequest::default()).await.unwrap_err().code(),
        Code::Unavailable
    );
    fake.come_up().await.unwrap();
    let list = client
        .list_pod_sandbox(v1::ListPodSandboxRequest::default())
        .await
        .unwrap();
    assert_eq!(list.into_inner().items.len(), 1);
    fake.runtime().lose_everything();
    let list = client
        .list_pod_sandbox(v1::ListPodSandboxRequest::default())
        .await
        .unwrap();
    assert_eq!(list.into_inner().items.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_image_is_pulled_with_the_right_credentials_only() {
    let fake = FakeCri::new(FakeRuntime::new());
    fake.runtime().set_image(
        "registry.example/app:1",
        FakeImage::default().private("robot", "secret"),
    );
    let mut client = image_client(fake.channel());
    let image = || {
        Some(v1::ImageSpec {
            image: "registry.example/app:1".to_owned(),
            ..v1::ImageSpec::default()
        })
    };
    for (password, fine) in [("wrong", false), ("secret", true)] {
        let request = v1::PullImageRequest {
            image: image(),
            auth: Some(v1::AuthConfig {
                username: "robot".to_owned(),
                password: password.to_owned(),
                ..v1::AuthConfig::default()
            }),
            ..v1::PullImageRequest::default()
        };
        assert_eq!(client.pull_image(request).await.is_ok(), fine);
    }
    let used = client
        .image_fs_info(v1::ImageFsInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(used.image_filesystems[0].used_bytes.unwrap().value > 0);
    let request = v1::RemoveImageRequest { image: image() };
    client.remove_image(request.clone()).await.unwrap();
    client.remove_image(request).await.unwrap();
    let status = client
        .image_status(v1::ImageStatusRequest {
            image: image(),
            verbose: false,
        })
        .await
        .unwrap();
    assert!(status.into_inner().image.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_log_is_in_the_format_of_cri_and_is_made_again_after_it_was_moved() {
    let folder = std::env::temp_dir().join(format!("fake-cri-log-{}", std::process::id()));
    let fake = FakeCri::new(FakeRuntime::new());
    let mut client = runtime_client(fake.channel());
    let mut request = run("u-1");
    if let Some(config) = &mut request.config {
        config.log_directory = folder.display().to_string();
    }
    let sandbox = client
        .run_pod_sandbox(request)
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id;
    let request = create(&sandbox, "u-1", &["sh", "-c", "echo up; sleep infinity"]);
    let container_id = client
        .create_container(request)
        .await
        .unwrap()
        .into_inner()
        .container_id;
    let start = v1::StartContainerRequest {
        container_id: container_id.clone(),
    };
    client.start_container(start).await.unwrap();
    let log = folder.join("app/0.log");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.ends_with("Z stdout F up\n") && text.lines().count() == 1, "{text}");
    std::fs::rename(&log, folder.join("app/0.log.1")).unwrap();
    client
        .reopen_container_log(v1::ReopenContainerLogRequest {
            container_id: container_id.clone(),
        })
        .await
        .unwrap();
    assert!(log.exists());
    let stats = client
        .container_stats(v1::ContainerStatsRequest { container_id })
        .await
        .unwrap();
    assert!(stats.into_inner().stats.unwrap().memory.is_some());
    std::fs::remove_dir_all(folder).unwrap();
}
