//! Cgroups as slices of systemd, over D-Bus.
//!
//! Source: kubelet 1.36, `cm/cgroup_manager_linux.go`, with libcontainer, `cgroups/systemd`.

mod bus;
mod error;
mod properties;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use kubelet_core::{CgroupError, CgroupLimits};

use crate::tree::Version;
use crate::units::Units;
use bus::Bus;
use error::BusError;
use properties::Property;

/// What replaces what: a new job that contradicts one that waits.
const MODE: &str = "replace";
/// How often a unit is started that comes and goes meanwhile.
const ATTEMPTS: usize = 3;

/// How systemd is asked (feature `systemd`). By default over the system's bus.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SystemdSettings {
    /// The address of a bus, such as `unix:path=/run/dbus/system_bus_socket`. Without one it is what
    /// `DBUS_SYSTEM_BUS_ADDRESS` says, else that of the system.
    pub address: Option<String>,
    /// How long one answer may take. 10 s.
    pub reply_timeout: Duration,
    /// How long a unit may take to start or to stop, once systemd has said that it will. 30 s, as upstream.
    pub job_timeout: Duration,
}

impl Default for SystemdSettings {
    fn default() -> Self {
        Self {
            address: None,
            reply_timeout: Duration::from_secs(10),
            job_timeout: Duration::from_secs(30),
        }
    }
}

/// Starts and stops slices.
///
/// `Delegate=` is not set: systemd knows it of scopes and services alone, and refuses it of a slice. What is made in a slice of a pod
/// by others stays for as long as the slice runs.
#[derive(Debug)]
pub(crate) struct Systemd {
    bus: Bus,
    version: Version,
}

impl Systemd {
    pub(crate) fn new(settings: SystemdSettings, version: Version) -> Self {
        Self {
            bus: Bus::new(settings),
            version,
        }
    }

    async fn limits(&self, limits: &CgroupLimits) -> Result<Vec<Property>, BusError> {
        let systemd = self.bus.systemd_version().await?;
        Ok(properties::limits(limits, self.version, systemd))
    }

    /// Until the machine is started anew: what is limited then is found out then.
    async fn give(&self, unit: &str, properties: &[Property]) -> Result<(), BusError> {
        if properties.is_empty() {
            return Ok(());
        }
        self.bus.manager("SetUnitProperties", &(unit, true, properties)).await
    }

    /// One that has failed can only be started once that is forgotten.
    async fn forget_failure(&self, unit: &str) {
        if let Err(error) = self.bus.manager("ResetFailedUnit", &(unit,)).await {
            tracing::debug!(error = &error as &dyn std::error::Error, unit, "a failed unit stays");
        }
    }

    async fn try_start(&self, unit: &str, path: &Path, limits: &CgroupLimits) -> Result<(), BusError> {
        let limits = self.limits(limits).await?;
        let mut all = properties::slice(path, self.version);
        all.extend(limits.iter().cloned());
        let others: [(&str, Vec<Property>); 0] = [];
        let mut outcome = Ok(());
        for _ in 0..ATTEMPTS {
            let make = (unit, MODE, all.as_slice(), others.as_slice());
            outcome = self.bus.job(unit, "StartTransientUnit", &make).await;
            match &outcome {
                Err(error) if error.is("org.freedesktop.systemd1.UnitExists") => {}
                Err(BusError::Job { .. }) => {
                    self.forget_failure(unit).await;
                    return outcome;
                }
                _ => return outcome,
            }
            match self.bus.active_state(unit).await?.as_deref() {
                // It went meanwhile.
                None => continue,
                Some("failed") => {
                    self.forget_failure(unit).await;
                    continue;
                }
                Some("active" | "reloading") => {}
                // On its way to it or from it, or one that an administrator has a file of.
                Some(_) => self.bus.job(unit, "StartUnit", &(unit, MODE)).await?,
            }
            let mut all: Vec<Property> = properties::accounting(self.version).into();
            all.extend(limits);
            return self.give(unit, &all).await;
        }
        outcome
    }

    async fn try_stop(&self, unit: &str) -> Result<(), BusError> {
        let Some(state) = self.bus.active_state(unit).await? else {
            return Ok(());
        };
        if state != "failed" {
            match self.bus.job(unit, "StopUnit", &(unit, MODE)).await {
                Ok(()) => {}
                Err(error) if error.is("org.freedesktop.systemd1.NoSuchUnit") => return Ok(()),
                Err(error @ BusError::Job { .. }) => {
                    self.forget_failure(unit).await;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        // Else it stays loaded.
        if self.bus.active_state(unit).await?.as_deref() == Some("failed") {
            self.forget_failure(unit).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Units for Systemd {
    async fn start(&self, path: &Path, limits: &CgroupLimits) -> Result<(), CgroupError> {
        let Some(unit) = properties::unit(path) else {
            return Err(CgroupError::Unsupported {
                why: format!("{} is no unit of systemd", path.display()),
            });
        };
        let outcome = self.try_start(unit, path, limits).await;
        outcome.map_err(|error| error.about(format!("have systemd start {unit}")))
    }

    async fn set(&self, path: &Path, limits: &CgroupLimits) -> Result<(), CgroupError> {
        let Some(unit) = properties::unit(path) else {
            return Ok(());
        };
        let outcome = async { self.give(unit, &self.limits(limits).await?).await };
        match outcome.await {
            // A folder that only has such a name.
            Err(error) if error.is("org.freedesktop.systemd1.NoSuchUnit") => Ok(()),
            outcome => outcome.map_err(|error| error.about(format!("have systemd set limits of {unit}"))),
        }
    }

    async fn stop(&self, path: &Path) -> Result<(), CgroupError> {
        let Some(unit) = properties::unit(path) else {
            return Ok(());
        };
        let outcome = self.try_stop(unit).await;
        outcome.map_err(|error| error.about(format!("have systemd stop {unit}")))
    }
}
