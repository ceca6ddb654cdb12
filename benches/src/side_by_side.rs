//! The same scenarios for any kubelet command, so that two kubelets can be set side by side.
//!
//! The runtime is a [`FakeCri`](kubelet_testing::FakeCri) in this process and the kubelet a child: what is counted is the
//! kubelet's alone. Its pods come as manifests in a folder, which every kubelet reads without a control plane.

mod agent;
mod machine;
mod manifests;

use std::io;
use std::time::Duration;

use tokio::time::Instant;

use crate::measure::{Row, middle_and_p99, real};
use agent::{Agent, Places};
use machine::Machine;
use manifests::Manifests;

/// Between two reactions, for what follows the first: a period that shares no factor with a relist's.
const PAUSE: Duration = Duration::from_millis(23);

/// What is measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SideBySide {
    /// The kubelet's program and its arguments. In each `{endpoint}` stands for the runtime's socket, as `unix://…`,
    /// `{manifests}` for the folder of manifests and `{dir}` for an empty folder of the kubelet's own.
    pub command: Vec<String>,
    /// How many pods of two containers there are in the burst.
    pub pods: usize,
    /// Samples of each reaction.
    pub samples: usize,
    /// For how long a kubelet at rest is watched.
    pub rest: Duration,
    /// How long a kubelet may go on working after a burst before it counts as at rest.
    pub settle: Duration,
    /// Whether the runtime sends events.
    pub events: bool,
    /// How long anything may take before the measurement fails.
    pub patience: Duration,
}

impl SideBySide {
    /// The design's sizes for this command.
    #[must_use]
    pub fn of(command: Vec<String>) -> Self {
        Self {
            command,
            pods: 1_000,
            samples: 100,
            rest: Duration::from_secs(60),
            settle: Duration::from_secs(10),
            events: true,
            patience: Duration::from_secs(300),
        }
    }

    /// Runs all scenarios, and hands out row by row.
    ///
    /// # Errors
    /// If the kubelet cannot be started, ends, or does not do what its manifests ask for in time. The error names the scenario and
    /// the end of the kubelet's output.
    pub fn run(&self, mut tell: impl FnMut(&Row)) -> io::Result<()> {
        real(1).block_on(async {
            self.without_pods(&mut tell).await?;
            self.with_pods(&mut tell).await
        })
    }

    async fn without_pods(&self, tell: &mut impl FnMut(&Row)) -> io::Result<()> {
        let machine = Machine::start(self.events, self.patience).await?;
        let manifests = Manifests::new(machine.dir())?;
        let mut agent = self.start(&machine, &manifests)?;
        machine.until_listed(&mut agent).await?;
        tokio::time::sleep(self.settle).await;
        self.rest(0, &agent, tell).await?;
        self.reactions(0, &machine, &manifests, &mut agent, tell).await
    }

    async fn with_pods(&self, tell: &mut impl FnMut(&Row)) -> io::Result<()> {
        let machine = Machine::start(self.events, self.patience).await?;
        let manifests = Manifests::new(machine.dir())?;
        for number in 0..self.pods {
            manifests.put(&format!("burst-{number}"), 2)?;
        }
        let begun = Instant::now();
        let mut agent = self.start(&machine, &manifests)?;
        machine.until_started(2 * self.pods, &mut agent).await?;
        let (took, cpu) = (begun.elapsed(), agent.cpu()?);
        tell(&Row::new(
            "kubelet started → all pods of two containers up",
            self.pods,
            format!("{:.2} s, {:.2} CPU-seconds", took.as_secs_f64(), cpu.as_secs_f64()),
        ));
        tokio::time::sleep(self.settle).await;
        self.rest(self.pods, &agent, tell).await?;
        self.reactions(self.pods, &machine, &manifests, &mut agent, tell).await
    }

    fn start(&self, machine: &Machine, manifests: &Manifests) -> io::Result<Agent> {
        let places = Places {
            socket: machine.socket(),
            manifests: manifests.folder(),
            dir: machine.dir(),
        };
        Agent::start(&self.command, &places)
    }

    async fn rest(&self, pods: usize, agent: &Agent, tell: &mut impl FnMut(&Row)) -> io::Result<()> {
        let before = agent.cpu()?;
        tokio::time::sleep(self.rest).await;
        let used = agent.cpu()? - before;
        let share = used.as_secs_f64() / self.rest.as_secs_f64() * 100.0;
        let resident = agent.resident()?;
        tell(&Row::new(
            "at rest",
            pods,
            format!("{share:.2} % of a core, {:.1} MB resident", resident as f64 / 1e6),
        ));
        Ok(())
    }

    /// How fast manifests and ends of containers are answered, beside so many pods.
    async fn reactions(
        &self,
        pods: usize,
        machine: &Machine,
        manifests: &Manifests,
        agent: &mut Agent,
        tell: &mut impl FnMut(&Row),
    ) -> io::Result<()> {
        let (mut dropped, mut died) = (Vec::new(), Vec::new());
        for number in 0..self.samples {
            let name = format!("sample-{number}");
            let (before, begun) = (machine.answered(), Instant::now());
            manifests.put(&name, 1)?;
            let (took, container) = machine.reaction(begun, &before, agent).await?;
            dropped.push(took);
            tokio::time::sleep(PAUSE).await;
            let (before, begun) = (machine.answered(), Instant::now());
            machine.kill(&container);
            died.push(machine.reaction(begun, &before, agent).await?.0);
            tokio::time::sleep(PAUSE).await;
            let before = machine.answered();
            manifests.remove(&name)?;
            machine.until_stopped(&before, agent).await?;
            tokio::time::sleep(PAUSE).await;
        }
        for (what, samples) in [
            ("manifest dropped → container started", dropped),
            ("container died → started again", died),
        ] {
            let (middle, p99) = middle_and_p99(samples);
            tell(&Row::new(what, pods, format!("median {middle:.2?}, p99 {p99:.2?}")));
        }
        Ok(())
    }
}
