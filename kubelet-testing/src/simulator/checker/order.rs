//! Init containers run one after the other, before all others, and once per sandbox.

use kubelet_core::{ContainerKind, ContainerView};
use tokio::time::Instant;

use super::{Book, Checker, Instance};
use crate::fake::journal::By;
use crate::simulator::workload::RESTART_ALL;

impl Checker {
    /// What is wrong with the moment at which a container starts.
    ///
    /// - Each init container before it has succeeded in this sandbox, and each sidecar before it has been started in it.
    /// - An init container does not start again in a sandbox in which it has succeeded, unless all containers are being
    ///   restarted, or nothing of what came after it is left to tell.
    pub(super) fn check_order(&self, book: &Book, container: u64, instance: &Instance) -> Option<String> {
        let spec = book.pod.spec();
        let mine = |other: &Instance| other.sandbox == instance.sandbox;
        for before in ContainerView::init(spec) {
            if before.name() == instance.name {
                break;
            }
            let had_its_turn = match before.kind() {
                ContainerKind::Sidecar => self
                    .of_pod(&instance.pod)
                    .any(|(_, other)| other.name == before.name() && mine(other) && other.started.is_some()),
                _ => self
                    .initialised
                    .contains_key(&(instance.sandbox.clone(), before.name().to_owned())),
            };
            if !had_its_turn {
                return Some(format!(
                    "c{container} ({} of pod {}) starts before {}",
                    instance.name,
                    instance.pod,
                    before.name()
                ));
            }
        }
        let again = self
            .initialised
            .contains_key(&(instance.sandbox.clone(), instance.name.clone()));
        let told = self.of_pod(&instance.pod).any(|(_, other)| {
            let is_regular = ContainerView::regular(spec).any(|view| view.name() == other.name);
            mine(other) && is_regular && other.started.is_some() && other.gone.is_none()
        });
        (again && told).then(|| {
            format!(
                "c{container} ({} of pod {}) starts again, although it succeeded in {}",
                instance.name, instance.pod, instance.sandbox
            )
        })
    }

    pub(super) fn note_end(&mut self, at: Instant, container: u64, code: i32) {
        let Some(instance) = self.instances.get(&container) else {
            return;
        };
        let (pod, name, sandbox) = (instance.pod.clone(), instance.name.clone(), instance.sandbox.clone());
        let Some(book) = self.books.get_mut(&pod) else { return };
        if code == RESTART_ALL && book.pod.facts().can_restart_all {
            book.restart_all = Some(at);
            book.restart_all_by = Some(container);
        }
        let is_init = book
            .pod
            .container(&name)
            .is_some_and(|view| view.kind() == ContainerKind::Init);
        if is_init && code == 0 && instance.started.is_some() {
            self.initialised.insert((sandbox, name), container);
        }
    }

    /// A restart of all containers begins with the removal of all.
    pub(super) fn note_gone(&mut self, container: u64) {
        let Some(instance) = self.instances.get(&container) else {
            return;
        };
        let by_caller = matches!(instance.gone, Some((_, By::Caller)));
        let restarting = self
            .books
            .get(&instance.pod)
            .is_some_and(|book| book.restart_all.is_some());
        let key = (instance.sandbox.clone(), instance.name.clone());
        if by_caller && restarting && self.initialised.get(&key) == Some(&container) {
            self.initialised.remove(&key);
        }
    }
}
