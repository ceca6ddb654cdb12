//! Probes of containers: when they are due, what is asked, what comes of it, and who carries it out.
//!
//! One task runs all probes of a node. A probe is due at its start plus a whole number of periods, whatever the others do.

mod agenda;
mod manager;
mod metrics;
mod pod;
mod prober;
mod results;
mod run;
mod spec;
mod state;
mod tally;
mod target;

pub(crate) use manager::{ProbeManager, ProbeParts};
pub use prober::{GrpcProbe, HttpProbe, ProbeAction, ProbeKind, ProbeOutcome, ProbeTarget, Prober, TcpProbe};
pub use results::{ContainerProbes, PodProbes};
pub(crate) use state::Course;
pub(crate) use target::http_get;
