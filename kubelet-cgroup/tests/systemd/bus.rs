//! A `dbus-daemon` that ends with its test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kubelet_testing::contract::skip;
use tempfile::TempDir;
use zbus::Connection;

pub(crate) struct PrivateBus {
    dir: TempDir,
    daemon: Option<Child>,
}

impl PrivateBus {
    /// Nothing, and a word on it, where there is no such program.
    pub(crate) fn new_or_skip(test: &str) -> Option<Self> {
        let is_there = Command::new("dbus-daemon").arg("--version").output();
        if !is_there.is_ok_and(|output| output.status.success()) {
            skip(test, "there is no dbus-daemon");
            return None;
        }
        let mut bus = Self {
            dir: tempfile::tempdir().unwrap(),
            daemon: None,
        };
        bus.start();
        Some(bus)
    }

    /// Starts it, or another one after it was ended, at the same address.
    pub(crate) fn start(&mut self) {
        let (config, socket) = (self.dir.path().join("bus.conf"), self.dir.path().join("bus"));
        let _ = fs::remove_file(&socket);
        fs::write(&config, configuration(&socket)).unwrap();
        let mut daemon = Command::new("dbus-daemon")
            .args(["--nofork", "--print-address=1", "--config-file"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It prints its address once it listens there.
        let mut address = String::new();
        BufReader::new(daemon.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        self.daemon = Some(daemon);
        assert!(address.starts_with("unix:"), "{address:?}");
    }

    pub(crate) fn end(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:path={}", self.dir.path().join("bus").display())
    }
}

impl Drop for PrivateBus {
    fn drop(&mut self) {
        self.end();
    }
}

/// A bus on which everybody may do all, at that socket.
pub(crate) fn configuration(socket: &Path) -> String {
    format!(
        "<busconfig>
           <type>session</type>
           <listen>unix:path={}</listen>
           <auth>EXTERNAL</auth>
           <policy context=\"default\">
             <allow send_destination=\"*\" eavesdrop=\"true\"/>
             <allow eavesdrop=\"true\"/>
             <allow own=\"*\"/>
           </policy>
         </busconfig>",
        socket.display()
    )
}

/// A connection, if there is a bus.
pub(crate) async fn try_connect(address: &str) -> Option<Connection> {
    zbus::connection::Builder::address(address).build().await.ok()
}
