//! The host: its address and its users.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;

/// The address from which the host would reach the outside. Sends nothing: connecting a datagram socket only chooses a
/// route.
pub(crate) fn primary_address() -> IpAddr {
    // Addresses that are reserved for documentation: nobody's, and routed like any other.
    [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")]
        .into_iter()
        .find_map(|(from, to)| {
            let socket = UdpSocket::bind(from).ok()?;
            socket.connect(to).ok()?;
            let address = socket.local_addr().ok()?.ip();
            (!address.is_unspecified() && !address.is_loopback()).then_some(address)
        })
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// A user as `/etc/passwd` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PasswdEntry {
    pub(crate) gid: u32,
    pub(crate) home: String,
}

/// Looks a user up below a root folder. A missing or malformed file knows nobody.
pub(crate) fn passwd_entry(root: &Path, uid: u32) -> Option<PasswdEntry> {
    parse_passwd(&fs::read_to_string(root.join("etc/passwd")).ok()?, uid)
}

fn parse_passwd(text: &str, uid: u32) -> Option<PasswdEntry> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, id, gid, _, home, ..] = fields.as_slice() else {
            return None;
        };
        (id.parse() == Ok(uid)).then_some(())?;
        Some(PasswdEntry {
            gid: gid.parse().ok()?,
            home: (*home).to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{PasswdEntry, parse_passwd, primary_address};

    #[test]
    fn a_user_is_found_by_number_between_malformed_lines() {
        let text = "# comment\nroot:x:0:0:root:/root:/bin/sh\nbroken:x\napp:x:1000:2000::/home/app:\n";
        let app = PasswdEntry {
            gid: 2000,
            home: "/home/app".to_owned(),
        };
        assert_eq!(parse_passwd(text, 1000), Some(app));
        assert_eq!(parse_passwd(text, 1), None);
    }

    #[test]
    fn the_host_always_has_an_address() {
        assert!(!primary_address().is_unspecified());
    }
}
