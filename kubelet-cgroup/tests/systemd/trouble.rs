//! A systemd that fails, hangs or goes, and a bus that does.

use kubelet_cgroup::CgroupManager;
use kubelet_core::{CgroupError, PodCgroups, error_chain};

use crate::bus::PrivateBus;
use crate::fake::{connect, tell_end};
use crate::machine::{Machine, burstable, context, guaranteed, limits, pod};

const GUARANTEED: &str = "edge-kubepods-poduid_g.slice";
const BURSTABLE: &str = "edge-kubepods-burstable-poduid_b.slice";

fn text(outcome: Result<(), CgroupError>) -> String {
    error_chain(&outcome.unwrap_err())
}

#[tokio::test]
async fn a_job_that_fails_is_told_and_may_be_repeated() {
    let Some(machine) = Machine::new_or_skip("a_job_that_fails").await else {
        return;
    };
    let manager = machine.opened().await;
    let pod = guaranteed();
    machine.systemd.state().results.insert(GUARANTEED.to_owned(), "failed");
    let why = text(manager.apply(&pod, &limits(&pod)).await);
    assert!(
        why.contains(GUARANTEED) && why.contains(r#"ended with "failed""#),
        "{why}"
    );
    assert!(machine.calls().contains(&format!("ResetFailedUnit {GUARANTEED}")));
    // The mark was first.
    assert_eq!(manager.list().await.unwrap(), [pod.uid().clone()]);
    machine.systemd.state().results.clear();
    manager.apply(&pod, &limits(&pod)).await.unwrap();
    machine.systemd.state().results.insert(GUARANTEED.to_owned(), "timeout");
    let why = text(manager.destroy(pod.uid()).await);
    assert!(why.contains("stop") && why.contains(r#"ended with "timeout""#), "{why}");
    assert_eq!(manager.list().await.unwrap(), [pod.uid().clone()]);
    machine.systemd.state().results.clear();
    for file in std::fs::read_dir(
        machine
            .dir
            .path()
            .join("edge.slice/edge-kubepods.slice")
            .join(GUARANTEED),
    )
    .unwrap()
    {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    manager.destroy(pod.uid()).await.unwrap();
    assert_eq!(manager.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_bus_that_is_back_is_dialled_anew() {
    let Some(mut machine) = Machine::new_or_skip("a_bus_that_is_back").await else {
        return;
    };
    let manager = machine.opened().await;
    // Another one in its place, before anything is asked.
    machine.bus.end();
    machine.bus.start();
    machine.systemd.serve(&machine.bus.address()).await;
    let pod = guaranteed();
    manager.apply(&pod, &limits(&pod)).await.unwrap();
    // None for some time.
    machine.bus.end();
    let other = burstable();
    let outcome = manager.apply(&other, &limits(&other)).await;
    assert!(outcome.is_err() && !machine.has_unit(BURSTABLE));
    assert!(manager.destroy(pod.uid()).await.is_err());
    assert!(manager.exists(&pod).await.unwrap(), "its unit may still run");
    machine.bus.start();
    machine.systemd.serve(&machine.bus.address()).await;
    manager.apply(&other, &limits(&other)).await.unwrap();
    manager.destroy(pod.uid()).await.unwrap();
    assert!(machine.has_unit(BURSTABLE) && !machine.has_unit(GUARANTEED));
}

#[tokio::test]
async fn a_bus_that_goes_while_a_job_is_waited_for_is_told() {
    let Some(mut machine) = Machine::new_or_skip("a_bus_that_goes_while_a_job_is_waited_for").await else {
        return;
    };
    let manager = machine.opened().await;
    machine.systemd.state().silent.insert("JobRemoved");
    let pod = guaranteed();
    let wanted = limits(&pod);
    let mut applied = std::pin::pin!(manager.apply(&pod, &wanted));
    loop {
        tokio::select! {
            biased;
            outcome = &mut applied => panic!("no job ends: {outcome:?}"),
            () = tokio::task::yield_now() => {}
        }
        if machine.has_unit(GUARANTEED) {
            break;
        }
    }
    machine.bus.end();
    // Long before the job would have had to end.
    assert!(applied.await.is_err());
}

#[tokio::test]
async fn a_systemd_that_hangs_holds_up_nobody_for_long() {
    let Some(machine) = Machine::new_or_skip("a_systemd_that_hangs").await else {
        return;
    };
    let manager = machine.opened().await;
    let hasty = machine.hasty();
    let pod = guaranteed();
    for (silent, said) in [
        ("Subscribe", "Subscribe was not answered within 200ms"),
        ("StartTransientUnit", "StartTransientUnit was not answered within 200ms"),
        ("JobRemoved", "the job of StartTransientUnit has not ended within 200ms"),
    ] {
        // A machine that is busy may be silent earlier.
        machine.systemd.state().silent.insert(silent);
        machine.systemd.state().units.clear();
        let mut told = Vec::new();
        for _ in 0..20 {
            told.push(text(hasty.open(&context("me")).await));
            machine.systemd.state().units.clear();
            if told.iter().any(|why| why.contains(said)) {
                break;
            }
        }
        assert!(told.iter().any(|why| why.contains(said)), "{told:?}");
        machine.systemd.state().silent.clear();
    }
    // Who has given up asks again, and others were not disturbed.
    let mut opened = false;
    for _ in 0..50 {
        opened = opened || hasty.open(&context("me")).await.is_ok();
    }
    assert!(opened);
    manager.apply(&pod, &limits(&pod)).await.unwrap();
    assert!(machine.has_unit(GUARANTEED));
}

#[tokio::test]
async fn what_cannot_be_is_said() {
    let Some(mut machine) = Machine::new_or_skip("what_cannot_be_is_said").await else {
        return;
    };
    let unsupported = |outcome: Result<(), CgroupError>| match outcome {
        Err(CgroupError::Unsupported { why }) => why,
        other => panic!("{other:?}"),
    };
    machine.systemd.state().refused.insert(
        "StartTransientUnit",
        "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
    );
    let why = unsupported(machine.manager().open(&context("me")).await);
    assert!(why.contains("edge.slice") && why.contains("was refused"), "{why}");
    let mut settings = machine.settings();
    settings.systemd.address = Some("unix:path=/nowhere/bus".to_owned());
    let why = unsupported(CgroupManager::new(settings.clone()).open(&context("me")).await);
    assert!(why.contains("/nowhere/bus"), "{why}");
    settings.systemd.address = Some("no address".to_owned());
    unsupported(CgroupManager::new(settings).open(&context("me")).await);
    // A bus without systemd.
    machine.bus = PrivateBus::new_or_skip("what_cannot_be_is_said").unwrap();
    let why = unsupported(machine.manager().open(&context("me")).await);
    assert!(why.contains("org.freedesktop.systemd1"), "{why}");
}

#[tokio::test]
async fn what_others_tell_of_jobs_is_not_believed() {
    let Some(machine) = Machine::new_or_skip("what_others_tell_of_jobs").await else {
        return;
    };
    let manager = machine.opened().await;
    let liar = connect(&machine.bus.address()).await;
    machine.systemd.state().silent.insert("JobRemoved");
    let pod = guaranteed();
    let wanted = limits(&pod);
    let mut applied = std::pin::pin!(manager.apply(&pod, &wanted));
    loop {
        tokio::select! {
            biased;
            outcome = &mut applied => panic!("a lie is believed: {outcome:?}"),
            () = tokio::task::yield_now() => {}
        }
        if machine.has_unit(GUARANTEED) {
            break;
        }
    }
    // To everybody, and to each one as if it had asked.
    let names = names(&liar).await;
    for id in 1..20 {
        tell_end(&liar, None, (id, GUARANTEED, "done")).await.unwrap();
        for name in names.iter().filter(|name| name.starts_with(':')) {
            tell_end(&liar, Some(name), (id, GUARANTEED, "done")).await.unwrap();
        }
    }
    for _ in 0..20 {
        let ping = liar.call_method(
            Some("org.freedesktop.DBus"),
            "/",
            Some("org.freedesktop.DBus.Peer"),
            "Ping",
            &(),
        );
        tokio::select! {
            biased;
            outcome = &mut applied => panic!("a lie is believed: {outcome:?}"),
            pong = ping => drop(pong.unwrap()),
        }
    }
}

#[tokio::test]
async fn what_another_agent_has_marked_runs_on() {
    let Some(machine) = Machine::new_or_skip("what_another_agent_has_marked").await else {
        return;
    };
    let (me, other) = (machine.opened().await, machine.manager());
    other.open(&context("another")).await.unwrap();
    let theirs = guaranteed();
    other.apply(&theirs, &limits(&theirs)).await.unwrap();
    machine.calls();
    let why = text(me.apply(&theirs, &limits(&theirs)).await);
    assert!(why.contains("another agent"), "{why}");
    assert_eq!(machine.calls(), [""; 0], "nothing was asked of its unit");
    me.destroy(theirs.uid()).await.unwrap();
    assert!(machine.has_unit(GUARANTEED) && other.exists(&theirs).await.unwrap());
    assert_eq!(me.list().await.unwrap(), []);
}

#[tokio::test]
async fn many_calls_overlap() {
    let Some(machine) = Machine::new_or_skip("many_calls_overlap").await else {
        return;
    };
    let manager = machine.opened().await;
    let pods: Vec<_> = (0..40)
        .map(|number| std::sync::Arc::new(pod(&format!("p{number}"), |c| c)))
        .collect();
    let mut tasks = tokio::task::JoinSet::new();
    for pod in pods.clone() {
        let manager = manager.clone();
        tasks.spawn(async move { manager.apply(&pod, &limits(&pod)).await });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap().unwrap();
    }
    assert_eq!(manager.list().await.unwrap().len(), pods.len());
    for pod in pods {
        let manager = manager.clone();
        tasks.spawn(async move { manager.destroy(pod.uid()).await });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap().unwrap();
    }
    assert_eq!(manager.list().await.unwrap(), []);
    assert_eq!(machine.systemd.state().units.len(), 4, "those of classes");
}

#[tokio::test]
async fn the_connection_is_closed_with_the_manager() {
    let Some(machine) = Machine::new_or_skip("the_connection_is_closed").await else {
        return;
    };
    let watcher = connect(&machine.bus.address()).await;
    let before = names(&watcher).await.len();
    let manager = machine.opened().await;
    assert_eq!(names(&watcher).await.len(), before + 1);
    drop(manager);
    while names(&watcher).await.len() > before {
        tokio::task::yield_now().await;
    }
}

/// All that are on a bus.
async fn names(connection: &zbus::Connection) -> Vec<String> {
    let bus = "org.freedesktop.DBus";
    let answer = connection
        .call_method(Some(bus), "/", Some(bus), "ListNames", &())
        .await;
    answer.unwrap().body().deserialize().unwrap()
}
