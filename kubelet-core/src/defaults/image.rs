//! The pull policy that an image's reference implies.

/// `Always` if the reference means the tag `latest`, else `IfNotPresent`.
pub(super) fn pull_policy(image: &str) -> &'static str {
    match effective_tag(image) {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

/// The tag of `[domain/]path[:tag][@digest]`: `latest` where there is neither tag nor digest, nothing where there is
/// only a digest or the text is no reference.
fn effective_tag(image: &str) -> Option<&str> {
    if is_hex(image, 64) {
        // Would be taken for an image id.
        return None;
    }
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    // A colon before the last slash belongs to the domain's port.
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match name[last..].find(':') {
        Some(colon) => (&name[..last + colon], Some(&name[last + colon + 1..])),
        None => (name, None),
    };
    let sound = is_name(name) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
    match (sound, tag, digest) {
        (true, None, None) => Some("latest"),
        (true, tag, _) => tag,
        (false, ..) => None,
    }
}

fn is_name(name: &str) -> bool {
    let (domain, path) = match name.split_once('/') {
        Some((first, rest)) if looks_like_domain(first) => (Some(first), rest),
        _ => (None, name),
    };
    name.len() <= 255 && domain.is_none_or(is_domain) && path.split('/').all(is_path_part)
}

/// Upper case makes it a domain too, since no path may hold any.
fn looks_like_domain(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost" || first.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (domain, None),
    };
    let sound_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'),
        None => host.split('.').all(|part| {
            !part.is_empty()
                && !part.starts_with('-')
                && !part.ends_with('-')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        }),
    };
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    sound_host && port.is_none_or(digits)
}

/// Lower case letters and digits; between them `.`, `_`, `__` or any number of dashes.
fn is_path_part(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut separator = String::new();
    let mut started = false;
    for byte in part.bytes() {
        if plain(byte) {
            let between = matches!(separator.as_str(), "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-');
            if !between || (!started && !separator.is_empty()) {
                return false;
            }
            started = true;
            separator.clear();
        } else {
            separator.push(char::from(byte));
        }
    }
    started && separator.is_empty()
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let mut bytes = tag.bytes();
    tag.len() <= 128 && bytes.next().is_some_and(word) && bytes.all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    match digest.split_once(':') {
        Some(("sha256", hex)) => is_hex(hex, 64),
        Some(("sha384", hex)) => is_hex(hex, 96),
        Some(("sha512", hex)) => is_hex(hex, 128),
        _ => false,
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::pull_policy;

    #[test]
    fn only_the_tag_latest_is_always_pulled() {
        let hex = "0123456789abcdef".repeat(4);
        let latest = format!("nginx:latest@sha256:{hex}");
        for image in [
            "nginx",
            "nginx:latest",
            "localhost/a",
            "reg.io:5000/a",
            "[::1]:5000/a",
            "Foo/a",
            "a--b/c__d/e.f",
            &latest,
        ] {
            assert_eq!(pull_policy(image), "Always", "{image}");
        }
        let long = format!("nginx:{}", "a".repeat(129));
        let digest = format!("nginx@sha256:{hex}");
        let both = format!("nginx:v1@sha256:{hex}");
        let name = "a".repeat(256);
        for image in [
            "nginx:1",
            "nginx:Latest",
            &digest,
            &both,
            "NGINX",
            "a/Foo",
            "nginx:",
            &hex,
            &long,
            "x:latest@sha256:abc",
            "x:latest@md5:abc",
            "",
            "a//b",
            "a..b",
            "a___b",
            "-a",
            "a-",
            "é",
            " nginx",
            &name,
        ] {
            assert_eq!(pull_policy(image), "IfNotPresent", "{image}");
        }
    }
}
