//! A real systemd, in namespaces and cgroups of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kubelet_cgroup::{CgroupManager, CgroupSettings};
use kubelet_core::PodCgroups;
use kubelet_testing::CgroupRoot;
use tempfile::TempDir;
use zbus::Connection;
use zbus::wire::{OwnedObjectPath, OwnedVariant};

use crate::bus::{configuration, try_connect};
use crate::machine::context;

const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// How long it may take to come up. It takes a second.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Nested {
    // First: what it holds goes after it.
    _outer: Outer,
    dir: TempDir,
    systemd: u32,
    watch: Connection,
    _cgroups: CgroupRoot,
}

impl Nested {
    /// Nothing, and a word on it, where it cannot be: few machines have all that it needs, so that this fails nowhere.
    pub(crate) async fn new_or_say(test: &str) -> Option<Self> {
        match Self::new(test).await {
            Ok(nested) => Some(nested),
            Err(why) => {
                say_skipped(test, &why);
                None
            }
        }
    }

    async fn new(test: &str) -> Result<Self, String> {
        if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            return Err("that is only for cgroup v1".to_owned());
        }
        for program in [
            "/lib/systemd/systemd",
            "/usr/bin/dbus-daemon",
            "/usr/bin/setpriv",
            "/usr/bin/unshare",
        ] {
            if !Path::new(program).exists() {
                return Err(format!("there is no {program}"));
            }
        }
        let cgroups = CgroupRoot::v1_or_skip(test).ok_or("no cgroups can be made")?;
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bus")).unwrap();
        let socket = Path::new("/run/dbus/system_bus_socket");
        fs::write(dir.path().join("bus/bus.conf"), configuration(socket)).unwrap();
        let script = dir.path().join("nested.sh");
        fs::write(&script, include_str!("nested.sh")).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let outer = Command::new("sh")
            .arg(&script)
            .args([dir.path(), Path::new(&cgroups.path()[1..])])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        let mut outer = Outer(outer.map_err(|error| error.to_string())?);
        let up = tokio::time::timeout(PATIENCE, is_up(dir.path(), &mut outer)).await;
        let log = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        let watch = match up {
            Ok(Some(watch)) => watch,
            Ok(None) => return Err(format!("it has ended: {}", log())),
            Err(_) => return Err(format!("it does not come up: {}", log())),
        };
        let pid = outer.0.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).map_err(|e| e.to_string())?;
        let systemd = children.trim().parse().map_err(|_| format!("children: {children:?}"))?;
        Ok(Self {
            _outer: outer,
            dir,
            systemd,
            watch,
            _cgroups: cgroups,
        })
    }

    /// Where its cgroups are, as it sees them.
    pub(crate) fn mount(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/sys/fs/cgroup", self.systemd))
    }

    /// The folders of a hierarchy each.
    pub(crate) fn hierarchies(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.mount()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    pub(crate) fn manager(&self) -> CgroupManager {
        let mut settings = CgroupSettings::default();
        settings.mount = self.mount();
        settings.root = "/edge".to_owned();
        settings.systemd.address = Some(address(self.dir.path()));
        CgroupManager::new(settings)
    }

    pub(crate) async fn opened(&self) -> CgroupManager {
        let manager = self.manager();
        manager.open(&context("me")).await.unwrap();
        manager
    }

    /// What is in a file of a slice; nothing if there is none.
    pub(crate) fn value(&self, unit: &str, file: &str) -> Option<String> {
        let controller = file.split('.').next().unwrap();
        let path = self.mount().join(controller).join(crate::fake::folder(unit)).join(file);
        Some(fs::read_to_string(path).ok()?.trim().to_owned())
    }

    pub(crate) async fn reload(&self) {
        let call = self.watch.call_method(Some(NAME), PATH, Some(MANAGER), "Reload", &());
        call.await.unwrap();
    }

    /// A property of a unit, nothing if it is not loaded.
    pub(crate) async fn property(&self, unit: &str, of: &str, name: &str) -> Option<String> {
        let found = self
            .watch
            .call_method(Some(NAME), PATH, Some(MANAGER), "GetUnit", &(unit,))
            .await
            .ok()?;
        let path: OwnedObjectPath = found.body().deserialize().unwrap();
        let properties = "org.freedesktop.DBus.Properties";
        let of = format!("{NAME}.{of}");
        let answer = self
            .watch
            .call_method(Some(NAME), path.as_str(), Some(properties), "Get", &(of, name))
            .await
            .ok()?;
        let value: OwnedVariant = answer.body().deserialize().unwrap();
        Some(value.to_string())
    }
}

/// What all of it ends with.
struct Outer(Child);

impl Drop for Outer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(
    clippy::print_stderr,
    reason = "a skipped test says so where the test runner shows it"
)]
fn say_skipped(test: &str, why: &str) {
    eprintln!("{test} is skipped: no systemd of its own: {why}");
}

fn address(dir: &Path) -> String {
    format!("unix:path={}", dir.join("bus/system_bus_socket").display())
}

/// A connection to its bus once it answers there; nothing if it has ended.
async fn is_up(dir: &Path, outer: &mut Outer) -> Option<Connection> {
    let child = &mut outer.0;
    while child.try_wait().unwrap().is_none() {
        if let Some(connection) = try_connect(&address(dir)).await {
            let property = ("org.freedesktop.systemd1.Manager", "Version");
            let properties = Some("org.freedesktop.DBus.Properties");
            // Its bus is there before it is on it.
            while child.try_wait().unwrap().is_none() {
                let answer = connection
                    .call_method(Some(NAME), PATH, properties, "Get", &property)
                    .await;
                if answer.is_ok() {
                    return Some(connection);
                }
                tokio::task::yield_now().await;
            }
        }
        tokio::task::yield_now().await;
    }
    None
}
