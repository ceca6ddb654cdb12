//! Probes of containers: what is asked of them, and who carries it out.

mod prober;

pub use prober::{GrpcProbe, HttpProbe, ProbeAction, ProbeKind, ProbeOutcome, ProbeTarget, Prober, TcpProbe};
