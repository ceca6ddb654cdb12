//! The calls of CRI, and what may go wrong with them on the wire.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use kubelet_proto::tonic::{Code, Status};

macro_rules! rpcs {
    ($($name:ident)*) => {
        /// A call of CRI v1.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rpc {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                $name,
            )*
        }

        impl Rpc {
            /// Its name in the protocol.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

rpcs! {
    Version Status RuntimeConfig UpdateRuntimeConfig
    RunPodSandbox StopPodSandbox RemovePodSandbox PodSandboxStatus ListPodSandbox StreamPodSandboxes
    UpdatePodSandboxResources
    CreateContainer StartContainer StopContainer RemoveContainer ContainerStatus ListContainers StreamContainers
    UpdateContainerResources ReopenContainerLog ExecSync GetContainerEvents
    ContainerStats ListContainerStats StreamContainerStats PodSandboxStats ListPodSandboxStats StreamPodSandboxStats
    ImageStatus ListImages StreamImages PullImage RemoveImage ImageFsInfo
}

/// What a scripted call does.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CriFault {
    /// Takes that much longer before anything happens.
    Delay(Duration),
    /// Fails; nothing happens.
    Error(Code, String),
    /// Is done, and never answered: its caller runs into a deadline of their own.
    LostAnswer,
    /// Is done, and answered that much later.
    LateAnswer(Duration),
    /// Is done; the answer is an error.
    DoneAndError(Code, String),
    /// Is neither done nor answered.
    Hang,
}

/// A [`CriFault`] for the next calls of one kind.
#[derive(Clone, Debug)]
#[must_use = "a script acts once it is given to FakeCri::script"]
pub struct CriScript {
    rpc: Rpc,
    fault: CriFault,
    left: u32,
    about: Option<String>,
}

impl CriScript {
    /// For the next call of that kind.
    pub fn next(rpc: Rpc, fault: CriFault) -> Self {
        Self {
            rpc,
            fault,
            left: 1,
            about: None,
        }
    }

    /// For that many calls.
    pub fn times(mut self, times: u32) -> Self {
        self.left = times;
        self
    }

    /// Only for calls whose request has that text in it somewhere: an id, a UID, a name.
    pub fn about(mut self, text: impl Into<String>) -> Self {
        self.about = Some(text.into());
        self
    }
}

/// What is planned for calls, and how many there were.
#[derive(Debug, Default)]
pub(crate) struct CriFaults {
    scripts: Vec<CriScript>,
    latencies: BTreeMap<Rpc, Duration>,
    counts: BTreeMap<Rpc, u64>,
}

/// How one call goes.
#[derive(Debug)]
pub(crate) struct CriPlan {
    pub(crate) delay: Duration,
    pub(crate) fault: Option<CriFault>,
}

impl CriFaults {
    pub(crate) fn add(&mut self, script: CriScript) {
        self.scripts.push(script);
    }

    pub(crate) fn set_latency(&mut self, rpc: Rpc, latency: Duration) {
        self.latencies.insert(rpc, latency);
    }

    pub(crate) fn count(&self, rpc: Rpc) -> u64 {
        self.counts.get(&rpc).copied().unwrap_or_default()
    }

    pub(crate) fn heal(&mut self) {
        self.scripts.clear();
        self.latencies.clear();
    }

    pub(crate) fn plan(&mut self, rpc: Rpc, request: &dyn fmt::Debug) -> CriPlan {
        *self.counts.entry(rpc).or_default() += 1;
        let mut plan = CriPlan {
            delay: self.latencies.get(&rpc).copied().unwrap_or_default(),
            fault: None,
        };
        // Printed only where somebody looks.
        let mut printed: Option<String> = None;
        let found = self.scripts.iter().position(|script| {
            let about = script.about.as_deref();
            script.rpc == rpc
                && about.is_none_or(|text| printed.get_or_insert_with(|| format!("{request:?}")).contains(text))
        });
        if let Some(index) = found {
            let script = &mut self.scripts[index];
            script.left = script.left.saturating_sub(1);
            let fault = script.fault.clone();
            if script.left == 0 {
                drop(self.scripts.remove(index));
            }
            match fault {
                CriFault::Delay(by) => plan.delay += by,
                fault => plan.fault = Some(fault),
            }
        }
        plan
    }
}

pub(crate) fn status(code: Code, text: &str) -> Status {
    Status::new(code, text)
}
