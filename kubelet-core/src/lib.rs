#![doc = include_str!("../README.md")]

mod manifest;

pub use manifest::{
    Decoded, Locator, MAX_MANIFEST_BYTES, ManifestError, ManifestKind, UnknownField, decode_pod,
    decode_pods, manifest_kind,
};
