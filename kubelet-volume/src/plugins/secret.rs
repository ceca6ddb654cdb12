//! Secrets as files.

use async_trait::async_trait;
use kubelet_core::k8s_openapi::api::core::v1::{KeyToPath, Secret, SecretVolumeSource};
use kubelet_core::{Object, ObjectError, ObjectKind};

use super::payload::{self, Backing, DEFAULT_MODE, Parts};
use crate::ground::atomic_writer::Payload;
use crate::plugin::{Placed, PluginFeatures, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec};

/// Volumes of type `secret`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secrets;

fn source<'a>(volume: &VolumeSpec<'a>) -> Option<&'a SecretVolumeSource> {
    match volume {
        VolumeSpec::Inline(volume) => volume.secret.as_ref(),
        VolumeSpec::Persistent { .. } => None,
    }
}

#[async_trait]
impl VolumePlugin for Secrets {
    fn name(&self) -> &'static str {
        "kubernetes.io/secret"
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        source(volume).is_some()
    }

    fn features(&self) -> PluginFeatures {
        payload::features(false)
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let Some(of) = source(&cx.volume) else {
            return Err(VolumeFault::new("it is no secret"));
        };
        let is_optional = of.optional.unwrap_or(false);
        let name = of.secret_name.as_deref().unwrap_or_default();
        let mode = of.default_mode.unwrap_or(DEFAULT_MODE);
        let parts = parts(cx, (name, is_optional), of.items.as_deref(), mode).await;
        payload::put(cx, Backing::Memory, parts).await
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        payload::remove(cx).await
    }
}

/// What a volume, or a part of one, has of a secret; nothing where an optional one is not there.
pub(super) async fn parts(
    cx: &SetUp<'_>,
    (name, is_optional): (&str, bool),
    items: Option<&[KeyToPath]>,
    mode: i32,
) -> Result<Parts, VolumeFault> {
    let secret = match cx.object(ObjectKind::Secret, name).await {
        Ok(Object::Secret(secret)) => Some(secret),
        Ok(other) => return Err(VolumeFault::new(format!("{other:?} was given for secret {name:?}"))),
        // Where there are none of its kind this one is not there either.
        Err(ObjectError::NotFound { .. } | ObjectError::NotServed { .. }) if is_optional => None,
        Err(error) => return Err(VolumeFault::new(kubelet_core::error_chain(&error))),
    };
    let is_final = secret.as_ref().is_some_and(|secret| secret.immutable == Some(true));
    Ok(Parts {
        files: files(secret.as_deref(), items, mode, is_optional)?,
        refresh: payload::refresh(is_final),
        again_at: None,
    })
}

/// The files of a secret: all keys, or those that are named.
pub(super) fn files(
    secret: Option<&Secret>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    is_optional: bool,
) -> Result<Payload, VolumeFault> {
    let mut files = Payload::new();
    let items = items.unwrap_or_default();
    let bytes_of = |key: &str| {
        let secret = secret?;
        // What the API only takes, and never gives; manifests may have it.
        let text = secret.string_data.as_ref().and_then(|all| all.get(key));
        let bytes = secret.data.as_ref().and_then(|all| all.get(key));
        text.map(|text| text.as_bytes().to_vec())
            .or_else(|| bytes.map(|bytes| bytes.0.clone()))
    };
    if items.is_empty() {
        let data = secret
            .and_then(|secret| secret.data.as_ref())
            .into_iter()
            .flat_map(|all| all.keys());
        let text = secret.and_then(|secret| secret.string_data.as_ref());
        for key in data.chain(text.into_iter().flat_map(|all| all.keys())) {
            files.insert(key.clone(), payload::file(bytes_of(key).unwrap_or_default(), mode));
        }
        return Ok(files);
    }
    for item in items {
        match bytes_of(&item.key) {
            Some(bytes) => {
                files.insert(item.path.clone(), payload::file(bytes, item.mode.unwrap_or(mode)));
            }
            None if is_optional => {}
            None => {
                let key = &item.key;
                return Err(VolumeFault::new(format!("references non-existent secret key: {key}")));
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::files;

    #[test]
    fn keys_become_files() {
        let secret =
            serde_json::from_value(json!({"data": {"a": "MQ==", "b": "Mg=="}, "stringData": {"b": "3"}})).unwrap();
        let build = |items: Value, is_optional| {
            let items: Option<Vec<_>> = serde_json::from_value(items).unwrap();
            let made = files(Some(&secret), items.as_deref(), 0o600, is_optional).map_err(|error| error.to_string())?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok::<_, String>(
                made.into_iter()
                    .map(|(path, file)| format!("{path}={} {:o}", text(&file.bytes), file.mode))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(build(json!(null), false).unwrap(), ["a=1 600", "b=3 600"]);
        assert_eq!(
            build(json!([{"key": "a", "path": "x/y", "mode": 256}]), false).unwrap(),
            ["x/y=1 400"]
        );
        let missing = json!([{"key": "none", "path": "n"}]);
        assert_eq!(
            build(missing.clone(), false).unwrap_err(),
            "references non-existent secret key: none"
        );
        assert!(build(missing, true).unwrap().is_empty());
    }
}
