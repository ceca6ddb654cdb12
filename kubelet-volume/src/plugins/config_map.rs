//! Config maps as files.

use async_trait::async_trait;
use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, KeyToPath};
use kubelet_core::{Object, ObjectError, ObjectKind};

use super::payload::{self, Backing, DEFAULT_MODE};
use crate::ground::atomic_writer::Payload;
use crate::plugin::{Placed, PluginFeatures, Refresh, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec};

/// Volumes of type `configMap`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfigMaps;

#[async_trait]
impl VolumePlugin for ConfigMaps {
    fn name(&self) -> &'static str {
        "kubernetes.io/configmap"
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        matches!(volume, VolumeSpec::Inline(volume) if volume.config_map.is_some())
    }

    fn features(&self) -> PluginFeatures {
        payload::features(true)
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let VolumeSpec::Inline(volume) = cx.volume else {
            return Err(VolumeFault::new("it is no configMap"));
        };
        let Some(source) = &volume.config_map else {
            return Err(VolumeFault::new("it is no configMap"));
        };
        let (items, mode) = (source.items.as_deref(), source.default_mode.unwrap_or(DEFAULT_MODE));
        let is_optional = source.optional.unwrap_or(false);
        let made = async {
            let read = read(cx, &source.name, is_optional).await?;
            let files = files(read.map.as_deref(), items, mode, is_optional)?;
            Ok((read.refresh(), files))
        };
        let (refresh, files) = match made.await {
            Ok(made) => made,
            Err(fault) => return Err(payload::or_what_is_there(cx, Backing::Disk, fault).await),
        };
        let mut placed = payload::place(cx, files, Backing::Disk).await?;
        placed.refresh = refresh;
        Ok(placed)
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        payload::remove(cx).await
    }
}

/// A config map as it is now; nothing where an optional one is not there.
pub(super) struct Read {
    pub(super) map: Option<std::sync::Arc<ConfigMap>>,
}

impl Read {
    pub(super) fn refresh(&self) -> Refresh {
        match &self.map {
            Some(map) if map.immutable == Some(true) => Refresh::Never,
            _ => Refresh::Objects,
        }
    }
}

pub(super) async fn read(cx: &SetUp<'_>, name: &str, is_optional: bool) -> Result<Read, VolumeFault> {
    match cx.object(ObjectKind::ConfigMap, name).await {
        Ok(Object::ConfigMap(map)) => Ok(Read { map: Some(map) }),
        Ok(other) => Err(VolumeFault::new(format!("{other:?} was given for configmap {name:?}"))),
        // Where there are none of its kind this one is not there either.
        Err(ObjectError::NotFound { .. } | ObjectError::NotServed { .. }) if is_optional => Ok(Read { map: None }),
        Err(error) => Err(VolumeFault::new(kubelet_core::error_chain(&error))),
    }
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
