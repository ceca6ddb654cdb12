//! Credentials of the node: docker's files, and plugins.

#![allow(clippy::unwrap_used, reason = "a helper of tests: a panic is the failure")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use kubelet_core::{DockerConfigFiles, ExecCredentialProviders, RegistryAuth};
use kubelet_testing::contract::{CredentialFixture, now};

/// Two that fit, the one with the longer path first, and one that does not.
const AUTHS: &str = r#"{
    "reg.example": {"username": "all", "password": "letmein"},
    "reg.example/team": {"username": "team", "password": "hunter2"},
    "reg.example/other": {"username": "other", "password": "swordfish"}
}"#;

fn known() -> [RegistryAuth; 2] {
    [
        RegistryAuth::basic("team", "hunter2"),
        RegistryAuth::basic("all", "letmein"),
    ]
}

async fn docker_files() -> Option<(DockerConfigFiles, CredentialFixture)> {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let write = |dir: &Path, text: String| fs::write(dir.join("config.json"), text).unwrap();
    let sound = || format!("{{\"auths\": {AUTHS}}}");
    write(dir.path(), sound());
    let files = DockerConfigFiles::in_folders([dir.path()]);
    let broken = dir.clone();
    let fixture = CredentialFixture::new("reg.example/team/app", known(), "elsewhere.example/app")
        .never_hangs()
        .outage(
            // Cut in the middle of a secret.
            move || now(|| write(broken.path(), sound().split_once("ter2").unwrap().0.to_owned())),
            move || now(|| write(dir.path(), sound())),
        );
    Some((files, fixture))
}

/// Makes a plugin for that registry which is a shell script, and gives its part of the configuration.
fn plugin(dir: &Path, name: &str, registry: &str, script: &str) -> String {
    // Written under another name, so that no process of another test has it open for writing when it is run.
    let (new, path) = (dir.join("new"), dir.join(name));
    fs::write(&new, format!("#!/bin/sh\ncd {}\n{script}\n", dir.display())).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(new, path).unwrap();
    format!(
        "- name: {name}\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: ['{registry}']\n  \
         defaultCacheDuration: 1h\n"
    )
}

async fn plugins() -> Option<(ExecCredentialProviders, CredentialFixture)> {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let auths = AUTHS.replace('\n', " ");
    let answer = format!(
        r#"{{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Image", "auth": {auths}}}"#
    );
    let answers = plugin(
        dir.path(),
        "answers",
        "reg.example",
        &format!("[ -e broken ] && exit 1\necho '{answer}'"),
    );
    // It holds a lock for as long as it or its child lives.
    let hangs = "exec 9> lock; flock 9; echo > ready; sleep 1000 & wait";
    let hangs = plugin(dir.path(), "hangs", "slow.example", hangs);
    let head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n";
    let config = dir.path().join("config.yaml");
    fs::write(&config, format!("{head}{answers}{hangs}")).unwrap();
    let plugins = ExecCredentialProviders::load(config, dir.path()).await.unwrap();

    let (broken, mended) = (dir.path().join("broken"), dir.path().join("broken"));
    let fixture = CredentialFixture::new("reg.example/team/app", known(), "elsewhere.example/app")
        .hangs("slow.example/app", move || {
            let (ready, lock) = (dir.path().join("ready"), dir.path().join("lock"));
            async move {
                if !ready.exists() {
                    return false;
                }
                let mut flock = tokio::process::Command::new("flock");
                !flock.arg("-n").arg(lock).arg("true").status().await.unwrap().success()
            }
        })
        .outage(
            move || now(|| fs::write(&broken, "").unwrap()),
            move || now(|| fs::remove_file(&mended).unwrap()),
        );
    Some((plugins, fixture))
}

mod docker {
    kubelet_testing::credential_contract!(super::docker_files);
}

mod exec {
    kubelet_testing::credential_contract!(super::plugins);
}
