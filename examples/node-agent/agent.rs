//! The agent: puts a kubelet together, shows what it does, and ends it.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use kubelet_core::{
    CancellationToken, Clock, Containers, DirectoryObjects, DockerConfigFiles, ExecCredentialProviders, FileSource,
    Kubelet, KubeletHandle, NodeFit, NodeSettings, OnStop, ResourceSettings, RuntimeParts, Settings, StatusChange,
    StopReport, SystemClock,
};
use kubelet_cri::CriRuntime;
use kubelet_pleg::EventedPleg;
use kubelet_probe::{HyperClient, NetworkProber};
use kubelet_process::{ProcessRuntime, Supervisor};
use kubelet_volume::{VolumeSettings, Volumes};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use crate::args::{Args, Runtime};
use crate::cgroups::{self, Cgroups};
use crate::folders::{Folders, default_node_name};
use crate::lines::PlainLines;
use crate::screen::{Lines, show_logs};
use crate::table::Table;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Where statuses and lines are shown.
enum Display {
    Plain(PlainLines),
    Table(Table),
}

impl Display {
    fn status(&mut self, change: &StatusChange) -> io::Result<()> {
        match self {
            Self::Plain(lines) => lines.status(change),
            Self::Table(table) => {
                table.status(change);
                table.draw(SystemClock.now())
            }
        }
    }

    fn line(&mut self, line: &str) -> io::Result<()> {
        match self {
            Self::Plain(_) => PlainLines::line(line),
            Self::Table(table) => table.line(line, SystemClock.now()),
        }
    }

    fn tick(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Table(table) => table.draw(SystemClock.now()),
        }
    }
}

pub(crate) async fn run(args: Args, supervisor: Supervisor) -> Outcome<()> {
    let folders = Folders::of(&args)?;
    let node_name = args.node_name.clone().unwrap_or_else(default_node_name);
    let mut display = if args.plain || !io::stdout().is_terminal() {
        Display::Plain(PlainLines::default())
    } else {
        Display::Table(Table::default())
    };
    let (lines, mut received) = Lines::channel();
    show_logs(lines.clone());
    display.line(&format!(
        "node {node_name}, manifests in {}",
        folders.manifests.display()
    ))?;
    display.line(&format!(
        "state in {}, logs in {}, images in {}",
        folders.root.display(),
        folders.logs().display(),
        folders.images.display()
    ))?;

    let (runtime, fit) = runtime(&args, &folders, supervisor).await?;
    let cgroups = cgroups::of(&args, &runtime).await?;
    if let Some(line) = &cgroups.line {
        display.line(line)?;
    }
    let kubelet = build(&args, &folders, node_name, lines, (runtime, fit, cgroups)).await?;
    let handle = kubelet.handle();
    let mut statuses = handle.statuses();
    let stop = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let running = kubelet.run(stop.clone());
    tokio::pin!(running);
    let mut statuses_open = true;
    let report = loop {
        tokio::select! {
            biased;
            ended = &mut running => break ended?,
            _ = interrupt.recv() => if asked_again(&stop, &args, &mut display)? { return Err(cut_short()) },
            _ = terminate.recv() => if asked_again(&stop, &args, &mut display)? { return Err(cut_short()) },
            Some(line) = received.recv() => display.line(&line)?,
            change = statuses.next(), if statuses_open => match change {
                Some(change) => display.status(&change)?,
                None => statuses_open = false,
            },
            _ = ticks.tick() => display.tick()?,
        }
    };
    while let Ok(line) = received.try_recv() {
        display.line(&line)?;
    }
    while let Some(change) = statuses.try_next() {
        display.status(&change)?;
    }
    farewell(&args, &handle, &report, &mut display)?;
    Ok(())
}

/// What runs containers, and what fits on it.
async fn runtime(args: &Args, folders: &Folders, supervisor: Supervisor) -> Outcome<(RuntimeParts, NodeFit)> {
    Ok(match args.runtime {
        Runtime::Process => {
            let settings = kubelet_process::Settings::new(folders.processes(), &folders.images);
            let runtime: Arc<ProcessRuntime> = ProcessRuntime::open(Some(supervisor), settings).await?;
            (runtime.into(), NodeFit::on_shared_network())
        }
        Runtime::Cri => (CriRuntime::connect(&args.endpoint).await?.into(), NodeFit::default()),
    })
}

async fn build(
    args: &Args,
    folders: &Folders,
    node_name: String,
    lines: Lines,
    (runtime, fit, cgroups): (RuntimeParts, NodeFit, Cgroups),
) -> Outcome<Kubelet> {
    let mut settings = Settings::default();
    settings.parallel_image_pulls = match args.max_parallel_image_pulls {
        0 => usize::MAX,
        bound => bound,
    };
    let mut node = NodeSettings::default();
    node.max_pods = args.max_pods;
    node.system_reserved.extend(args.system_reserved.iter().cloned());
    node.kube_reserved.extend(args.kube_reserved.iter().cloned());
    let mut resources = ResourceSettings::default();
    resources.pod_pids_limit = u64::try_from(args.pod_max_pids).ok().filter(|most| *most > 0);
    settings.container_gc.min_age = args.minimum_container_ttl_duration.unwrap_or_default();
    // Any number is negative, as it is upstream.
    settings.container_gc.max_per_container = u32::try_from(args.maximum_dead_containers_per_container).ok();
    settings.container_gc.max_total = u32::try_from(args.maximum_dead_containers).ok();
    let mut on_stop = OnStop::LeavePods;
    if args.stop_pods {
        on_stop = OnStop::StopPods;
        // Room for the usual grace of 30 s.
        settings.stop_within = Duration::from_secs(60);
    }
    let mut volumes = VolumeSettings::default();
    // Who is not root mounts nothing; what is for pods alone is on disk then, for that user alone.
    volumes.secrets_on_disk = !rustix::process::geteuid().is_root();
    let mut builder = Kubelet::builder(node_name, Containers::new(runtime, EventedPleg::default()))
        .source(FileSource::new(&folders.manifests).period(args.period))
        .fit(fit)
        .node(node)
        .root_dir(&folders.root)
        .pod_logs_dir(folders.logs())
        .prober(NetworkProber::new())
        .http_client(HyperClient::new())
        .events(lines)
        .settings(settings)
        .resources(resources)
        .volumes(Volumes::new(volumes))
        .image_credentials(DockerConfigFiles::in_folders([&folders.root]))
        .image_verification(args.verification())
        .on_stop(on_stop);
    if let (Some(config), Some(programs)) = (
        &args.image_credential_provider_config,
        &args.image_credential_provider_bin_dir,
    ) {
        let programs = std::path::absolute(programs)?;
        builder = builder.image_credentials(ExecCredentialProviders::load(config, programs).await?);
    }
    if let Some(manager) = cgroups.manager {
        builder = builder.cgroups(manager);
    }
    if let Some(objects) = &folders.objects {
        builder = builder.objects(DirectoryObjects::new(objects));
    }
    Ok(builder.build()?)
}

/// Takes a wish to end; says whether it was there already.
fn asked_again(stop: &CancellationToken, args: &Args, display: &mut Display) -> io::Result<bool> {
    if stop.is_cancelled() {
        return Ok(true);
    }
    display.line(if args.stop_pods {
        "ending the pods, then the agent; once more to end the agent at once"
    } else {
        "ending the agent; the pods go on"
    })?;
    stop.cancel();
    Ok(false)
}

fn cut_short() -> Box<dyn std::error::Error + Send + Sync> {
    "ended at once; what was being done is looked at when the agent starts again".into()
}

/// Says what became of the pods.
fn farewell(args: &Args, handle: &KubeletHandle, report: &StopReport, display: &mut Display) -> io::Result<()> {
    for (uid, calls) in &report.in_flight {
        display.line(&format!("pod {uid}: not finished: {}", calls.join(", ")))?;
    }
    let running: Vec<String> = handle
        .pods()
        .iter()
        .filter(|pod| handle.observed(pod.pod.uid()).is_some_and(|seen| seen.may_run()))
        .map(|pod| pod.pod.key().to_string())
        .collect();
    let line = match (args.stop_pods, running.is_empty()) {
        (_, true) => "the agent has ended; no pod runs".to_owned(),
        (true, false) => format!(
            "the agent has ended; these pods could not be ended in time: {}",
            running.join(", ")
        ),
        (false, false) => format!(
            "the agent has ended; {} running: {} (start it again to take over, with --stop-pods to end pods with it)",
            match running.len() {
                1 => "1 pod keeps".to_owned(),
                count => format!("{count} pods keep"),
            },
            running.join(", ")
        ),
    };
    display.line(&line)
}
