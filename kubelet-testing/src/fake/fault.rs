//! Faults: scripted, random by seed, and counted.

use std::time::Duration;

use kubelet_core::{PodUid, RandomSource, SeededRandom};

use crate::fake::call::Op;

/// A kind of fault that the fake can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// A call fails with `Unavailable`; nothing happens.
    Unavailable,
    /// A call fails with `Refused`. A container that is refused its start is exited.
    Refused,
    /// A call fails with `Uncertain` at a deadline; what it asked for happens later.
    Uncertain,
    /// A call fails with `Uncertain` at a deadline; what it asked for never happens.
    UncertainNever,
    /// A call takes longer.
    Delay,
    /// A hint is lost, and the stream says so with `Lost`.
    LostHint,
    /// A hint is lost and the stream does not say so: worse than the contract allows, for the relist that must still
    /// find out.
    SwallowedHint,
    /// A hint comes as the call begins, before a list shows what it is about.
    EarlyHint,
    /// A stream of hints ends with an error.
    StreamBreak,
    /// A running container dies with code 137.
    ContainerDies,
    /// A container is gone, as if somebody else had removed it.
    ContainerVanishes,
    /// A sandbox is not ready any more, and its containers are killed.
    SandboxDies,
    /// A sandbox is gone with its containers.
    SandboxVanishes,
    /// The runtime is away for a time: every call fails with `Unavailable`, containers go on.
    Restart,
    /// All containers are exited and all sandboxes not ready, as after a reboot of the machine.
    Reboot,
    /// A call fails with `Busy`.
    Busy,
    /// A list takes very long.
    SlowList,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 17] = [
        Self::Unavailable,
        Self::Refused,
        Self::Uncertain,
        Self::UncertainNever,
        Self::Delay,
        Self::LostHint,
        Self::SwallowedHint,
        Self::EarlyHint,
        Self::StreamBreak,
        Self::ContainerDies,
        Self::ContainerVanishes,
        Self::SandboxDies,
        Self::SandboxVanishes,
        Self::Restart,
        Self::Reboot,
        Self::Busy,
        Self::SlowList,
    ];

    /// Faults of the world: each call may set one off, whatever it asks for.
    pub(crate) const WORLD: [Self; 6] = [
        Self::ContainerDies,
        Self::ContainerVanishes,
        Self::SandboxDies,
        Self::SandboxVanishes,
        Self::Restart,
        Self::Reboot,
    ];

    /// Whether a call of that kind can show it, by the errors that the traits document.
    #[must_use]
    pub const fn applies_to(self, op: Op) -> bool {
        match self {
            Self::Unavailable | Self::Delay => !matches!(op, Op::Events),
            Self::Refused => matches!(
                op,
                Op::RunSandbox
                    | Op::CreateContainer
                    | Op::StartContainer
                    | Op::Exec
                    | Op::Pull
                    | Op::UpdateResources
                    | Op::UpdateSandbox
            ),
            Self::Uncertain | Self::UncertainNever => op.changes_pods(),
            Self::Busy => op.is_exclusive(),
            Self::EarlyHint => matches!(op, Op::RunSandbox | Op::CreateContainer | Op::StartContainer),
            Self::SlowList => matches!(op, Op::ListSandboxes | Op::ListContainers),
            _ => false,
        }
    }
}

/// What a scripted call does instead of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Shows a fault of that kind, if it [applies](FaultKind::applies_to); else it works as usual.
    Fault(FaultKind),
    /// Works, but takes that much longer.
    Delay(Duration),
    /// Never ends by itself, and does nothing. (An exec ends at its timeout.)
    Hang,
    /// Fails with `Uncertain` after `deadline`; what it asked for happens `late` after that.
    Outlive {
        /// When the caller gets its answer.
        deadline: Duration,
        /// How much later it happens.
        late: Duration,
    },
    /// Fails with `Taken`, whether or not such an object exists.
    Taken,
    /// Fails with `NotFound`.
    NotFound,
    /// Fails with `Unsupported`.
    Unsupported,
}

/// An [`Action`] for the next calls of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a script acts once it is given to FakeRuntime::script"]
pub struct Script {
    op: Op,
    action: Action,
    left: u32,
    pod: Option<PodUid>,
}

impl Script {
    /// For the next call of that kind.
    pub fn next(op: Op, action: Action) -> Self {
        Self {
            op,
            action,
            left: 1,
            pod: None,
        }
    }

    /// For that many calls.
    pub fn times(mut self, times: u32) -> Self {
        self.left = times;
        self
    }

    /// Only for calls about that pod.
    pub fn of_pod(mut self, uid: PodUid) -> Self {
        self.pod = Some(uid);
        self
    }
}

/// How a call goes, decided as it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) delay: Duration,
    pub(crate) early_hint: bool,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Work,
    Unavailable,
    Refused,
    Busy,
    Taken,
    NotFound,
    Unsupported,
    Hang,
    Uncertain { late: Option<Duration> },
}

/// Rates, scripts, counters and the seeded source of all choices.
#[derive(Debug)]
pub(crate) struct Faults {
    rates: [f64; FaultKind::ALL.len()],
    counts: [u64; FaultKind::ALL.len()],
    scripts: Vec<Script>,
    random: SeededRandom,
    // Its own sequence, so that one error text more or less changes no choice.
    letters: SeededRandom,
    pub(crate) longest_delay: Duration,
    pub(crate) slow_list: Duration,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rates: [0.0; FaultKind::ALL.len()],
            counts: [0; FaultKind::ALL.len()],
            scripts: Vec::new(),
            random: SeededRandom::new(seed),
            letters: SeededRandom::new(!seed),
            longest_delay: Duration::from_secs(2),
            slow_list: Duration::from_secs(10),
        }
    }

    pub(crate) fn set_rate(&mut self, kind: FaultKind, probability: f64) {
        self.rates[kind as usize] = probability;
    }

    pub(crate) fn count(&self, kind: FaultKind) -> u64 {
        self.counts[kind as usize]
    }

    pub(crate) fn note(&mut self, kind: FaultKind) {
        self.counts[kind as usize] += 1;
    }

    pub(crate) fn add(&mut self, script: Script) {
        self.scripts.push(script);
    }

    /// Whether chance says so, without counting it.
    pub(crate) fn strikes(&mut self, kind: FaultKind) -> bool {
        let rate = self.rates[kind as usize];
        // No draw for what is switched off, so that another kind can be switched on without changing the rest.
        rate > 0.0 && self.unit() < rate
    }

    /// A random number below `bound`, or 0 if that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = bound.max(1) as u64;
        usize::try_from(self.random.next_u64() % bound).unwrap_or(0)
    }

    /// A random part of the longest delay, at least a millisecond.
    pub(crate) fn some_delay(&mut self) -> Duration {
        Duration::from_millis(1) + self.longest_delay.mul_f64(self.unit())
    }

    /// Words without meaning: nobody can decide on the text of an error.
    pub(crate) fn words(&mut self) -> String {
        let mut text = String::new();
        for word in 0..3 {
            if word > 0 {
                text.push(' ');
            }
            let mut bits = self.letters.next_u64();
            for _ in 0..(3 + bits % 6) {
                bits /= 7;
                text.push(char::from(b'a' + (bits % 26) as u8));
            }
        }
        text
    }

    pub(crate) fn plan(&mut self, op: Op, pod: Option<&PodUid>) -> Plan {
        let mut plan = Plan {
            delay: Duration::ZERO,
            early_hint: false,
            verdict: Verdict::Work,
        };
        let scripted = self
            .scripts
            .iter()
            .position(|s| s.op == op && s.left > 0 && s.pod.as_ref().is_none_or(|uid| Some(uid) == pod));
        if let Some(index) = scripted {
            self.scripts[index].left -= 1;
            let action = self.scripts[index].action;
            if self.scripts[index].left == 0 {
                drop(self.scripts.remove(index));
            }
            self.act(&mut plan, op, action);
            return plan;
        }
        for kind in FaultKind::ALL {
            if kind.applies_to(op) && self.strikes(kind) {
                self.show(&mut plan, kind);
            }
        }
        plan
    }

    fn act(&mut self, plan: &mut Plan, op: Op, action: Action) {
        match action {
            Action::Fault(kind) => {
                if kind.applies_to(op) {
                    self.show(plan, kind);
                }
            }
            Action::Delay(by) => {
                self.note(FaultKind::Delay);
                plan.delay += by;
            }
            Action::Hang => plan.verdict = Verdict::Hang,
            Action::Outlive { deadline, late } => {
                self.note(FaultKind::Uncertain);
                plan.delay += deadline;
                plan.verdict = Verdict::Uncertain { late: Some(late) };
            }
            Action::Taken => plan.verdict = Verdict::Taken,
            Action::NotFound => plan.verdict = Verdict::NotFound,
            Action::Unsupported => plan.verdict = Verdict::Unsupported,
        }
    }

    /// Adds a fault to a plan. The first one that decides the outcome stays; delays add up.
    fn show(&mut self, plan: &mut Plan, kind: FaultKind) {
        let verdict = match kind {
            FaultKind::Delay => {
                self.note(kind);
                plan.delay += self.some_delay();
                return;
            }
            FaultKind::SlowList => {
                self.note(kind);
                plan.delay += self.slow_list;
                return;
            }
            FaultKind::EarlyHint => {
                self.note(kind);
                plan.early_hint = true;
                return;
            }
            FaultKind::Unavailable => Verdict::Unavailable,
            FaultKind::Refused => Verdict::Refused,
            FaultKind::Busy => Verdict::Busy,
            FaultKind::Uncertain => Verdict::Uncertain {
                late: Some(self.some_delay()),
            },
            FaultKind::UncertainNever => Verdict::Uncertain { late: None },
            _ => return,
        };
        if plan.verdict == Verdict::Work {
            self.note(kind);
            plan.verdict = verdict;
            if matches!(verdict, Verdict::Uncertain { .. }) {
                plan.delay += self.some_delay();
            }
        }
    }

    fn unit(&mut self) -> f64 {
        // 53 bits are what an f64 holds exactly.
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, FaultKind, Faults, Op, Script, Verdict};

    #[test]
    fn a_script_acts_on_its_calls_and_no_others() {
        let mut faults = Faults::new(1);
        faults.add(
            Script::next(Op::CreateContainer, Action::Taken)
                .times(2)
                .of_pod("a".into()),
        );
        let mut verdict = |op, pod: &str| faults.plan(op, Some(&pod.into())).verdict;
        assert_eq!(verdict(Op::CreateContainer, "b"), Verdict::Work);
        assert_eq!(verdict(Op::StartContainer, "a"), Verdict::Work);
        assert_eq!(verdict(Op::CreateContainer, "a"), Verdict::Taken);
        assert_eq!(verdict(Op::CreateContainer, "a"), Verdict::Taken);
        assert_eq!(verdict(Op::CreateContainer, "a"), Verdict::Work);
    }

    #[test]
    fn rates_are_met_and_counted_and_a_seed_repeats_them() {
        let run = |seed| {
            let mut faults = Faults::new(seed);
            faults.set_rate(FaultKind::Unavailable, 0.25);
            let hits: Vec<bool> = (0..1000)
                .map(|_| faults.plan(Op::Info, None).verdict == Verdict::Unavailable)
                .collect();
            (hits, faults.count(FaultKind::Unavailable))
        };
        let (hits, count) = run(3);
        assert!((200..300).contains(&count), "{count}");
        assert_eq!(run(3), (hits, count));
    }

    #[test]
    fn the_list_of_kinds_is_in_the_order_of_their_numbers() {
        for (number, kind) in FaultKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
        }
    }
}
