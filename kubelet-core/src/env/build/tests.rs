use std::collections::BTreeMap;
use std::fs;
use std::io;

use async_trait::async_trait;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::{EnvError, PodFields};
use super::{EnvRequest, build_env};
use crate::objects::{
    Freshness, MapObjects, Object, ObjectError, ObjectKey, ObjectKind, ObjectQuery, ObjectSource, ObjectWatch,
};

fn config_map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let data: BTreeMap<_, _> = data.iter().copied().collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"}, "data": data,
    }))
    .unwrap()
}

fn secret(name: &str, data: &[(&str, &[u8])]) -> Secret {
    let mut secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
    }))
    .unwrap();
    let data = data.iter();
    let data = data.map(|(key, value)| ((*key).to_owned(), ByteString(value.to_vec())));
    secret.data = Some(data.collect());
    secret
}

fn service(namespace: &str, name: &str, ip: &str) -> Service {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": namespace}, "spec": {"clusterIP": ip},
    }))
    .unwrap()
}

fn objects() -> MapObjects {
    let objects = MapObjects::new();
    objects.set(config_map("settings", &[("color", "red"), ("my.key", "odd")]));
    objects.set(secret("db", &[("password", b"$(color)"), ("user", b"admin")]));
    objects.set(secret("binary", &[("key", &[0xff])]));
    objects.set(service("shop", "web", "10.0.0.3"));
    objects.set(service("default", "kubernetes", "10.0.0.1"));
    objects
}

fn pod(links: Option<bool>) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "shop-1", "namespace": "shop"}, "spec": {"containers": []},
    }))
    .unwrap();
    pod.spec.as_mut().unwrap().enable_service_links = links;
    pod
}

fn container(env_from: Value, env: Value) -> Container {
    serde_json::from_value(json!({"name": "main", "envFrom": env_from, "env": env})).unwrap()
}

/// Builds with links on, and shows the result as lines.
async fn build(objects: Option<&dyn ObjectSource>, env_from: Value, env: Value) -> Result<Vec<String>, EnvError> {
    let pod = pod(Some(true));
    let fields = PodFields::new(&pod, "edge-7");
    let container = container(env_from, env);
    let mut request = EnvRequest::new(&fields, &container);
    if let Some(objects) = objects {
        request = request.with_objects(objects);
    }
    let built = build_env(&request).await?;
    Ok(built.iter().map(|(name, value)| format!("{name}={value}")).collect())
}

#[tokio::test]
async fn later_definitions_override_and_service_variables_fill_the_gaps() {
    let objects = objects();
    let lines = build(
        Some(&objects),
        json!([
            {"configMapRef": {"name": "settings"}},
            {"prefix": "DB_", "secretRef": {"name": "db"}},
            {"configMapRef": {"name": "none", "optional": true}},
        ]),
        json!([
            {"name": "color", "value": "dark $(color) $(LATER) $(WEB_SERVICE_HOST)"},
            {"name": "LATER", "value": "1"},
            {"name": "EMPTY"},
            {"name": "WEB_SERVICE_HOST", "value": "mine"},
            {"name": "SEEN", "value": "$(WEB_SERVICE_HOST) $(KUBERNETES_SERVICE_HOST) $$(color)"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
            {"name": "LEFT_OUT", "valueFrom": {"configMapKeyRef":
                {"name": "settings", "key": "none", "optional": true}}},
            {"name": "LEFT_OUT_TOO", "valueFrom": {"secretKeyRef":
                {"name": "none", "key": "none", "optional": true}}},
        ]),
    )
    .await;
    assert_eq!(
        lines.unwrap(),
        [
            "color=dark red $(LATER) 10.0.0.3",
            "my.key=odd",
            "DB_password=$(color)",
            "DB_user=admin",
            "LATER=1",
            "EMPTY=",
            "WEB_SERVICE_HOST=mine",
            "SEEN=mine 10.0.0.1 $(color)",
            "NODE=edge-7",
            "SECRET=$(color)",
            "KUBERNETES_SERVICE_HOST=10.0.0.1",
        ]
    );
}

#[tokio::test]
async fn what_is_missing_is_said_in_the_known_words() {
    let objects = objects();
    let key =
        |kind: &str, name: &str, key: &str| json!([{"name": "X", "valueFrom": {kind: {"name": name, "key": key}}}]);
    for (env_from, env, text, retryable) in [
        (
            json!([]),
            key("configMapKeyRef", "settings", "none"),
            "couldn't find key none in ConfigMap shop/settings",
            true,
        ),
        (
            json!([]),
            key("secretKeyRef", "db", "none"),
            "couldn't find key none in Secret shop/db",
            true,
        ),
        (
            json!([]),
            key("configMapKeyRef", "none", "k"),
            r#"configmap "none" not found"#,
            true,
        ),
        (
            json!([{"secretRef": {"name": "none"}}]),
            json!([]),
            r#"secret "none" not found"#,
            true,
        ),
        (
            json!([{"secretRef": {"name": "binary"}}]),
            json!([]),
            "key key in Secret shop/binary is not UTF-8 text",
            true,
        ),
        (
            json!([]),
            json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}]),
            "unsupported fieldPath: status.phase",
            false,
        ),
    ] {
        let error = build(Some(&objects), env_from, env).await.unwrap_err();
        assert_eq!(error.to_string(), text);
        assert_eq!(error.is_retryable(), retryable, "{text}");
    }
}

#[tokio::test]
async fn without_a_source_objects_are_refused_even_if_optional() {
    for (kind, text) in [
        ("configMapRef", "couldn't get configMap shop/x, no kubeClient defined"),
        ("secretRef", "couldn't get secret shop/x, no kubeClient defined"),
    ] {
        let from = json!([{kind: {"name": "x", "optional": true}}]);
        let error = build(None, from, json!([])).await.unwrap_err();
        assert_eq!(error.to_string(), text);
        assert!(!error.is_retryable());
    }
    let lines = build(None, json!([]), json!([{"name": "A", "value": "1"}])).await;
    assert_eq!(lines.unwrap(), ["A=1"], "and no service variables");
}

#[tokio::test]
async fn service_links_decide_which_services_are_told() {
    let objects = objects();
    let container = container(json!([]), json!([]));
    for (links, expected) in [(Some(true), Some(2)), (Some(false), Some(1)), (None, None)] {
        let pod = pod(links);
        let fields = PodFields::new(&pod, "edge-7");
        let request = EnvRequest::new(&fields, &container).with_objects(&objects);
        let built = build_env(&request).await;
        assert_eq!(built.ok().map(|env| env.iter().count()), expected);
    }
}

/// A source that cannot look.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl ObjectSource for Silent {
    fn serves(&self, _kind: ObjectKind) -> bool {
        true
    }

    fn is_local(&self) -> bool {
        false
    }

    async fn get(&self, key: &ObjectKey, _want: Freshness) -> Result<Object, ObjectError> {
        Err(unavailable(key.to_string()))
    }

    async fn list(&self, query: &ObjectQuery) -> Result<Vec<Object>, ObjectError> {
        Err(unavailable(query.to_string()))
    }

    fn watch(&self, _key: &ObjectKey) -> ObjectWatch {
        ObjectWatch::ended()
    }
}

fn unavailable(what: String) -> ObjectError {
    let source = Box::new(io::Error::from(io::ErrorKind::TimedOut));
    ObjectError::Unavailable { what, source }
}

#[tokio::test]
async fn only_static_pods_start_before_services_are_known() {
    let pod = pod(Some(true));
    let fields = PodFields::new(&pod, "edge-7");
    let plain = container(json!([]), json!([]));
    let request = EnvRequest::new(&fields, &plain).with_objects(&Silent);
    let error = build_env(&request).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "services have not yet been read at least once, cannot construct envvars"
    );
    assert!(error.is_retryable());
    let request = request.with_static_pod();
    assert_eq!(build_env(&request).await.unwrap().iter().count(), 0);

    // Not to know whether it is there is no reason to leave it out.
    let refers = container(json!([{"secretRef": {"name": "x", "optional": true}}]), json!([]));
    let request = EnvRequest::new(&fields, &refers).with_objects(&Silent);
    let error = build_env(&request.with_static_pod()).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot read secret shop/x");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn files_in_volumes_and_resources_are_told() {
    let volume = TempDir::new().unwrap();
    fs::write(volume.path().join("app.env"), "A='1'\nEMPTY=''\nbad").unwrap();
    let volumes = BTreeMap::from([("config".to_owned(), volume.path().to_owned())]);
    let allocatable = BTreeMap::from([("cpu".to_owned(), Quantity("2".into()))]);
    let pod = pod(Some(true));
    let fields = PodFields::new(&pod, "edge-7");
    let file = |volume: &str, path: &str, key: &str, optional: bool| {
        json!({"name": "F", "valueFrom": {"fileKeyRef":
            {"volumeName": volume, "path": path, "key": key, "optional": optional}}})
    };
    for (variable, expected) in [
        (file("config", "app.env", "A", false), Ok(vec!["1"])),
        (file("config", "app.env", "EMPTY", true), Ok(vec![])),
        (file("config", "none.env", "A", true), Ok(vec![])),
        (
            file("config", "app.env", "EMPTY", false),
            Err("couldn't find key EMPTY in env file \"app.env\" in volume \"config\""),
        ),
        (file("config", "app.env", "B", true), Err("couldn't parse env file")),
        (
            file("config", "../x", "B", true),
            Err("couldn't read env file \"../x\" in volume \"config\""),
        ),
        (
            file("none", "app.env", "A", true),
            Err("cannot find the volume \"none\" referenced by FileKeyRef"),
        ),
        (
            json!({"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}),
            Ok(vec!["2"]),
        ),
    ] {
        let container = container(json!([]), json!([variable]));
        let request = EnvRequest::new(&fields, &container)
            .with_volumes(&volumes)
            .with_allocatable(&allocatable);
        let values = match build_env(&request).await {
            Ok(env) => Ok(env.into_vec().into_iter().map(|(_, value)| value).collect()),
            Err(error) => Err(error.to_string()),
        };
        let expected = expected
            .map(|values| values.into_iter().map(str::to_owned).collect::<Vec<_>>())
            .map_err(str::to_owned);
        assert_eq!(values, expected);
    }
}
