//! The first words with a runtime.

use std::time::Duration;

use kubelet_core::{CgroupDriver, RuntimeError};
use kubelet_proto::cri::v1;
use kubelet_proto::tonic::Code;
use kubelet_proto::unix::EndpointError;

use crate::client::{Client, answer, within};
use crate::error::Op;

/// The pause between two tries to learn the runtime's configuration. Source: kubelet 1.36.
const CONFIG_PAUSE: Duration = Duration::from_secs(2);

/// Why a runtime cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The endpoint is not one.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Nobody answers there, or not in this protocol.
    #[error("no runtime that speaks CRI v1 answers at {endpoint}")]
    NoAnswer {
        /// Where.
        endpoint: String,
        /// What happened.
        #[source]
        source: RuntimeError,
    },
}

/// Name and version of a runtime.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) version: String,
}

pub(crate) async fn version(client: &Client) -> Result<Version, RuntimeError> {
    let op = Op::read("version", "version", "");
    let request = v1::VersionRequest {
        version: "0.1.0".to_owned(),
    };
    let mut runtime = client.runtime();
    let said = answer(op, client.limit(), runtime.version(within(client.limit(), request))).await?;
    let all = [
        &said.version,
        &said.runtime_name,
        &said.runtime_version,
        &said.runtime_api_version,
    ];
    if all.iter().any(|text| text.is_empty()) {
        return Err(op.bad_answer("one of its versions is empty"));
    }
    if said.version != "0.1.0" {
        return Err(op.bad_answer(&format!(
            "it speaks version {:?} of the kubelet's protocol",
            said.version
        )));
    }
    Ok(Version {
        name: said.runtime_name,
        version: said.runtime_version,
    })
}

/// How the runtime drives cgroups; nothing if it is too old to tell.
pub(crate) async fn cgroup_driver(client: &Client) -> Result<Option<CgroupDriver>, RuntimeError> {
    let op = Op::read("runtime_config", "runtime config", "");
    let mut tries = 0;
    loop {
        let request = within(client.limit(), v1::RuntimeConfigRequest {});
        let mut runtime = client.runtime();
        let call = runtime.runtime_config(request);
        match tokio::time::timeout(client.limit(), call).await {
            Ok(Ok(said)) => {
                let Some(linux) = said.into_inner().linux else {
                    return Ok(None);
                };
                return match v1::CgroupDriver::try_from(linux.cgroup_driver) {
                    Ok(v1::CgroupDriver::Systemd) => Ok(Some(CgroupDriver::Systemd)),
                    Ok(v1::CgroupDriver::Cgroupfs) => Ok(Some(CgroupDriver::Cgroupfs)),
                    Err(_) => Err(op.bad_answer(&format!("unknown cgroup driver {}", linux.cgroup_driver))),
                };
            }
            Ok(Err(status)) if status.code() == Code::Unimplemented => return Ok(None),
            failed => {
                tries += 1;
                if tries >= client.settings.config_tries {
                    return Err(match failed {
                        Ok(Err(status)) => op.error(status),
                        _ => op.no_answer(client.limit()),
                    });
                }
                tokio::time::sleep(CONFIG_PAUSE).await;
            }
        }
    }
}
