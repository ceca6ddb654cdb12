//! What containers use, as the runtime says it, against the files of their cgroups.

use std::fs;
use std::path::PathBuf;

use kubelet_core::{ContainerTarget, LogOptions, PodUid, StatsScope};
use serde_json::json;

use crate::node::{Node, is_running, on_both, pod, sh, with};

on_both!(usage_is_what_the_cgroups_say);

const LIMIT: u64 = 64 << 20;

/// A process whose arguments hold that word.
fn process(word: &str) -> String {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().into_string().ok());
    pids.find(|pid| {
        let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        pid.parse::<u32>().is_ok() && arguments.contains(word) && arguments.starts_with("/bin/sh")
    })
    .unwrap()
}

/// The folder of its cgroup, of one controller (v1), or of all (v2).
fn cgroup(pid: &str, controller: &str) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path_of = |is_it: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            is_it(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    match path_of(&|controllers| controllers.split(',').any(|one| one == controller)) {
        Some(path) => PathBuf::from("/sys/fs/cgroup").join(controller).join(path),
        None => PathBuf::from("/sys/fs/cgroup").join(path_of(&str::is_empty).unwrap()),
    }
}

/// Nanoseconds of a core.
fn cpu_used(pid: &str) -> u64 {
    if let Ok(text) = fs::read_to_string(cgroup(pid, "cpuacct").join("cpuacct.usage")) {
        return text.trim().parse().unwrap();
    }
    let text = fs::read_to_string(cgroup(pid, "cpu").join("cpu.stat")).unwrap();
    let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap();
    micros.parse::<u64>().unwrap() * 1000
}

/// All memory, and that without inactive files.
fn memory_used(pid: &str) -> (u64, u64) {
    let dir = cgroup(pid, "memory");
    let (usage, inactive) = match fs::read_to_string(dir.join("memory.usage_in_bytes")) {
        Ok(usage) => (usage, "total_inactive_file "),
        Err(_) => (
            fs::read_to_string(dir.join("memory.current")).unwrap(),
            "inactive_file ",
        ),
    };
    let usage: u64 = usage.trim().parse().unwrap();
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap();
    let inactive = stat.lines().find_map(|line| line.strip_prefix(inactive)).unwrap();
    (usage, usage.saturating_sub(inactive.parse().unwrap()))
}

async fn usage_is_what_the_cgroups_say(node: Node) {
    let measures = node.runtime().await;
    let agent = node.start_with(|builder| builder.stats(measures)).await;
    // It holds about 8 MiB and writes 3 MiB, and then does nothing any more.
    let word = format!("measured-{}", std::process::id());
    let script = format!(
        ": {word}; held=$(head -c 8000000 /dev/zero | tr '\\0' x); head -c 3145728 /dev/zero >/written; \
         echo ready; trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"
    );
    let limited = json!({"resources": {"limits": {"memory": LIMIT.to_string()}}});
    agent
        .pods
        .set(vec![pod(
            "measured",
            json!({"containers": [with(sh("app", &script), &limited)]}),
        )])
        .await
        .unwrap();
    agent.until("it runs", |all| is_running(all, "measured", "app")).await;
    let mut follow = LogOptions::default();
    follow.follow = true;
    let target = ContainerTarget::new(PodUid::from("uid-of-measured"), "app");
    let mut log = agent.handle.logs(&target, follow).await.unwrap();
    assert_eq!(&log.next().await.unwrap().unwrap()[..], b"ready\n");

    let pid = process(&word);
    let cpu_before = cpu_used(&pid);
    let stats = agent
        .handle
        .stats(StatsScope::Pod(PodUid::from("uid-of-measured")))
        .await
        .unwrap();
    let cpu_after = cpu_used(&pid);
    let (usage, working_set) = memory_used(&pid);

    let [app] = &stats.containers[..] else {
        panic!("{stats:?}")
    };
    assert_eq!((app.name.as_str(), app.pod_uid.as_str()), ("app", "uid-of-measured"));
    let cpu = app.cpu.as_ref().unwrap().usage_core_nanoseconds.unwrap();
    assert!(
        (cpu_before..=cpu_after).contains(&cpu),
        "{cpu_before} {cpu} {cpu_after}"
    );
    let memory = app.memory.as_ref().unwrap();
    let is_near = |said: Option<u64>, seen: u64| said.unwrap().abs_diff(seen) <= 1 << 20;
    assert!(
        is_near(memory.working_set_bytes, working_set),
        "{memory:?} {working_set}"
    );
    assert!(memory.working_set_bytes.unwrap() >= 8_000_000);
    if memory.usage_bytes.is_some() {
        assert!(is_near(memory.usage_bytes, usage), "{memory:?} {usage}");
    }
    if memory.available_bytes.is_some() {
        assert!(is_near(memory.available_bytes, LIMIT - working_set), "{memory:?}");
    }
    // One of all is the same one.
    let all = agent.handle.stats(StatsScope::All).await.unwrap();
    assert_eq!(all.containers.len(), 1);
    assert!(all.pods.iter().all(|pod| pod.uid.as_str() == "uid-of-measured"));

    agent.stop_with_pods(&node).await;
    node.containerd.stop().await.unwrap();
}
