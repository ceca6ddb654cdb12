//! What a container is told about itself and its surroundings: environment, command line, host name,
//! hosts file.
//!
//! Source: kubelet 1.36, `kubelet_pods.go` and the packages it uses. All but [`build_env`] are pure
//! functions.

mod build;
mod env_file;
mod error;
mod expansion;
mod field_ref;
mod file_key;
mod hostname;
mod hosts;
mod names;
mod resource_ref;
mod services;
mod variables;

pub use build::{ContainerEnv, EnvRequest, build_env};
pub use env_file::{EnvFileError, EnvFileProblem, env_file_value};
pub use error::EnvError;
pub use expansion::{MissingVariables, expand, expand_command, expand_sub_path};
pub use field_ref::{FieldRefError, PodFields};
pub use file_key::EnvFileAccessError;
pub use hostname::{HostnameError, hostname_and_domain, sandbox_hostname};
pub use hosts::{host_network_hosts_file, hosts_file};
pub use resource_ref::{ResourceRefError, resource_value};
pub use services::{ServiceLinks, service_variables};
pub use variables::Env;
