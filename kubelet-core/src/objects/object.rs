//! The kinds of objects, and the objects.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::key::ObjectKey;

/// One list of kinds, so that the two enums and the conversions cannot drift apart.
macro_rules! kinds {
    ($($kind:ident($scope:ident, $resource:literal),)+) => {
        /// A kind of object that pods, or the parts that serve them, refer to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ObjectKind {
            $(#[doc = concat!("`", stringify!($kind), "`.")] $kind,)+
        }

        impl ObjectKind {
            /// All kinds, in the order of the declaration.
            pub const ALL: &'static [ObjectKind] = &[$(ObjectKind::$kind,)+];

            /// The kind in lower case, as messages name it: `configmap`.
            pub fn resource(self) -> &'static str {
                match self { $(ObjectKind::$kind => $resource,)+ }
            }

            /// Whether objects of this kind live in a namespace.
            pub fn is_namespaced(self) -> bool {
                match self { $(ObjectKind::$kind => kinds!(@$scope),)+ }
            }
        }

        /// An object as a source handed it out. A copy shares the content.
        ///
        /// `Debug` shows the name only: the content may be secret.
        #[derive(Clone, PartialEq)]
        #[non_exhaustive]
        pub enum Object {
            $(#[doc = concat!("A `", stringify!($kind), "`.")] $kind(Arc<$kind>),)+
        }

        impl Object {
            /// The kind.
            pub fn kind(&self) -> ObjectKind {
                match self { $(Object::$kind(_) => ObjectKind::$kind,)+ }
            }

            /// The metadata.
            pub fn metadata(&self) -> &ObjectMeta {
                match self { $(Object::$kind(object) => &object.metadata,)+ }
            }
        }

        $(
            impl From<$kind> for Object {
                fn from(object: $kind) -> Self {
                    Object::$kind(Arc::new(object))
                }
            }
        )+
    };
    (@namespaced) => { true };
    (@cluster) => { false };
}

kinds! {
    ClusterTrustBundle(cluster, "clustertrustbundle"),
    ConfigMap(namespaced, "configmap"),
    CSIDriver(cluster, "csidriver"),
    Node(cluster, "node"),
    PersistentVolume(cluster, "persistentvolume"),
    PersistentVolumeClaim(namespaced, "persistentvolumeclaim"),
    ResourceClaim(namespaced, "resourceclaim"),
    RuntimeClass(cluster, "runtimeclass"),
    Secret(namespaced, "secret"),
    Service(namespaced, "service"),
    ServiceAccount(namespaced, "serviceaccount"),
    VolumeAttachment(cluster, "volumeattachment"),
}

impl Object {
    /// The key under which this object is found. A missing name or namespace is empty.
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey::new(
            self.kind(),
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        )
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Object")
            .field(&format_args!("{}", self.key()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::{Node, Secret};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::Object;

    #[test]
    fn debug_shows_the_name_and_never_the_content() {
        let object = Object::from(Secret {
            metadata: ObjectMeta {
                namespace: Some("shop".into()),
                name: Some("db".into()),
                ..ObjectMeta::default()
            },
            string_data: Some(BTreeMap::from([("password".into(), "hunter2".into())])),
            ..Secret::default()
        });
        assert_eq!(format!("{object:?}"), "Object(secret shop/db, ..)");
    }

    #[test]
    fn kinds_without_a_namespace_have_none_in_their_key() {
        let node = Object::from(Node {
            metadata: ObjectMeta {
                namespace: Some("ignored".into()),
                name: Some("edge-7".into()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        });
        assert_eq!(node.key().to_string(), "node edge-7");
    }
}
