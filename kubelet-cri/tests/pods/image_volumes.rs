//! Volumes that are images.

use std::time::Duration;

use kubelet_core::{
    ContainerConfig, ContainerRuntime, ContainerStatus, CreateContainer, ImageGcPolicy, ImageMount, ImageMounts,
    ImageRef, ImageService, Mount, PodKey, PodUid, SandboxConfig,
};
use kubelet_testing::{BUSYBOX_IMAGE, Containerd, OciArchive};
use serde_json::{Value, json};

use crate::node::{Node, is_running, on_both, pod, sh, waits_for, with};

on_both!(a_container_reads_the_files_of_an_image what_is_known_of_the_runtime_is_so);

const MODEL: &str = "registry.example/model:1";

async fn import(node: &mut Node) {
    let image =
        OciArchive::new(MODEL)
            .file("weights", 0o644, "of the model\n")
            .file("texts/en/hello", 0o644, "hello\n");
    node.containerd.import(&image).await.unwrap();
}

fn mounting(name: &str, script: &str, mount: &Value) -> Value {
    let mut of_model = json!({"name": "model", "mountPath": "/model"});
    for (key, value) in mount.as_object().unwrap() {
        of_model[key] = value.clone();
    }
    with(sh(name, script), &json!({"volumeMounts": [of_model]}))
}

async fn a_container_reads_the_files_of_an_image(mut node: Node) {
    import(&mut node).await;
    let can = node.runtime().await.info().await.unwrap().image_mounts;
    let expected = match node.containerd.version() {
        Containerd::V1_6 => ImageMounts::No,
        _ => ImageMounts::Whole,
    };
    assert_eq!(can, expected);
    // Every disk is full by this measure.
    let mut policy = ImageGcPolicy::default();
    (policy.high_threshold_percent, policy.low_threshold_percent) = (1, 0);
    (policy.min_age, policy.period) = (Duration::ZERO, Duration::from_millis(200));
    let agent = node.start_with(|builder| builder.image_gc(policy)).await;
    let forever = "trap 'exit 0' TERM; while :; do sleep 0.2; done";
    let script = format!("cat /model/weights /model/texts/en/hello; touch /model/x 2>&1; echo end; {forever}");
    let volumes =
        |reference: &str| json!([{"name": "model", "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}]);
    let whole = pod(
        "whole",
        json!({
            "volumes": volumes(MODEL),
            "containers": [mounting("app", &script, &json!({})), sh("beside", forever)],
        }),
    );
    let part = pod(
        "part",
        json!({
            "volumes": volumes(MODEL),
            "containers": [mounting("app", forever, &json!({"subPath": "texts"}))],
        }),
    );
    let lacking = pod(
        "lacking",
        json!({
            "volumes": volumes("127.0.0.1:1/no-such-registry/model:1"),
            "containers": [mounting("app", forever, &json!({})), sh("beside", forever)],
        }),
    );
    agent.pods.set(vec![whole, part, lacking]).await.unwrap();
    let refused: &[&str] = match can {
        ImageMounts::No => &["whole", "part", "lacking"],
        _ => &["part"],
    };
    agent
        .until("they are refused", |all| {
            refused.iter().all(|name| {
                let status = all.get(*name);
                status.is_some_and(|pod| pod.reason.as_deref() == Some("PartMissing"))
            })
        })
        .await;
    if can != ImageMounts::No {
        agent
            .until("it runs", |all| {
                is_running(all, "whole", "app") && is_running(all, "lacking", "beside")
            })
            .await;
        agent
            .until("it waits", |all| {
                let waits = waits_for(all, "lacking", "app");
                waits.is_some_and(|(reason, why)| reason == "ImagePullBackOff" && why.contains("volume \"model\""))
            })
            .await;
        let told = async {
            while !node.log("whole", "app").contains("end\n") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), told)
            .await
            .expect("it reads");
        let text = node.log("whole", "app");
        assert!(text.starts_with("of the model\nhello\n"), "{text}");
        assert!(text.contains("Read-only file system"), "{text}");
        // The collector has looked at it some times meanwhile.
        let left = node.runtime().await.list().await.unwrap();
        assert!(left.iter().any(|image| image.tags == [MODEL]), "{left:?}");
    }
    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}

/// Asks the runtime itself, whatever is said of it.
async fn what_is_known_of_the_runtime_is_so(mut node: Node) {
    import(&mut node).await;
    let runtime = node.runtime().await;
    let images = runtime.list().await.unwrap();
    let id = &images.iter().find(|image| image.tags == [MODEL]).unwrap().id;
    let mut sandbox = SandboxConfig::new(PodUid::from("u1"), PodKey::new("default", "p"), 0);
    sandbox.log_directory = node.path("raw-logs");
    std::fs::create_dir_all(&sandbox.log_directory).unwrap();
    let sandbox_id = runtime.run_sandbox(&sandbox, "").await.unwrap();
    let run = async |name: &str, sub_path: &str| -> Result<(String, ContainerStatus), String> {
        let mut config = ContainerConfig::new(name, 0, ImageRef::new(BUSYBOX_IMAGE));
        config.command = ["/bin/sh", "-c", "find /model -type f"].map(str::to_owned).to_vec();
        config.log_path = format!("{name}.log").into();
        let mut image = ImageMount::new(ImageRef::with_asked(id.as_str(), MODEL));
        image.sub_path = sub_path.to_owned();
        let mut mount = Mount::new("/model", "");
        mount.read_only = true;
        mount.image = Some(image);
        config.mounts.push(mount);
        let request = CreateContainer::new(&sandbox_id, &sandbox, &config);
        let failed = |error: kubelet_core::RuntimeError| kubelet_core::error_chain(&error).to_string();
        let id = runtime.create_container(request).await.map_err(failed)?;
        runtime.start_container(&id).await.map_err(failed)?;
        loop {
            let status = runtime.container_status(&id).await.unwrap();
            if status.finished_at.is_some() {
                let log = std::fs::read_to_string(sandbox.log_directory.join(&config.log_path)).unwrap();
                return Ok((log, status));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (whole, part) = (run("whole", "").await, run("part", "texts").await);
    match node.containerd.version() {
        // It takes an image for a path of the host that has no name.
        Containerd::V1_6 => {
            let why = whole.unwrap_err();
            assert!(why.contains("failed to mkdir \"\""), "{why}");
            assert!(part.is_err());
        }
        _ => {
            let (whole, status) = whole.unwrap();
            assert!(
                whole.contains("/model/weights") && whole.contains("/model/texts/en/hello"),
                "{whole}"
            );
            assert_eq!(status.mounted_images, [id.to_string()]);
            // It knows no parts, and says nothing: the day that it does, pods may have them.
            let (part, _) = part.unwrap();
            assert!(part.contains("/model/weights"), "{part}");
        }
    }
    runtime.stop_sandbox(&sandbox_id).await.unwrap();
    runtime.remove_sandbox(&sandbox_id).await.unwrap();
    node.containerd.stop().await.unwrap();
}
