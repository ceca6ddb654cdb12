//! What runtimes can do and do not say.

use kubelet_core::ImageMounts;

/// Whether a runtime mounts images into containers. CRI has no field for that: one that cannot fails with a text about an empty path,
/// and one that knows no parts of images would mount the whole image without a word.
///
/// A runtime whose versions are not known is believed to do what it is asked for.
pub(crate) fn image_mounts(name: &str, version: &str) -> ImageMounts {
    let (whole, parts) = match name {
        "containerd" => ((2, 1), (2, 2)),
        "cri-o" => ((1, 31), (1, 33)),
        _ => return ImageMounts::SubPaths,
    };
    match release(version) {
        Some(version) if version < whole => ImageMounts::No,
        Some(version) if version < parts => ImageMounts::Whole,
        _ => ImageMounts::SubPaths,
    }
}

/// The first two numbers of a version such as `v2.1.9~ds1` or `1.6.20`.
fn release(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.trim_start_matches('v').split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use kubelet_core::ImageMounts::{No, SubPaths, Whole};

    use super::image_mounts;

    #[test]
    fn the_version_tells() {
        for (name, version, expected) in [
            ("containerd", "1.6.20~ds1", No),
            ("containerd", "v2.0.5", No),
            ("containerd", "2.1.9~ds1", Whole),
            ("containerd", "v2.2.0-rc.1", SubPaths),
            ("containerd", "v10.0.0", SubPaths),
            ("cri-o", "1.30.2", No),
            ("cri-o", "1.31", Whole),
            ("cri-o", "1.33.0", SubPaths),
            ("containerd", "main", SubPaths),
            ("other", "0.1", SubPaths),
        ] {
            assert_eq!(image_mounts(name, version), expected, "{name} {version}");
        }
    }
}
