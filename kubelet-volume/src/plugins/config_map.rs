//! Config maps as files.

use async_trait::async_trait;
use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, ConfigMapVolumeSource, KeyToPath};
use kubelet_core::{Object, ObjectError, ObjectKind};

use super::payload::{self, Backing, DEFAULT_MODE, Parts};
use crate::ground::atomic_writer::Payload;
use crate::plugin::{Placed, PluginFeatures, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec};

/// Volumes of type `configMap`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfigMaps;

fn source<'a>(volume: &VolumeSpec<'a>) -> Option<&'a ConfigMapVolumeSource> {
    match volume {
        VolumeSpec::Inline(volume) => volume.config_map.as_ref(),
        VolumeSpec::Persistent { .. } => None,
    }
}

#[async_trait]
impl VolumePlugin for ConfigMaps {
    fn name(&self) -> &'static str {
        "kubernetes.io/configmap"
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        source(volume).is_some()
    }

    fn features(&self) -> PluginFeatures {
        payload::features(true)
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let Some(of) = source(&cx.volume) else {
            return Err(VolumeFault::new("it is no configMap"));
        };
        let is_optional = of.optional.unwrap_or(false);
        let mode = of.default_mode.unwrap_or(DEFAULT_MODE);
        let parts = parts(cx, (&of.name, is_optional), of.items.as_deref(), mode).await;
        payload::put(cx, Backing::Disk, parts).await
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        payload::remove(cx).await
    }
}

/// What a volume, or a part of one, has of a config map; nothing where an optional one is not there.
pub(super) async fn parts(
    cx: &SetUp<'_>,
    (name, is_optional): (&str, bool),
    items: Option<&[KeyToPath]>,
    mode: i32,
) -> Result<Parts, VolumeFault> {
    let map = match cx.object(ObjectKind::ConfigMap, name).await {
        Ok(Object::ConfigMap(map)) => Some(map),
        Ok(other) => return Err(VolumeFault::new(format!("{other:?} was given for configmap {name:?}"))),
        // Where there are none of its kind this one is not there either.
        Err(ObjectError::NotFound { .. } | ObjectError::NotServed { .. }) if is_optional => None,
        Err(error) => return Err(VolumeFault::new(kubelet_core::error_chain(&error))),
    };
    let is_final = map.as_ref().is_some_and(|map| map.immutable == Some(true));
    Ok(Parts {
        files: files(map.as_deref(), items, mode, is_optional)?,
        refresh: payload::refresh(is_final),
        again_at: None,
    })
}

/// The files of a config map: all keys, or those that are named. Binary data may not hide what is text.
pub(super) fn files(
    map: Option<&ConfigMap>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    is_optional: bool,
) -> Result<Payload, VolumeFault> {
    let mut files = Payload::new();
    let items = items.unwrap_or_default();
    let text = map.and_then(|map| map.data.as_ref());
    let binary = map.and_then(|map| map.binary_data.as_ref());
    if items.is_empty() {
        for (key, value) in text.into_iter().flatten() {
            files.insert(key.clone(), payload::file(value.as_bytes(), mode));
        }
        for (key, value) in binary.into_iter().flatten() {
            files.insert(key.clone(), payload::file(&*value.0, mode));
        }
        return Ok(files);
    }
    for item in items {
        let found = match (
            text.and_then(|all| all.get(&item.key)),
            binary.and_then(|all| all.get(&item.key)),
        ) {
            (Some(text), _) => text.as_bytes(),
            (None, Some(bytes)) => &bytes.0,
            (None, None) if is_optional => continue,
            (None, None) => {
                let key = &item.key;
                return Err(VolumeFault::new(format!(
                    "configmap references non-existent config key: {key}"
                )));
            }
        };
        files.insert(item.path.clone(), payload::file(found, item.mode.unwrap_or(mode)));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, KeyToPath};
    use serde_json::{Value, json};

    use super::files;

    fn build(items: Value, is_optional: bool) -> Result<Vec<(String, Vec<u8>, u32)>, String> {
        let map: ConfigMap = serde_json::from_value(json!({
            "data": {"a": "1", "both": "text"}, "binaryData": {"b": "/w==", "both": "/w=="},
        }))
        .unwrap();
        let items: Option<Vec<KeyToPath>> = serde_json::from_value(items).unwrap();
        let made = files(Some(&map), items.as_deref(), 0o640, is_optional).map_err(|error| error.to_string())?;
        Ok(made
            .into_iter()
            .map(|(path, file)| (path, file.bytes, file.mode))
            .collect())
    }

    #[test]
    fn keys_become_files() {
        let file = |path: &str, bytes: &[u8], mode| (path.to_owned(), bytes.to_vec(), mode);
        for none in [json!(null), json!([])] {
            assert_eq!(
                build(none, false).unwrap(),
                [
                    file("a", b"1", 0o640),
                    file("b", b"\xff", 0o640),
                    file("both", b"\xff", 0o640)
                ]
            );
        }
        let items = json!([
            {"key": "both", "path": "x/y", "mode": 0o400}, {"key": "b", "path": "z"}, {"key": "a", "path": "z"},
        ]);
        assert_eq!(
            build(items, false).unwrap(),
            [file("x/y", b"text", 0o400), file("z", b"1", 0o640)],
            "text before bytes, and the last of one path"
        );
        let missing = json!([{"key": "none", "path": "n"}, {"key": "a", "path": "a"}]);
        assert_eq!(
            build(missing.clone(), false).unwrap_err(),
            "configmap references non-existent config key: none"
        );
        assert_eq!(build(missing, true).unwrap(), [file("a", b"1", 0o640)]);
        assert!(files(None, None, 0o644, true).unwrap().is_empty());
    }
}
