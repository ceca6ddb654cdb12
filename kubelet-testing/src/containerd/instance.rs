//! A containerd of a test's own.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::containerd::archive::OciArchive;
use crate::containerd::command::{blocking, output, path_with, tail};
use crate::containerd::components::{Components, Containerd};
use crate::containerd::config::{CDI, NAMESPACE, NETWORKS, ROOT, SOCKET, STATE, config};
use crate::containerd::error::ComponentError;
use crate::containerd::folder::Lock;
use crate::containerd::images::{BUSYBOX_IMAGE, PAUSE_IMAGE};
use crate::containerd::leftovers::{remove, remove_leftovers};
use crate::containerd::network::Network;
use crate::containerd::unary;
use crate::contract::skip;

/// How long a start may take: far more than any needs, so that what hangs fails instead of hanging the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take until the CRI shows an image that was imported behind its back.
const IMAGES_PATIENCE: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(10);

/// A containerd that runs for one test, in a folder of its own, beside any other on the machine.
///
/// It has the images [`PAUSE_IMAGE`] and [`BUSYBOX_IMAGE`], and a pod network whose addresses the machine reaches. It needs
/// root and the programs that `scripts/test` installs. It follows real time: a paused clock would let its waits end early.
///
/// At its end nothing of it is left: pods and containers are killed, their processes, mounts, namespaces, cgroups and host
/// ports are removed, its bridge and its folder too. Dropping it does the same, for which it blocks. If the
/// test's process is killed, the next start of any private containerd does it, or [`remove_leftovers`].
///
/// ```no_run
/// # async fn example() -> Result<(), kubelet_testing::ComponentError> {
/// use kubelet_testing::{Containerd, PrivateContainerd};
///
/// let mut containerd = PrivateContainerd::start(Containerd::V2).await?;
/// println!("{} is {}", containerd.endpoint(), containerd.reported_version());
/// containerd.restart().await?;
/// containerd.stop().await
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct PrivateContainerd {
    version: Containerd,
    components: Components,
    folder: PathBuf,
    network: Network,
    /// None while it is down.
    process: Option<Child>,
    /// False once nothing is left of it.
    exists: bool,
}

impl PrivateContainerd {
    /// Starts an instance and waits until it serves the CRI, has a pod network and shows its images.
    ///
    /// # Errors
    /// [`ComponentError::Missing`] if the machine lacks what it needs, [`ComponentError::Failed`] with the end of its log if
    /// it does not come up.
    ///
    /// # Cancellation
    /// A start that is dropped leaves nothing, but for what the next start removes.
    pub async fn start(version: Containerd) -> Result<Self, ComponentError> {
        let mut instance = blocking(move || Self::prepare(version)).await?;
        instance.up().await?;
        let images = instance.components.images.clone();
        for (archive, name) in images.into_iter().zip([PAUSE_IMAGE, BUSYBOX_IMAGE]) {
            instance.import_file(archive, name).await?;
        }
        Ok(instance)
    }

    /// Starts an instance, or says why `test` is skipped.
    ///
    /// # Panics
    /// If it does not come up; and if it is missing although `KUBELET_TEST_REQUIRE` is `1`.
    pub async fn start_or_skip(version: Containerd, test: &str) -> Option<Self> {
        match Self::start(version).await {
            Ok(instance) => Some(instance),
            Err(ComponentError::Missing { what }) => {
                skip(test, &what);
                None
            }
            Err(error) => panic!("start containerd for {test}: {}", kubelet_core::error_chain(&error)),
        }
    }

    /// Which line of releases it is of.
    #[must_use]
    pub fn version(&self) -> Containerd {
        self.version
    }

    /// The version that it says it is.
    #[must_use]
    pub fn reported_version(&self) -> &str {
        &self.components.reported
    }

    /// Where it serves the CRI: `unix:///…`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }

    /// The folder with all that it has on disk.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder for descriptions of devices by the Container Device Interface, which 2.x alone reads.
    #[must_use]
    pub fn cdi_dir(&self) -> PathBuf {
        self.folder.join(CDI)
    }

    /// The name of its pod network, which is the name of its bridge too.
    #[must_use]
    pub fn network(&self) -> String {
        self.network.name()
    }

    /// The addresses that its pods get: `198.19.0.0/24`.
    #[must_use]
    pub fn pod_cidr(&self) -> String {
        self.network.subnet()
    }

    /// The end of what it has logged, over all its restarts.
    #[must_use]
    pub fn log(&self) -> String {
        tail(&self.folder.join("log"))
    }

    /// Runs its `ctr` on it, in the namespace of the CRI, and answers what it printed.
    ///
    /// # Errors
    /// [`ComponentError::Failed`] with what `ctr` complained of.
    pub async fn ctr<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<String, ComponentError> {
        let mut command = self.command("ctr");
        command
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", NAMESPACE])
            .args(arguments);
        blocking(move || output(&mut command)).await
    }

    /// Brings an image in, and waits until the CRI shows it.
    ///
    /// # Errors
    /// [`ComponentError::Failed`] if it cannot be imported.
    pub async fn import(&mut self, image: &OciArchive) -> Result<(), ComponentError> {
        let path = self.folder.join("import.tar");
        let copy = image.clone();
        let file = path.clone();
        blocking(move || {
            copy.write(&file)
                .map_err(ComponentError::io(format!("write {}", file.display())))
        })
        .await?;
        self.import_file(path.clone(), image.name()).await?;
        fs::remove_file(&path).map_err(ComponentError::io(format!("remove {}", path.display())))
    }

    /// Kills it, as a crash would; its containers go on. It is down until [`restart`](Self::restart).
    ///
    /// # Errors
    /// [`ComponentError::Failed`] if it cannot be killed.
    pub async fn kill(&mut self) -> Result<(), ComponentError> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        blocking(move || {
            let killed = process.kill().and_then(|()| process.wait().map(drop));
            killed.map_err(ComponentError::io("kill containerd"))
        })
        .await
    }

    /// Kills it if it runs, starts it anew on what it has, and waits until it serves the CRI.
    ///
    /// # Errors
    /// [`ComponentError::Failed`] with the end of its log if it does not come up.
    pub async fn restart(&mut self) -> Result<(), ComponentError> {
        self.kill().await?;
        self.up().await
    }

    /// Ends it, with all its pods.
    ///
    /// # Errors
    /// [`ComponentError::Failed`] if something of it is left; the rest is removed nevertheless.
    pub async fn stop(mut self) -> Result<(), ComponentError> {
        blocking(move || self.end()).await
    }

    /// Makes all but the process.
    fn prepare(version: Containerd) -> Result<Self, ComponentError> {
        let components = Components::find(version)?;
        remove_leftovers()?;
        let lock = Lock::take()?;
        let folder = lock.make("containerd")?;
        let network = Network::claim(&folder, &lock)?;
        drop(lock);
        // From here on a drop removes what was made.
        let instance = Self {
            version,
            components,
            folder,
            network,
            process: None,
            exists: true,
        };
        network.create()?;
        let cdi = instance.cdi_dir();
        fs::create_dir_all(&cdi).map_err(ComponentError::io(format!("make {}", cdi.display())))?;
        let networks = instance.folder.join(NETWORKS);
        let conflist = network.conflist(&instance.folder);
        let newer_runc = instance.components.newer_runc.as_deref();
        let config = config(version, &instance.folder, newer_runc);
        for (path, text) in [
            (networks.join("10-pods.conflist"), conflist.to_string()),
            (instance.folder.join("config.toml"), config),
        ] {
            let written = fs::create_dir_all(&networks).and_then(|()| fs::write(&path, text));
            written.map_err(ComponentError::io(format!("write {}", path.display())))?;
        }
        Ok(instance)
    }

    /// Starts the process and waits until it serves.
    async fn up(&mut self) -> Result<(), ComponentError> {
        let path = self.folder.join("log");
        let log = File::options().create(true).append(true).open(&path);
        let log = log.and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(ComponentError::io(format!("open {}", path.display())))?;
        let mut command = self.command("containerd");
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        for (name, at) in [
            ("config", "config.toml"),
            ("root", ROOT),
            ("state", STATE),
            ("address", SOCKET),
        ] {
            command.arg(format!("--{name}")).arg(self.folder.join(at));
        }
        let process = command.spawn().map_err(ComponentError::io("run containerd"))?;
        self.process = Some(process);
        let deadline = Instant::now() + PATIENCE;
        while !self.serves().await {
            let ended = self
                .process
                .as_mut()
                .and_then(|process| process.try_wait().ok().flatten());
            let why = match ended {
                Some(status) => format!("it ended with {status}"),
                None if Instant::now() > deadline => format!("it does not serve after {PATIENCE:?}"),
                None => {
                    sleep(PAUSE).await;
                    continue;
                }
            };
            return Err(ComponentError::failed(
                "start containerd",
                format!("{why}; its log ends with:\n{}", self.log()),
            ));
        }
        Ok(())
    }

    /// Whether the CRI answers, and has a pod network.
    async fn serves(&self) -> bool {
        // A condition: its type, then whether it holds.
        let ready = [b"\x0a\x0cNetworkReady".as_slice(), b"\x10\x01"].concat();
        let answer = self.call("/runtime.v1.RuntimeService/Status", Vec::new()).await;
        answer.is_ok_and(|status| contains(&status, &ready))
    }

    async fn import_file(&mut self, archive: PathBuf, name: &str) -> Result<(), ComponentError> {
        self.ctr(["images".as_ref(), "import".as_ref(), archive.as_os_str()])
            .await?;
        if self.shows(name).await {
            return Ok(());
        }
        // 2.x learns of some images only when it starts.
        self.restart().await?;
        if self.shows(name).await {
            return Ok(());
        }
        Err(ComponentError::failed(
            format!("import {name}"),
            "the CRI does not show it",
        ))
    }

    /// Whether the CRI shows an image, at once or soon.
    async fn shows(&self, name: &str) -> bool {
        // A tag of an image: field 2, the length, the name.
        let tag = [&[0x12, u8::try_from(name.len()).unwrap_or_default()], name.as_bytes()].concat();
        let deadline = Instant::now() + IMAGES_PATIENCE;
        loop {
            let answer = self.call("/runtime.v1.ImageService/ListImages", Vec::new()).await;
            if answer.is_ok_and(|images| contains(&images, &tag)) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            sleep(PAUSE).await;
        }
    }

    /// Makes one call of the CRI.
    pub(crate) async fn call(&self, method: &'static str, message: Vec<u8>) -> Result<Vec<u8>, ComponentError> {
        let socket = self.socket();
        blocking(move || {
            let answer = unary::call(&socket, method, &message, PATIENCE);
            answer.map_err(ComponentError::io(format!("call {method}")))
        })
        .await
    }

    /// One of its programs, with the shim of its own version first in `PATH`.
    fn command(&self, program: &str) -> Command {
        let programs = &self.components.programs;
        let mut command = Command::new(programs.join(program));
        command.env("PATH", path_with(programs));
        command
    }

    fn end(&mut self) -> Result<(), ComponentError> {
        if !self.exists {
            return Ok(());
        }
        self.exists = false;
        if let Some(mut process) = self.process.take() {
            // Killed here, so that it can be waited for: it is a child. An error means that it has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
        remove(&self.folder)
    }
}

impl Drop for PrivateContainerd {
    #[expect(clippy::print_stderr, reason = "a test that goes on has no other place to say it")]
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!(
                "not all of a private containerd is gone: {}",
                kubelet_core::error_chain(&error)
            );
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
