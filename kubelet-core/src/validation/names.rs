//! What names may look like.

mod rules;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, Ipv6Addr};

use rules::{Parts, dashed, every_part, parts_by, subdomain, with_edges};

/// A rule for names. Every rule looks at the whole text and counts bytes.
///
/// Source: Kubernetes 1.36, `apimachinery/pkg/util/validation`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum NameKind {
    /// RFC 1123 label, 63 bytes.
    Label,
    /// Labels joined by dots, 253 bytes. A single part has no bound of its own.
    Subdomain,
    /// Like [`Self::Subdomain`], and parts may start with one `_` and contain more: a DNS search path.
    UnderscoreSubdomain,
    /// `[prefix/]name`: label keys, condition types, resource names.
    Qualified,
    /// A label's value: empty, or like the name of [`Self::Qualified`].
    LabelValue,
    /// An annotation's key: [`Self::Qualified`] once in lower case.
    AnnotationKey,
    /// An environment variable: printable ASCII without `=`.
    EnvVar,
    /// A key of a secret or config map, 253 bytes.
    ConfigMapKey,
    /// A port's name, 15 bytes.
    Port,
    /// A kernel parameter, parts joined by `.` or `/`, 253 bytes.
    Sysctl,
    /// An HTTP header's name.
    HttpHeader,
    /// `<domain>/<path>`, 571 bytes.
    Signer,
    /// An IPv4 or IPv6 address without zone.
    Ip,
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const UNDERSCORE_SUBDOMAIN: &str = r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const CONFIG_MAP_KEY: &str = "[-._a-zA-Z0-9]+";
pub(super) const SYSCTL: &str = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
const HTTP_HEADER: &str = "[-A-Za-z0-9]+";

impl NameKind {
    /// Whether `name` keeps the rule.
    #[must_use]
    pub fn allows(self, name: &str) -> bool {
        self.faults(name).is_empty()
    }

    /// What is wrong with `name`, one text for each broken part of the rule; empty if it is fine.
    #[must_use]
    pub fn faults(self, name: &str) -> Vec<String> {
        match self {
            Self::Label => label_faults(name),
            Self::Subdomain => subdomain_faults(name),
            Self::UnderscoreSubdomain => underscore_subdomain_faults(name),
            Self::Qualified => qualified_faults(name),
            Self::LabelValue => label_value_faults(name),
            Self::AnnotationKey => qualified_faults(&name.to_lowercase()),
            Self::EnvVar => env_var_faults(name),
            Self::ConfigMapKey => config_map_key_faults(name),
            Self::Port => port_faults(name),
            Self::Sysctl => sysctl_faults(name),
            Self::HttpHeader => http_header_faults(name),
            Self::Signer => signer_faults(name),
            Self::Ip => ip_faults(name),
        }
    }
}

fn label_faults(name: &str) -> Vec<String> {
    let mut faults = too_long(name, 63, "characters");
    if !dashed(name) {
        if subdomain(name) {
            faults.push("must not contain dots".to_owned());
        } else {
            faults.push(pattern(
                "an RFC 1123 label holds lower case letters, digits and '-', and starts and ends with a letter or digit",
                LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    faults
}

fn subdomain_faults(name: &str) -> Vec<String> {
    let mut faults = too_long(name, 253, "characters");
    if !subdomain(name) {
        faults.push(pattern(
            "an RFC 1123 subdomain holds lower case letters, digits, '-' and '.', and each part starts and ends with a letter or digit",
            SUBDOMAIN,
            &["example.com"],
        ));
    }
    faults
}

fn underscore_subdomain_faults(name: &str) -> Vec<String> {
    let mut faults = too_long(name, 253, "characters");
    let part = |part: &str| {
        let part = part.strip_prefix('_').unwrap_or(part);
        with_edges(part, lower_or_digit, |b| lower_or_digit(b) || b == b'-' || b == b'_')
    };
    if !every_part(name, '.', part) {
        faults.push(pattern(
            "a search path holds lower case letters, digits, '-', '_' and '.', and each part, after one '_', starts and ends with a letter or digit",
            UNDERSCORE_SUBDOMAIN,
            &["example.com"],
        ));
    }
    faults
}

fn qualified_faults(name: &str) -> Vec<String> {
    let rule = "it holds letters, digits, '-', '_' and '.', and starts and ends with a letter or digit";
    let examples = ["MyName", "my.name", "123-abc"];
    let mut faults = Vec::new();
    let name = match parts_by(name, '/') {
        Parts::One(name) => name,
        Parts::Two(prefix, name) => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".to_owned());
            } else {
                let broken = subdomain_faults(prefix);
                faults.extend(broken.iter().map(|fault| format!("prefix part {fault}")));
            }
            name
        }
        Parts::More => {
            let text = pattern(
                &format!("a qualified name has at most one '/': {rule}"),
                QUALIFIED,
                &examples,
            );
            return vec![text];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    }
    let broken = too_long(name, 63, "bytes");
    faults.extend(broken.iter().map(|fault| format!("name part {fault}")));
    if !qualified_part(name) {
        faults.push(format!("name part {}", pattern(rule, QUALIFIED, &examples)));
    }
    faults
}

fn label_value_faults(value: &str) -> Vec<String> {
    let mut faults = too_long(value, 63, "bytes");
    if !value.is_empty() && !qualified_part(value) {
        faults.push(pattern(
            "a label's value is empty, or holds letters, digits, '-', '_' and '.', and starts and ends with a letter or digit",
            LABEL_VALUE,
            &["MyValue", "my_value", "12345"],
        ));
    }
    faults
}

fn env_var_faults(name: &str) -> Vec<String> {
    if !name.is_empty() && name.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'=') {
        return Vec::new();
    }
    vec!["an environment variable's name must consist only of printable ASCII characters other than '='".to_owned()]
}

fn config_map_key_faults(key: &str) -> Vec<String> {
    let mut faults = too_long(key, 253, "characters");
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if key.is_empty() || !key.bytes().all(allowed) {
        faults.push(pattern(
            "a key holds letters, digits, '-', '_' and '.'",
            CONFIG_MAP_KEY,
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match key {
        "." => faults.push("must not be '.'".to_owned()),
        ".." => faults.push("must not be '..'".to_owned()),
        _ if key.starts_with("..") => faults.push("must not start with '..'".to_owned()),
        _ => {}
    }
    faults
}

fn port_faults(name: &str) -> Vec<String> {
    let mut faults = too_long(name, 15, "characters");
    let mut rule = |kept: bool, text: &str| {
        if !kept {
            faults.push(text.to_owned());
        }
    };
    rule(
        !name.is_empty() && name.bytes().all(|b| lower_or_digit(b) || b == b'-'),
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
    );
    rule(
        name.bytes().any(|b| b.is_ascii_lowercase()),
        "must contain at least one letter (a-z)",
    );
    rule(!name.contains("--"), "must not contain consecutive hyphens");
    rule(
        !name.starts_with('-') && !name.ends_with('-'),
        "must not begin or end with a hyphen",
    );
    faults
}

fn sysctl_faults(name: &str) -> Vec<String> {
    let part = |part: &str| with_edges(part, lower_or_digit, |b| lower_or_digit(b) || b == b'-' || b == b'_');
    if name.len() <= 253 && name.split(['.', '/']).all(part) {
        return Vec::new();
    }
    vec![format!("must have at most 253 characters and match regex ^{SYSCTL}$")]
}

fn http_header_faults(name: &str) -> Vec<String> {
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    vec![pattern(
        "an HTTP header's name holds letters, digits and '-'",
        HTTP_HEADER,
        &["X-Header-Name"],
    )]
}

fn signer_faults(name: &str) -> Vec<String> {
    let mut faults = too_long(name, 571, "characters");
    let Parts::Two(domain, path) = parts_by(name, '/') else {
        faults.push("must be of the form <domain>/<path>".to_owned());
        return faults;
    };
    if domain.len() > 253 || !domain.contains('.') || !domain.split('.').all(|part| label_faults(part).is_empty()) {
        faults.push("domain part must be at least two labels joined by '.', at most 253 characters".to_owned());
    }
    if !subdomain(path) {
        faults.push("path part must be subdomains joined by '.'".to_owned());
    }
    faults
}

/// Upstream's parser reads IPv4 parts strictly: no leading zeros, and no IPv4 address mapped into IPv6.
fn ip_faults(text: &str) -> Vec<String> {
    let fault = |text: &str| vec![text.to_owned()];
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return match address.to_ipv4_mapped() {
            Some(_) => fault("must not be an IPv4-mapped IPv6 address"),
            None => Vec::new(),
        };
    }
    if text.parse::<Ipv4Addr>().is_ok() {
        return Vec::new();
    }
    let bare: Vec<_> = text
        .split('.')
        .map(|part| {
            let cut = part.trim_start_matches('0');
            if cut.is_empty() && !part.is_empty() { "0" } else { cut }
        })
        .collect();
    if bare.join(".").parse::<Ipv4Addr>().is_ok() {
        return fault("must not have leading 0s");
    }
    fault("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
}

fn lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn qualified_part(name: &str) -> bool {
    with_edges(
        name,
        |b| b.is_ascii_alphanumeric(),
        |b| b.is_ascii_alphanumeric() || b"-_.".contains(&b),
    )
}

fn too_long(name: &str, most: usize, unit: &str) -> Vec<String> {
    if name.len() <= most {
        return Vec::new();
    }
    vec![format!("must be no more than {most} {unit}")]
}

fn pattern(rule: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<_> = examples.iter().map(|example| format!("'{example}', ")).collect();
    let examples = examples.join(" or ");
    format!("{rule} (e.g. {examples}regex used for validation is '{pattern}')")
}
