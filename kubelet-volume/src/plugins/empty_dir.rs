//! Scratch space that goes with its pod.
//!
//! Source: kubelet 1.36, `emptydir/empty_dir.go`.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use kubelet_core::k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use kubelet_core::{PodRecord, Quantity};

use super::group::Teller;
use super::memory;
use crate::ground::crash::step;
use crate::ground::failure::at;
use crate::ground::folders::{make_dir, make_dir_again, make_dirs, unmount_below};
use crate::ground::mounts::{MountOptions, Mounts};
use crate::ground::ownership::{ChangePolicy, Group};
use crate::ground::removal::{remove_tree, remove_tree_of};
use crate::plugin::{
    Measure, Ownership, Placed, PluginFeatures, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec,
};

pub(super) const NAME: &str = "kubernetes.io/empty-dir";
/// The folder is for whoever the containers run as.
pub(super) const MODE: u32 = 0o777;
/// The file that says that all of it was made.
const READY: &str = "ready";
const HUGE_PAGES: &str = "HugePages";

/// Volumes of type `emptyDir`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmptyDir;

/// What the space is in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Medium {
    Disk,
    Memory { size: Option<u64> },
    HugePages { page_bytes: u64 },
}

fn source<'a>(volume: &VolumeSpec<'a>) -> Option<&'a EmptyDirVolumeSource> {
    match volume {
        VolumeSpec::Inline(volume) => volume.empty_dir.as_ref(),
        VolumeSpec::Persistent { .. } => None,
    }
}

#[async_trait]
impl VolumePlugin for EmptyDir {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        source(volume).is_some()
    }

    fn features(&self) -> PluginFeatures {
        PluginFeatures {
            measure: Measure::Files,
            is_ephemeral: true,
            ..PluginFeatures::default()
        }
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let Some(source) = source(&cx.volume) else {
            return Err(VolumeFault::new("it is no emptyDir"));
        };
        let medium = medium(cx, source)?;
        let (dir, scratch) = (cx.dir.to_owned(), cx.scratch.to_owned());
        let (mounts, ownership) = (cx.node.mounts.clone(), cx.ownership);
        let teller = Teller::new(cx);
        cx.blocking(move |given_up| make(&*mounts, (&dir, &scratch), &medium, (ownership, &teller, given_up)))
            .await?;
        let mut placed = Placed::at(cx.dir);
        placed.selinux_relabel = true;
        placed.is_ephemeral = Some(source.medium.as_deref().unwrap_or_default().is_empty());
        Ok(placed)
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        remove(cx, cx.scratch.to_owned()).await
    }
}

fn medium(cx: &SetUp<'_>, source: &EmptyDirVolumeSource) -> Result<Medium, VolumeFault> {
    match source.medium.as_deref().unwrap_or_default() {
        "" => Ok(Medium::Disk),
        "Memory" => Ok(Medium::Memory {
            size: memory::size_bytes(cx.pod, &cx.node.context.node.now(), source.size_limit.as_ref()),
        }),
        medium if medium.starts_with(HUGE_PAGES) => {
            let page_bytes = page_bytes(cx.pod, medium)?;
            Ok(Medium::HugePages { page_bytes })
        }
        other => Err(VolumeFault::new(format!("unknown storage medium {other:?}"))),
    }
}

/// The size of the huge pages that a medium is of: one that some container of the pod asks for.
fn page_bytes(pod: &PodRecord, medium: &str) -> Result<u64, VolumeFault> {
    let asked: BTreeSet<u64> = pod
        .containers()
        .filter_map(|view| view.resources())
        .flat_map(|resources| [&resources.requests, &resources.limits])
        .flatten()
        .flatten()
        .filter_map(|(name, _)| bytes(name.strip_prefix("hugepages-")?))
        .collect();
    if asked.is_empty() {
        let why = "hugePages storage requested, but there is no resource request for huge pages.";
        return Err(VolumeFault::new(why));
    }
    match medium.strip_prefix("HugePages-") {
        None if asked.len() > 1 => Err(VolumeFault::new(
            "medium HugePages is used, but the pod has multiple huge page sizes: use HugePages-<size>",
        )),
        None => Ok(asked.into_iter().next().unwrap_or_default()),
        Some(size) => bytes(size)
            .filter(|bytes| asked.contains(bytes))
            .ok_or_else(|| VolumeFault::new(format!("no container of the pod requests huge pages of {size:?}"))),
    }
}

fn bytes(size: &str) -> Option<u64> {
    u64::try_from(size.parse::<Quantity>().ok()?.value()).ok()
}

fn make(
    mounts: &dyn Mounts,
    (dir, scratch): (&Path, &Path),
    medium: &Medium,
    (ownership, teller, given_up): (Ownership, &Teller, &AtomicBool),
) -> io::Result<()> {
    let was_ready = is_ready(scratch) && dir.exists();
    make_folder(mounts, dir, was_ready)?;
    match medium {
        Medium::Disk => {}
        Medium::Memory { size } => memory::mount(mounts, dir, *size)?,
        Medium::HugePages { page_bytes } => mount_huge_pages(mounts, dir, *page_bytes)?,
    }
    step("an emptyDir has its medium");
    if let Some(group) = ownership.fs_group {
        // What was made whole before is not looked through once more, unless its folder says that it was not given over.
        let change = if was_ready {
            ChangePolicy::OnRootMismatch
        } else {
            ChangePolicy::Always
        };
        let group = Group {
            gid: group,
            read_only: false,
            policy: change,
        };
        if let Err(error) = teller.give(dir, group, given_up) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "files of an emptyDir were not given to its group"
            );
        }
    }
    mark_ready(scratch)
}

fn mount_huge_pages(mounts: &dyn Mounts, dir: &Path, page_bytes: u64) -> io::Result<()> {
    let data = format!("pagesize={page_bytes}");
    let real = dir.canonicalize().map_err(|error| at("cannot resolve", dir, error))?;
    if let Some(there) = mounts.table()?.at(&real) {
        let size = there
            .super_options
            .split(',')
            .find_map(|option| bytes_of_option(option.strip_prefix("pagesize=")?));
        return match size {
            Some(size) if there.fs_type == "hugetlbfs" && size == page_bytes => Ok(()),
            _ => Err(io::Error::other(format!(
                "{} is mounted already, and not with huge pages of {page_bytes} bytes",
                dir.display()
            ))),
        };
    }
    mounts.mount("hugetlbfs", "nodev", dir, &MountOptions::default(), &data)
}

/// A size as the kernel shows it, such as `2M`.
fn bytes_of_option(size: &str) -> Option<u64> {
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &size[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

/// Makes the folder of a volume. One that was not made whole may lack its mode.
pub(super) fn make_folder(mounts: &dyn Mounts, dir: &Path, was_ready: bool) -> io::Result<()> {
    if was_ready || mounts.is_mount_point(dir)? {
        return make_dir(dir, MODE);
    }
    make_dir_again(dir, MODE)
}

/// Whether all of a volume was made at some time.
pub(super) fn is_ready(scratch: &Path) -> bool {
    scratch.join(READY).exists()
}

/// Says on disk that all of a volume was made.
pub(super) fn mark_ready(scratch: &Path) -> io::Result<()> {
    make_dirs(scratch, 0o750)?;
    step("the folder beside a volume is made");
    let path = scratch.join(READY);
    std::fs::File::create(&path).map_err(|error| at("cannot make", &path, error))?;
    step("a volume is marked as ready");
    Ok(())
}

/// Has a folder of a pod gone, with all that is in it; what is mounted there is unmounted first.
pub(super) async fn remove(cx: &TearDown<'_>, scratch: PathBuf) -> Result<(), VolumeFault> {
    let (dir, mounts) = (cx.dir.to_owned(), cx.node.mounts.clone());
    cx.blocking(move |given_up| {
        // Containers may have mounted something in it that shows here too.
        let table = unmount_below(&*mounts, &dir)?;
        remove_tree_of(table, &dir, &*mounts, given_up)?;
        step("the folder of a volume is removed");
        if std::fs::symlink_metadata(&scratch).is_ok_and(|found| found.is_dir()) {
            // Mostly all that is in it. What cannot be removed now is told of next.
            let _ = std::fs::remove_file(scratch.join(READY));
        }
        step("a volume is marked as ready no more");
        // Last: as long as it is there the volume is found.
        remove_tree(&scratch, &*mounts, given_up)
    })
    .await
}
