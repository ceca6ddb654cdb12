//! Paths of the host.
//!
//! Source: kubelet 1.36, `hostpath/host_path.go`.

use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path};

use async_trait::async_trait;
use kubelet_core::k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::nfs;
use crate::ground::failure::at;
use crate::plugin::{Placed, PluginFeatures, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec};

/// Volumes of type `hostPath`, of pods and of persistent volumes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPath;

fn source<'a>(volume: &VolumeSpec<'a>) -> Option<&'a HostPathVolumeSource> {
    match volume {
        VolumeSpec::Inline(volume) => volume.host_path.as_ref(),
        VolumeSpec::Persistent { volume, .. } => volume.spec.as_ref()?.host_path.as_ref(),
    }
}

#[async_trait]
impl VolumePlugin for HostPath {
    fn name(&self) -> &'static str {
        "kubernetes.io/host-path"
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        source(volume).is_some()
    }

    fn features(&self) -> PluginFeatures {
        PluginFeatures {
            is_elsewhere: true,
            ..PluginFeatures::default()
        }
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let Some(source) = source(&cx.volume) else {
            return Err(VolumeFault::new("it is no hostPath"));
        };
        let path = Path::new(&source.path).to_owned();
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(VolumeFault::new(format!(
                "path {:?} must not contain \"..\"",
                source.path
            )));
        }
        let (kind, at) = (source.type_.clone().unwrap_or_default(), path.clone());
        cx.blocking(move |_| check(&at, &kind)).await?;
        Ok(Placed::at(path))
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        // Only of another agent's making: nothing is made here.
        nfs::unmount_and_remove(cx).await
    }
}

/// Whether a path is what its type says; makes it, if the type says so and it is not there.
fn check(path: &Path, kind: &str) -> io::Result<()> {
    let (is_it, what): (fn(FileType) -> bool, &str) = match kind {
        "" => return Ok(()),
        "DirectoryOrCreate" => {
            if is_missing(path)? {
                let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
                return made.map_err(|error| at("cannot make", path, error));
            }
            (|kind| kind.is_dir(), "a directory")
        }
        "FileOrCreate" => {
            if is_missing(path)? {
                let made = fs::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o644)
                    .open(path);
                return made.map(drop).map_err(|error| at("cannot make", path, error));
            }
            (|kind| kind.is_file(), "a file")
        }
        "Directory" => (|kind| kind.is_dir(), "a directory"),
        "File" => (|kind| kind.is_file(), "a file"),
        "Socket" => (|kind| kind.is_socket(), "a socket file"),
        "CharDevice" => (|kind| kind.is_char_device(), "a character device"),
        "BlockDevice" => (|kind| kind.is_block_device(), "a block device"),
        other => return Err(io::Error::other(format!("{other} is an invalid volume type"))),
    };
    let fits = match fs::metadata(path) {
        Ok(found) => is_it(found.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(at("cannot look at", path, error)),
    };
    if fits {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "hostPath type check failed: {} is not {what}",
        path.display()
    )))
}

fn is_missing(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(at("cannot look at", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::check;

    #[test]
    fn each_type_takes_what_it_names_and_says_what_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("dir")).unwrap();
        fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        let fails = |at: &str, kind: &str, what: &str| {
            let error = check(&path(at), kind).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("hostPath type check failed: {} is not {what}", path(at).display())
            );
        };
        for (at, kind) in [
            ("none", ""),
            ("dir", "Directory"),
            ("dir", "DirectoryOrCreate"),
            ("file", "File"),
            ("link", "File"),
            ("file", "FileOrCreate"),
            ("socket", "Socket"),
            ("a/b/c", "DirectoryOrCreate"),
            ("new", "FileOrCreate"),
        ] {
            check(&path(at), kind).unwrap_or_else(|error| panic!("{at} as {kind}: {error}"));
        }
        assert!(path("a/b/c").is_dir() && path("new").is_file());
        fails("file", "Directory", "a directory");
        fails("file", "DirectoryOrCreate", "a directory");
        fails("none", "Directory", "a directory");
        fails("dir", "File", "a file");
        fails("dir", "FileOrCreate", "a file");
        fails("file", "Socket", "a socket file");
        fails("file", "CharDevice", "a character device");
        fails("file", "BlockDevice", "a block device");
        check(std::path::Path::new("/dev/null"), "CharDevice").unwrap();
        let error = check(&path("file"), "Sideways").unwrap_err().to_string();
        assert_eq!(error, "Sideways is an invalid volume type");
        assert!(
            check(&path("b/c"), "FileOrCreate").is_err(),
            "its folder has to be there"
        );
    }
}
