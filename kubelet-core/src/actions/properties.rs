//! What holds for any pod and any observation, and that carrying the actions out comes to an end.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof};
use proptest::{option, prop_assert, prop_assert_eq, proptest, sample};

use super::shorthand::{pod, seen, text};
use super::{ActionInputs, PodActions, SandboxAction, compute_pod_actions};
use crate::ids::{ContainerId, SandboxId};
use crate::jiff::Timestamp;
use crate::observation::{ObservedContainer, ObservedSandbox, PodObservation};
use crate::pod::{ContainerKind, PodRecord, RestartPolicy, container_hash};
use crate::runtime::{ContainerState, SandboxState};

const POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];

fn container_of(kind: &'static str, name: String) -> impl Strategy<Value = String> {
    let own = option::of((sample::select(&POLICIES[..]), option::of(Just(42))));
    own.prop_map(move |own| match own {
        // An init container of its own policy `Always` is a sidecar.
        Some((policy, _)) if kind == "i" && policy == "Always" => format!("s:{name}"),
        Some((policy, Some(code))) => format!("{kind}:{name}/{policy}/{code}"),
        Some((policy, None)) => format!("{kind}:{name}/{policy}"),
        None => format!("{kind}:{name}"),
    })
}

fn pods() -> impl Strategy<Value = String> {
    let list = |kind: &'static str, most: usize| {
        (0..=most).prop_flat_map(move |n| {
            (0..n)
                .map(|i| container_of(kind, format!("{kind}{i}")))
                .collect::<Vec<_>>()
        })
    };
    (
        sample::select(&POLICIES[..]),
        list("i", 3),
        list("c", 3),
        option::of(Just("e:e0".to_owned())),
    )
        .prop_map(|(policy, init, regular, ephemeral)| {
            let all: Vec<String> = init.into_iter().chain(regular).chain(ephemeral).collect();
            format!("{policy}: {}", all.join(" "))
        })
}

fn observations() -> impl Strategy<Value = (String, String)> {
    // Mostly a newest one that is ready, and older ones that are not.
    let newest = prop_oneof![12 => Just(""), 3 => Just("!"), 1 => Just("~"), 1 => Just("^")];
    let older = prop_oneof![1 => Just(""), 9 => Just("!")];
    let sandboxes = option::weighted(0.9, (newest, vec(older, 0..3))).prop_map(|marks| {
        let marks: Vec<&str> = marks
            .into_iter()
            .flat_map(|(newest, older)| older.into_iter().chain([newest]))
            .collect();
        let newest_first = marks.iter().enumerate().rev();
        newest_first.map(|(i, mark)| format!("{mark}s{i} ")).collect::<String>()
    });
    let state = sample::select(&["created", "running", "unknown", "exited:0", "exited:1", "exited:42"][..]);
    // `s9` is a sandbox that is gone.
    let home = sample::select(&["s0", "s0", "s1", "s2", "s9", "-"][..]);
    let marks = prop_oneof![5 => Just(""), 1 => Just("stale"), 1 => Just("hashless"), 1 => Just("oom")];
    let names = sample::subsequence(vec!["i0", "i1", "i2", "c0", "c1", "c2", "e0", "stranger"], 0..=8);
    let records = names.prop_flat_map(move |names| {
        names
            .into_iter()
            .map(|name| {
                vec((state.clone(), home.clone(), marks.clone()), 1..4).prop_map(move |records| {
                    let newest_first = records.iter().enumerate().rev();
                    newest_first
                        .map(|(i, (state, home, marks))| format!("{name}#{i} {state} {home} {marks},"))
                        .collect::<String>()
                })
            })
            .collect::<Vec<_>>()
            .prop_map(|names| names.concat())
    });
    (sandboxes, records)
}

fn policy_of(pod: &PodRecord, name: &str) -> RestartPolicy {
    RestartPolicy::of_container(&pod.container(name).unwrap(), pod.facts().restart_policy)
}

proptest! {
    // Cheap cases, of which few meet all the conditions of a rule.
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn actions_never_contradict_each_other(spec in pods(), (sandboxes, containers) in observations(), known in option::of(Just("s0"))) {
        let (pod, observed) = (pod(&spec), seen(&sandboxes, &containers));
        let known = known.map(SandboxId::from);
        let mut inputs = ActionInputs::new();
        inputs.initialized_in = known.as_ref();
        let actions = compute_pod_actions(&pod, &observed, &inputs);
        prop_assert_eq!(&actions, &compute_pod_actions(&pod, &observed, &inputs));

        let started: Vec<&str> = actions.starts().map(|start| start.name.as_str()).collect();
        let names: BTreeSet<&str> = started.iter().copied().collect();
        prop_assert_eq!(names.len(), started.len(), "started twice: {}", text(&actions));
        prop_assert!(started.is_empty() || actions.sandbox != SandboxAction::None);
        prop_assert!(actions.reset.is_empty() || started.is_empty());
        prop_assert!(!actions.kill_pod || actions.kill.is_empty());
        prop_assert!(!actions.kill_pod || !matches!(actions.sandbox, SandboxAction::Keep(_)));

        let killed: BTreeSet<&ContainerId> = actions.kill.iter().map(|kill| &kill.id).collect();
        let adopted: BTreeSet<&ContainerId> = actions.starts().filter_map(|start| start.adopt.as_ref()).collect();
        let removed: BTreeSet<&ContainerId> = actions.remove_containers.iter().collect();
        prop_assert_eq!(killed.len(), actions.kill.len());
        prop_assert_eq!(removed.len(), actions.remove_containers.len());
        prop_assert!(killed.is_disjoint(&adopted) && killed.is_disjoint(&removed) && adopted.is_disjoint(&removed));
        for seen in observed.containers.iter().filter(|seen| removed.contains(&seen.id)) {
            let may_run = matches!(seen.state, ContainerState::Running | ContainerState::Unknown);
            prop_assert!(!may_run || (actions.kill_pod && seen.name.starts_with('i')));
        }
        for seen in observed.containers.iter().filter(|seen| adopted.contains(&seen.id)) {
            prop_assert_eq!(seen.state, ContainerState::Created);
        }
    }

    #[test]
    fn regular_containers_wait_for_the_init_containers(spec in pods(), (sandboxes, containers) in observations()) {
        let (pod, observed) = (pod(&spec), seen(&sandboxes, &containers));
        let actions = compute_pod_actions(&pod, &observed, &ActionInputs::new());
        let inits: Vec<_> = pod.containers().filter(|c| c.kind().is_init()).collect();

        let order: Vec<usize> = actions
            .init
            .iter()
            .map(|start| inits.iter().position(|c| c.name() == start.name).unwrap())
            .collect();
        prop_assert!(order.is_sorted());
        let plain = order.iter().filter(|i| inits[**i].kind() == ContainerKind::Init).count();
        prop_assert!(plain <= 1, "two at a time: {}", text(&actions));

        if actions.regular.is_empty() || inits.is_empty() {
            return Ok(());
        }
        let SandboxAction::Keep(present) = &actions.sandbox else {
            panic!("regular containers beside init containers in a new sandbox: {}", text(&actions));
        };
        let may_be_here = |c: &&ObservedContainer| c.sandbox_id.as_ref().is_none_or(|id| id == present);
        let initialized = observed
            .containers
            .iter()
            .filter(|c| c.name.starts_with('c') && pod.container(&c.name).is_some())
            .any(|c| {
                c.sandbox_id.as_ref() == Some(present)
                    || (c.sandbox_id.is_none() && matches!(c.state, ContainerState::Created | ContainerState::Running))
            });
        let last = inits.last().unwrap();
        let finished = observed.of_name(last.name()).filter(may_be_here).any(|c| {
            if last.kind() == ContainerKind::Sidecar {
                c.is_running()
            } else {
                c.state == ContainerState::Exited && c.exit_code == 0 && c.reason != "OOMKilled"
            }
        });
        prop_assert!(initialized || finished, "{}", text(&actions));
    }

    #[test]
    fn what_ended_is_never_started_again_against_its_policy(spec in pods(), (sandboxes, containers) in observations()) {
        let (pod, observed) = (pod(&spec), seen(&sandboxes, &containers));
        let actions = compute_pod_actions(&pod, &observed, &ActionInputs::new());
        for start in &actions.regular {
            let last = observed.newest(&start.name).filter(|last| last.state == ContainerState::Exited);
            // Code 42 may have a rule, and a running one of another image is restarted whatever the policy.
            let running = observed.of_name(&start.name).any(ObservedContainer::is_running);
            if let Some(last) = last.filter(|last| last.exit_code != 42 && !running) {
                prop_assert!(policy_of(&pod, &start.name).restarts(last.exit_code), "{}", text(&actions));
            }
        }
        for start in &actions.ephemeral {
            prop_assert!(observed.of_name(&start.name).all(|c| c.state == ContainerState::Created));
        }
    }

    #[test]
    fn carrying_the_actions_out_comes_to_an_end(spec in pods(), (sandboxes, containers) in observations()) {
        let pod = pod(&spec);
        let mut model = Model { observed: seen(&sandboxes, &containers) };
        let mut trail = Vec::new();
        for _ in 0..12 {
            let actions = compute_pod_actions(&pod, &model.observed, &ActionInputs::new());
            trail.push(text(&actions));
            if actions.is_empty() {
                // An init container at work is the only thing that is waited for.
                if !model.finish_init_containers(&pod) {
                    break;
                }
                continue;
            }
            model.carry_out(&pod, &actions);
            for start in actions.starts() {
                prop_assert_eq!(model.running(&start.name), 1, "{}: {:?}", start.name, &trail);
            }
        }
        let end = compute_pod_actions(&pod, &model.observed, &ActionInputs::new());
        prop_assert!(end.is_empty(), "{trail:?}");
        for container in pod.containers() {
            prop_assert!(model.running(container.name()) <= 1, "{}: {:?}", container.name(), &trail);
        }
        if let SandboxAction::Keep(present) = &end.sandbox {
            let ours = |c: &&ObservedContainer| pod.container(&c.name).is_some_and(|c| c.kind() != ContainerKind::Ephemeral);
            for running in model.observed.containers.iter().filter(|c| c.is_running()).filter(ours) {
                prop_assert!(running.sandbox_id.as_ref().is_none_or(|id| id == present), "{trail:?}");
            }
        }
    }
}

/// A runtime in which all goes well: init containers succeed, the others run on.
struct Model {
    observed: PodObservation,
}

impl Model {
    fn stop(&mut self, wanted: impl Fn(&ObservedContainer) -> bool) {
        for seen in self.observed.containers.iter_mut().filter(|c| wanted(c)) {
            if matches!(seen.state, ContainerState::Running | ContainerState::Unknown) {
                (seen.state, seen.exit_code) = (ContainerState::Exited, 137);
            }
        }
    }

    fn carry_out(&mut self, pod: &PodRecord, actions: &PodActions) {
        if actions.kill_pod {
            self.stop(|_| true);
            for sandbox in &mut self.observed.sandboxes {
                sandbox.state = SandboxState::NotReady;
            }
        }
        self.stop(|c| actions.kill.iter().any(|kill| kill.id == c.id));
        let gone: BTreeSet<&ContainerId> = actions
            .remove_containers
            .iter()
            .chain(actions.reset.iter().flat_map(|reset| &reset.remove))
            .collect();
        self.observed.containers.retain(|c| !gone.contains(&c.id));
        self.observed
            .sandboxes
            .retain(|s| !actions.remove_sandboxes.contains(&s.id));
        let present = match &actions.sandbox {
            SandboxAction::None => None,
            SandboxAction::Keep(id) => Some(id.clone()),
            SandboxAction::Create { attempt, .. } => {
                let id = SandboxId::from(format!("new{attempt}"));
                self.observed
                    .sandboxes
                    .insert(0, ObservedSandbox::ready(id.clone(), *attempt, Timestamp::UNIX_EPOCH));
                Some(id)
            }
        };
        for start in actions.starts() {
            if let Some(adopt) = &start.adopt {
                let seen = self.observed.containers.iter_mut().find(|c| c.id == *adopt).unwrap();
                seen.state = ContainerState::Running;
                continue;
            }
            let attempt = self.observed.newest(&start.name).map_or(0, |newest| newest.attempt + 1);
            let id = ContainerId::from(format!("{}#new{attempt}", start.name));
            let state = ContainerState::Running;
            let mut new = ObservedContainer::new(id, start.name.clone(), state, Timestamp::UNIX_EPOCH);
            (new.attempt, new.sandbox_id) = (attempt, present.clone());
            new.hash = Some(container_hash(&start.name, pod.container(&start.name).unwrap().image()));
            self.observed.containers.insert(0, new);
        }
    }

    fn finish_init_containers(&mut self, pod: &PodRecord) -> bool {
        let mut any = false;
        for seen in self.observed.containers.iter_mut().filter(|c| c.is_running()) {
            if pod
                .container(&seen.name)
                .is_some_and(|c| c.kind() == ContainerKind::Init)
            {
                (seen.state, seen.exit_code) = (ContainerState::Exited, 0);
                seen.reason.clear();
                any = true;
            }
        }
        any
    }

    fn running(&self, name: &str) -> usize {
        self.observed.of_name(name).filter(|seen| seen.is_running()).count()
    }
}
