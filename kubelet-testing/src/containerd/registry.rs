//! A registry of a test's own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::containerd::archive::OciArchive;
use crate::containerd::command::{blocking, find, output, run_with_input, tail};
use crate::containerd::error::ComponentError;
use crate::containerd::folder::Lock;
use crate::containerd::leftovers::{remove, remove_leftovers};
use crate::contract::skip;

const USER: &str = "puller";

/// It opens a registry that lives as long as a test, and no other.
const PASSWORD: &str = "only-for-a-test";

/// How long a start may take: far more than any needs.
const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(10);

/// A registry on this machine's loopback that nobody reads without credentials.
///
/// It serves plain HTTP, which runtimes accept of 127.0.0.1. It needs Debian's docker-registry, skopeo and apache2-utils,
/// but not root. It ends when it is dropped, with all that it has; what a killed process leaves is removed as
/// [`PrivateContainerd`](crate::PrivateContainerd) says.
///
/// ```no_run
/// # async fn example() -> Result<(), kubelet_testing::ComponentError> {
/// use kubelet_testing::{OciArchive, PrivateRegistry};
///
/// let registry = PrivateRegistry::start().await?;
/// let image = registry.push(&OciArchive::busybox()?, "busybox", "1").await?;
/// println!("{image} is for {} with {}", registry.user(), registry.password());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct PrivateRegistry {
    folder: PathBuf,
    process: Option<Child>,
    /// Host and port, once it listens.
    address: String,
    skopeo: PathBuf,
}

impl PrivateRegistry {
    /// Starts a registry on a free port and waits until it listens.
    ///
    /// # Errors
    /// [`ComponentError::Missing`] if the machine lacks what it needs, [`ComponentError::Failed`] with the end of its log if
    /// it does not come up.
    pub async fn start() -> Result<Self, ComponentError> {
        let mut registry = blocking(Self::prepare).await?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            // It chooses the port itself, so that nobody can take it in between.
            if let Some(address) = listening(&registry.log()) {
                registry.address = address;
                return Ok(registry);
            }
            let ended = registry
                .process
                .as_mut()
                .and_then(|process| process.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                let why = format!("it does not listen; its log ends with:\n{}", registry.log());
                return Err(ComponentError::failed("start a registry", why));
            }
            sleep(PAUSE).await;
        }
    }

    /// Starts a registry, or says why `test` is skipped.
    ///
    /// # Panics
    /// If it does not come up; and if it is missing although `KUBELET_TEST_REQUIRE` is `1`.
    pub async fn start_or_skip(test: &str) -> Option<Self> {
        match Self::start().await {
            Ok(registry) => Some(registry),
            Err(ComponentError::Missing { what }) => {
                skip(test, &what);
                None
            }
            Err(error) => panic!("start a registry for {test}: {}", kubelet_core::error_chain(&error)),
        }
    }

    /// Its host and port, with which the names of its images begin.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Who may read and write.
    #[must_use]
    pub fn user(&self) -> &str {
        USER
    }

    /// With which password.
    #[must_use]
    pub fn password(&self) -> &str {
        PASSWORD
    }

    /// The folder with all that it has on disk.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The end of its log, which has a line for each request.
    #[must_use]
    pub fn log(&self) -> String {
        tail(&self.folder.join("log"))
    }

    /// Puts an image in, and answers its full name.
    ///
    /// # Errors
    /// [`ComponentError::Failed`] if it cannot be written or is refused.
    pub async fn push(&self, image: &OciArchive, name: &str, tag: &str) -> Result<String, ComponentError> {
        let reference = format!("{}/{name}:{tag}", self.address);
        let layout = self.folder.join(format!("push-{}-{tag}", name.replace('/', "-")));
        let mut command = Command::new(&self.skopeo);
        command
            .args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"])
            .arg(format!("--dest-creds={USER}:{PASSWORD}"))
            // Not the archive, which it would unpack as root only.
            .arg(format!("oci:{}", layout.display()))
            .arg(format!("docker://{reference}"))
            // It must not follow what a user has configured.
            .env("HOME", &self.folder)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("REGISTRY_AUTH_FILE");
        let image = image.clone();
        blocking(move || {
            let at = || format!("write {}", layout.display());
            image.write_layout(&layout).map_err(ComponentError::io(at()))?;
            output(&mut command)?;
            fs::remove_dir_all(&layout).map_err(ComponentError::io(at()))
        })
        .await?;
        Ok(reference)
    }

    /// Ends it.
    ///
    /// # Errors
    /// [`ComponentError::Failed`] if something of it is left.
    pub async fn stop(mut self) -> Result<(), ComponentError> {
        blocking(move || self.end()).await
    }

    fn prepare() -> Result<Self, ComponentError> {
        let program = find("docker-registry", "docker-registry")?;
        let htpasswd = find("htpasswd", "apache2-utils")?;
        let skopeo = find("skopeo", "skopeo")?;
        remove_leftovers()?;
        let folder = Lock::take()?.make("registry")?;
        // From here on a drop removes what was made.
        let mut registry = Self {
            folder,
            process: None,
            address: String::new(),
            skopeo,
        };
        // The registry knows bcrypt only.
        let users = run_with_input(&htpasswd, ["-inB", USER], PASSWORD)?;
        let folder = &registry.folder;
        write(&folder.join("users"), &users)?;
        let config = folder.join("config.yml");
        write(&config, &configuration(folder))?;
        let log = folder.join("log");
        let opened = File::create(&log).and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = opened.map_err(ComponentError::io(format!("open {}", log.display())))?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        registry.process = Some(command.spawn().map_err(ComponentError::io("run docker-registry"))?);
        Ok(registry)
    }

    fn end(&mut self) -> Result<(), ComponentError> {
        let Some(mut process) = self.process.take() else {
            return remove(&self.folder);
        };
        // It keeps nothing that an orderly end would save. An error means that it has ended.
        let _ = process.kill();
        let _ = process.wait();
        remove(&self.folder)
    }
}

impl Drop for PrivateRegistry {
    #[expect(clippy::print_stderr, reason = "a test that goes on has no other place to say it")]
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!(
                "not all of a private registry is gone: {}",
                kubelet_core::error_chain(&error)
            );
        }
    }
}

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}/images
  delete:
    enabled: true
auth:
  htpasswd:
    realm: test
    path: {folder}/users
http:
  addr: 127.0.0.1:0
"
    )
}

/// The address in a log that says where the registry listens.
fn listening(log: &str) -> Option<String> {
    let (_, rest) = log.split_once("msg=\"listening on ")?;
    let (address, _) = rest.split_once('"')?;
    Some(address.to_owned())
}

fn write(path: &Path, text: &str) -> Result<(), ComponentError> {
    fs::write(path, text).map_err(ComponentError::io(format!("write {}", path.display())))
}
