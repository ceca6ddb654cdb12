//! Taints.

use k8s_openapi::api::core::v1::{PodSpec, Taint, Toleration};

/// A taint that forbids pods to run here and that the pod does not tolerate. Taints with other effects are for the
/// scheduler.
pub(super) fn untolerated<'a>(spec: &PodSpec, taints: &'a [Taint]) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|taint| taint.effect == "NoExecute")
        .find(|taint| !spec.tolerations.iter().flatten().any(|t| tolerates(t, taint)))
}

/// Source: Kubernetes 1.36, `Toleration.ToleratesTaint`. A toleration without a key or an effect is for all of them.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_for = |wanted: &Option<String>, actual: &str| {
        wanted
            .as_deref()
            .is_none_or(|wanted| wanted.is_empty() || wanted == actual)
    };
    is_for(&toleration.effect, &taint.effect)
        && is_for(&toleration.key, &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => {
                toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            "Exists" => true,
            _ => false,
        }
}
