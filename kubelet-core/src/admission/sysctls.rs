//! Which settings of the kernel a pod may change in its own namespaces.
//!
//! Source: kubelet 1.36, `sysctl/allowlist.go` and `sysctl/safe_sysctls.go`.

use std::collections::BTreeMap;
use std::fmt;

use super::{Admission, AdmitHandler, AdmitRequest, Operation};

const REASON: &str = "SysctlForbidden";
/// Longest name or pattern.
const MAX_BYTES: usize = 253;

/// What changes nothing beyond the pod, with the first kernel of which that is so.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// The name with dots between its parts. Whichever of `.` and `/` comes first is what parts it; the other one stands for a
/// dot in the name of a network device, as for `sysctl(8)`.
pub(crate) fn sysctl_name(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name.as_bytes()[at] == b'.') {
        return name.to_owned();
    }
    let swap = |character| match character {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

/// The namespace that a setting is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

impl Namespace {
    /// That of a setting, or of all that begin so, as far as it is known.
    fn of(name: &str) -> Option<Self> {
        let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
        if name == "kernel.sem" || ipc.iter().any(|prefix| name.starts_with(prefix)) {
            Some(Self::Ipc)
        } else if name.starts_with("net.") {
            Some(Self::Net)
        } else {
            None
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipc => "IPC",
            Self::Net => "Net",
        })
    }
}

/// Refuses pods that change what is neither safe nor allowed, or what they share with the host.
#[derive(Clone, Debug)]
pub(crate) struct Sysctls {
    exact: BTreeMap<String, Namespace>,
    prefixes: Vec<(String, Namespace)>,
}

impl Sysctls {
    /// Allows what is safe with a kernel of that version, and what these patterns name: a name, or the beginning of one
    /// and `*`. An error is the pattern, and what is wrong with it.
    pub(crate) fn new(allowed: &[String], kernel: (u32, u32)) -> Result<Self, (String, &'static str)> {
        let safe = SAFE.iter().filter(|(_, since)| *since <= kernel);
        let mut made = Self {
            exact: safe
                .filter_map(|(name, _)| Some(((*name).to_owned(), Namespace::of(name)?)))
                .collect(),
            prefixes: Vec::new(),
        };
        for pattern in allowed {
            if !is_pattern(pattern) {
                return Err((pattern.clone(), "no name, nor the beginning of one and *"));
            }
            let name = sysctl_name(pattern);
            let (name, is_prefix) = match name.strip_suffix('*') {
                Some(prefix) => (prefix, true),
                None => (name.as_str(), false),
            };
            let Some(namespace) = Namespace::of(name) else {
                return Err((pattern.clone(), "not known to be of a pod's own namespaces alone"));
            };
            if is_prefix {
                made.prefixes.push((name.to_owned(), namespace));
            } else {
                made.exact.insert(name.to_owned(), namespace);
            }
        }
        Ok(made)
    }

    fn refuse(&self, name: &str, host_network: bool, host_ipc: bool) -> Option<String> {
        let plain = sysctl_name(name);
        let by_prefix = || {
            let mut prefixes = self.prefixes.iter();
            prefixes
                .find(|(prefix, _)| plain.starts_with(prefix))
                .map(|(_, of)| *of)
        };
        match self.exact.get(&plain).copied().or_else(by_prefix) {
            None => Some(format!("forbidden sysctl: {plain:?} not allowlisted")),
            Some(namespace) => {
                let is_shared = match namespace {
                    Namespace::Ipc => host_ipc,
                    Namespace::Net => host_network,
                };
                is_shared.then(|| format!("forbidden sysctl: {plain:?} not allowed with host {namespace} enabled"))
            }
        }
    }
}

impl AdmitHandler for Sysctls {
    fn admit(&self, req: &AdmitRequest<'_>) -> Admission {
        // A running pod cannot change its own.
        if req.operation == Operation::Resize {
            return Admission::Admit;
        }
        let spec = req.pod.spec();
        let sysctls = spec
            .security_context
            .as_ref()
            .and_then(|context| context.sysctls.as_ref());
        let (network, ipc) = (spec.host_network.unwrap_or(false), spec.host_ipc.unwrap_or(false));
        let refusal = sysctls
            .into_iter()
            .flatten()
            .find_map(|sysctl| self.refuse(&sysctl.name, network, ipc));
        refusal.map_or(Admission::Admit, |why| Admission::reject(REASON, why))
    }
}

/// Whether the text is a name, or the beginning of one and `*`.
fn is_pattern(pattern: &str) -> bool {
    if pattern.is_empty() || pattern.len() > MAX_BYTES {
        return false;
    }
    let may_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_inner = |byte: u8| may_end(byte) || byte == b'-' || byte == b'_';
    let is_segment = |segment: &str| {
        let bytes = segment.as_bytes();
        let ends = bytes.first().is_some_and(|b| may_end(*b)) && bytes.last().is_some_and(|b| may_end(*b));
        ends && bytes.iter().all(|byte| is_inner(*byte))
    };
    let (beginning, is_prefix) = match pattern.strip_suffix('*') {
        Some(beginning) => (beginning, true),
        None => (pattern, false),
    };
    let mut segments = beginning.split(['.', '/']);
    // The last one of a prefix may be cut anywhere.
    let last = if is_prefix { segments.next_back() } else { None };
    let last_fits = last.is_none_or(|last| {
        let bytes = last.as_bytes();
        bytes.first().is_none_or(|byte| may_end(*byte)) && bytes.iter().all(|byte| is_inner(*byte))
    });
    last_fits && segments.all(is_segment)
}

/// The version of the kernel that runs here; 0.0 where it does not say.
pub(crate) fn kernel_version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    parse_release(&release).unwrap_or((0, 0))
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::{Sysctls, is_pattern, parse_release, sysctl_name};
    use crate::admission::{ActivePods, Admission, AdmitHandler, AdmitRequest, NodeView, Operation};
    use crate::pod::testing::record;

    const NEW: (u32, u32) = (6, 1);

    fn allowing(patterns: &[&str], kernel: (u32, u32)) -> Result<Sysctls, (String, &'static str)> {
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        Sysctls::new(&patterns, kernel)
    }

    /// The message of the refusal; nothing if it is admitted.
    fn ask(sysctls: &Sysctls, name: &str, host: &str) -> Option<String> {
        let pod = Arc::new(record(json!({"spec": {
            "hostNetwork": host == "network", "hostIPC": host == "ipc",
            "securityContext": {"sysctls": [{"name": name, "value": "1"}]},
            "containers": [{"name": "app", "image": "i"}],
        }})));
        let (others, node) = (ActivePods::new(), NodeView::new("edge-7"));
        let answer = |operation| sysctls.admit(&AdmitRequest::new(operation, &pod, &others, &node));
        assert_eq!(answer(Operation::Resize), Admission::Admit);
        assert_eq!(answer(Operation::New), answer(Operation::Restored));
        match answer(Operation::New) {
            Admission::Admit => None,
            Admission::Reject { reason, message } => {
                assert_eq!(reason, "SysctlForbidden");
                Some(message)
            }
            Admission::NotYet { .. } => unreachable!(),
        }
    }

    #[test]
    fn what_is_safe_depends_on_the_kernel() {
        let all = [
            ("kernel.shm_rmid_forced", (2, 6)),
            ("net.ipv4.ip_local_port_range", (2, 6)),
            ("net.ipv4.tcp_syncookies", (2, 6)),
            ("net.ipv4.ping_group_range", (2, 6)),
            ("net.ipv4.ip_unprivileged_port_start", (2, 6)),
            ("net.ipv4.ip_local_reserved_ports", (3, 16)),
            ("net.ipv4.tcp_keepalive_time", (4, 5)),
            ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
            ("net.ipv4.tcp_keepalive_probes", (4, 5)),
            ("net.ipv4.tcp_fin_timeout", (4, 6)),
            ("net.ipv4.tcp_rmem", (4, 15)),
            ("net.ipv4.tcp_wmem", (4, 15)),
        ];
        for kernel in [(2, 6), (3, 15), (3, 16), (4, 5), (4, 6), (4, 14), (4, 15), (10, 0)] {
            let sysctls = allowing(&[], kernel).unwrap();
            for (name, since) in all {
                let refusal = ask(&sysctls, name, "");
                assert_eq!(refusal.is_none(), since <= kernel, "{name} with {kernel:?}");
            }
        }
        for (release, version) in [
            ("6.18.44-fc-v657\n", Some((6, 18))),
            ("4.15-rc1", Some((4, 15))),
            ("", None),
            ("Darwin", None),
        ] {
            assert_eq!(parse_release(release), version);
        }
    }

    #[test]
    fn what_is_not_safe_must_be_allowed() {
        let none = allowing(&[], NEW).unwrap();
        assert_eq!(
            ask(&none, "kernel.msgmax", "").as_deref(),
            Some(r#"forbidden sysctl: "kernel.msgmax" not allowlisted"#)
        );
        let some = allowing(&["kernel.msg*", "net.core.somaxconn", "net/ipv6/*"], NEW).unwrap();
        for (name, is_allowed) in [
            ("kernel.msgmax", true),
            ("kernel.msg", true),
            ("net.core.somaxconn", true),
            ("net/core/somaxconn", true),
            ("net.core.somaxconn2", false),
            ("net.ipv6.conf.all.forwarding", true),
            ("net.ipv4.ip_forward", false),
            ("kernel.sem", false),
            ("kernel.panic", false),
            ("vm.swappiness", false),
        ] {
            assert_eq!(ask(&some, name, "").is_none(), is_allowed, "{name}");
        }
    }

    #[test]
    fn what_the_pod_shares_with_the_host_is_the_hosts() {
        let sysctls = allowing(&["net.core.*"], NEW).unwrap();
        for (name, host, namespace) in [
            ("net.ipv4.tcp_syncookies", "network", Some("Net")),
            ("net/core/somaxconn", "network", Some("Net")),
            ("kernel.shm_rmid_forced", "network", None),
            ("kernel.shm_rmid_forced", "ipc", Some("IPC")),
            ("net.ipv4.tcp_syncookies", "ipc", None),
        ] {
            let refusal = ask(&sysctls, name, host);
            assert_eq!(refusal.is_some(), namespace.is_some(), "{name} with {host}");
            if let (Some(refusal), Some(namespace)) = (refusal, namespace) {
                let end = format!("not allowed with host {namespace} enabled");
                assert!(refusal.ends_with(&end), "{refusal}");
            }
        }
    }

    #[test]
    fn patterns_are_of_namespaces_that_are_known() {
        for good in [
            "kernel.sem",
            "kernel.shm*",
            "kernel.shmall",
            "kernel.msg*",
            "kernel.msgmnb",
            "fs.mqueue.*",
            "fs/mqueue/msg_max",
            "net.*",
            "net.ipv4.conf.eth0/100.*",
        ] {
            assert!(allowing(&[good], NEW).is_ok(), "{good}");
        }
        for bad in [
            "kernel.*",
            "kernel.sem*2",
            "kernel.panic",
            "fs.*",
            "net*",
            "*",
            "",
            "Net.x",
            "net..x",
            "vm.*",
            "net.x.",
        ] {
            let (pattern, _) = allowing(&["net.*", bad], NEW).unwrap_err();
            assert_eq!(pattern, bad);
        }
        assert!(!is_pattern(&format!("net.{}", "x".repeat(250))));
    }

    #[test]
    fn the_first_separator_counts() {
        for (name, plain) in [
            ("net/ipv4/conf/eth0.100/rp_filter", "net.ipv4.conf.eth0/100.rp_filter"),
            ("net.ipv4.conf.eth0/100.rp_filter", "net.ipv4.conf.eth0/100.rp_filter"),
            ("kernel.sem", "kernel.sem"),
            ("kernel", "kernel"),
        ] {
            assert_eq!(sysctl_name(name), plain);
        }
    }
}
