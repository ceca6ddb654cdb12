//! The hash that tells whether a container's definition changed.

use std::fmt::Write;

/// Hash of a container's name and image, the two fields whose change restarts it.
///
/// Source: kubelet 1.36 hashes, with 32-bit FNV-1a, the Go text form of the bytes of compact JSON of the two fields.
/// The text is kept, so that containers of an upstream kubelet are taken over without a restart.
#[must_use]
pub fn container_hash(name: &str, image: &str) -> u32 {
    let json = format!("{{\"image\":{},\"name\":{}}}", go_json(image), go_json(name));
    let mut text = String::with_capacity(json.len() * 4 + 12);
    text.push_str("([]uint8)[");
    for (i, byte) in json.bytes().enumerate() {
        if i > 0 {
            text.push(' ');
        }
        let _ = write!(text, "{byte}");
    }
    text.push(']');
    fnv1a_32(text.as_bytes())
}

/// A JSON string as Go writes it: like serde's, with `<`, `>`, `&` and the two line separators escaped too.
pub(crate) fn go_json(text: &str) -> String {
    serde_json::Value::from(text)
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::container_hash;

    #[test]
    fn the_hash_is_that_of_an_upstream_kubelet() {
        assert_eq!(container_hash("test_container", "foo/image:v1"), 0x8e45_cbd0);
    }
}
