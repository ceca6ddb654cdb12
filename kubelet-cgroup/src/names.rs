//! What cgroups are called.
//!
//! Source: kubelet 1.36, `cm/cgroup_manager_linux.go` and `cm/pod_container_manager_linux.go`.

use std::path::PathBuf;

use kubelet_core::{CgroupDriver, PodUid, QosClass};

/// The cgroup of all pods.
const PODS: &str = "kubepods";

/// The name of a cgroup, element by element, whatever its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name(Vec<String>);

impl Name {
    fn child(&self, element: impl Into<String>) -> Self {
        let mut elements = self.0.clone();
        elements.push(element.into());
        Self(elements)
    }
}

/// The names below one root.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    root: Name,
    driver: CgroupDriver,
}

impl Names {
    /// Below a root such as `/` or `/edge`.
    pub(crate) fn new(root: &str, driver: CgroupDriver) -> Result<Self, String> {
        if !root.starts_with('/') {
            return Err(format!("{root:?} does not begin with /"));
        }
        let elements: Vec<String> = root.split('/').filter(|e| !e.is_empty()).map(str::to_owned).collect();
        for element in &elements {
            if element == "." || element == ".." {
                return Err(format!("{root:?} has the element {element:?}"));
            }
            if driver == CgroupDriver::Systemd && element.contains('_') {
                return Err(format!(
                    "{root:?} has an element with _, which names of systemd cannot have"
                ));
            }
        }
        Ok(Self {
            root: Name(elements),
            driver,
        })
    }

    /// The cgroup of all pods.
    pub(crate) fn pods(&self) -> Name {
        self.root.child(PODS)
    }

    /// The cgroup that pods of a class are in.
    pub(crate) fn class(&self, class: QosClass) -> Name {
        match class {
            QosClass::Burstable => self.pods().child("burstable"),
            QosClass::BestEffort => self.pods().child("besteffort"),
            _ => self.pods(),
        }
    }

    /// The cgroup of a pod.
    pub(crate) fn pod(&self, class: QosClass, uid: &PodUid) -> Name {
        self.class(class).child(format!("pod{uid}"))
    }

    /// Whether a folder in that of a class may be a pod's. Its mark tells which.
    pub(crate) fn may_be_pod(&self, folder: &str) -> bool {
        match self.driver {
            CgroupDriver::Systemd => folder.ends_with(".slice") && folder.contains("-pod"),
            _ => folder.starts_with("pod"),
        }
    }

    /// Where it is below the root of a hierarchy.
    pub(crate) fn path(&self, name: &Name) -> PathBuf {
        match self.driver {
            CgroupDriver::Systemd => slices(&name.0).collect(),
            _ => name.0.iter().collect(),
        }
    }

    /// The path that a runtime is told.
    pub(crate) fn parent(&self, name: &Name) -> String {
        format!("/{}", self.path(name).display())
    }
}

/// The slices that a name means for systemd, each within the one before.
fn slices(elements: &[String]) -> impl Iterator<Item = String> {
    let escaped: Vec<String> = elements.iter().map(|element| element.replace('-', "_")).collect();
    (1..=escaped.len()).map(move |upto| format!("{}.slice", escaped[..upto].join("-")))
}

#[cfg(test)]
mod tests {
    use kubelet_core::{CgroupDriver, PodUid, QosClass};

    use super::Names;

    fn parents(root: &str, driver: CgroupDriver) -> [String; 3] {
        let names = Names::new(root, driver).unwrap();
        let uid = PodUid::from("1a-2b");
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort]
            .map(|class| names.parent(&names.pod(class, &uid)))
    }

    #[test]
    fn names_follow_the_table() {
        assert_eq!(
            parents("/", CgroupDriver::Cgroupfs),
            [
                "/kubepods/pod1a-2b",
                "/kubepods/burstable/pod1a-2b",
                "/kubepods/besteffort/pod1a-2b"
            ]
        );
        assert_eq!(
            parents("/", CgroupDriver::Systemd),
            [
                "/kubepods.slice/kubepods-pod1a_2b.slice",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a_2b.slice",
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1a_2b.slice",
            ]
        );
        assert_eq!(
            parents("/a/b", CgroupDriver::Cgroupfs)[1],
            "/a/b/kubepods/burstable/pod1a-2b"
        );
        assert_eq!(
            parents("/a/b", CgroupDriver::Systemd)[0],
            "/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod1a_2b.slice"
        );
    }

    #[test]
    fn roots_that_would_lead_elsewhere_are_refused() {
        for (root, driver) in [
            ("", CgroupDriver::Cgroupfs),
            ("edge", CgroupDriver::Cgroupfs),
            ("/a/../b", CgroupDriver::Cgroupfs),
            ("/a_b", CgroupDriver::Systemd),
        ] {
            assert!(Names::new(root, driver).is_err(), "{root:?}");
        }
        assert!(Names::new("/a_b", CgroupDriver::Cgroupfs).is_ok());
    }
}
