//! Puts the environment of one container together.

mod references;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, EnvVarSource, EphemeralContainer, FileKeySelector, PodSpec, ResourceRequirements,
    Service,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::env_file::env_file_value;
use super::error::EnvError;
use super::expansion::expand;
use super::field_ref::PodFields;
use super::file_key::{EnvFileAccessError, read_env_file};
use super::resource_ref::resource_value;
use super::services::{API_NAMESPACE, API_SERVICE, ServiceLinks, service_variables};
use super::variables::Env;
use crate::objects::{Freshness, Object, ObjectError, ObjectKey, ObjectKind, ObjectQuery, ObjectSource};
use crate::pod::ContainerView;
use references::{References, Source};

/// The parts of a container, regular, init or ephemeral, that make its environment.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ContainerEnv<'a> {
    /// `env`.
    pub env: &'a [EnvVar],
    /// `envFrom`.
    pub env_from: &'a [EnvFromSource],
    /// `resources`.
    pub resources: Option<&'a ResourceRequirements>,
}

impl<'a> From<&'a Container> for ContainerEnv<'a> {
    fn from(container: &'a Container) -> Self {
        Self {
            env: container.env.as_deref().unwrap_or_default(),
            env_from: container.env_from.as_deref().unwrap_or_default(),
            resources: container.resources.as_ref(),
        }
    }
}

impl<'a> From<&'a EphemeralContainer> for ContainerEnv<'a> {
    fn from(container: &'a EphemeralContainer) -> Self {
        Self {
            env: container.env.as_deref().unwrap_or_default(),
            env_from: container.env_from.as_deref().unwrap_or_default(),
            resources: container.resources.as_ref(),
        }
    }
}

impl<'a> From<ContainerView<'a>> for ContainerEnv<'a> {
    fn from(container: ContainerView<'a>) -> Self {
        Self {
            env: container.env(),
            env_from: container.env_from(),
            resources: container.resources(),
        }
    }
}

/// Whose environment is wanted, and where its values come from.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is built"]
pub struct EnvRequest<'a> {
    fields: &'a PodFields<'a>,
    container: ContainerEnv<'a>,
    objects: Option<&'a dyn ObjectSource>,
    allocatable: Option<&'a BTreeMap<String, Quantity>>,
    volumes: Option<&'a BTreeMap<String, PathBuf>>,
    is_static: bool,
}

impl<'a> EnvRequest<'a> {
    /// Asks for the environment of a container of the pod in `fields`.
    pub fn new(fields: &'a PodFields<'a>, container: impl Into<ContainerEnv<'a>>) -> Self {
        Self {
            fields,
            container: container.into(),
            objects: None,
            allocatable: None,
            volumes: None,
            is_static: false,
        }
    }

    /// Reads secrets, config maps and services there. Without it a pod that needs one is refused.
    pub fn with_objects(mut self, objects: &'a dyn ObjectSource) -> Self {
        self.objects = Some(objects);
        self
    }

    /// What the node has for pods: the limit of a container that has none.
    pub fn with_allocatable(mut self, allocatable: &'a BTreeMap<String, Quantity>) -> Self {
        self.allocatable = Some(allocatable);
        self
    }

    /// Where the pod's volumes are mounted on the host, by volume name.
    pub fn with_volumes(mut self, volumes: &'a BTreeMap<String, PathBuf>) -> Self {
        self.volumes = Some(volumes);
        self
    }

    /// Says that the pod is static: it does not wait until services are known.
    pub fn with_static_pod(mut self) -> Self {
        self.is_static = true;
        self
    }
}

/// Builds the environment of a container.
///
/// First `envFrom` in order, then `env` in order, each overriding what came before; then the service
/// variables whose names are still free. A value may refer, as `$(NAME)`, to what is defined before
/// it and to service variables. Values that come from elsewhere are not expanded. Objects are read
/// once per call, and not older than the pod.
///
/// Source: kubelet 1.36, `kubelet_pods.go`. Differs from it in that the result has an order: by first
/// definition, the keys of one object by name, service variables by service.
///
/// # Errors
/// Any [`EnvError`]; the container then waits with reason `CreateContainerConfigError`.
///
/// # Cancellation
/// A dropped call has no effect; the read of an env file that has begun is finished unseen.
pub async fn build_env(request: &EnvRequest<'_>) -> Result<Env, EnvError> {
    let pod = request.fields.pod;
    let spec = pod.spec.as_ref();
    let links = match spec.and_then(|spec: &PodSpec| spec.enable_service_links) {
        Some(true) => ServiceLinks::Enabled,
        Some(false) => ServiceLinks::Disabled,
        None => return Err(EnvError::ServiceLinksUnset),
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let want = match &pod.metadata.creation_timestamp {
        Some(created) => Freshness::NotOlderThan(created.0),
        None => Freshness::Cached,
    };
    let services = request.services(namespace, links).await?;
    let mut references = References::new(request.objects, namespace, want);

    let mut env = Env::new();
    for from in request.container.env_from {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        for (key, value) in references.all(from).await? {
            env.set(format!("{prefix}{key}"), value);
        }
    }
    for variable in request.container.env {
        let value = match (variable.value.as_deref().unwrap_or_default(), &variable.value_from) {
            ("", Some(from)) => request.value_from(from, &mut references).await?,
            (text, _) => Some(expand(text, |name| env.get(name).or_else(|| services.get(name)))),
        };
        if let Some(value) = value {
            env.set(&variable.name, value);
        }
    }
    for (name, value) in services.iter() {
        if env.get(name).is_none() {
            env.set(name, value);
        }
    }
    Ok(env)
}

impl EnvRequest<'_> {
    /// The value of a variable; nothing if it is optional and not there.
    async fn value_from(
        &self,
        from: &EnvVarSource,
        references: &mut References<'_>,
    ) -> Result<Option<String>, EnvError> {
        if let Some(field) = &from.field_ref {
            self.fields.value(field).map(Some).map_err(EnvError::Field)
        } else if let Some(selector) = &from.resource_field_ref {
            let nothing = BTreeMap::new();
            let allocatable = self.allocatable.unwrap_or(&nothing);
            resource_value(selector, self.fields.pod, self.container.resources, allocatable)
                .map(Some)
                .map_err(EnvError::Resource)
        } else if let Some(source) = Source::of_key(from) {
            references.key(source).await
        } else if let Some(file) = &from.file_key_ref {
            self.file_key(file).await
        } else {
            Ok(Some(String::new()))
        }
    }

    async fn file_key(&self, file: &FileKeySelector) -> Result<Option<String>, EnvError> {
        let FileKeySelector {
            key,
            optional,
            path,
            volume_name: volume,
        } = file;
        let unmounted = || EnvError::VolumeNotMounted { volume: volume.clone() };
        let root = self.volumes.and_then(|volumes| volumes.get(volume));
        let root = root.ok_or_else(unmounted)?.clone();
        let inside = path.clone();
        let text = tokio::task::spawn_blocking(move || read_env_file(&root, &inside))
            .await
            .unwrap_or_else(|ended| {
                let source = std::io::Error::other(ended);
                Err(EnvFileAccessError::Io { source })
            })
            .map_err(|source| EnvError::EnvFileUnreadable {
                volume: volume.clone(),
                path: path.clone(),
                source,
            })?
            .unwrap_or_default();
        let value = env_file_value(&text, key).map_err(|source| EnvError::EnvFile { source })?;
        match value {
            None | Some("") if *optional == Some(true) => Ok(None),
            None | Some("") => Err(EnvError::EnvFileKeyMissing {
                volume: volume.clone(),
                path: path.clone(),
                key: key.clone(),
            }),
            Some(value) => Ok(Some(value.to_owned())),
        }
    }

    /// The service variables; none where services are not served.
    async fn services(&self, namespace: &str, links: ServiceLinks) -> Result<Env, EnvError> {
        let Some(objects) = self.objects.filter(|objects| objects.serves(ObjectKind::Service)) else {
            return Ok(Env::new());
        };
        match list_services(objects, namespace, links).await {
            Ok(services) => {
                let services = services.iter().map(|service| &**service);
                Ok(service_variables(services, namespace, links))
            }
            Err(_) if self.is_static => Ok(Env::new()),
            Err(source) => Err(EnvError::ServicesUnread { source }),
        }
    }
}

async fn list_services(
    objects: &dyn ObjectSource,
    namespace: &str,
    links: ServiceLinks,
) -> Result<Vec<Arc<Service>>, ObjectError> {
    let mut found = Vec::new();
    if links == ServiceLinks::Enabled {
        let query = ObjectQuery::new(ObjectKind::Service).with_namespace(namespace);
        found = objects.list(&query).await?;
    }
    let api = ObjectKey::new(ObjectKind::Service, API_NAMESPACE, API_SERVICE);
    match objects.get(&api, Freshness::Cached).await {
        Ok(service) => found.push(service),
        Err(ObjectError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let services = found.into_iter().filter_map(|object| match object {
        Object::Service(service) => Some(service),
        _ => None,
    });
    Ok(services.collect())
}
