//! Builders of pods, for tests.

use std::collections::BTreeMap;

use kubelet_core::k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, ExecAction, Pod, PodSpec, Probe, ResourceRequirements,
};
use kubelet_core::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Builds a pod as a source hands it in: only what was asked for is set, nothing is defaulted, but for the namespace
/// (`default`), a UID that follows from the name (`uid-<name>`) and restart policy `Always`.
///
/// ```
/// use kubelet_testing::PodBuilder;
///
/// let pod = PodBuilder::new("web")
///     .init("prepare", |c| c.args(["exit=0", "after=2s"]))
///     .container("app", |c| c.image("fake/app:1").host_port(8080))
///     .grace_seconds(5)
///     .build();
/// assert_eq!(pod.metadata.uid.as_deref(), Some("uid-web"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct PodBuilder {
    metadata: ObjectMeta,
    spec: PodSpec,
}

impl PodBuilder {
    /// A pod of that name without containers.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            metadata: ObjectMeta {
                namespace: Some("default".to_owned()),
                uid: Some(format!("uid-{name}")),
                name: Some(name),
                ..ObjectMeta::default()
            },
            spec: PodSpec {
                restart_policy: Some("Always".to_owned()),
                ..PodSpec::default()
            },
        }
    }

    /// Its UID.
    pub fn uid(mut self, uid: impl Into<String>) -> Self {
        self.metadata.uid = Some(uid.into());
        self
    }

    /// Without a UID, as in a manifest.
    pub fn without_uid(mut self) -> Self {
        self.metadata.uid = None;
        self
    }

    /// Its namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.metadata.namespace = Some(namespace.into());
        self
    }

    /// A label.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let labels = self.metadata.labels.get_or_insert_default();
        labels.insert(key.into(), value.into());
        self
    }

    /// An annotation.
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let annotations = self.metadata.annotations.get_or_insert_default();
        annotations.insert(key.into(), value.into());
        self
    }

    /// A container.
    pub fn container(mut self, name: &str, shape: impl FnOnce(ContainerBuilder) -> ContainerBuilder) -> Self {
        self.spec.containers.push(shape(ContainerBuilder::new(name)).build());
        self
    }

    /// An init container, after those before.
    pub fn init(mut self, name: &str, shape: impl FnOnce(ContainerBuilder) -> ContainerBuilder) -> Self {
        let init = self.spec.init_containers.get_or_insert_default();
        init.push(shape(ContainerBuilder::new(name)).build());
        self
    }

    /// A sidecar: an init container with restart policy `Always`.
    pub fn sidecar(self, name: &str, shape: impl FnOnce(ContainerBuilder) -> ContainerBuilder) -> Self {
        self.init(name, |c| shape(c.restart_policy("Always")))
    }

    /// `Always`, `OnFailure` or `Never`.
    pub fn restart_policy(mut self, policy: impl Into<String>) -> Self {
        self.spec.restart_policy = Some(policy.into());
        self
    }

    /// `terminationGracePeriodSeconds`.
    pub fn grace_seconds(mut self, seconds: i64) -> Self {
        self.spec.termination_grace_period_seconds = Some(seconds);
        self
    }

    /// `activeDeadlineSeconds`.
    pub fn active_deadline_seconds(mut self, seconds: i64) -> Self {
        self.spec.active_deadline_seconds = Some(seconds);
        self
    }

    /// Shares the host's network.
    pub fn host_network(mut self) -> Self {
        self.spec.host_network = Some(true);
        self
    }

    /// Its priority and the class that it comes from.
    pub fn priority(mut self, class: impl Into<String>, priority: i32) -> Self {
        self.spec.priority_class_name = Some(class.into());
        self.spec.priority = Some(priority);
        self
    }

    /// Changes anything else of the spec.
    pub fn spec(mut self, change: impl FnOnce(&mut PodSpec)) -> Self {
        change(&mut self.spec);
        self
    }

    /// Changes anything else of the metadata.
    pub fn metadata(mut self, change: impl FnOnce(&mut ObjectMeta)) -> Self {
        change(&mut self.metadata);
        self
    }

    /// The pod.
    #[must_use]
    pub fn build(self) -> Pod {
        Pod {
            metadata: self.metadata,
            spec: Some(self.spec),
            status: None,
        }
    }
}

/// Builds a container of a [`PodBuilder`]. Without another one its image is `fake/app:1`, which runs for ever on
/// [`FakeRuntime`](crate::FakeRuntime).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ContainerBuilder {
    container: Container,
}

impl ContainerBuilder {
    fn new(name: &str) -> Self {
        Self {
            container: Container {
                name: name.to_owned(),
                image: Some("fake/app:1".to_owned()),
                ..Container::default()
            },
        }
    }

    /// The image.
    pub fn image(mut self, image: impl Into<String>) -> Self {
        self.container.image = Some(image.into());
        self
    }

    /// `Always`, `IfNotPresent` or `Never`.
    pub fn pull_policy(mut self, policy: impl Into<String>) -> Self {
        self.container.image_pull_policy = Some(policy.into());
        self
    }

    /// The command.
    pub fn command(mut self, words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.container.command = Some(words.into_iter().map(Into::into).collect());
        self
    }

    /// The arguments: what a fake container does, in the words of [`Program`](crate::Program).
    pub fn args(mut self, words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.container.args = Some(words.into_iter().map(Into::into).collect());
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let env = self.container.env.get_or_insert_default();
        env.push(EnvVar {
            name: name.into(),
            value: Some(value.into()),
            value_from: None,
        });
        self
    }

    /// A TCP port that the host forwards to, of the same number.
    pub fn host_port(mut self, port: u16) -> Self {
        let ports = self.container.ports.get_or_insert_default();
        ports.push(ContainerPort {
            container_port: i32::from(port),
            host_port: Some(i32::from(port)),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        });
        self
    }

    /// A request, such as `cpu` and `500m`.
    pub fn request(mut self, resource: &str, quantity: &str) -> Self {
        let requests = self.resources().requests.get_or_insert_default();
        set(requests, resource, quantity);
        self
    }

    /// A limit, such as `memory` and `64Mi`.
    pub fn limit(mut self, resource: &str, quantity: &str) -> Self {
        let limits = self.resources().limits.get_or_insert_default();
        set(limits, resource, quantity);
        self
    }

    /// The container's own restart policy.
    pub fn restart_policy(mut self, policy: impl Into<String>) -> Self {
        self.container.restart_policy = Some(policy.into());
        self
    }

    /// A readiness probe; see [`exec_probe`].
    pub fn readiness(mut self, probe: Probe) -> Self {
        self.container.readiness_probe = Some(probe);
        self
    }

    /// A liveness probe.
    pub fn liveness(mut self, probe: Probe) -> Self {
        self.container.liveness_probe = Some(probe);
        self
    }

    /// A startup probe.
    pub fn startup(mut self, probe: Probe) -> Self {
        self.container.startup_probe = Some(probe);
        self
    }

    /// Changes anything else.
    pub fn with(mut self, change: impl FnOnce(&mut Container)) -> Self {
        change(&mut self.container);
        self
    }

    fn resources(&mut self) -> &mut ResourceRequirements {
        self.container.resources.get_or_insert_default()
    }

    fn build(self) -> Container {
        self.container
    }
}

fn set(list: &mut BTreeMap<String, Quantity>, resource: &str, quantity: &str) {
    list.insert(resource.to_owned(), Quantity(quantity.to_owned()));
}

/// A probe that runs a command every `period_seconds`. In a fake container the words `exit` and `after` of a
/// [`Program`](crate::Program) say how the command goes.
#[must_use]
pub fn exec_probe(command: impl IntoIterator<Item = impl Into<String>>, period_seconds: i32) -> Probe {
    Probe {
        exec: Some(ExecAction {
            command: Some(command.into_iter().map(Into::into).collect()),
        }),
        period_seconds: Some(period_seconds),
        ..Probe::default()
    }
}

#[cfg(test)]
mod tests {
    use super::PodBuilder;

    #[test]
    fn a_sidecar_is_an_init_container_that_restarts() {
        let pod = PodBuilder::new("a")
            .init("first", |c| c.args(["exit=0"]))
            .sidecar("proxy", |c| c.limit("memory", "64Mi"))
            .container("app", |c| c)
            .build();
        let spec = pod.spec.unwrap();
        let init = spec.init_containers.unwrap();
        assert_eq!(init[0].restart_policy, None);
        assert_eq!(init[1].restart_policy.as_deref(), Some("Always"));
        assert_eq!(
            init[1].resources.as_ref().unwrap().limits.as_ref().unwrap()["memory"].0,
            "64Mi"
        );
        assert_eq!(spec.containers[0].image.as_deref(), Some("fake/app:1"));
    }
}
