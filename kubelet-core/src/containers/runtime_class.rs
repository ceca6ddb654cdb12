//! Which of the runtime's handlers a pod is run by.

use super::ContainerSyncer;
use crate::objects::{Freshness, Object, ObjectError, ObjectKey, ObjectKind};
use crate::pod::PodRecord;
use crate::syncer::{StepContext, SyncError};

impl ContainerSyncer {
    /// The handler that the pod's class names; empty, for the default one, where it has no class. Looked up anew for each
    /// sandbox.
    ///
    /// Source: kubelet 1.36, `runtimeclass_manager.go`.
    pub(super) async fn runtime_handler(&self, cx: &StepContext, pod: &PodRecord) -> Result<String, SyncError> {
        let class = pod.spec().runtime_class_name.as_deref().unwrap_or_default();
        if class.is_empty() {
            return Ok(String::new());
        }
        let what = "cannot look up the pod's runtime class";
        let Some(objects) = &self.node.objects else {
            let kind = ObjectKind::RuntimeClass;
            return Err(SyncError::failed(what, ObjectError::NotServed { kind }));
        };
        let key = ObjectKey::new(ObjectKind::RuntimeClass, "", class);
        // Objects come from wherever the embedder has them: a source that does not answer must not hold the pod.
        let limit = self.node.settings.runtime_request_timeout;
        let found = tokio::select! {
            biased;
            () = cx.stop.cancelled() => return Err(SyncError::Stopped),
            found = tokio::time::timeout(limit, objects.get(&key, Freshness::Cached)) => found,
        };
        match found {
            Ok(Ok(Object::RuntimeClass(class))) => Ok(class.handler.clone()),
            Ok(Ok(other)) => Err(SyncError::failed(
                what,
                format!("{key} was asked for and {other:?} given"),
            )),
            Ok(Err(error)) => Err(SyncError::failed(what, error)),
            Err(_) => Err(SyncError::failed(
                what,
                format!("no answer from the source of objects within {limit:?}"),
            )),
        }
    }
}
