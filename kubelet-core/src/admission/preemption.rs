//! Which pods go to make room for a critical one.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use super::{ActivePods, Shortage};
use crate::ids::PodUid;
use crate::metrics::{MetricSet, MetricValue};
use crate::pod::{PodRecord, QosClass};
use crate::quantity::Quantity;

/// The resource that each pod is one of.
pub(super) const PODS: &str = "pods";

/// The reason of a critical pod's refusal. Source: kubelet 1.36, `lifecycle/predicate.go`.
pub(super) const REFUSED: &str = "UnexpectedAdmissionError";

/// What would still be missing if all pods went that may be pushed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Uncovered(Vec<Shortage>);

/// Source: kubelet 1.36, `lifecycle/predicate.go`, `preemption/preemption.go`.
impl fmt::Display for Uncovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of \
             pods to preempt: no set of running pods found to reclaim resources: [",
        )?;
        for Shortage { resource, missing } in &self.0 {
            let count = match resource.as_str() {
                "cpu" => missing.milli_value(),
                _ => missing.value(),
            };
            write!(f, "(res: {resource}, q: {count}), ")?;
        }
        f.write_str("]")
    }
}

/// Whether a pod may push another one out.
///
/// Source: kubelet 1.36, `types/pod_update.go`.
pub(super) fn may_push_out(critical: &PodRecord, other: &PodRecord) -> bool {
    let has_right_of_way = critical.facts().is_critical && !other.facts().is_critical;
    let is_above = match (critical.spec().priority, other.spec().priority) {
        (Some(priority), Some(others)) => critical.facts().is_critical && priority > others,
        _ => false,
    };
    has_right_of_way || is_above
}

/// A pod that may go.
#[derive(Debug)]
struct Candidate<'a> {
    uid: &'a PodUid,
    /// What it would free of each resource that is missing, in their order.
    frees: Vec<Quantity>,
    memory: Quantity,
    cpu: Quantity,
}

/// Chooses which of the pods go to cover what `critical` misses, sorted by UID.
///
/// The fewest that are possible are Guaranteed, then Burstable, then BestEffort. Within a class the next is the one after which
/// the least is missing, each resource weighed by how much of it was; of two alike the one with the smaller requests.
///
/// Source: kubelet 1.36, `preemption/preemption.go`, which keeps to what it has picked. Here a pod stays that the later ones
/// make needless.
pub(super) fn choose_victims(
    critical: &PodRecord,
    shortages: &[Shortage],
    pods: &ActivePods,
) -> Result<Vec<PodUid>, Uncovered> {
    let mut classes: BTreeMap<QosClass, Vec<Candidate<'_>>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| may_push_out(critical, pod)) {
        let held = |name: &str| match name {
            PODS => Quantity::from_value(1, crate::quantity::QuantityFormat::DecimalSi),
            name => pods.held_by(pod.uid(), name).cloned().unwrap_or_default(),
        };
        classes.entry(pod.facts().qos).or_default().push(Candidate {
            uid: pod.uid(),
            frees: shortages.iter().map(|shortage| held(&shortage.resource)).collect(),
            memory: held("memory"),
            cpu: held("cpu"),
        });
    }
    let missing: Vec<Quantity> = shortages.iter().map(|shortage| shortage.missing.clone()).collect();
    let rest = without(&missing, classes.values().flatten());
    if !is_covered(&rest) {
        let uncovered = shortages.iter().zip(rest).filter(|(_, rest)| *rest > Quantity::ZERO);
        return Err(Uncovered(
            uncovered
                .map(|(shortage, missing)| Shortage::new(shortage.resource.clone(), missing))
                .collect(),
        ));
    }
    let mut chosen: Vec<&Candidate<'_>> = Vec::new();
    // The dearest class comes first: of it only those go without whom all the cheaper ones together would not suffice.
    for (class, candidates) in &classes {
        let cheaper = classes
            .iter()
            .filter(|(other, _)| *other > class)
            .flat_map(|(_, all)| all);
        let missing = without(&without(&missing, cheaper), chosen.iter().copied());
        chosen.extend(nearest(&missing, candidates));
    }
    let mut victims: Vec<PodUid> = chosen.into_iter().map(|candidate| candidate.uid.clone()).collect();
    victims.sort();
    Ok(victims)
}

/// What is missing once these have gone. Below zero where they leave more.
fn without<'a>(missing: &[Quantity], gone: impl IntoIterator<Item = &'a Candidate<'a>>) -> Vec<Quantity> {
    let mut missing = missing.to_vec();
    for candidate in gone {
        for (missing, freed) in missing.iter_mut().zip(&candidate.frees) {
            *missing = missing.saturating_sub(freed);
        }
    }
    missing
}

fn is_covered(missing: &[Quantity]) -> bool {
    missing.iter().all(|missing| *missing <= Quantity::ZERO)
}

/// Picks until nothing is missing, then lets those go on whom it can do without.
fn nearest<'a>(missing: &[Quantity], candidates: &'a [Candidate<'a>]) -> Vec<&'a Candidate<'a>> {
    let mut left: Vec<&Candidate<'_>> = candidates.iter().collect();
    let mut picked: Vec<&Candidate<'_>> = Vec::new();
    let mut rest = missing.to_vec();
    while !is_covered(&rest) {
        let order = |one: &&Candidate<'_>, other: &&Candidate<'_>| nearer(&rest, one, other);
        let Some(best) = (0..left.len()).min_by(|one, other| order(&left[*one], &left[*other])) else {
            break;
        };
        let best = left.swap_remove(best);
        rest = without(&rest, [best]);
        picked.push(best);
    }
    let mut at = 0;
    while at < picked.len() {
        let others = picked.iter().enumerate().filter(|(index, _)| *index != at);
        if is_covered(&without(missing, others.map(|(_, other)| *other))) {
            picked.remove(at);
        } else {
            at += 1;
        }
    }
    picked
}

fn nearer(missing: &[Quantity], one: &Candidate<'_>, other: &Candidate<'_>) -> Ordering {
    distance(missing, one)
        .total_cmp(&distance(missing, other))
        .then_with(|| one.memory.cmp(&other.memory))
        .then_with(|| one.cpu.cmp(&other.cpu))
        .then_with(|| one.uid.cmp(other.uid))
}

/// How far what is missing is from being covered once a pod has gone: the sum of the squares of the shares that stay missing.
fn distance(missing: &[Quantity], gone: &Candidate<'_>) -> f64 {
    let pairs = missing.iter().zip(&gone.frees);
    pairs
        .filter(|(missing, _)| **missing > Quantity::ZERO)
        .map(|(missing, freed)| missing.saturating_sub(freed).max(Quantity::ZERO).share_of(missing))
        .map(|share| share * share)
        .sum()
}

/// Pods that were pushed out, by the first resource that was missing.
#[derive(Debug, Default)]
pub(super) struct Preemptions(BTreeMap<&'static str, u64>);

impl Preemptions {
    pub(super) fn count(&mut self, shortages: &[Shortage], victims: usize) {
        let first = shortages.first().map_or("", |shortage| shortage.resource.as_str());
        // A metric must not grow with what pods ask for.
        let known = ["cpu", "ephemeral-storage", "memory", PODS];
        let signal = known.into_iter().find(|known| *known == first).unwrap_or("other");
        *self.0.entry(signal).or_default() += victims as u64;
    }

    pub(super) fn collect(&self, metrics: &mut MetricSet) {
        for (signal, count) in &self.0 {
            metrics.add(
                "kubelet_preemptions",
                "Pods that were pushed out to admit critical pods, by the resource that was missing.",
                &[("preemption_signal", signal)],
                MetricValue::Counter(*count),
            );
        }
    }
}
