use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use super::{Content, Disk, DiskError, content, format_and_mount};
use crate::ground::command::scripted::ScriptedTools;
use crate::ground::command::{SystemTools, Tools};
use crate::ground::loop_device::LoopDevices;
use crate::ground::mounts::testing::Place;
use crate::ground::mounts::{MountOptions, Mounts, SystemMounts};
use crate::testing::{MountOp, ScriptedMounts};

struct Case {
    place: Place,
    device: PathBuf,
    options: MountOptions,
}

impl Case {
    fn new() -> Self {
        let place = Place::without_mounts();
        let device = place.path("device");
        fs::write(&device, "").unwrap();
        let options = MountOptions::default();
        Self { place, device, options }
    }

    fn mount(&self, tools: &dyn Tools, mounts: &dyn Mounts, fs_type: &str) -> Result<(), DiskError> {
        let disk = Disk {
            device: &self.device,
            target: self.place.root(),
            fs_type,
            options: &self.options,
            format_options: &["-O", "x"],
        };
        format_and_mount(tools, mounts, &disk)
    }
}

fn programs(tools: &ScriptedTools) -> Vec<String> {
    let calls = tools.calls.borrow();
    calls
        .iter()
        .map(|call| call.split(' ').next().unwrap().to_owned())
        .collect()
}

#[test]
fn an_empty_disk_gets_a_file_system() {
    let case = Case::new();
    let device = case.device.to_str().unwrap();
    for (fs_type, made) in [
        ("", format!("mkfs.ext4 -O x -F -m0 {device}")),
        ("ext3", format!("mkfs.ext3 -O x -F -m0 {device}")),
        ("xfs", format!("mkfs.xfs -O x -f {device}")),
        ("btrfs", format!("mkfs.btrfs -O x {device}")),
    ] {
        let (tools, mounts) = (ScriptedTools::default().answer(2, ""), ScriptedMounts::new());
        case.mount(&tools, &mounts, fs_type).unwrap();
        let asked = format!("blkid -p -s TYPE -s PTTYPE -o export {device}");
        assert_eq!(*tools.calls.borrow(), [asked, made]);
        assert!(mounts.is_mount_point(case.place.root()).unwrap());
    }
    let tools = ScriptedTools::default().answer(2, "").answer(1, "too small");
    let error = case.mount(&tools, &ScriptedMounts::new(), "").unwrap_err();
    assert!(matches!(error, DiskError::FormatFailed { .. }) && error.to_string().contains("too small"));
    let tools = ScriptedTools::default().answer(2, "");
    assert!(case.mount(&tools, &ScriptedMounts::new(), "../x").is_err());
    assert_eq!(programs(&tools), ["blkid"]);
}

#[test]
fn nothing_is_formatted_that_may_have_anything() {
    let mut case = Case::new();
    let refused = |case: &Case, code: i32, output: &str| {
        let (tools, mounts) = (ScriptedTools::default().answer(code, output), ScriptedMounts::new());
        let error = case.mount(&tools, &mounts, "ext4").unwrap_err();
        assert_eq!(programs(&tools), ["blkid"]);
        assert!(!mounts.is_mount_point(case.place.root()).unwrap());
        error
    };
    assert!(matches!(refused(&case, 0, "PTTYPE=gpt\n"), DiskError::UnknownData(_)));
    assert!(matches!(refused(&case, 0, ""), DiskError::UnknownData(_)));
    assert!(matches!(refused(&case, 8, "ambivalent"), DiskError::Io { .. }));
    // What cannot be read is not empty.
    fs::remove_file(&case.device).unwrap();
    fs::create_dir(&case.device).unwrap();
    assert!(matches!(refused(&case, 2, ""), DiskError::Io { what: "read", .. }));
    fs::remove_dir(&case.device).unwrap();
    assert!(matches!(refused(&case, 2, ""), DiskError::Io { what: "read", .. }));
    fs::write(&case.device, "").unwrap();
    case.options.read_only = true;
    assert!(matches!(refused(&case, 2, ""), DiskError::UnformattedReadOnly(_)));
    case.device = case.place.path("none");
    assert!(
        case.mount(&ScriptedTools::default().missing(), &ScriptedMounts::new(), "")
            .is_err()
    );
}

#[test]
fn a_file_system_is_checked_before_it_is_written_to() {
    let mut case = Case::new();
    let checked = |case: &Case, code: i32| {
        let tools = ScriptedTools::default()
            .answer(0, "DEVNAME=x\nTYPE=ext4\n")
            .answer(code, "said");
        let result = case.mount(&tools, &ScriptedMounts::new(), "ext4");
        (result, programs(&tools))
    };
    for code in [0, 1, 8, 32] {
        let (result, asked) = checked(&case, code);
        result.unwrap();
        assert_eq!(asked, ["blkid", "fsck"]);
    }
    assert!(matches!(checked(&case, 4).0, Err(DiskError::Uncorrected { .. })));
    let tools = ScriptedTools::default().answer(0, "TYPE=ext4").missing();
    case.mount(&tools, &ScriptedMounts::new(), "").unwrap();
    case.options.read_only = true;
    assert_eq!(checked(&case, 4).1, ["blkid"]);
}

#[test]
fn another_file_system_that_does_not_mount_is_a_class_of_its_own() {
    let case = Case::new();
    for (fs_type, mismatch) in [("ext4", true), ("xfs", false)] {
        let (tools, mounts) = (ScriptedTools::default().answer(0, "TYPE=xfs\n"), ScriptedMounts::new());
        mounts.fail_next(MountOp::Mount, Errno::INVAL.raw_os_error());
        let error = case.mount(&tools, &mounts, fs_type).unwrap_err();
        assert_eq!(matches!(error, DiskError::Mismatch { .. }), mismatch, "{error}");
    }
}

struct Attached<'a>(&'a LoopDevices<'a>, PathBuf);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.0.detach(&self.1).unwrap();
    }
}

#[test]
fn a_real_disk_is_formatted_once_and_keeps_its_data() {
    const TEST: &str = "a real disk";
    let tools = SystemTools {
        limit: Duration::from_secs(120),
    };
    for program in ["losetup", "blkid", "fsck", "mkfs.ext4"] {
        if let Err(error) = tools.run(program, &["--version"]) {
            return kubelet_testing::contract::skip(TEST, &error.to_string());
        }
    }
    let Some(place) = Place::new(TEST) else { return };
    let backing = place.path("disk.img");
    fs::File::create(&backing).unwrap().set_len(16 << 20).unwrap();
    let devices = LoopDevices::new(&tools);
    let device = match devices.attach(&backing) {
        Ok(device) => Attached(&devices, device),
        Err(error) => return kubelet_testing::contract::skip(TEST, &error.to_string()),
    };
    assert_eq!(devices.find(&backing).unwrap().as_deref(), Some(&*device.1));
    assert_eq!(devices.attach(&backing).unwrap(), device.1);
    let (mounts, target) = (SystemMounts::default(), place.dir("target"));
    let mount = |options: &MountOptions| -> Result<(), DiskError> {
        let disk = Disk {
            device: &device.1,
            target: &target,
            fs_type: "",
            options,
            format_options: &[],
        };
        format_and_mount(&tools, &mounts, &disk)
    };
    assert!(matches!(
        mount(&MountOptions::read_only()),
        Err(DiskError::UnformattedReadOnly(_))
    ));
    mount(&MountOptions::default()).unwrap();
    fs::write(target.join("data"), "kept").unwrap();
    mounts.unmount(&target).unwrap();
    mount(&MountOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(target.join("data")).unwrap(), "kept");
    mounts.unmount(&target).unwrap();
    mount(&MountOptions::read_only()).unwrap();
    let written = fs::write(target.join("data"), "no").unwrap_err();
    assert_eq!(written.kind(), io::ErrorKind::ReadOnlyFilesystem);
    mounts.unmount(&target).unwrap();
    assert_eq!(
        content(&tools, &device.1).unwrap(),
        Content::FileSystem("ext4".to_owned())
    );
    fs::remove_file(&backing).unwrap();
    assert_eq!(devices.find(&backing).unwrap().as_deref(), Some(&*device.1));
    drop(device);
    assert_eq!(devices.find(Path::new(&backing)).unwrap(), None);
}
