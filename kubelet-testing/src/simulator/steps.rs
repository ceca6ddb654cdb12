//! The random steps.

use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::Pod;
use kubelet_core::{ContainerId, ContainerState, OnStop, PodLifecycleEventGenerator, PodUid, SandboxId, SandboxState};
use tokio::time::Instant;

use super::cluster::delete;
use super::manifests::{broken, manifest};
use super::rig::{NODE, Rig};
use super::volumes::CURSE;
use super::{Invariant, workload};
use crate::fake::FaultKind;

#[derive(Clone, Copy, Debug)]
enum Action {
    AddPod,
    AddManifest,
    EditLabel,
    EditImage,
    Resize,
    Delete,
    ShortenGrace,
    ForceDelete,
    RecreateName,
    RewriteManifest,
    RemoveManifest,
    PutManifestBack,
    BreakManifest,
    RepairManifest,
    KillContainer,
    OomKill,
    VanishContainer,
    SandboxDies,
    SandboxVanishes,
    RuntimeGoes,
    RuntimeComes,
    Reboot,
    RebootMachine,
    BreakStreams,
    FaultsOn,
    FaultsOff,
    CutApi,
    JoinApi,
    FolderTrouble,
    FolderBack,
    ListAgain,
    SinkGoes,
    SinkComes,
    SinkSlow,
    Sicken,
    Heal,
    ShutGate,
    OpenGate,
    KillAgent,
    KillAgentWithDisk,
    StopAgent,
    StartAgent,
    Nothing,
}

/// How many pods are wished for at most.
const MANY: usize = 45;

impl<G: PodLifecycleEventGenerator> Rig<'_, G> {
    /// Takes all steps, or as many as go well. Says how many.
    pub(super) async fn take_steps(&mut self) -> usize {
        self.begin_life(OnStop::LeavePods);
        for number in 0..self.settings.pods {
            if number % 4 == 3 {
                self.add_manifest().await;
            } else {
                self.add_pod(None);
            }
        }
        self.send_all_pods().await;
        self.send_all_files().await;
        self.pass(self.dice.millis(1, 30_000)).await;
        for step in 0..self.settings.steps {
            self.step().await;
            self.trouble_volumes();
            let left = self.settings.least_time.saturating_sub(self.began.elapsed());
            let steps_left = u32::try_from(self.settings.steps - step).unwrap_or(1);
            let time = match self.dice.below(10) {
                0 | 1 => self.dice.millis(1, 50),
                2..=5 => self.dice.millis(50, 5_000),
                6 | 7 => self.dice.millis(1_000, 30_000),
                8 => self.dice.millis(10_000, 90_000),
                _ => (left / steps_left).min(Duration::from_secs(60)) + self.dice.millis(1, 1_000),
            };
            self.pass(time).await;
            if !self.checker.breaches.is_empty() {
                return step + 1;
            }
        }
        let left = self.settings.least_time.saturating_sub(self.began.elapsed());
        self.pass(left).await;
        self.settings.steps
    }

    fn choose(&self) -> Action {
        use Action as A;
        if self.agent.is_none() && self.dice.chance(40) {
            return A::StartAgent;
        }
        let (api, sink) = {
            let state = self.cluster.lock();
            (state.linked, state.sink_down)
        };
        let choices = [
            (10, A::AddPod),
            (5, A::AddManifest),
            (6, A::EditLabel),
            (5, A::EditImage),
            (6, A::Resize),
            (8, A::Delete),
            (4, A::ShortenGrace),
            (3, A::ForceDelete),
            (4, A::RecreateName),
            (4, A::RewriteManifest),
            (3, A::RemoveManifest),
            (4, A::PutManifestBack),
            (3, A::BreakManifest),
            (3, A::RepairManifest),
            (5, A::KillContainer),
            (2, A::OomKill),
            (2, A::VanishContainer),
            (3, A::SandboxDies),
            (2, A::SandboxVanishes),
            (3, A::RuntimeGoes),
            (6, A::RuntimeComes),
            (1, A::Reboot),
            (1, A::RebootMachine),
            (2, A::BreakStreams),
            (5, A::FaultsOn),
            (4, A::FaultsOff),
            (if api { 3 } else { 0 }, A::CutApi),
            (if api { 0 } else { 10 }, A::JoinApi),
            (if self.folder.trouble { 0 } else { 2 }, A::FolderTrouble),
            (if self.folder.trouble { 8 } else { 0 }, A::FolderBack),
            (3, A::ListAgain),
            (if sink { 0 } else { 2 }, A::SinkGoes),
            (if sink { 8 } else { 0 }, A::SinkComes),
            (2, A::SinkSlow),
            (6, A::Sicken),
            (3, A::Heal),
            (2, A::ShutGate),
            (4, A::OpenGate),
            (if self.agent.is_some() { 4 } else { 0 }, A::KillAgent),
            (if self.agent.is_some() { 1 } else { 0 }, A::KillAgentWithDisk),
            (if self.agent.is_some() { 2 } else { 0 }, A::StopAgent),
            (2, A::Nothing),
        ];
        self.dice.weighted(&choices, A::Nothing)
    }

    async fn step(&mut self) {
        use Action as A;
        let action = self.choose();
        self.drain();
        let name = name_of(action);
        *self.actions.entry(name).or_default() += 1;
        self.trace.line(Instant::now(), format_args!("step  {name}"));
        match action {
            A::AddPod if self.is_full() => self.delete_pod(None).await,
            A::AddPod => {
                let uid = self.add_pod(None);
                self.send_pod(&uid).await;
            }
            A::AddManifest if self.is_full() => self.remove_manifest().await,
            A::AddManifest => {
                let file = self.add_manifest().await;
                self.send_file(&file).await;
            }
            A::EditLabel => {
                self.edit(|pod, dice| {
                    let labels = pod.metadata.labels.get_or_insert_default();
                    labels.insert("edited".to_owned(), dice.to_string());
                })
                .await
            }
            A::EditImage => {
                self.edit(|pod, dice| {
                    let containers = pod.spec.as_mut().map(|spec| &mut spec.containers);
                    if let Some(container) = containers.and_then(|list| list.first_mut()) {
                        container.image = Some(format!("fake/app:{}", dice % 50 + 2));
                    }
                })
                .await
            }
            A::Resize => self.resize().await,
            A::Delete => self.delete_pod(None).await,
            A::ShortenGrace => self.shorten_grace().await,
            A::ForceDelete => {
                if let Some(uid) = self.some_pod() {
                    self.remove_pod(&uid).await;
                }
            }
            A::RecreateName => self.recreate().await,
            A::RewriteManifest => self.rewrite_manifest().await,
            A::RemoveManifest => self.remove_manifest().await,
            A::PutManifestBack => self.put_manifest_back().await,
            A::BreakManifest => self.break_manifest().await,
            A::RepairManifest => self.repair_manifest().await,
            A::KillContainer => {
                if let Some(id) = self.some_container() {
                    let code = *self.dice.pick(&[137, 137, 1, 0, 2]).unwrap_or(&137);
                    self.fake.kill_container(&id, code);
                }
            }
            A::OomKill => {
                if let Some(id) = self.some_container() {
                    self.fake.oom_kill_container(&id);
                }
            }
            A::VanishContainer => {
                if let Some(id) = self.some_container() {
                    self.fake.vanish_container(&id);
                }
            }
            A::SandboxDies => {
                if let Some(id) = self.some_sandbox() {
                    self.fake.stop_sandbox_behind(&id);
                }
            }
            A::SandboxVanishes => {
                if let Some(id) = self.some_sandbox() {
                    self.fake.vanish_sandbox(&id);
                }
            }
            A::RuntimeGoes => self.fake.go_down(),
            A::RuntimeComes => self.fake.come_up(),
            A::Reboot => self.fake.reboot(),
            A::RebootMachine => {
                self.kill_agent().await;
                self.fake.reboot();
                self.lose_mounts();
            }
            A::BreakStreams => self.fake.break_streams(),
            A::FaultsOn => self.set_faults(),
            A::FaultsOff => self.fake.stop_faults(),
            A::CutApi => self.cluster.lock().linked = false,
            A::JoinApi => self.join_api().await,
            A::FolderTrouble => {
                self.folder.trouble = true;
                self.folder.send_trouble().await;
            }
            A::FolderBack => {
                self.folder.trouble = false;
                self.send_all_files().await;
            }
            A::ListAgain => {
                self.send_all_pods().await;
                self.send_all_files().await;
            }
            A::SinkGoes => self.cluster.lock().sink_down = true,
            A::SinkComes => self.cluster.lock().sink_down = false,
            A::SinkSlow => {
                let mut state = self.cluster.lock();
                state.sink_slow = !state.sink_slow;
            }
            A::Sicken => self.sicken(),
            A::Heal => self.sickness.heal(),
            A::ShutGate => self.gate.set(false),
            A::OpenGate => self.gate.set(true),
            A::KillAgent => self.kill_agent().await,
            A::KillAgentWithDisk => {
                self.disk.crash_after(self.dice.between(0, 20));
                self.pass(self.dice.millis(1, 2_000)).await;
                self.kill_agent().await;
                self.checker.disk_was_lost();
            }
            A::StopAgent => self.stop_agent().await,
            A::StartAgent => self.start_agent().await,
            A::Nothing => {}
        }
    }

    fn is_full(&self) -> bool {
        self.cluster.lock().pods.len() + self.folder.files.len() >= MANY
    }

    fn some_pod(&self) -> Option<PodUid> {
        let state = self.cluster.lock();
        let uids: Vec<&PodUid> = state.pods.keys().collect();
        self.dice.pick(&uids).map(|uid| (*uid).clone())
    }

    fn some_file(&self) -> Option<String> {
        let files: Vec<&String> = self.folder.files.keys().collect();
        self.dice.pick(&files).map(|file| (*file).clone())
    }

    fn some_container(&self) -> Option<ContainerId> {
        let running: Vec<ContainerId> = self
            .fake
            .containers()
            .into_iter()
            .filter(|container| container.state == ContainerState::Running)
            .map(|container| container.id)
            .collect();
        self.dice.pick(&running).cloned()
    }

    fn some_sandbox(&self) -> Option<SandboxId> {
        let ready: Vec<SandboxId> = self
            .fake
            .sandboxes()
            .into_iter()
            .filter(|sandbox| sandbox.state == SandboxState::Ready)
            .map(|sandbox| sandbox.id)
            .collect();
        self.dice.pick(&ready).cloned()
    }

    fn add_pod(&mut self, name: Option<String>) -> PodUid {
        self.pods_made += 1;
        let name = name.unwrap_or_else(|| format!("pod-{}", self.pods_made));
        let uid = format!("m{:03}", self.pods_made);
        let mut pod = workload::pod(&self.dice, &name, Some(&uid));
        pod.metadata.creation_timestamp = Some(kubelet_core::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            self.now(),
        ));
        self.furnish(&mut pod);
        let uid = PodUid::from(uid.as_str());
        self.trace.line(
            Instant::now(),
            format_args!("      pod {uid} {name} {}", describe(&pod)),
        );
        self.cluster.lock().pods.insert(uid.clone(), pod);
        uid
    }

    async fn add_manifest(&mut self) -> String {
        self.pods_made += 1;
        let file = format!("f{:03}.yaml", self.pods_made);
        let mut pod = workload::pod(&self.dice, &format!("static-{}", self.pods_made), None);
        self.furnish(&mut pod);
        self.write_manifest(&file, &pod).await;
        file
    }

    async fn write_manifest(&mut self, file: &str, pod: &Pod) {
        let manifest = manifest(file, pod, NODE).await;
        let uid = manifest
            .pod
            .as_ref()
            .map(|pod| pod.uid().to_string())
            .unwrap_or_default();
        self.trace.line(
            Instant::now(),
            format_args!("      file {file} {uid} {}", describe(pod)),
        );
        self.folder.files.insert(file.to_owned(), manifest);
    }

    async fn edit(&mut self, change: impl FnOnce(&mut Pod, u64)) {
        let Some(uid) = self.some_pod() else { return };
        let word = self.dice.next();
        if let Some(pod) = self.cluster.lock().pods.get_mut(&uid) {
            change(pod, word);
        }
        self.trace.line(Instant::now(), format_args!("      edits {uid}"));
        self.send_pod(&uid).await;
    }

    async fn delete_pod(&mut self, grace: Option<i64>) {
        let Some(uid) = self.some_pod() else { return };
        self.delete_this(&uid, grace).await;
    }

    async fn delete_this(&mut self, uid: &PodUid, grace: Option<i64>) {
        let now = self.now();
        let given = if self.dice.chance(50) {
            self.dice.pick(&[0, 1, 5, 20, 45]).copied()
        } else {
            None
        };
        if let Some(pod) = self.cluster.lock().pods.get_mut(uid) {
            let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
            let grace = grace.or(given).or(own).unwrap_or(30);
            delete(pod, grace, now);
            self.trace
                .line(Instant::now(), format_args!("      deletes {uid} within {grace} s"));
        }
        self.send_pod(uid).await;
    }

    async fn shorten_grace(&mut self) {
        let deleted: Vec<PodUid> = {
            let state = self.cluster.lock();
            let deleted = state
                .pods
                .iter()
                .filter(|(_, pod)| pod.metadata.deletion_timestamp.is_some());
            deleted.map(|(uid, _)| uid.clone()).collect()
        };
        if let Some(uid) = self.dice.pick(&deleted).cloned() {
            let grace = i64::try_from(self.dice.between(0, 10)).unwrap_or(0);
            self.delete_this(&uid, Some(grace)).await;
        }
    }

    async fn remove_pod(&mut self, uid: &PodUid) {
        self.trace.line(Instant::now(), format_args!("      removes {uid}"));
        self.cluster.lock().pods.remove(uid);
        self.send_pod(uid).await;
    }

    async fn recreate(&mut self) {
        let Some(uid) = self.some_pod() else { return };
        let name = self
            .cluster
            .lock()
            .pods
            .get(&uid)
            .and_then(|pod| pod.metadata.name.clone());
        self.remove_pod(&uid).await;
        let uid = self.add_pod(name);
        self.send_pod(&uid).await;
    }

    async fn rewrite_manifest(&mut self) {
        let Some(file) = self.some_file() else { return };
        let name = format!(
            "static-{}",
            file.trim_start_matches(['f', '0']).trim_end_matches(".yaml")
        );
        let mut pod = workload::pod(&self.dice, &name, None);
        self.furnish(&mut pod);
        self.write_manifest(&file, &pod).await;
        self.send_file(&file).await;
    }

    async fn remove_manifest(&mut self) {
        let Some(file) = self.some_file() else { return };
        self.trace.line(Instant::now(), format_args!("      removes {file}"));
        if let Some(manifest) = self.folder.files.remove(&file) {
            self.folder.removed.push((file.clone(), manifest));
        }
        self.send_file(&file).await;
    }

    async fn put_manifest_back(&mut self) {
        let Some((file, manifest)) = self.folder.removed.pop() else {
            return;
        };
        self.trace.line(Instant::now(), format_args!("      puts {file} back"));
        self.folder.files.insert(file.clone(), manifest);
        self.send_file(&file).await;
    }

    async fn break_manifest(&mut self) {
        let Some(file) = self.some_file() else { return };
        let cut = self.dice.below(3);
        self.trace.line(Instant::now(), format_args!("      breaks {file}"));
        if let Some(good) = self.folder.files.get(&file).cloned() {
            let bad = broken(&good.text, cut);
            self.folder.files.insert(file.clone(), bad);
            self.folder.broken.insert(file.clone(), good);
        }
        self.send_file(&file).await;
    }

    async fn repair_manifest(&mut self) {
        let Some((file, good)) = self.folder.broken.pop_first() else {
            return;
        };
        self.trace.line(Instant::now(), format_args!("      repairs {file}"));
        if self.folder.files.contains_key(&file) {
            self.folder.files.insert(file.clone(), good);
            self.send_file(&file).await;
        }
    }

    pub(super) async fn join_api(&mut self) {
        self.cluster.lock().linked = true;
        self.send_all_pods().await;
    }

    fn set_faults(&mut self) {
        for kind in FaultKind::ALL {
            // In parts of a hundred thousand.
            let most = match kind {
                FaultKind::ContainerDies | FaultKind::ContainerVanishes => 150,
                FaultKind::SandboxDies | FaultKind::SandboxVanishes => 60,
                FaultKind::Restart => 60,
                FaultKind::Reboot => 8,
                FaultKind::SlowList => 1_000,
                FaultKind::Delay => 15_000,
                FaultKind::LostHint | FaultKind::SwallowedHint | FaultKind::EarlyHint => 20_000,
                FaultKind::StreamBreak => 3_000,
                _ => 8_000,
            };
            let rate = if self.dice.chance(40) {
                self.dice.between(0, most)
            } else {
                0
            };
            self.fake.set_fault_rate(kind, rate as f64 / 100_000.0);
        }
    }

    async fn kill_agent(&mut self) {
        let late = self.dice.chance(60).then(|| self.dice.millis(0, 3_000));
        self.fake.set_abandoned_calls_happen(late);
        if let Some(agent) = &mut self.agent {
            agent.kill().await;
        }
        self.fake.set_abandoned_calls_happen(None);
        self.end_life();
        self.disk.crash();
    }

    async fn stop_agent(&mut self) {
        let Some(mut agent) = self.agent.take() else { return };
        self.trace
            .line(Instant::now(), format_args!("      {:?}", agent.on_stop));
        if agent.on_stop == OnStop::StopPods {
            self.note_stop_of_pods();
        }
        self.fake.set_abandoned_calls_happen(Some(Duration::from_secs(1)));
        let ended = agent.stop().await;
        self.fake.set_abandoned_calls_happen(None);
        self.agent = Some(agent);
        self.end_life();
        self.drain();
        if let Err(what) = ended {
            self.checker.breach(Instant::now(), Invariant::Running, what);
        }
    }

    pub(super) async fn start_agent(&mut self) {
        self.disk.restart();
        let on_stop = if self.dice.chance(40) {
            OnStop::StopPods
        } else {
            OnStop::LeavePods
        };
        self.begin_life(on_stop);
        // Sources come when they come.
        if self.dice.chance(70) {
            self.pass(self.dice.millis(0, 3_000)).await;
        }
        self.send_all_files().await;
        if self.dice.chance(30) {
            self.pass(self.dice.millis(0, 20_000)).await;
        }
        self.send_all_pods().await;
    }
}

fn name_of(action: Action) -> &'static str {
    use Action as A;
    match action {
        A::AddPod => "AddPod",
        A::AddManifest => "AddManifest",
        A::EditLabel => "EditLabel",
        A::EditImage => "EditImage",
        A::Resize => "Resize",
        A::Delete => "Delete",
        A::ShortenGrace => "ShortenGrace",
        A::ForceDelete => "ForceDelete",
        A::RecreateName => "RecreateName",
        A::RewriteManifest => "RewriteManifest",
        A::RemoveManifest => "RemoveManifest",
        A::PutManifestBack => "PutManifestBack",
        A::BreakManifest => "BreakManifest",
        A::RepairManifest => "RepairManifest",
        A::KillContainer => "KillContainer",
        A::OomKill => "OomKill",
        A::VanishContainer => "VanishContainer",
        A::SandboxDies => "SandboxDies",
        A::SandboxVanishes => "SandboxVanishes",
        A::RuntimeGoes => "RuntimeGoes",
        A::RuntimeComes => "RuntimeComes",
        A::Reboot => "Reboot",
        A::RebootMachine => "RebootMachine",
        A::BreakStreams => "BreakStreams",
        A::FaultsOn => "FaultsOn",
        A::FaultsOff => "FaultsOff",
        A::CutApi => "CutApi",
        A::JoinApi => "JoinApi",
        A::FolderTrouble => "FolderTrouble",
        A::FolderBack => "FolderBack",
        A::ListAgain => "ListAgain",
        A::SinkGoes => "SinkGoes",
        A::SinkComes => "SinkComes",
        A::SinkSlow => "SinkSlow",
        A::Sicken => "Sicken",
        A::Heal => "Heal",
        A::ShutGate => "ShutGate",
        A::OpenGate => "OpenGate",
        A::KillAgent => "KillAgent",
        A::KillAgentWithDisk => "KillAgentWithDisk",
        A::StopAgent => "StopAgent",
        A::StartAgent => "StartAgent",
        A::Nothing => "Nothing",
    }
}

/// What a pod does, in a few words.
fn describe(pod: &Pod) -> String {
    let Some(spec) = &pod.spec else { return String::new() };
    let mut text = spec.restart_policy.clone().unwrap_or_default();
    if let Some(grace) = spec.termination_grace_period_seconds {
        text.push_str(&format!(" grace={grace}"));
    }
    if let Some(deadline) = spec.active_deadline_seconds {
        text.push_str(&format!(" deadline={deadline}"));
    }
    for container in spec.init_containers.iter().flatten() {
        let kind = if container.restart_policy.is_some() {
            "sidecar"
        } else {
            "init"
        };
        text.push_str(&format!(
            " {kind}:{}[{}]",
            container.name,
            words(container.args.as_ref())
        ));
    }
    for container in &spec.containers {
        text.push_str(&format!(" {}[{}]", container.name, words(container.args.as_ref())));
    }
    for volume in spec.volumes.iter().flatten() {
        text.push_str(&format!(" volume:{}", volume.name));
    }
    if let Some(curse) = pod.metadata.labels.as_ref().and_then(|labels| labels.get(CURSE)) {
        text.push_str(&format!(" {curse}"));
    }
    text
}

fn words(args: Option<&Vec<String>>) -> String {
    args.map(|args| args.join(" ")).unwrap_or_default()
}
