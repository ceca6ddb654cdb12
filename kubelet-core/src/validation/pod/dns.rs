//! Name resolution.

use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};

use crate::validation::check::{name, one_of};
use crate::validation::field::{FieldErrors, FieldPath, Json};
use crate::validation::names::NameKind;

const NAMESERVERS: usize = 3;
const SEARCHES: usize = 32;
const SEARCH_BYTES: usize = 2048;

pub(in crate::validation) fn check_policy(spec: &PodSpec, errors: &mut FieldErrors) {
    let path = FieldPath::new("spec").child("dnsPolicy");
    let known = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(path, spec.dns_policy.as_deref(), &known, errors);
}

pub(in crate::validation) fn check_config(spec: &PodSpec, errors: &mut FieldErrors) {
    let path = FieldPath::new("spec").child("dnsConfig");
    let alone = spec.dns_policy.as_deref() == Some("None");
    let Some(config) = &spec.dns_config else {
        if alone {
            errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        return;
    };
    if alone && config.nameservers.as_ref().is_none_or(Vec::is_empty) {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return errors.required(path.child("nameservers"), detail);
    }
    check_servers(config, &path.child("nameservers"), errors);
    check_searches(config, &path.child("searches"), errors);
    for (k, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            errors.required(path.child("options").index(k), "must not be empty");
        }
    }
}

fn check_servers(config: &PodDNSConfig, path: &FieldPath, errors: &mut FieldErrors) {
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if servers.len() > NAMESERVERS {
        let detail = format!("must not have more than {NAMESERVERS} nameservers");
        errors.invalid(path.clone(), Json(&servers), detail);
    }
    for (k, server) in servers.iter().enumerate() {
        name(&path.index(k), server, NameKind::Ip, errors);
    }
}

fn check_searches(config: &PodDNSConfig, path: &FieldPath, errors: &mut FieldErrors) {
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > SEARCHES {
        let detail = format!("must not have more than {SEARCHES} search paths");
        errors.invalid(path.clone(), Json(&searches), detail);
    }
    if searches.join(" ").len() > SEARCH_BYTES {
        let detail = format!("must not have more than {SEARCH_BYTES} characters (including spaces) in the search list");
        errors.invalid(path.clone(), Json(&searches), detail);
    }
    for (k, search) in searches.iter().enumerate() {
        if search != "." {
            let bare = search.strip_suffix('.').unwrap_or(search);
            let faults = NameKind::UnderscoreSubdomain.faults(bare);
            errors.invalid_each(&path.index(k), search, faults);
        }
    }
}

pub(super) fn check_host_aliases(spec: &PodSpec, errors: &mut FieldErrors) {
    let list = FieldPath::new("spec").child("hostAliases");
    for (k, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = list.index(k);
        name(&path.child("ip"), &alias.ip, NameKind::Ip, errors);
        for (m, host) in alias.hostnames.iter().flatten().enumerate() {
            name(&path.child("hostnames").index(m), host, NameKind::Subdomain, errors);
        }
    }
}
