//! The sample manifests, and pods that cannot run.

use std::fs;
use std::path::Path;

use crate::harness::{Node, pod, sleeper};

fn position(said: &[String], text: &str) -> usize {
    said.iter()
        .position(|line| line.contains(text))
        .unwrap_or_else(|| panic!("no `{text}` in:\n{}", said.join("\n")))
}

#[test]
fn the_sample_manifests_do_what_they_say() {
    let mut node = Node::new();
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    for sample in fs::read_dir(samples).unwrap() {
        let sample = sample.unwrap();
        fs::copy(
            sample.path(),
            node.manifest(sample.file_name().to_str().expect("plain names")),
        )
        .unwrap();
    }
    node.start(&[]);
    let bad = node.manifest("bad.yaml").display().to_string();
    node.lines(&[
        &format!("manifest {bad}: "),
        "pod default/plain-n1: Running, ready 1/1, restarts 0",
        "pod default/init-n1: Running, ready 1/1, restarts 0",
        "pod default/sidecar-n1: Running, ready 1/1, restarts 0",
        "pod default/volumes-n1: Running, ready 1/1, restarts 0",
        "pod default/completes-n1: Succeeded",
        "pod default/crash-loop-n1: CrashLoopBackOff, ready 0/1, restarts 1 (back-off 10s",
    ]);
    node.line("pod default/crash-loop-n1: CrashLoopBackOff, ready 0/1, restarts 2 (back-off 20s");

    let said = node.said();
    let complaint = &said[position(said, &format!("manifest {bad}: "))];
    for part in [
        &bad,
        "line 12",
        "spec.containers[0].ports[0].containerPort",
        r#""eighty""#,
    ] {
        assert!(complaint.contains(part), "{complaint}");
    }
    for order in [
        vec![
            "init-n1 spec.initContainers{first}: Started",
            "init-n1 spec.initContainers{second}: Created",
            "init-n1 spec.initContainers{second}: Started",
            "init-n1 spec.containers{app}: Created",
        ],
        vec![
            "sidecar-n1 spec.initContainers{helper}: Started",
            "sidecar-n1 spec.containers{app}: Created",
        ],
        vec!["ready 0/1, restarts 0 (app ended with 3: gave up)", "(back-off 10s"],
    ] {
        let positions: Vec<usize> = order.iter().map(|text| position(said, text)).collect();
        assert!(positions.is_sorted(), "{order:?} in:\n{}", said.join("\n"));
    }
}

#[test]
fn an_unknown_image_names_its_folder_and_hurts_no_other_pod() {
    let mut node = Node::new();
    node.write("good.yaml", &sleeper("good", "one"));
    node.write(
        "unknown.yaml",
        &pod(
            "unknown",
            "  containers:\n    - {name: app, image: nosuch, command: [sleep, infinity]}\n",
        ),
    );
    node.start(&[]);
    let folder = node.root().join("images/nosuch").display().to_string();
    node.lines(&[
        &format!("there is no folder {folder}"),
        "pod default/unknown-n1 spec.containers{app}: Failed: Error: ErrImagePull",
        "pod default/unknown-n1: ImagePullBackOff",
        "pod default/good-n1: Running, ready 1/1",
    ]);
    let said = node.said();
    assert!(position(said, "ErrImagePull") < position(said, "pod default/unknown-n1: ImagePullBackOff"));
}

#[test]
fn secrets_and_config_maps_of_a_folder_reach_the_environment() {
    let mut node = Node::new();
    fs::create_dir(node.path("objects")).unwrap();
    fs::write(
        node.path("objects/all.yaml"),
        "apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {COLOUR: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: token}
stringData: {value: s3cret}
",
    )
    .unwrap();
    node.write(
        "reader.yaml",
        &pod(
            "reader",
            "  terminationGracePeriodSeconds: 2
  containers:
    - name: app
      image: localhost/host
      command: [sleep, infinity]
      envFrom:
        - configMapRef: {name: settings}
      env:
        - name: TOKEN
          valueFrom: {secretKeyRef: {name: token, key: value}}
",
        ),
    );
    let objects = node.path("objects").display().to_string();
    node.start(&["--objects", &objects]);
    node.running("reader");
    assert_eq!(node.process("COLOUR=blue"), node.process("TOKEN=s3cret"));
}
