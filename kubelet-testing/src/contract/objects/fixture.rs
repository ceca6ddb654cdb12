//! What the suite must be told about a source of objects.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_core::{Object, ObjectKey, ObjectKind, ObjectSource};

use crate::contract::hook::{Given, Hook, hook};

/// Where the suite keeps what changes of an object.
const VALUE: &str = "kubelet-testing/value";

/// Tells the suite of [`ObjectSource`] how to change what the source that it checks serves.
pub struct ObjectFixture {
    pub(crate) put: Hook<Object>,
    pub(crate) remove: Hook<ObjectKey>,
    pub(crate) outage: Given<(Hook, Hook)>,
    pub(crate) held: Given<Box<dyn Fn() -> usize + Send + Sync>>,
    pub(crate) patience: Duration,
}

impl fmt::Debug for ObjectFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectFixture")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl ObjectFixture {
    /// A fixture whose `put` adds an object, or replaces the one of its key, and whose `remove` removes one. Both happen
    /// where the source reads, not in the source.
    ///
    /// The suite uses config maps, secrets or services, whichever the source serves, in the namespaces `default`, `kubelet-a`
    /// and `kubelet-b`. What changes of an object is an annotation.
    pub fn new<P, R>(
        put: impl Fn(Object) -> P + Send + Sync + 'static,
        remove: impl Fn(ObjectKey) -> R + Send + Sync + 'static,
    ) -> Self
    where
        P: Future<Output = ()> + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        Self {
            put: hook(put),
            remove: hook(remove),
            outage: Given::Unsaid,
            held: Given::Unsaid,
            patience: Duration::from_secs(20),
        }
    }

    /// How to make what the source reads unreadable, and readable again. Without it those promises are skipped.
    #[must_use]
    pub fn outage<D, U>(
        mut self,
        down: impl Fn() -> D + Send + Sync + 'static,
        up: impl Fn() -> U + Send + Sync + 'static,
    ) -> Self
    where
        D: Future<Output = ()> + Send + 'static,
        U: Future<Output = ()> + Send + 'static,
    {
        self.outage = Given::Here((hook(move |()| down()), hook(move |()| up())));
        self
    }

    /// For a source that can always look.
    #[must_use]
    pub fn always_readable(mut self) -> Self {
        self.outage = Given::Never;
        self
    }

    /// How many things, such as connections or cached objects, the source holds for the sake of watches. Without it that
    /// promise is skipped.
    #[must_use]
    pub fn held(mut self, held: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        self.held = Given::Here(Box::new(held));
        self
    }

    /// For a source that holds nothing for a watch.
    #[must_use]
    pub fn holds_nothing(mut self) -> Self {
        self.held = Given::Never;
        self
    }

    /// How long the source may take to see a change; 20 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// The kind of object that the suite uses with a source.
pub(crate) fn kind_for(source: &dyn ObjectSource) -> ObjectKind {
    let kinds = [ObjectKind::ConfigMap, ObjectKind::Secret, ObjectKind::Service];
    let Some(kind) = kinds.into_iter().find(|kind| source.serves(*kind)) else {
        panic!("the source serves none of the kinds that the suite can make: {kinds:?}");
    };
    kind
}

/// An object with that value.
pub(crate) fn object(key: &ObjectKey, value: &str) -> Object {
    let metadata = ObjectMeta {
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        annotations: Some(BTreeMap::from([(VALUE.to_owned(), value.to_owned())])),
        ..ObjectMeta::default()
    };
    match key.kind {
        ObjectKind::ConfigMap => Object::from(ConfigMap {
            metadata,
            ..ConfigMap::default()
        }),
        ObjectKind::Secret => Object::from(Secret {
            metadata,
            ..Secret::default()
        }),
        _ => Object::from(Service {
            metadata,
            ..Service::default()
        }),
    }
}

/// The value of an object.
pub(crate) fn value(object: &Object) -> &str {
    let annotations = object.metadata().annotations.as_ref();
    let value = annotations.and_then(|annotations| annotations.get(VALUE));
    value.map(String::as_str).unwrap_or_default()
}
