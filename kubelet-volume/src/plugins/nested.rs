//! Mounts within mounts: what a runtime cannot make in a volume that is read-only is there already.
//!
//! Source: kubelet 1.36, `volume/util/nested_volumes.go`.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use kubelet_core::PodRecord;

/// The folders in a volume that other mounts of its pod's containers come to lie on, of each nesting the outermost.
pub(super) fn mount_points(pod: &PodRecord, volume: &str) -> BTreeSet<PathBuf> {
    let mut points = BTreeSet::new();
    for view in pod.containers() {
        let mounts = view.volume_mounts();
        for own in mounts.iter().filter(|mount| mount.name == volume && is_whole(mount)) {
            let mut inside: Vec<PathBuf> = mounts
                .iter()
                .filter_map(|other| below(&own.mount_path, &other.mount_path))
                .collect();
            // Outer ones come first.
            inside.sort();
            let mut outermost: Vec<PathBuf> = Vec::new();
            for path in inside {
                if !outermost.iter().any(|outer| path.starts_with(outer)) {
                    outermost.push(path);
                }
            }
            points.extend(outermost);
        }
    }
    points
}

fn is_whole(mount: &kubelet_core::k8s_openapi::api::core::v1::VolumeMount) -> bool {
    let paths = [&mount.sub_path, &mount.sub_path_expr];
    paths.into_iter().flatten().all(String::is_empty)
}

/// Where `path` lies in `outer`, if strictly within.
fn below(outer: &str, path: &str) -> Option<PathBuf> {
    let relative = Path::new(path).strip_prefix(Path::new(outer)).ok()?;
    let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    (relative != Path::new("") && is_plain).then(|| relative.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use kubelet_core::{PodRecord, SourceKind};
    use kubelet_testing::PodBuilder;

    use super::mount_points;

    #[test]
    fn the_outermost_mounts_within_a_volume_are_found() {
        let mut pod = PodBuilder::new("a").uid("a").container("app", |c| c).build();
        let mount = |name: &str, path: &str| {
            serde_json::from_value(serde_json::json!({"name": name, "mountPath": path})).unwrap()
        };
        pod.spec.as_mut().unwrap().containers[0].volume_mounts = Some(vec![
            mount("config", "/etc/app"),
            mount("certs", "/etc/app/certs"),
            mount("ca", "/etc/app/certs/ca"),
            mount("more", "/etc/app/more/of/it"),
            mount("beside", "/etc/application"),
            mount("elsewhere", "/srv"),
        ]);
        let pod = PodRecord::new(&pod, "api".into(), SourceKind::Managed).unwrap();
        let found: Vec<PathBuf> = mount_points(&pod, "config").into_iter().collect();
        assert_eq!(found, ["certs", "more/of/it"].map(PathBuf::from));
        assert!(mount_points(&pod, "ca").is_empty());
    }
}
