//! One row per rule.

use serde_json::json;

use super::shorthand::{pod, pod_with, seen, text};
use super::{ActionInputs, compute_pod_actions};
use crate::ids::SandboxId;

/// Title, pod, sandboxes, containers, what is done.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

fn check(rows: &[Row]) {
    for (title, spec, sandboxes, containers, want) in rows {
        let actions = compute_pod_actions(&pod(spec), &seen(sandboxes, containers), &ActionInputs::new());
        assert_eq!(text(&actions), *want, "{title}");
    }
}

#[test]
fn when_a_sandbox_is_made() {
    check(&[
        ("none", "Always: c:app", "", "", "create:0 start:app"),
        ("one that is fine", "Always: c:app", "s0", "app#0 running s0", "keep:s0"),
        (
            "two that are ready",
            "Always: c:app",
            "s1 s0",
            "",
            "kill-pod create:2<s1 start:app",
        ),
        (
            "the newest is down",
            "Always: c:app",
            "!s1 s0",
            "",
            "kill-pod create:2<s1 start:app",
        ),
        (
            "an older one is down",
            "Always: c:app",
            "s1 !s0",
            "app#0 running s1",
            "rm-sandbox:s0 keep:s1",
        ),
        (
            "another network mode",
            "Always: c:app",
            "^s0",
            "app#0 running s0",
            "kill-pod create:1 start:app",
        ),
        (
            "no address",
            "Always: c:app",
            "~s0",
            "",
            "kill-pod create:1<s0 start:app",
        ),
        (
            "the last number",
            "Always: c:app",
            "!s4294967295",
            "",
            "kill-pod create:4294967295<s4294967295 start:app",
        ),
        // The pause container vanished while the agent was down.
        (
            "gone under its container",
            "Always: c:app",
            "",
            "app#0 running s0",
            "kill-pod create:0 start:app",
        ),
    ]);
    let host = pod_with("Always: c:app", json!({"spec": {"hostNetwork": true}}));
    let actions = compute_pod_actions(&host, &seen("^s0", "app#0 running s0"), &ActionInputs::new());
    assert_eq!(text(&actions), "keep:s0", "the host's network needs no address");
}

#[test]
fn what_is_started_in_a_new_sandbox() {
    check(&[
        ("init first", "Always: i:a i:b c:app", "", "", "create:0 init:a"),
        (
            "a reboot: init again, its records go",
            "Always: i:a i:b c:app",
            "!s0",
            "a#0 exited:0 s0, b#0 exited:0 s0, app#0 exited:137 s0",
            "kill-pod rm:a#0 rm:b#0 create:1<s0 init:a",
        ),
        (
            "a running init container is stopped and goes too",
            "Always: i:a c:app",
            "!s0",
            "a#0 running s0",
            "kill-pod rm:a#0 create:1<s0 init:a",
        ),
        (
            "what succeeded is done",
            "OnFailure: c:a c:b",
            "!s0",
            "a#0 exited:0 s0, b#0 exited:1 s0",
            "kill-pod create:1<s0 start:b",
        ),
        ("all succeeded", "OnFailure: c:a", "!s0", "a#0 exited:0 s0", ""),
        (
            "all succeeded, by its own policy",
            "Always: c:a/OnFailure",
            "!s0",
            "a#0 exited:0 s0",
            "",
        ),
        ("never again", "Never: c:a", "!s0", "a#0 exited:1 s0", ""),
        (
            "never again, and something still runs",
            "Never: c:a c:b",
            "!s0",
            "a#0 exited:1 s0, b#0 running s0",
            "kill-pod",
        ),
        (
            "never again, by its own policy",
            "Always: c:a/Never",
            "!s0",
            "a#0 exited:1 s0",
            "",
        ),
        (
            "never, before anything ran",
            "Never: c:a",
            "!s0",
            "",
            "kill-pod create:1<s0 start:a",
        ),
        (
            "never, made but never started",
            "Never: c:a",
            "!s0",
            "a#0 created s0",
            "kill-pod rm:a#0 create:1<s0 start:a",
        ),
        (
            "an init container failed for good",
            "Always: i:a/Never c:app",
            "!s0",
            "a#0 exited:1 s0",
            "",
        ),
        ("nothing to run at all", "Always:", "", "", ""),
    ]);
}

#[test]
fn init_containers_run_one_after_the_other() {
    let two = "Always: i:a i:b c:app";
    check(&[
        ("the first", two, "s0", "", "keep:s0 init:a"),
        ("it runs", two, "s0", "a#0 running s0", "keep:s0"),
        ("the next", two, "s0", "a#0 exited:0 s0", "keep:s0 init:b"),
        ("the first was collected", two, "s0", "b#0 running s0", "keep:s0"),
        ("done", two, "s0", "b#0 exited:0 s0", "keep:s0 start:app"),
        ("failed", two, "s0", "a#0 exited:1 s0", "keep:s0 init:a"),
        (
            "failed, out of memory",
            two,
            "s0",
            "a#0 exited:0 s0 oom",
            "keep:s0 init:a",
        ),
        (
            "the same on failure",
            "OnFailure: i:a c:app",
            "s0",
            "a#0 exited:0 s0 oom",
            "keep:s0 init:a",
        ),
        (
            "failed for good",
            "Never: i:a c:app",
            "s0",
            "a#0 exited:1 s0",
            "kill-pod",
        ),
        (
            "failed for good, out of memory",
            "Never: i:a c:app",
            "s0",
            "a#0 exited:0 s0 oom",
            "kill-pod",
        ),
        (
            "failed, with a policy of its own",
            "Never: i:a/OnFailure c:app",
            "s0",
            "a#0 exited:1 s0",
            "keep:s0 init:a",
        ),
        ("made, not started", two, "s0", "a#0 created s0", "keep:s0 init:a=a#0"),
        (
            "made of another image",
            two,
            "s0",
            "a#0 created s0 stale",
            "rm:a#0 keep:s0 init:a",
        ),
        (
            "unknown",
            two,
            "s0",
            "a#0 unknown s0",
            "kill:a#0(unknown) keep:s0 init:a",
        ),
        (
            "unknown, never again",
            "Never: i:a c:app",
            "s0",
            "a#0 unknown s0",
            "kill-pod",
        ),
        // An init container does not look at its image once it runs.
        ("another image", two, "s0", "a#0 running s0 stale", "keep:s0"),
    ]);
}

#[test]
fn a_pod_is_initialised_once_per_sandbox() {
    let one = "Always: i:a c:app";
    check(&[
        (
            "its record was collected while the app ran",
            one,
            "s0",
            "app#0 running s0",
            "keep:s0",
        ),
        (
            "and the app has ended since",
            one,
            "s0",
            "app#0 exited:1 s0",
            "keep:s0 start:app",
        ),
        (
            "and the app was made",
            one,
            "s0",
            "app#0 created s0",
            "keep:s0 start:app=app#0",
        ),
        (
            "a failed one before that does not matter",
            "Never: i:a c:app",
            "s0",
            "a#0 exited:1 s0, app#0 running s0",
            "keep:s0",
        ),
        (
            "the app ended in an older sandbox",
            one,
            "s1 !s0",
            "app#0 exited:1 s0",
            "keep:s1 init:a",
        ),
        (
            "so did the init container",
            one,
            "s1 !s0",
            "a#0 exited:0 s0, app#0 exited:1 s0",
            "rm:a#0 keep:s1 init:a",
        ),
        (
            "made in an older sandbox",
            one,
            "s1 !s0",
            "app#0 created s0",
            "rm:app#0 rm-sandbox:s0 keep:s1 init:a",
        ),
        ("sandbox not told, alive", one, "s0", "app#0 running -", "keep:s0"),
        (
            "sandbox not told, ended",
            one,
            "s0",
            "app#0 exited:1 -",
            "keep:s0 init:a",
        ),
        (
            "sandbox not told, init ended",
            one,
            "s0",
            "a#0 exited:0 -",
            "keep:s0 start:app",
        ),
    ]);
    let (here, gone) = (SandboxId::from("s0"), SandboxId::from("s9"));
    for (known, want) in [(&here, "keep:s0 start:app"), (&gone, "keep:s0 init:a")] {
        let inputs = ActionInputs::new().with_initialized_in(known);
        let actions = compute_pod_actions(&pod(one), &seen("s0", ""), &inputs);
        assert_eq!(text(&actions), want, "known from a status, of {known}");
    }
}

#[test]
fn sidecars_are_started_in_their_turn_and_kept_running() {
    let both = "Always: i:a s:s i:b c:app";
    check(&[
        ("its turn", both, "s0", "a#0 exited:0 s0", "keep:s0 init:s"),
        ("it runs: the next", both, "s0", "s#0 running s0", "keep:s0 init:b"),
        (
            "it ended before the next started",
            both,
            "s0",
            "s#0 exited:0 s0",
            "keep:s0 init:s",
        ),
        (
            "it ended while the next runs",
            both,
            "s0",
            "s#0 exited:1 s0, b#0 running s0",
            "keep:s0 init:s",
        ),
        ("made, not started", both, "s0", "s#0 created s0", "keep:s0 init:s=s#0"),
        (
            "the last one",
            "Always: i:a s:s c:app",
            "s0",
            "s#0 running s0",
            "keep:s0 start:app",
        ),
        (
            "the last one ended",
            "Always: s:s c:app",
            "s0",
            "s#0 exited:0 s0",
            "keep:s0 init:s",
        ),
        (
            "it is gone while the app runs",
            both,
            "s0",
            "app#0 running s0",
            "keep:s0 init:s",
        ),
        (
            "two are gone: in order",
            "Always: s:s s:t c:app",
            "s0",
            "app#0 running s0",
            "keep:s0 init:s init:t",
        ),
        (
            "another image, and the next one too",
            "Never: s:s i:b c:app",
            "s0",
            "s#0 running s0 stale",
            "kill:s#0(changed) keep:s0 init:s init:b",
        ),
        (
            "it may run, and the app does",
            both,
            "s0",
            "s#0 unknown s0, app#0 running s0",
            "kill:s#0(unknown) keep:s0 init:s",
        ),
        (
            "nothing left but sidecars",
            "Never: s:s c:app",
            "s0",
            "s#0 running s0, app#0 exited:0 s0",
            "kill-pod",
        ),
        (
            "not started again for that",
            "Never: s:s c:app",
            "s0",
            "s#0 exited:1 s0, app#0 exited:0 s0",
            "kill-pod",
        ),
    ]);
}

#[test]
fn regular_containers_are_started_by_policy() {
    check(&[
        ("never ran", "Never: c:a c:b", "s0", "a#0 running s0", "keep:s0 start:b"),
        ("always", "Always: c:a", "s0", "a#0 exited:0 s0", "keep:s0 start:a"),
        (
            "on failure, failed",
            "OnFailure: c:a",
            "s0",
            "a#0 exited:1 s0",
            "keep:s0 start:a",
        ),
        (
            "on failure, succeeded",
            "OnFailure: c:a c:b",
            "s0",
            "a#0 exited:0 s0, b#0 running s0",
            "keep:s0",
        ),
        (
            "never",
            "Never: c:a c:b",
            "s0",
            "a#0 exited:1 s0, b#0 running s0",
            "keep:s0",
        ),
        ("all done", "OnFailure: c:a", "s0", "a#0 exited:0 s0", "kill-pod"),
        ("all done and down", "OnFailure: c:a", "!s0", "a#0 exited:0 s0", ""),
        (
            "unknown",
            "Never: c:a",
            "s0",
            "a#0 unknown s0",
            "kill:a#0(unknown) keep:s0 start:a",
        ),
        (
            "another image",
            "Never: c:a",
            "s0",
            "a#0 running s0 stale",
            "kill:a#0(changed) keep:s0 start:a",
        ),
        (
            "image not told",
            "Always: c:a",
            "s0",
            "a#0 running s0 hashless",
            "keep:s0",
        ),
    ]);
}

#[test]
fn what_was_made_and_not_started_is_adopted_or_removed() {
    check(&[
        ("fits", "Always: c:a", "s0", "a#0 created s0", "keep:s0 start:a=a#0"),
        (
            "fits, after an end",
            "Always: c:a",
            "s0",
            "a#1 created s0, a#0 exited:1 s0",
            "keep:s0 start:a=a#1",
        ),
        (
            "fits, under never",
            "Never: c:a",
            "s0",
            "a#0 created s0",
            "keep:s0 start:a=a#0",
        ),
        (
            "another image",
            "Always: c:a",
            "s0",
            "a#0 created s0 stale",
            "rm:a#0 keep:s0 start:a",
        ),
        (
            "image not told",
            "Always: c:a",
            "s0",
            "a#0 created s0 hashless",
            "rm:a#0 keep:s0 start:a",
        ),
        (
            "an older sandbox",
            "Always: c:a",
            "s1 !s0",
            "a#0 created s0",
            "rm:a#0 rm-sandbox:s0 keep:s1 start:a",
        ),
        (
            "not the newest",
            "Always: c:a",
            "s0",
            "a#1 exited:1 s0, a#0 created s0",
            "rm:a#0 keep:s0 start:a",
        ),
        (
            "beside one that runs",
            "Always: c:a",
            "s0",
            "a#1 created s0, a#0 running s0",
            "rm:a#1 keep:s0",
        ),
        (
            "in the place of a changed one",
            "Always: c:a",
            "s0",
            "a#1 created s0, a#0 running s0 stale",
            "kill:a#0(changed) keep:s0 start:a=a#1",
        ),
        (
            "an ephemeral one",
            "Always: c:a e:d",
            "s0",
            "a#0 running s0, d#0 created s0",
            "keep:s0 eph:d=d#0",
        ),
    ]);
}

#[test]
fn two_of_a_name_never_run() {
    check(&[
        (
            "the newest stays",
            "Always: c:a",
            "s0",
            "a#1 running s0, a#0 running s0",
            "kill:a#0(superfluous) keep:s0",
        ),
        (
            "one may run",
            "Always: c:a",
            "s0",
            "a#1 unknown s0, a#0 running s0",
            "kill:a#1(unknown) keep:s0",
        ),
        (
            "one runs in an older sandbox",
            "Always: c:a",
            "s1 !s0",
            "a#1 running s0, a#0 running s1",
            "kill:a#1(superfluous) keep:s1",
        ),
        (
            "only in an older sandbox",
            "Always: c:a",
            "s1 !s0",
            "a#0 running s0",
            "kill:a#0(superfluous) keep:s1 start:a",
        ),
        (
            "and never again",
            "Never: c:a c:b",
            "s1 !s0",
            "a#0 running s0, b#0 running s1",
            "kill:a#0(superfluous) keep:s1",
        ),
        ("and that is all", "Never: c:a", "s1 !s0", "a#0 running s0", "kill-pod"),
        (
            "an init container",
            "Always: i:i c:a",
            "s1 !s0",
            "i#0 running s0",
            "kill:i#0(superfluous) keep:s1 init:i",
        ),
        (
            "not one of ours to judge",
            "Always: c:a",
            "s0",
            "a#0 running s0, x#0 running s0",
            "keep:s0",
        ),
    ]);
}

#[test]
fn ephemeral_containers_are_started_once() {
    check(&[
        (
            "even before init",
            "Always: i:i c:a e:d",
            "s0",
            "",
            "keep:s0 eph:d init:i",
        ),
        (
            "not again",
            "Always: c:a e:d",
            "s0",
            "a#0 running s0, d#0 exited:1 s0",
            "keep:s0",
        ),
        (
            "not while unknown",
            "Always: c:a e:d",
            "s0",
            "a#0 running s0, d#0 unknown s0",
            "keep:s0",
        ),
        (
            "not beside a new sandbox",
            "Always: c:a e:d",
            "",
            "",
            "create:0 start:a",
        ),
    ]);
}

#[test]
fn all_containers_are_restarted_by_a_rule() {
    let spec = "Always: i:i i:j/Never/42 c:a c:b/Never/42";
    check(&[
        (
            "those that asked come last",
            spec,
            "s0",
            "a#0 running s0, b#1 exited:42 s0, b#0 exited:1 s0, i#0 exited:0 s0, j#0 exited:42 s0",
            "reset:a(a#0) reset:i reset:b reset:j keep:s0",
        ),
        (
            "another code",
            spec,
            "s0",
            "j#0 exited:0 s0, a#0 running s0, b#0 exited:1 s0",
            "keep:s0",
        ),
        ("in a sandbox that is down", spec, "!s0", "b#0 exited:42 s0", "reset:b"),
        (
            "a second one that runs",
            spec,
            "s0",
            "a#1 running s0, a#0 unknown s0, b#0 exited:42 s0",
            "kill:a#0(superfluous) reset:a(a#1) reset:b keep:s0",
        ),
        ("then from the start", spec, "s0", "", "keep:s0 init:i"),
    ]);
    let under_way = ActionInputs::new().with_restarting_all();
    for (containers, want) in [("a#0 running s0", "reset:a(a#0) keep:s0"), ("", "keep:s0 init:i")] {
        let actions = compute_pod_actions(&pod(spec), &seen("s0", containers), &under_way);
        assert_eq!(text(&actions), want, "under way");
    }
}

#[test]
fn what_is_dead_is_removed_when_newer_takes_its_place() {
    check(&[
        (
            "one end per name",
            "Always: c:a",
            "s0",
            "a#3 running s0, a#2 exited:1 s0, a#1 exited:1 s0, a#0 exited:1 s0",
            "rm:a#1 rm:a#0 keep:s0",
        ),
        (
            "also of a stranger",
            "Always: c:a",
            "s0",
            "a#0 running s0, x#1 exited:0 s0, x#0 exited:0 s0",
            "rm:x#0 keep:s0",
        ),
        (
            "init containers",
            "Always: i:i c:a",
            "s0",
            "a#0 running s0, i#1 exited:0 s0, i#0 exited:1 s0",
            "rm:i#0 keep:s0",
        ),
        (
            "a sandbox that holds an end stays",
            "Always: c:a",
            "s1 !s0",
            "a#1 running s1, a#0 exited:1 s0",
            "keep:s1",
        ),
        (
            "and goes with it",
            "Always: c:a",
            "s2 !s1 !s0",
            "a#2 running s2, a#1 exited:1 s1, a#0 exited:1 s0",
            "rm:a#0 rm-sandbox:s0 keep:s2",
        ),
        (
            "who holds it is not told",
            "Always: c:a",
            "s1 !s0",
            "a#1 running s1, a#0 exited:1 -",
            "keep:s1",
        ),
        (
            "the newest sandbox stays",
            "Never: c:a",
            "!s1 !s0",
            "a#0 exited:0 -",
            "",
        ),
    ]);
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
            "Init container s definition changed",
            "Init container is in \"unknown\" state, try killing it before restart",
            "Container a definition changed, will be restarted",
            "Container is in \"unknown\" state, try killing it before restart",
            "Stopping container c",
        ]
    );
}
