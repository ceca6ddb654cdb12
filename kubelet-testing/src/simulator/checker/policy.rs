//! Who has ended for good does not start again.

use kubelet_core::{ContainerKind, RestartPolicy, should_restart_exited};

use super::{Book, Checker, Instance};
use crate::fake::journal::By;

impl Checker {
    /// What is wrong with starting a container again, by how the last one of its name ended in this life of the pod.
    ///
    /// Allowed is what the container's rules and policy allow. Beside that:
    /// - an init container in a new sandbox;
    /// - a container whose image was changed, and which was stopped for that, also where it had ended a moment before and nobody had
    ///   seen it yet;
    /// - a restart of all containers;
    /// - a container whose record the runtime lost: nobody can tell any more how it ended.
    pub(super) fn check_policy(&self, book: &Book, container: u64, instance: &Instance) -> Option<String> {
        let view = book.pod.container(&instance.name)?;
        let (_, last) = self
            .of_pod(&instance.pod)
            .rev()
            .filter(|(n, _)| *n < container)
            .find(|(_, other)| other.name == instance.name && other.had_its_turn() && other.made >= book.since)?;
        let (ended, code, by) = last.ended?;
        if book.restart_all.is_some() || matches!(last.gone, Some((_, By::Fault))) {
            return None;
        }
        let new_sandbox = last.sandbox != instance.sandbox;
        let policy = RestartPolicy::of_container(&view, book.pod.facts().restart_policy);
        let unseen = last.asks.iter().any(|asked| *asked > ended);
        let stopped = matches!(by, By::Stop | By::Caller);
        let allowed = match view.kind() {
            ContainerKind::Init if new_sandbox => true,
            // The end by a stop says nothing: what counts is that it ran when it was stopped.
            _ if (stopped || unseen) && last.image != instance.image => true,
            _ if stopped => policy != RestartPolicy::Never,
            _ => should_restart_exited(&view, book.pod.facts().restart_policy, code),
        };
        (!allowed).then(|| {
            format!(
                "c{container} ({} of pod {}, policy {policy:?}) starts again after code {code}",
                instance.name, instance.pod
            )
        })
    }
}
