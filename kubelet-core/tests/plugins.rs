//! Credential provider plugins as real programs.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

mod plugins {
    mod tokens;
}

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use kubelet_core::{
    CredentialConfigError, CredentialProvider, CredentialRequest, ExecCredentialProviders, PodRecord, SourceKind,
    SourceName, error_chain,
};
use kubelet_testing::PodBuilder;
use tempfile::TempDir;

const RESPONSE: &str = r#"{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "CACHE", "cacheDuration": DURATION, "auth": {"reg.example": {"username": "me", "password": "hunter2"}}}"#;

/// A folder of plugins and their configuration.
struct Plugins {
    dir: TempDir,
    config: String,
}

impl Plugins {
    fn new() -> Self {
        let config = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n".to_owned();
        Self {
            dir: tempfile::tempdir().unwrap(),
            config,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A plugin for `images` that is this shell script.
    fn add(mut self, name: &str, images: &str, script: &str) -> Self {
        let here = self.dir.path().display();
        // Written under another name, so that no process of another test has it open for writing when it is run.
        std::fs::write(self.path("new"), format!("#!/bin/sh\ncd {here}\n{script}\n")).unwrap();
        std::fs::set_permissions(self.path("new"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(self.path("new"), self.path(name)).unwrap();
        self.config += &format!(
            "- name: {name}\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: ['{images}']\n  \
             defaultCacheDuration: 1h\n  args: [one, two]\n  env: [{{name: GREETING, value: hello}}]\n"
        );
        self
    }

    async fn load(&self) -> Result<ExecCredentialProviders, CredentialConfigError> {
        let config = self.path("config.yaml");
        std::fs::write(&config, &self.config).unwrap();
        ExecCredentialProviders::load(config, self.dir.path()).await
    }
}

/// A script that notes each run and answers.
fn answering(cache: &str, duration: &str) -> String {
    let answer = RESPONSE.replace("CACHE", cache).replace("DURATION", duration);
    format!("cat >> asked; echo >> asked; echo '{answer}'")
}

async fn ask(provider: &impl CredentialProvider, repository: &str) -> Result<Vec<(String, String)>, String> {
    let pod = PodBuilder::new("app")
        .container("app", |c| c.image("reg.example/app:1"))
        .build();
    let pod = PodRecord::new(&pod, SourceName::from("test"), SourceKind::Managed).unwrap();
    match provider.credentials(&CredentialRequest::new(repository, &pod)).await {
        Ok(found) => Ok(found
            .into_iter()
            .map(|found| (found.auth.username, found.auth.password))
            .collect()),
        Err(error) => Err(error_chain(&error).to_string()),
    }
}

fn me() -> Result<Vec<(String, String)>, String> {
    Ok(vec![("me".to_owned(), "hunter2".to_owned())])
}

#[tokio::test]
async fn a_plugin_is_asked_as_its_protocol_says() {
    let script = "echo \"$@ $GREETING ${PATH:+inherits}\" > started; ".to_owned() + &answering("Image", "null");
    let plugins = Plugins::new().add("plugin", "*.example", &script);
    let provider = plugins.load().await.unwrap();
    assert_eq!(ask(&provider, "reg.example/app").await, me());
    assert_eq!(plugins.text("started"), "one two hello inherits\n");
    let asked: serde_json::Value = serde_json::from_str(&plugins.text("asked")).unwrap();
    let expected = serde_json::json!({
        "kind": "CredentialProviderRequest",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "image": "reg.example/app",
    });
    assert_eq!(asked, expected);
    assert_eq!(ask(&provider, "reg.test/app").await, Ok(Vec::new()));
    assert_eq!(
        plugins.text("asked").lines().count(),
        1,
        "nobody asks about other registries"
    );
    assert!(!format!("{provider:?}").contains("hello"), "{provider:?}");
}

#[tokio::test]
async fn answers_are_kept_for_as_much_and_as_long_as_they_say() {
    for (cache, duration, runs) in [
        ("Image", "null", 3),
        ("Registry", "\"10m\"", 2),
        ("Global", "\"10m\"", 1),
        ("Image", "\"0s\"", 6),
    ] {
        let plugins = Plugins::new().add("plugin", "*.example", &answering(cache, duration));
        let provider = plugins.load().await.unwrap();
        for _ in 0..2 {
            assert_eq!(ask(&provider, "reg.example/a").await, me());
            assert_eq!(ask(&provider, "reg.example/b").await, me());
            // The answer has nothing for this one.
            assert_eq!(ask(&provider, "other.example/a").await, Ok(Vec::new()));
        }
        assert_eq!(plugins.text("asked").lines().count(), runs, "{cache} {duration}");
    }
}

#[tokio::test]
async fn one_image_is_asked_about_once_at_a_time() {
    let plugins = Plugins::new().add("plugin", "*.example", &answering("Image", "null"));
    let provider = plugins.load().await.unwrap();
    let asks = (0..8).map(|_| ask(&provider, "reg.example/a"));
    for answer in futures::future::join_all(asks).await {
        assert_eq!(answer, me());
    }
    assert_eq!(plugins.text("asked").lines().count(), 1);
}

#[tokio::test]
async fn what_goes_wrong_is_said_and_bounded() {
    let flood = "head -c 2000000 /dev/zero | tr '\\0' x";
    for (script, expected) in [
        (
            "echo 'no such profile' >&2; exit 3",
            "plugin plugin: it ended with exit status: 3: no such profile",
        ),
        ("kill -9 $$", "plugin plugin: it ended with signal: 9"),
        (
            "echo hunter2",
            "plugin plugin: its answer is no CredentialProviderResponse in JSON: line 1",
        ),
        (flood, "plugin plugin: its answer is longer than 1048576 bytes"),
        (
            &format!("{flood} >&2; exit 1"),
            "plugin plugin: it ended with exit status: 1: xxx",
        ),
    ] {
        let plugins = Plugins::new().add("plugin", "*.example", script);
        let error = ask(&plugins.load().await.unwrap(), "reg.example/a").await.unwrap_err();
        assert!(
            error.starts_with(expected) && error.len() < 6000,
            "{}",
            &error[..error.len().min(500)]
        );
        assert!(!error.contains("hunter2"), "{error}");
        // Another one that works counts.
        let plugins = plugins.add("works", "reg.example", &answering("Image", "null"));
        assert_eq!(ask(&plugins.load().await.unwrap(), "reg.example/a").await, me());
    }
}

#[tokio::test]
async fn what_is_given_up_leaves_no_process() {
    // It holds a lock for as long as it or its child lives.
    let script = "exec 9> lock; flock 9; echo > ready; sleep 1000 & wait";
    let plugins = Plugins::new().add("plugin", "*.example", script);
    let provider = plugins.load().await.unwrap();
    {
        let asked = ask(&provider, "reg.example/a");
        let ready = async {
            while !plugins.path("ready").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            biased;
            answer = asked => panic!("{answer:?}"),
            () = ready => {}
        }
    }
    let lock = plugins.path("lock");
    let free = tokio::process::Command::new("flock").arg(&lock).arg("true").status();
    let free = tokio::time::timeout(Duration::from_secs(30), free).await;
    assert!(free.expect("the child of the plugin is gone too").unwrap().success());
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_is_given_up() {
    // The clock runs ahead as soon as nothing but the plugin is waited for.
    let plugins = Plugins::new().add("plugin", "*.example", "sleep 1000");
    let error = ask(&plugins.load().await.unwrap(), "reg.example/a").await.unwrap_err();
    assert_eq!(error, "plugin plugin: no answer within 60s");
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_one_that_hangs_is_told_before_all_is_given_up() {
    let plugins = Plugins::new().add("plugin", "*.example", "sleep 1000");
    let provider = plugins.load().await.unwrap();
    let asks = (0..2).map(|_| ask(&provider, "reg.example/a"));
    let answers = tokio::time::timeout(Duration::from_secs(101), futures::future::join_all(asks));
    let answers = answers.await.expect("within less than all plugins have");
    let expected = ["60s", "100s"].map(|limit| Err(format!("plugin plugin: no answer within {limit}")));
    assert_eq!(answers, expected);
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let plugins = Plugins::new().add("plugin", "*.example", "");
    std::fs::set_permissions(plugins.path("plugin"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = error_chain(&plugins.load().await.unwrap_err()).to_string();
    assert!(
        error.contains("\"plugin\"") && error.contains("not executable"),
        "{error}"
    );
    std::fs::remove_file(plugins.path("plugin")).unwrap();
    let error = error_chain(&plugins.load().await.unwrap_err()).to_string();
    assert!(error.contains(&plugins.path("plugin").display().to_string()), "{error}");
    let missing = ExecCredentialProviders::load("/no/such/file", "/").await.unwrap_err();
    assert!(error_chain(&missing).to_string().contains("/no/such/file"));
}
