//! What of the node is enforced.

/// A cgroup of the machine for which something is kept. It is there already, and others put processes into it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reserved {
    /// Its path below the root of cgroups, such as `/system.slice`.
    pub cgroup: String,
    /// Whether only its share of the processors is set, so that nothing in it is killed for what it uses.
    pub only_compressible: bool,
}

impl Reserved {
    /// Bound in all that is kept for it: processors, memory, processes, large pages.
    pub fn all(cgroup: impl Into<String>) -> Self {
        Self {
            cgroup: cgroup.into(),
            only_compressible: false,
        }
    }

    /// With its share of the processors alone.
    pub fn compressible(cgroup: impl Into<String>) -> Self {
        Self {
            cgroup: cgroup.into(),
            only_compressible: true,
        }
    }
}

/// Which of the node's limits are enforced. By default that of all pods together.
///
/// Source: kubelet 1.36, `enforceNodeAllocatable`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enforcement {
    /// Whether all pods together are bound to what the node does not keep. Otherwise they are bound to all of the node, and
    /// their share of the processors is that of all of the node.
    pub pods: bool,
    /// What is kept for the system.
    pub system_reserved: Option<Reserved>,
    /// What is kept for the kubelet and the container runtime.
    pub kube_reserved: Option<Reserved>,
}

impl Default for Enforcement {
    fn default() -> Self {
        Self {
            pods: true,
            system_reserved: None,
            kube_reserved: None,
        }
    }
}

/// Why the words do not say what to enforce.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnforcementError {
    /// No such word.
    #[error(
        "cannot enforce {0:?}: not one of none, pods, system-reserved, system-reserved-compressible, kube-reserved, \
         kube-reserved-compressible"
    )]
    Unknown(String),
    /// `none` stands beside others.
    #[error("none stands alone")]
    NotAlone,
    /// A word and its compressible one.
    #[error("{0} and {0}-compressible exclude each other")]
    Both(&'static str),
    /// It is not said which cgroup is meant.
    #[error("{0} needs the name of its cgroup")]
    NoCgroup(String),
}

impl Enforcement {
    /// Reads the words of the upstream kubelet's `enforceNodeAllocatable`, with its `systemReservedCgroup` and
    /// `kubeReservedCgroup`.
    ///
    /// ```
    /// use kubelet_cgroup::{Enforcement, Reserved};
    ///
    /// let enforcement = Enforcement::parse(["pods", "system-reserved"], Some("/system.slice"), None).unwrap();
    /// assert_eq!(enforcement.system_reserved, Some(Reserved::all("/system.slice")));
    /// ```
    ///
    /// # Errors
    /// [`EnforcementError`] for words that are unknown or contradict each other, and for a cgroup that is missing.
    pub fn parse<'a>(
        words: impl IntoIterator<Item = &'a str>,
        system_cgroup: Option<&str>,
        kube_cgroup: Option<&str>,
    ) -> Result<Self, EnforcementError> {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        if words.contains(&"none") && words.iter().any(|word| *word != "none") {
            return Err(EnforcementError::NotAlone);
        }
        let mut enforcement = Self {
            pods: false,
            system_reserved: None,
            kube_reserved: None,
        };
        for word in words {
            let (kind, cgroup, place) = match word.strip_suffix("-compressible").unwrap_or(word) {
                "none" if word == "none" => continue,
                "pods" if word == "pods" => {
                    enforcement.pods = true;
                    continue;
                }
                "system-reserved" => ("system-reserved", system_cgroup, &mut enforcement.system_reserved),
                "kube-reserved" => ("kube-reserved", kube_cgroup, &mut enforcement.kube_reserved),
                _ => return Err(EnforcementError::Unknown(word.to_owned())),
            };
            let cgroup = cgroup.filter(|cgroup| !cgroup.is_empty());
            let cgroup = cgroup.ok_or_else(|| EnforcementError::NoCgroup(word.to_owned()))?;
            let wanted = match word == kind {
                true => Reserved::all(cgroup),
                false => Reserved::compressible(cgroup),
            };
            if place.as_ref().is_some_and(|before| *before != wanted) {
                return Err(EnforcementError::Both(kind));
            }
            *place = Some(wanted);
        }
        Ok(enforcement)
    }
}

#[cfg(test)]
mod tests {
    use super::{Enforcement, EnforcementError, Reserved};

    fn parse(words: &str) -> Result<Enforcement, EnforcementError> {
        Enforcement::parse(words.split(','), Some("/system"), None)
    }

    #[test]
    fn words_say_what_is_enforced() {
        assert_eq!(parse("pods"), Ok(Enforcement::default()));
        for words in ["none", "", "none,none"] {
            assert!(!parse(words).unwrap().pods, "{words}");
        }
        let both = parse("system-reserved-compressible,pods").unwrap();
        assert_eq!(
            (both.pods, both.system_reserved),
            (true, Some(Reserved::compressible("/system")))
        );
    }

    #[test]
    fn words_that_make_no_sense_are_refused() {
        for (words, error) in [
            ("pods,none", EnforcementError::NotAlone),
            ("Pods", EnforcementError::Unknown("Pods".to_owned())),
            (
                "pods-compressible",
                EnforcementError::Unknown("pods-compressible".to_owned()),
            ),
            (
                "system-reserved,system-reserved-compressible",
                EnforcementError::Both("system-reserved"),
            ),
            ("kube-reserved", EnforcementError::NoCgroup("kube-reserved".to_owned())),
        ] {
            assert_eq!(parse(words), Err(error), "{words}");
        }
    }
}
