//! Plugins that are shown whom a pod is.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::ServiceAccount;
use kubelet_core::k8s_openapi::jiff::Timestamp;
use kubelet_core::{
    BuildError, ChannelSource, Clock, Containers, CredentialProvider, CredentialRequest, ExecCredentialProviders,
    Freshness, Kubelet, MapObjects, Object, ObjectError, ObjectKey, ObjectKind, ObjectQuery, ObjectSource, ObjectWatch,
    PodRecord, PodUid, ProvidedCredential, ServiceAccountKey, SourceKind, SourceName, Token, TokenRequest, TokenSource,
    TokioClock, async_trait, error_chain,
};
use kubelet_pleg::GenericPleg;
use kubelet_testing::{FakeRuntime, FakeTokens, PodBuilder};

use crate::{Plugins, answering};

const IMAGE: &str = "reg.example/app";

/// A cluster of service accounts.
#[derive(Default)]
struct Cluster {
    objects: MapObjects,
    tokens: FakeTokens,
}

impl Cluster {
    fn add(&self, name: &str, uid: &str, annotations: &[(&str, &str)]) {
        let mut account = ServiceAccount::default();
        account.metadata.namespace = Some("default".to_owned());
        account.metadata.name = Some(name.to_owned());
        account.metadata.uid = Some(uid.to_owned());
        let annotations = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        account.metadata.annotations = Some(annotations.collect::<BTreeMap<_, _>>());
        self.objects.set(account);
        self.tokens.add_account("default", name, uid);
    }

    /// What the plugins have for a pod, by its service account.
    async fn ask(
        &self,
        provider: &ExecCredentialProviders,
        pod: &str,
        account: &str,
    ) -> Result<Vec<ProvidedCredential>, String> {
        let pod = PodBuilder::new(pod).container("app", |c| c.image("reg.example/app:1"));
        let pod = pod
            .spec(|spec| spec.service_account_name = Some(account.to_owned()))
            .build();
        let kind = if account.is_empty() {
            SourceKind::Static
        } else {
            SourceKind::Managed
        };
        let pod = PodRecord::new(&pod, SourceName::from("test"), kind).unwrap();
        let request = CredentialRequest::new(IMAGE, &pod)
            .with_objects(&self.objects)
            .with_tokens(&self.tokens);
        let found = provider.credentials(&request).await;
        found.map_err(|error| error_chain(&error).to_string())
    }
}

/// Never answers; notes who asks.
#[derive(Debug, Default)]
struct Silent(Mutex<Vec<TokenRequest>>);

#[async_trait]
impl TokenSource for Silent {
    async fn token(&self, req: &TokenRequest) -> Result<Token, ObjectError> {
        self.0.lock().unwrap().push(req.clone());
        std::future::pending().await
    }
}

#[async_trait]
impl ObjectSource for Silent {
    fn serves(&self, _kind: ObjectKind) -> bool {
        true
    }
    fn is_local(&self) -> bool {
        false
    }
    async fn get(&self, _key: &ObjectKey, _want: Freshness) -> Result<Object, ObjectError> {
        std::future::pending().await
    }
    async fn list(&self, _query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        std::future::pending().await
    }
    fn watch(&self, key: &ObjectKey) -> ObjectWatch {
        MapObjects::new().watch(key)
    }
}

fn pod_of(account: &str) -> PodRecord {
    let pod = PodBuilder::new("app").container("app", |c| c.image("reg.example/app:1"));
    let pod = pod
        .spec(|spec| spec.service_account_name = Some(account.to_owned()))
        .build();
    PodRecord::new(&pod, SourceName::from("test"), SourceKind::Managed).unwrap()
}

fn attributes(cache: &str, is_required: bool, more: &str) -> String {
    format!(
        "  tokenAttributes: {{serviceAccountTokenAudience: reg.example, cacheType: {cache}, requireServiceAccount: {is_required}{more}}}\n"
    )
}

/// A plugin that notes each run.
async fn plugin(cache: &str, is_required: bool, more: &str) -> (Plugins, ExecCredentialProviders) {
    let mut plugins = Plugins::new().add("plugin", "*.example", &answering("Image", "null"));
    plugins.config += &attributes(cache, is_required, more);
    let provider = plugins.load().await.unwrap();
    assert!(provider.needs_tokens());
    (plugins, provider)
}

fn asked(plugins: &Plugins) -> Vec<serde_json::Value> {
    let text = plugins.text("asked");
    // Two that run at once end their lines where they like.
    let all = serde_json::Deserializer::from_str(&text).into_iter();
    all.map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_plugin_is_shown_a_token_of_the_pods_account_for_its_audience() {
    let keys = ", requiredServiceAccountAnnotationKeys: [example.com/role], optionalServiceAccountAnnotationKeys: [example.com/region, example.com/none]";
    let (plugins, provider) = plugin("ServiceAccount", true, keys).await;
    let cluster = Cluster::default();
    let all = [
        ("example.com/role", "puller"),
        ("example.com/region", "eu"),
        ("example.com/secret", "not told"),
    ];
    cluster.add("builder", "uid-1", &all);
    let found = cluster.ask(&provider, "app", "builder").await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].auth.username.as_str(), found[0].auth.password.as_str()),
        ("me", "hunter2")
    );
    assert_eq!(
        found[0].service_account,
        Some(ServiceAccountKey::new("default", "builder", "uid-1"))
    );
    let requests = cluster.tokens.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].audiences, ["reg.example"]);
    assert_eq!(requests[0].service_account_uid.as_deref(), Some("uid-1"));
    let (pod, uid) = requests[0].pod.clone().unwrap();
    assert_eq!(pod, "app");
    assert_ne!(uid, PodUid::from(""));
    let told = &asked(&plugins)[0];
    let token = told["serviceAccountToken"].as_str().unwrap();
    assert_eq!(cluster.tokens.review(token).as_ref(), Some(&requests[0]));
    let expected = serde_json::json!({"example.com/role": "puller", "example.com/region": "eu"});
    assert_eq!(told["serviceAccountAnnotations"], expected);
    // Without what it must know it is not asked.
    cluster.add("other", "uid-2", &[("example.com/region", "eu")]);
    assert_eq!(cluster.ask(&provider, "app", "other").await, Ok(Vec::new()));
    assert_eq!(asked(&plugins).len(), 1);
}

/// So is a static pod, which has none.
#[tokio::test]
async fn a_pod_without_an_account_is_asked_for_only_where_none_is_required() {
    for is_required in [true, false] {
        let (plugins, provider) = plugin("Token", is_required, "").await;
        let found = Cluster::default().ask(&provider, "app", "").await.unwrap();
        if is_required {
            assert!(found.is_empty() && asked(&plugins).is_empty());
        } else {
            assert_eq!(found[0].service_account, None, "it is the node's");
            let told = &asked(&plugins)[0];
            assert!(told.get("serviceAccountToken").is_none() && told.get("serviceAccountAnnotations").is_none());
        }
    }
}

#[tokio::test]
async fn answers_are_kept_for_the_account_or_for_the_token() {
    for (cache, expected) in [("ServiceAccount", [1, 1, 2, 2, 3, 4]), ("Token", [1, 2, 3, 4, 5, 6])] {
        let keys = ", optionalServiceAccountAnnotationKeys: [example.com/role]";
        let (plugins, provider) = plugin(cache, true, keys).await;
        let cluster = Cluster::default();
        cluster.add("one", "uid-1", &[]);
        cluster.add("two", "uid-2", &[]);
        let mut runs = Vec::new();
        let mut ask = async |pod: &str, account: &str| {
            for _ in 0..2 {
                assert_eq!(cluster.ask(&provider, pod, account).await.unwrap().len(), 1);
            }
            runs.push(asked(&plugins).len());
        };
        ask("app", "one").await;
        // The token of another pod is another one.
        ask("other", "one").await;
        ask("app", "two").await;
        cluster.tokens.rotate();
        ask("app", "two").await;
        cluster.add("two", "uid-2", &[("example.com/role", "puller")]);
        cluster.tokens.rotate();
        ask("app", "two").await;
        cluster.add("two", "uid-3", &[("example.com/role", "puller")]);
        ask("app", "two").await;
        assert_eq!(runs, expected, "{cache}");
    }
}

#[tokio::test]
async fn one_account_is_asked_about_once_at_a_time() {
    let (plugins, provider) = plugin("ServiceAccount", true, "").await;
    let cluster = Cluster::default();
    cluster.add("one", "uid-1", &[]);
    cluster.add("two", "uid-2", &[]);
    let asks = (0..8).map(|number| {
        let account = if number % 2 == 0 { "one" } else { "two" };
        let (cluster, provider) = (&cluster, &provider);
        async move {
            let found = cluster.ask(provider, &format!("app-{number}"), account).await.unwrap();
            assert_eq!(found[0].service_account.as_ref().unwrap().name, account);
        }
    });
    futures::future::join_all(asks).await;
    assert_eq!(asked(&plugins).len(), 2);
    assert_eq!(
        cluster.tokens.requests().len(),
        2,
        "no token is asked for that nobody is shown"
    );
}

#[tokio::test]
async fn a_token_is_no_password_that_outlives_it() {
    let script = "sed 's/.*\"serviceAccountToken\":\"\\([^\"]*\\)\".*/\\1/' > token; echo \"{\\\"kind\\\": \\\"CredentialProviderResponse\\\", \
                  \\\"apiVersion\\\": \\\"credentialprovider.kubelet.k8s.io/v1\\\", \\\"cacheKeyType\\\": \\\"Image\\\", \
                  \\\"auth\\\": {\\\"reg.example\\\": {\\\"username\\\": \\\"me\\\", \\\"password\\\": \\\"$(cat token)\\\"}}}\"";
    for (cache, is_fine) in [("Token", true), ("ServiceAccount", false)] {
        let mut plugins = Plugins::new().add("plugin", "*.example", script);
        plugins.config += &attributes(cache, true, "");
        let provider = plugins.load().await.unwrap();
        let cluster = Cluster::default();
        cluster.add("one", "uid-1", &[]);
        let found = cluster.ask(&provider, "app", "one").await;
        let token = plugins.text("token").trim().to_owned();
        assert!(cluster.tokens.review(&token).is_some(), "{token:?}");
        match found {
            Ok(found) => assert!(is_fine && found[0].auth.password == token),
            Err(why) => {
                assert!(
                    !is_fine && why.contains("plugin plugin: its answer has the token as a password"),
                    "{why}"
                );
                assert!(!why.contains(&token), "{why}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_not_to_be_had_is_named() {
    let (plugins, provider) = plugin("ServiceAccount", true, "").await;
    let cluster = Cluster::default();
    let error = cluster.ask(&provider, "app", "ghost").await.unwrap_err();
    assert_eq!(
        error,
        "plugin plugin: read serviceaccount default/ghost: serviceaccount \"ghost\" not found"
    );
    cluster.add("one", "uid-1", &[]);
    cluster.tokens.set_down(true);
    let error = cluster.ask(&provider, "app", "one").await.unwrap_err();
    assert!(
        error.starts_with("plugin plugin: get a token of service account default/one: "),
        "{error}"
    );
    cluster.tokens.set_down(false);
    assert_eq!(cluster.ask(&provider, "app", "one").await.unwrap().len(), 1);
    assert_eq!(asked(&plugins).len(), 1);
}

#[tokio::test]
async fn plugins_with_tokens_take_sources_of_them() {
    let build = async |shape: fn(kubelet_core::KubeletBuilder) -> kubelet_core::KubeletBuilder| {
        let (_plugins, provider) = plugin("ServiceAccount", true, "").await;
        let (_pods, source) = ChannelSource::new("api");
        let backend = Containers::new(FakeRuntime::new(), GenericPleg::default());
        let builder = Kubelet::builder("node-1", backend)
            .source(source)
            .image_credentials(provider);
        match shape(builder).build() {
            Ok(_) => String::new(),
            Err(error @ BuildError::PartMissing { .. }) => error.to_string(),
            Err(error) => panic!("{error}"),
        }
    };
    let lacks = "credential provider plugins needs a source of service account tokens";
    assert!(build(|b| b).await.contains(lacks));
    let lacks = "an object source that serves service accounts";
    assert!(build(|b| b.tokens(FakeTokens::new())).await.contains(lacks));
    let of_secrets = |b: kubelet_core::KubeletBuilder| {
        b.tokens(FakeTokens::new())
            .objects(MapObjects::new().kinds([ObjectKind::Secret]))
    };
    assert!(build(of_secrets).await.contains(lacks));
    assert_eq!(
        build(|b| b.tokens(FakeTokens::new()).objects(MapObjects::new())).await,
        ""
    );
}

#[tokio::test]
async fn sources_that_do_not_answer_cost_no_other_plugin_its_answer() {
    let mut plugins = Plugins::new()
        .add("first", "*.example", &answering("Image", "null"))
        .add("second", "*.example", &answering("Image", "null"));
    plugins.config += &attributes("ServiceAccount", true, "");
    let provider = plugins.load().await.unwrap();
    let cluster = Cluster::default();
    cluster.add("one", "uid-1", &[]);
    // The first one's answer is kept from here on, so that the clock need not wait for a program.
    assert_eq!(cluster.ask(&provider, "app", "").await.unwrap().len(), 1);
    tokio::time::pause();
    let (pod, silent) = (pod_of("one"), Silent::default());
    for objects in [&silent as &dyn ObjectSource, &cluster.objects] {
        let request = CredentialRequest::new(IMAGE, &pod)
            .with_objects(objects)
            .with_tokens(&silent);
        let found = tokio::time::timeout(Duration::from_secs(11), provider.credentials(&request)).await;
        let found = found.expect("it is given up").unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].service_account, None);
    }
    assert_eq!(silent.0.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_token_holds_up_no_other_for_long() {
    let (_plugins, provider) = plugin("ServiceAccount", true, "").await;
    let cluster = Cluster::default();
    cluster.add("one", "uid-1", &[]);
    let (pod, silent) = (pod_of("one"), Silent::default());
    let request = CredentialRequest::new(IMAGE, &pod)
        .with_objects(&cluster.objects)
        .with_tokens(&silent);
    let ask = || provider.credentials(&request);
    let (first, second) = tokio::time::timeout(Duration::from_secs(21), futures::future::join(ask(), ask()))
        .await
        .expect("each has its turn");
    for found in [first, second] {
        let error = error_chain(&found.unwrap_err()).to_string();
        let expected = "plugin plugin: get a token of service account default/one: no answer within 10s";
        assert_eq!(error, expected);
    }
    assert_eq!(silent.0.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn what_a_plugin_says_of_its_token_is_told_nobody() {
    for (script, expected) in [
        ("cat >&2; exit 1", "plugin plugin: it ended with exit status: 1"),
        (
            "echo \"{\\\"$(sed 's/.*\"serviceAccountToken\":\"\\([^\"]*\\)\".*/\\1/')\\\": 1}\"",
            "plugin plugin: its answer is of no use, and has the token where none belongs",
        ),
    ] {
        for cache in ["ServiceAccount", "Token"] {
            let mut plugins = Plugins::new().add("plugin", "*.example", script);
            plugins.config += &attributes(cache, false, "");
            let provider = plugins.load().await.unwrap();
            let cluster = Cluster::default();
            cluster.add("one", "uid-1", &[]);
            let error = cluster.ask(&provider, "app", "one").await.unwrap_err();
            assert_eq!(error, expected);
            // Where it was shown none its words are of use.
            let error = cluster.ask(&provider, "app", "").await.unwrap_err();
            assert!(
                error.len() > "plugin plugin: it ended with exit status: 1".len(),
                "{error}"
            );
        }
    }
}

/// Gives the same token for ever.
#[derive(Debug)]
struct Stale(Token);

#[async_trait]
impl TokenSource for Stale {
    async fn token(&self, _req: &TokenRequest) -> Result<Token, ObjectError> {
        Ok(self.0.clone())
    }
}

#[tokio::test]
async fn answers_for_a_token_end_with_it() {
    let until = |clock: TokioClock, minutes: u64| clock.now().checked_add(Duration::from_secs(60 * minutes)).unwrap();
    for (cache, says, lives, kept, runs) in [
        ("Token", "\"3h\"", Some(10), 9, 1),
        ("Token", "\"3h\"", Some(10), 11, 2),
        ("Token", "\"5m\"", Some(10), 6, 2),
        ("Token", "\"3h\"", None, 59, 1),
        ("Token", "\"3h\"", None, 61, 2),
        ("ServiceAccount", "\"3h\"", Some(10), 11, 1),
    ] {
        let clock = TokioClock::starting_at(Timestamp::from_second(1_700_000_000).unwrap());
        let mut plugins = Plugins::new().add("plugin", "*.example", &answering("Image", says));
        plugins.config += &attributes(cache, true, "");
        let provider = plugins.load().await.unwrap().with_clock(clock);
        let cluster = Cluster::default();
        cluster.add("one", "uid-1", &[]);
        let tokens = Stale(Token::new("hunter3", lives.map(|minutes| until(clock, minutes))));
        let pod = pod_of("one");
        let request = CredentialRequest::new(IMAGE, &pod)
            .with_objects(&cluster.objects)
            .with_tokens(&tokens);
        assert_eq!(provider.credentials(&request).await.unwrap().len(), 1);
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(60 * kept)).await;
        tokio::time::resume();
        assert_eq!(provider.credentials(&request).await.unwrap().len(), 1);
        assert_eq!(asked(&plugins).len(), runs, "{cache} {says} {lives:?} {kept}");
    }
}

#[tokio::test]
async fn what_is_the_nodes_too_shows_whom_a_pod_is() {
    let mut plugins = Plugins::new()
        .add("first", "*.example", &answering("Image", "null"))
        .add("second", "*.example", &answering("Image", "null"));
    plugins.config += &attributes("ServiceAccount", true, "");
    let provider = plugins.load().await.unwrap();
    let cluster = Cluster::default();
    cluster.add("one", "uid-1", &[]);
    let found = cluster.ask(&provider, "app", "one").await.unwrap();
    let owners: Vec<_> = found.into_iter().map(|found| found.service_account).collect();
    assert_eq!(owners, [None, Some(ServiceAccountKey::new("default", "one", "uid-1"))]);
}
