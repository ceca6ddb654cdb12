//! One row per rule.

use serde_json::json;

use super::shorthand::{pod, pod_with, probes, seen, text};
use super::{ActionInputs, compute_pod_actions};
use crate::ids::SandboxId;

/// Rows below the pod that they are about: what the case is, the sandboxes, the containers, what is done.
fn check(table: &str) {
    let mut spec = "";
    for line in table
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [title, sandboxes, containers, want] = fields[..] else {
            assert_eq!(fields.len(), 1, "{line}");
            spec = line;
            continue;
        };
        let actions = compute_pod_actions(&pod(spec), &seen(sandboxes, containers), &ActionInputs::new());
        assert_eq!(text(&actions), want, "{spec}: {title}");
    }
}

/// The same with one more field: what probes have come to. All containers are in the sandbox `s0`.
fn check_probes(table: &str) {
    let mut spec = "";
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [title, containers, results, want] = fields[..] else {
            assert_eq!(fields.len(), 1, "{line}");
            spec = line;
            continue;
        };
        let in_sandbox: Vec<String> = containers.split(',').map(|one| format!("{one} s0")).collect();
        let observed = seen("s0", &in_sandbox.join(","));
        let results = probes(results);
        let inputs = ActionInputs::new().with_probes(&results);
        let actions = compute_pod_actions(&pod(spec), &observed, &inputs);
        let done = text(&actions);
        let done: Vec<&str> = done.split_whitespace().filter(|word| *word != "keep:s0").collect();
        assert_eq!(done.join(" "), want, "{spec}: {title}");
    }
}

#[test]
fn what_failed_probes_do() {
    check_probes(
        "
        Always: c:app/Always//ul
            nothing known yet | app#0 running | app#0 |
            all is well | app#0 running | app#0 u l |
            not alive | app#0 running | app#0 u !l | kill:app#0(liveness) start:app
            did not come up | app#0 running | app#0 !u | kill:app#0(startup) start:app
            what is said of another one does not count | app#1 running | app#0 u !l |
            the definition goes first | app#0 running stale | app#0 u !l | kill:app#0(changed) start:app
            it has ended meanwhile | app#0 exited:1 | app#0 u !l | start:app
        OnFailure: c:app/OnFailure//l
            on failure too | app#0 running | app#0 !l | kill:app#0(liveness) start:app
        Never: c:app/Never//l c:b
            never again | app#0 running, b#0 running | app#0 !l | kill:app#0(liveness)
        Never: c:app/Never//l
            and nothing else is left | app#0 running | app#0 !l | kill-pod
        Never: c:app/Always//l
            its own policy counts | app#0 running | app#0 !l | kill:app#0(liveness) start:app
        Never: c:app/Never/1/l
            its rules do not | app#0 running | app#0 !l | kill-pod
        ",
    );
}

#[test]
fn what_the_probes_of_sidecars_do() {
    check_probes(
        "
        Always: s:a/Always//u s:b c:app
            the next one waits until it has come up | a#0 running | a#0 |
            then it starts | a#0 running | a#0 u | init:b
            it did not come up | a#0 running | a#0 !u | kill:a#0(startup) init:a
        Always: s:a/Always//u c:app
            the last one holds the regular containers up | a#0 running | a#0 |
            until it has come up | a#0 running | a#0 u | start:app
            but not those that ran before it was started again | a#1 running, app#0 exited:1 | a#1 | start:app
        Never: s:a/Always//u c:app
            it is started again whatever the pod's policy | a#0 running | a#0 !u | kill:a#0(startup) init:a
        Always: s:a/Always//l s:b c:app
            liveness holds nobody up | a#0 running | a#0 | init:b
            not alive | a#0 running, b#0 running, app#0 running | a#0 !l | kill:a#0(liveness) init:a
        ",
    );
}

#[test]
fn when_a_sandbox_is_made() {
    check(
        "
        Always: c:app
            none | | | create:0 start:app
            one that is fine | s0 | app#0 running s0 | keep:s0
            two that are ready | s1 s0 | | kill-pod create:2<s1 start:app
            the newest is down | !s1 s0 | | kill-pod create:2<s1 start:app
            an older one is down | s1 !s0 | app#0 running s1 | rm-sandbox:s0 keep:s1
            another network mode | ^s0 | app#0 running s0 | kill-pod create:1 start:app
            no address | ~s0 | | kill-pod create:1<s0 start:app
            the last number | !s4294967295 | | kill-pod create:4294967295<s4294967295 start:app
            # The pause container vanished while the agent was down.
            gone under its container | | app#0 running s0 | kill-pod create:0 start:app
        ",
    );
    let host = pod_with("Always: c:app", json!({"spec": {"hostNetwork": true}}));
    let actions = compute_pod_actions(&host, &seen("^s0", "app#0 running s0"), &ActionInputs::new());
    assert_eq!(text(&actions), "keep:s0", "the host's network needs no address");
}

#[test]
fn what_is_started_in_a_new_sandbox() {
    check(
        "
        Always: i:a i:b c:app
            init first | | | create:0 init:a
            a reboot: init again, its records go | !s0 | a#0 exited:0 s0, app#0 exited:137 s0 | kill-pod rm:a#0 create:1<s0 init:a
        Always: i:a c:app
            a running init container is stopped and goes too | !s0 | a#0 running s0 | kill-pod rm:a#0 create:1<s0 init:a
        OnFailure: c:a c:b
            what succeeded is done | !s0 | a#0 exited:0 s0, b#0 exited:1 s0 | kill-pod create:1<s0 start:b
        OnFailure: c:a
            all succeeded | !s0 | a#0 exited:0 s0 |
        Always: c:a/OnFailure
            all succeeded, by its own policy | !s0 | a#0 exited:0 s0 |
        Never: c:a
            never again | !s0 | a#0 exited:1 s0 |
        Never: c:a c:b
            never again, and something still runs | !s0 | a#0 exited:1 s0, b#0 running s0 | kill-pod
        Always: c:a/Never
            never again, by its own policy | !s0 | a#0 exited:1 s0 |
        Never: c:a
            never, before anything ran | !s0 | | kill-pod create:1<s0 start:a
            never, made but never started | !s0 | a#0 created s0 | kill-pod rm:a#0 create:1<s0 start:a
        Always: i:a/Never c:app
            an init container failed for good | !s0 | a#0 exited:1 s0 |
        Always:
            nothing to run at all | | |
        ",
    );
}

#[test]
fn init_containers_run_one_after_the_other() {
    check(
        "
        Always: i:a i:b c:app
            the first | s0 | | keep:s0 init:a
            it runs | s0 | a#0 running s0 | keep:s0
            the next | s0 | a#0 exited:0 s0 | keep:s0 init:b
            the first was collected | s0 | b#0 running s0 | keep:s0
            done | s0 | b#0 exited:0 s0 | keep:s0 start:app
            failed | s0 | a#0 exited:1 s0 | keep:s0 init:a
            failed, out of memory | s0 | a#0 exited:0 s0 oom | keep:s0 init:a
        OnFailure: i:a c:app
            the same on failure | s0 | a#0 exited:0 s0 oom | keep:s0 init:a
        Never: i:a c:app
            failed for good | s0 | a#0 exited:1 s0 | kill-pod
            failed for good, out of memory | s0 | a#0 exited:0 s0 oom | kill-pod
        Never: i:a/OnFailure c:app
            failed, with a policy of its own | s0 | a#0 exited:1 s0 | keep:s0 init:a
        Always: i:a i:b c:app
            made, not started | s0 | a#0 created s0 | keep:s0 init:a=a#0
            made of another image | s0 | a#0 created s0 stale | rm:a#0 keep:s0 init:a
            unknown | s0 | a#0 unknown s0 | kill:a#0(unknown) keep:s0 init:a
        Never: i:a c:app
            unknown, never again | s0 | a#0 unknown s0 | kill-pod
        # An init container does not look at its image once it runs.
        Always: i:a i:b c:app
            another image | s0 | a#0 running s0 stale | keep:s0
        ",
    );
}

#[test]
fn a_pod_is_initialised_once_per_sandbox() {
    let one = "Always: i:a c:app";
    check(
        "
        Always: i:a c:app
            its record was collected while the app ran | s0 | app#0 running s0 | keep:s0
            and the app has ended since | s0 | app#0 exited:1 s0 | keep:s0 start:app
            and the app was made | s0 | app#0 created s0 | keep:s0 start:app=app#0
        Never: i:a c:app
            a failed one before that does not matter | s0 | a#0 exited:1 s0, app#0 running s0 | keep:s0
        Always: i:a c:app
            the app ended in an older sandbox | s1 !s0 | app#0 exited:1 s0 | keep:s1 init:a
            so did the init container | s1 !s0 | a#0 exited:0 s0, app#0 exited:1 s0 | rm:a#0 keep:s1 init:a
            made in an older sandbox | s1 !s0 | app#0 created s0 | rm:app#0 rm-sandbox:s0 keep:s1 init:a
            sandbox not told, alive | s0 | app#0 running - | keep:s0
            sandbox not told, ended | s0 | app#0 exited:1 - | keep:s0 init:a
            sandbox not told, init ended | s0 | a#0 exited:0 - | keep:s0 start:app
        ",
    );
    let (here, gone) = (SandboxId::from("s0"), SandboxId::from("s9"));
    for (known, want) in [(&here, "keep:s0 start:app"), (&gone, "keep:s0 init:a")] {
        let inputs = ActionInputs::new().with_initialized_in(known);
        let actions = compute_pod_actions(&pod(one), &seen("s0", ""), &inputs);
        assert_eq!(text(&actions), want, "known from a status, of {known}");
    }
}

#[test]
fn sidecars_are_started_in_their_turn_and_kept_running() {
    check(
        "
        Always: i:a s:s i:b c:app
            its turn | s0 | a#0 exited:0 s0 | keep:s0 init:s
            it runs: the next | s0 | s#0 running s0 | keep:s0 init:b
            it ended before the next started | s0 | s#0 exited:0 s0 | keep:s0 init:s
            it ended while the next runs | s0 | s#0 exited:1 s0, b#0 running s0 | keep:s0 init:s
            made, not started | s0 | s#0 created s0 | keep:s0 init:s=s#0
        Always: i:a s:s c:app
            the last one | s0 | s#0 running s0 | keep:s0 start:app
        Always: s:s c:app
            the last one ended | s0 | s#0 exited:0 s0 | keep:s0 init:s
        Always: i:a s:s i:b c:app
            it is gone while the app runs | s0 | app#0 running s0 | keep:s0 init:s
        Always: s:s s:t c:app
            two are gone: in order | s0 | app#0 running s0 | keep:s0 init:s init:t
        Never: s:s i:b c:app
            another image, and the next one too | s0 | s#0 running s0 stale | kill:s#0(changed) keep:s0 init:s init:b
        Always: i:a s:s i:b c:app
            it may run, and the app does | s0 | s#0 unknown s0, app#0 running s0 | kill:s#0(unknown) keep:s0 init:s
        Never: s:s c:app
            nothing left but sidecars | s0 | s#0 running s0, app#0 exited:0 s0 | kill-pod
            not started again for that | s0 | s#0 exited:1 s0, app#0 exited:0 s0 | kill-pod
        ",
    );
}

#[test]
fn regular_containers_are_started_by_policy() {
    check(
        "
        Never: c:a c:b
            never ran | s0 | a#0 running s0 | keep:s0 start:b
        Always: c:a
            always | s0 | a#0 exited:0 s0 | keep:s0 start:a
        OnFailure: c:a
            on failure, failed | s0 | a#0 exited:1 s0 | keep:s0 start:a
        OnFailure: c:a c:b
            on failure, succeeded | s0 | a#0 exited:0 s0, b#0 running s0 | keep:s0
        Never: c:a c:b
            never | s0 | a#0 exited:1 s0, b#0 running s0 | keep:s0
        OnFailure: c:a
            all done | s0 | a#0 exited:0 s0 | kill-pod
            all done and down | !s0 | a#0 exited:0 s0 |
        Never: c:a
            unknown | s0 | a#0 unknown s0 | kill:a#0(unknown) keep:s0 start:a
            another image | s0 | a#0 running s0 stale | kill:a#0(changed) keep:s0 start:a
        Always: c:a
            image not told | s0 | a#0 running s0 hashless | keep:s0
        ",
    );
}

#[test]
fn what_was_made_and_not_started_is_adopted_or_removed() {
    check(
        "
        Always: c:a
            fits | s0 | a#0 created s0 | keep:s0 start:a=a#0
            fits, after an end | s0 | a#1 created s0, a#0 exited:1 s0 | keep:s0 start:a=a#1
        Never: c:a
            fits, under never | s0 | a#0 created s0 | keep:s0 start:a=a#0
        Always: c:a
            another image | s0 | a#0 created s0 stale | rm:a#0 keep:s0 start:a
            image not told | s0 | a#0 created s0 hashless | rm:a#0 keep:s0 start:a
            an older sandbox | s1 !s0 | a#0 created s0 | rm:a#0 rm-sandbox:s0 keep:s1 start:a
            not the newest | s0 | a#1 exited:1 s0, a#0 created s0 | rm:a#0 keep:s0 start:a
            beside one that runs | s0 | a#1 created s0, a#0 running s0 | rm:a#1 keep:s0
            in the place of a changed one | s0 | a#1 created s0, a#0 running s0 stale | kill:a#0(changed) keep:s0 start:a=a#1
        Always: c:a e:d
            an ephemeral one | s0 | a#0 running s0, d#0 created s0 | keep:s0 eph:d=d#0
        ",
    );
}

#[test]
fn two_of_a_name_never_run() {
    check(
        "
        Always: c:a
            the newest stays | s0 | a#1 running s0, a#0 running s0 | kill:a#0(superfluous) keep:s0
            one may run | s0 | a#1 unknown s0, a#0 running s0 | kill:a#1(unknown) keep:s0
            one runs in an older sandbox | s1 !s0 | a#1 running s0, a#0 running s1 | kill:a#1(superfluous) keep:s1
            only in an older sandbox | s1 !s0 | a#0 running s0 | kill:a#0(superfluous) keep:s1 start:a
        Never: c:a c:b
            and never again | s1 !s0 | a#0 running s0, b#0 running s1 | kill:a#0(superfluous) keep:s1
        Never: c:a
            and that is all | s1 !s0 | a#0 running s0 | kill-pod
        Always: i:i c:a
            also while others wait | s1 !s0 | a#1 running s0, a#0 running s0 | kill:a#1(superfluous) kill:a#0(superfluous) keep:s1 init:i
            an init container | s1 !s0 | i#0 running s0 | kill:i#0(superfluous) keep:s1 init:i
        Always: c:a
            one that the spec no longer names | s0 | a#0 running s0, x#0 running s0 | kill:x#0(superfluous) keep:s0
        ",
    );
}

#[test]
fn ephemeral_containers_are_started_once() {
    check(
        "
        Always: i:i c:a e:d
            even before init | s0 | | keep:s0 eph:d init:i
        Always: c:a e:d
            not again | s0 | a#0 running s0, d#0 exited:1 s0 | keep:s0
            not while unknown | s0 | a#0 running s0, d#0 unknown s0 | keep:s0
            not beside a new sandbox | | | create:0 start:a
        ",
    );
}

#[test]
fn all_containers_are_restarted_by_a_rule() {
    let spec = "Always: i:i i:j/Never/42 c:a c:b/Never/42";
    check(
        "
        Always: i:i i:j/Never/42 c:a c:b/Never/42
            those that asked come last | s0 | a#0 running s0, b#1 exited:42 s0, b#0 exited:1 s0, i#0 exited:0 s0, j#0 exited:42 s0 | reset:a(a#0) reset:i reset:b reset:j keep:s0
            another code | s0 | j#0 exited:0 s0, a#0 running s0, b#0 exited:1 s0 | keep:s0
            in a sandbox that is down | !s0 | b#0 exited:42 s0 | reset:b
            a second one that runs | s0 | a#1 running s0, a#0 unknown s0, b#0 exited:42 s0 | kill:a#0(superfluous) reset:a(a#1) reset:b keep:s0
            then from the start | s0 | | keep:s0 init:i
        ",
    );
    let under_way = ActionInputs::new().with_restarting_all();
    for (containers, want) in [("a#0 running s0", "reset:a(a#0) keep:s0"), ("", "keep:s0 init:i")] {
        let actions = compute_pod_actions(&pod(spec), &seen("s0", containers), &under_way);
        assert_eq!(text(&actions), want, "under way");
    }
}

#[test]
fn what_is_dead_is_removed_when_newer_takes_its_place() {
    check(
        "
        Always: c:a
            one end per name | s0 | a#3 running s0, a#2 exited:1 s0, a#1 exited:1 s0, a#0 exited:1 s0 | rm:a#1 rm:a#0 keep:s0
            also of a stranger | s0 | a#0 running s0, x#1 exited:0 s0, x#0 exited:0 s0 | rm:x#0 keep:s0
        Always: i:i c:a
            init containers | s0 | a#0 running s0, i#1 exited:0 s0, i#0 exited:1 s0 | rm:i#0 keep:s0
        Always: c:a
            a sandbox that holds an end stays | s1 !s0 | a#1 running s1, a#0 exited:1 s0 | keep:s1
            and goes with it | s2 !s1 !s0 | a#2 running s2, a#1 exited:1 s1, a#0 exited:1 s0 | rm:a#0 rm-sandbox:s0 keep:s2
            who holds it is not told | s1 !s0 | a#1 running s1, a#0 exited:1 - | keep:s1
        Never: c:a
            the newest sandbox stays | !s1 !s0 | a#0 exited:0 - |
        ",
    );
}

#[test]
fn as_many_dead_containers_stay_as_are_to() {
    let containers = "a#4 running s0, a#3 exited:1 s0, a#2 exited:1 s0, a#1 exited:1 s0, a#0 exited:1 s0";
    let ended = "a#2 exited:1 s0, a#1 exited:1 s0, a#0 exited:1 s0";
    let at = |second| crate::jiff::Timestamp::from_second(second).unwrap();
    for (policy, seen_of_it, per_name, made_after, want) in [
        ("Always", containers, Some(2), None, "rm:a#1 rm:a#0 keep:s0"),
        ("Always", containers, Some(9), None, "keep:s0"),
        ("Always", containers, None, None, "keep:s0"),
        (
            "Always",
            containers,
            Some(0),
            None,
            "rm:a#3 rm:a#2 rm:a#1 rm:a#0 keep:s0",
        ),
        // What has ended for good would run again.
        ("Never", ended, Some(0), None, "kill-pod rm:a#1 rm:a#0"),
        // All of them are made at the same time, the epoch.
        ("Always", containers, Some(1), Some(at(-1)), "keep:s0"),
        (
            "Always",
            containers,
            Some(1),
            Some(at(0)),
            "rm:a#2 rm:a#1 rm:a#0 keep:s0",
        ),
    ] {
        let inputs = ActionInputs::new().with_dead_kept(per_name, made_after);
        let actions = compute_pod_actions(&pod(&format!("{policy}: c:a")), &seen("s0", seen_of_it), &inputs);
        assert_eq!(
            text(&actions),
            want,
            "{policy} {seen_of_it} {per_name:?} {made_after:?}"
        );
    }
}

#[test]
fn nothing_is_started_of_a_pod_that_is_deleted() {
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (spec, sandboxes, containers) in [
        ("Always: c:a c:b e:d", "s0", "a#0 running s0"),
        ("Always: i:i s:s c:a", "s0", ""),
        ("Always: c:a", "!s0", "a#0 exited:1 s0"),
    ] {
        let pod = pod_with(spec, deleted.clone());
        let actions = compute_pod_actions(&pod, &seen(sandboxes, containers), &ActionInputs::new());
        assert_eq!(actions.starts().count(), 0, "{spec}");
    }
}

#[test]
fn messages_are_those_of_the_kubelet() {
    let actions = compute_pod_actions(
        &pod("Always: s:s s:t c:a c:b c:c"),
        &seen(
            "s0",
            "s#0 running s0 stale, t#0 unknown s0, a#0 running s0 stale, b#0 unknown s0, c#1 running s0, c#0 running s0",
        ),
        &ActionInputs::new(),
    );
    let messages: Vec<&str> = actions.kill.iter().map(|kill| kill.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "Stopping container c",
            "Init container s definition changed",
            "Init container is in \"unknown\" state, try killing it before restart",
            "Container a definition changed, will be restarted",
            "Container is in \"unknown\" state, try killing it before restart",
        ]
    );
}
