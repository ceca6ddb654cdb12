//! A hash that stays the same over restarts and releases. Not for secrets.

/// FNV-1a with 128 bits.
pub(crate) fn fnv1a_128(bytes: &[u8]) -> u128 {
    fnv1a_128_more(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, bytes)
}

/// Goes on with more bytes.
pub(crate) fn fnv1a_128_more(hash: u128, bytes: &[u8]) -> u128 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
mod tests {
    use super::fnv1a_128;

    #[test]
    fn the_hash_has_its_published_values() {
        assert_eq!(fnv1a_128(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(fnv1a_128(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
