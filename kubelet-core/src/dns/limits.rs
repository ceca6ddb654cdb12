//! What fits into a `resolv.conf`.

use super::DnsConfig;

/// The most servers that a resolver asks.
pub const MAX_NAMESERVERS: usize = 3;
/// The most search paths.
pub const MAX_SEARCHES: usize = 32;
/// The most bytes of one search path.
pub const MAX_SEARCH_PATH: usize = 253;
/// The most bytes of all search paths, joined with blanks.
pub const MAX_SEARCH_LINE: usize = 2048;
/// How many search paths the cluster's own domain brings.
const CLUSTER_SEARCHES: usize = 3;

/// What was left out of a pod's resolver to stay within the limits, with what is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DnsCut {
    /// Some servers.
    #[error("Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {0}")]
    Servers(String),
    /// Some search paths.
    #[error("Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {0}")]
    Searches(String),
}

/// Cuts what does not fit, from the end.
pub(super) fn apply(config: &mut DnsConfig) -> Vec<DnsCut> {
    let mut cut = Vec::new();
    if config.servers.len() > MAX_NAMESERVERS {
        config.servers.truncate(MAX_NAMESERVERS);
        cut.push(DnsCut::Servers(config.servers.join(" ")));
    }
    let before = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|path| path.len() <= MAX_SEARCH_PATH);
    while line_length(&config.searches) > MAX_SEARCH_LINE {
        config.searches.pop();
    }
    if config.searches.len() < before {
        cut.push(DnsCut::Searches(config.searches.join(" ")));
    }
    cut
}

fn line_length(searches: &[String]) -> usize {
    searches
        .iter()
        .map(|path| path.len() + 1)
        .sum::<usize>()
        .saturating_sub(1)
}

/// Says what is too much in the host's own file, where the cluster's domain takes some room of it too.
#[must_use]
pub fn check_host_limits(host: &DnsConfig, has_cluster_domain: bool) -> Option<String> {
    let room = if has_cluster_domain {
        MAX_SEARCHES - CLUSTER_SEARCHES
    } else {
        MAX_SEARCHES
    };
    if host.searches.len() > room {
        return Some(format!(
            "the host's resolv.conf has {} search paths, of which pods can use {room}",
            host.searches.len()
        ));
    }
    if let Some(path) = host.searches.iter().find(|path| path.len() > MAX_SEARCH_PATH) {
        return Some(format!(
            "the host's resolv.conf has a search path of {} characters, more than {MAX_SEARCH_PATH}: {path}",
            path.len()
        ));
    }
    let length = line_length(&host.searches);
    (length > MAX_SEARCH_LINE).then(|| {
        format!("the search paths of the host's resolv.conf have {length} characters, more than {MAX_SEARCH_LINE}")
    })
}

#[cfg(test)]
mod tests {
    use super::super::DnsConfig;
    use super::{DnsCut, MAX_SEARCH_LINE, apply, check_host_limits};

    fn searches(count: usize, length: usize) -> DnsConfig {
        let paths = (0..count).map(|n| format!("{n:0>length$}"));
        DnsConfig::new(Vec::<String>::new(), paths)
    }

    #[test]
    fn three_servers_are_kept() {
        let mut config = DnsConfig::new(["1", "2", "3", "4"], Vec::<String>::new());
        assert_eq!(apply(&mut config), [DnsCut::Servers("1 2 3".to_owned())]);
        assert_eq!(config.servers, ["1", "2", "3"]);
        assert!(apply(&mut config).is_empty());
    }

    #[test]
    fn search_paths_are_cut_by_number_by_length_and_together() {
        for (mut config, left) in [
            (searches(32, 5), 32),
            (searches(33, 5), 32),
            (searches(2, 253), 2),
            (searches(2, 254), 0),
            (searches(30, 80), 25),
        ] {
            let before = config.searches.len();
            let cut = apply(&mut config);
            assert_eq!(config.searches.len(), left);
            assert_eq!(cut.is_empty(), left == before);
            assert!(config.searches.join(" ").len() <= MAX_SEARCH_LINE);
        }
    }

    #[test]
    fn the_host_is_told_what_pods_cannot_use() {
        assert_eq!(check_host_limits(&searches(32, 5), false), None);
        assert_eq!(check_host_limits(&searches(29, 5), true), None);
        let text = check_host_limits(&searches(30, 5), true).unwrap();
        assert_eq!(
            text,
            "the host's resolv.conf has 30 search paths, of which pods can use 29"
        );
        assert!(
            check_host_limits(&searches(1, 254), false)
                .unwrap()
                .contains("254 characters")
        );
        assert!(
            check_host_limits(&searches(20, 200), false)
                .unwrap()
                .contains("more than 2048")
        );
    }
}
