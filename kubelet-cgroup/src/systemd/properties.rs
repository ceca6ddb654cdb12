//! Units and their properties, as systemd is told of them.
//!
//! Source: kubelet 1.36 with libcontainer, `cgroups/systemd/{v1,v2,common}.go`.

use std::path::Path;

use kubelet_core::{CgroupLimits, cpu_weight};
use zbus::Variant;

use crate::tree::Version;

/// A property of a unit.
pub(super) type Property = (&'static str, Variant<'static>);

/// The slice that all others are in.
const ROOT: &str = "-.slice";
/// Kinds of units that are cgroups.
const KINDS: [&str; 3] = [".slice", ".scope", ".service"];
/// The period of quotas, in microseconds, where none is said.
const PERIOD: u64 = 100_000;
/// What systemd rounds quotas to: a hundredth of a processor, in microseconds of each second.
const HUNDREDTH: u64 = 10_000;
/// The first version that knows other periods.
const KNOWS_PERIODS: u32 = 242;

/// The unit that a cgroup is, if it is one.
pub(super) fn unit(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    KINDS.iter().any(|kind| name.ends_with(kind)).then_some(name)
}

/// The properties of a new slice, without its limits.
pub(super) fn slice(path: &Path, version: Version) -> Vec<Property> {
    let above = path.parent().and_then(unit).unwrap_or(ROOT);
    let mut all = vec![
        ("Description", format!("Cgroup of pods /{}", path.display()).into()),
        ("Wants", vec![above.to_owned()].into()),
        // What is said of most units would have it stopped before the agent at the machine's end.
        ("DefaultDependencies", false.into()),
    ];
    all.extend(accounting(version));
    all
}

/// What has systemd use the controllers.
pub(super) fn accounting(version: Version) -> [Property; 4] {
    let io = match version {
        Version::V1 => "BlockIOAccounting",
        Version::V2 => "IOAccounting",
    };
    ["MemoryAccounting", "CPUAccounting", io, "TasksAccounting"].map(|name| (name, true.into()))
}

/// Limits as properties, as far as systemd knows them; the others are in files alone.
pub(super) fn limits(limits: &CgroupLimits, version: Version, systemd: Option<u32>) -> Vec<Property> {
    let mut all: Vec<Property> = Vec::new();
    all.extend(limits.cpu_shares.map(|shares| match version {
        Version::V1 => ("CPUShares", shares.into()),
        Version::V2 => ("CPUWeight", cpu_weight(shares).into()),
    }));
    if let Some(quota) = limits.cpu_quota {
        let period = limits.cpu_period.filter(|period| *period > 0).unwrap_or(PERIOD);
        if systemd.is_none_or(|systemd| systemd >= KNOWS_PERIODS) {
            all.push(("CPUQuotaPeriodUSec", period.into()));
        }
        all.push(("CPUQuotaPerSecUSec", quota_per_second(quota, period).into()));
    }
    all.extend(limits.memory_bytes.map(|bytes| match version {
        Version::V1 => ("MemoryLimit", bytes.into()),
        Version::V2 => ("MemoryMax", bytes.into()),
    }));
    all.extend(limits.pids.map(|pids| ("TasksMax", pids.into())));
    all
}

/// Microseconds of processors in each second, rounded up to a hundredth of one: less would keep what is inside from the quota that
/// it asks for. All of them where there is no quota.
fn quota_per_second(quota: i64, period: u64) -> u64 {
    match u64::try_from(quota) {
        Ok(quota) if quota > 0 => {
            let hundredths = (u128::from(quota) * 1_000_000).div_ceil(u128::from(period) * u128::from(HUNDREDTH));
            u64::try_from(hundredths * u128::from(HUNDREDTH)).unwrap_or(u64::MAX)
        }
        _ => u64::MAX,
    }
}

/// The version that systemd says it has, such as `252.38-1~deb12u1` or `v256`.
pub(super) fn version(text: &str) -> Option<u32> {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kubelet_core::{CgroupDriver, CgroupLimits, PodUid, QosClass};

    use super::{Property, accounting, limits, quota_per_second, slice, unit, version};
    use crate::names::Names;
    use crate::tree::Version;

    fn text(properties: &[Property]) -> String {
        let texts: Vec<String> = properties
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        texts.join("; ")
    }

    #[test]
    fn slices_are_within_the_one_that_their_name_says() {
        let names = Names::new("/edge", CgroupDriver::Systemd).unwrap();
        let pod = names.path(&names.pod(QosClass::Burstable, &PodUid::from("1a-2b")));
        let chain = crate::units::chain(&pod);
        let told: Vec<(&str, String)> = chain
            .iter()
            .map(|path| (unit(path).unwrap(), text(&slice(path, Version::V2)[1..2])))
            .collect();
        assert_eq!(
            told,
            [
                ("edge.slice", r#"Wants=["-.slice"]"#.to_owned()),
                ("edge-kubepods.slice", r#"Wants=["edge.slice"]"#.to_owned()),
                (
                    "edge-kubepods-burstable.slice",
                    r#"Wants=["edge-kubepods.slice"]"#.to_owned()
                ),
                (
                    "edge-kubepods-burstable-pod1a_2b.slice",
                    r#"Wants=["edge-kubepods-burstable.slice"]"#.to_owned()
                ),
            ]
        );
    }

    #[test]
    fn cgroups_of_others_are_units_or_not() {
        for (path, expected) in [
            ("system.slice", Some("system.slice")),
            ("system.slice/containerd.service", Some("containerd.service")),
            ("init.scope", Some("init.scope")),
            ("kubepods.slice/kubepods-podu1.slice/app", None),
            ("system", None),
            ("", None),
        ] {
            assert_eq!(unit(Path::new(path)), expected, "{path:?}");
        }
    }

    #[test]
    fn each_version_has_its_accounting() {
        let common = "DefaultDependencies=false; MemoryAccounting=true; CPUAccounting=true; ";
        for (version, io) in [(Version::V1, "BlockIOAccounting"), (Version::V2, "IOAccounting")] {
            let told = text(&slice(Path::new("kubepods.slice"), version)[2..]);
            assert_eq!(told, format!("{common}{io}=true; TasksAccounting=true"));
            assert!(told.ends_with(&text(&accounting(version))));
        }
    }

    #[test]
    fn limits_become_properties_of_each_version() {
        let mut all = CgroupLimits::default();
        assert_eq!(text(&limits(&all, Version::V2, None)), "");
        all.cpu_shares = Some(512);
        all.cpu_quota = Some(12_345);
        all.cpu_period = Some(50_000);
        all.memory_bytes = Some(64 << 20);
        all.pids = Some(100);
        all.hugepages.insert("2MB".to_owned(), 0);
        // Each is a `t` of D-Bus: systemd takes no other number for it.
        let quota = "CPUQuotaPeriodUSec=uint64 50000; CPUQuotaPerSecUSec=uint64 250000";
        assert_eq!(
            text(&limits(&all, Version::V1, Some(252))),
            format!("CPUShares=uint64 512; {quota}; MemoryLimit=uint64 67108864; TasksMax=uint64 100")
        );
        assert_eq!(
            text(&limits(&all, Version::V2, None)),
            format!("CPUWeight=uint64 20; {quota}; MemoryMax=uint64 67108864; TasksMax=uint64 100")
        );
        // One that is too old for periods has the quota of each second all the same.
        assert!(text(&limits(&all, Version::V1, Some(241))).contains("uint64 512; CPUQuotaPerSecUSec=uint64 250000;"));
        all.cpu_quota = Some(-1);
        assert!(text(&limits(&all, Version::V2, None)).contains(&format!("CPUQuotaPerSecUSec=uint64 {}", u64::MAX)));
    }

    #[test]
    fn quotas_are_rounded_up_to_a_hundredth_of_a_processor() {
        for (quota, period, expected) in [
            (100_000, 100_000, 1_000_000),
            (50_000, 100_000, 500_000),
            (50_001, 100_000, 510_000),
            (1_000, 100_000, 10_000),
            (1_000, 1_000_000, 10_000),
            (10_001, 1_000_000, 20_000),
            (1, 3, 340_000),
            (0, 100_000, u64::MAX),
            (-1, 100_000, u64::MAX),
            (i64::MAX, 1, u64::MAX),
        ] {
            assert_eq!(quota_per_second(quota, period), expected, "{quota} of {period}");
        }
    }

    #[test]
    fn versions_are_what_their_text_begins_with() {
        for (text, expected) in [
            ("252.38-1~deb12u1", Some(252)),
            ("v245.4-1.fc32", Some(245)),
            ("systemd 241", Some(241)),
            ("256", Some(256)),
            ("", None),
            ("none", None),
        ] {
            assert_eq!(version(text), expected, "{text:?}");
        }
    }
}
