//! Reads what an environment refers to in config maps and secrets.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVarSource};

use super::super::error::EnvError;
use crate::objects::{Freshness, Object, ObjectError, ObjectKey, ObjectKind, ObjectSource};

/// One reference: to a key, or to a whole object.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    kind: ObjectKind,
    name: &'a str,
    key: &'a str,
    optional: bool,
}

impl<'a> Source<'a> {
    pub(super) fn of_key(from: &'a EnvVarSource) -> Option<Self> {
        if let Some(map) = &from.config_map_key_ref {
            Some(Self {
                kind: ObjectKind::ConfigMap,
                name: &map.name,
                key: &map.key,
                optional: map.optional == Some(true),
            })
        } else {
            from.secret_key_ref.as_ref().map(|secret| Self {
                kind: ObjectKind::Secret,
                name: &secret.name,
                key: &secret.key,
                optional: secret.optional == Some(true),
            })
        }
    }

    fn of_all(from: &'a EnvFromSource) -> Option<Self> {
        if let Some(map) = &from.config_map_ref {
            Some(Self {
                kind: ObjectKind::ConfigMap,
                name: &map.name,
                key: "",
                optional: map.optional == Some(true),
            })
        } else {
            from.secret_ref.as_ref().map(|secret| Self {
                kind: ObjectKind::Secret,
                name: &secret.name,
                key: "",
                optional: secret.optional == Some(true),
            })
        }
    }
}

/// The objects read so far: one environment never mixes two versions of one object.
pub(super) struct References<'a> {
    source: Option<&'a dyn ObjectSource>,
    namespace: &'a str,
    want: Freshness,
    read: BTreeMap<ObjectKey, Option<Object>>,
}

impl<'a> References<'a> {
    pub(super) fn new(source: Option<&'a dyn ObjectSource>, namespace: &'a str, want: Freshness) -> Self {
        Self {
            source,
            namespace,
            want,
            read: BTreeMap::new(),
        }
    }

    /// All keys and values of an object, sorted; none if it is optional and not there.
    pub(super) async fn all(&mut self, from: &EnvFromSource) -> Result<Vec<(String, String)>, EnvError> {
        let Some(source) = Source::of_all(from) else {
            return Ok(Vec::new());
        };
        let object = self.object(source).await?;
        match object {
            Some(Object::ConfigMap(map)) => Ok(map.data.clone().into_iter().flatten().collect()),
            Some(Object::Secret(secret)) => {
                let object = self.key_of(source);
                let entries = secret.data.iter().flatten();
                entries
                    .map(|(key, value)| Ok((key.clone(), text(value, &object, key)?)))
                    .collect()
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The value of one key; nothing if it is optional and not there.
    pub(super) async fn key(&mut self, source: Source<'_>) -> Result<Option<String>, EnvError> {
        let object = self.object(source).await?;
        let key = source.key;
        let value = match &object {
            Some(Object::ConfigMap(map)) => map.data.as_ref().and_then(|data| data.get(key)).cloned(),
            Some(Object::Secret(secret)) => secret
                .data
                .as_ref()
                .and_then(|data| data.get(key))
                .map(|value| text(value, &self.key_of(source), key))
                .transpose()?,
            _ => None,
        };
        if value.is_none() && !source.optional {
            return Err(EnvError::KeyMissing {
                object: self.key_of(source),
                key: key.to_owned(),
            });
        }
        Ok(value)
    }

    async fn object(&mut self, wanted: Source<'_>) -> Result<Option<Object>, EnvError> {
        let key = self.key_of(wanted);
        let Some(source) = self.source else {
            return Err(EnvError::NoSource { object: key });
        };
        let known = match self.read.get(&key) {
            Some(known) => known.clone(),
            None => {
                let read = match source.get(&key, self.want).await {
                    Ok(object) => Some(object),
                    Err(ObjectError::NotFound { .. }) => None,
                    Err(error) => return Err(EnvError::Object(error)),
                };
                self.read.insert(key.clone(), read.clone());
                read
            }
        };
        match known {
            None if !wanted.optional => Err(EnvError::Object(ObjectError::NotFound { key })),
            known => Ok(known),
        }
    }

    fn key_of(&self, source: Source<'_>) -> ObjectKey {
        ObjectKey::new(source.kind, self.namespace, source.name)
    }
}

/// A secret may hold any bytes, but the runtime takes text only.
fn text(value: &ByteString, object: &ObjectKey, key: &str) -> Result<String, EnvError> {
    String::from_utf8(value.0.clone()).map_err(|_| EnvError::NotText {
        object: object.clone(),
        key: key.to_owned(),
    })
}
