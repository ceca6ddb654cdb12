//! Images: the host's own files, and root file systems in folders.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use kubelet_core::{
    ImageFilesystems, ImageId, ImageRecord, ImageRef, ImageService, PullProgress, PullRequest, RuntimeError,
};

use crate::runtime::{ProcessRuntime, blocking};

/// The image that stands for the host's own files.
pub const HOST_IMAGE: &str = "localhost/host";

/// What clients put before a name without a registry.
const IMPLIED_PREFIX: &str = "docker.io/library/";

/// An image that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Name with a tag, which is its id too.
    pub(crate) id: String,
    /// The folder that becomes `/`; absent for the host's own files.
    pub(crate) root: Option<PathBuf>,
}

/// What an image's name means.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Host,
    /// A folder's name, and a tag.
    Folder(String, String),
    /// None that this runtime can have.
    Foreign,
}

/// Looks for an image. The error is why there is none, for people.
pub(crate) fn find(images_dir: &Path, image: &ImageRef) -> Result<Found, String> {
    match parse(&image.name) {
        Name::Host => Ok(Found {
            id: format!("{HOST_IMAGE}:latest"),
            root: None,
        }),
        Name::Folder(name, tag) => {
            let tagged = images_dir.join(format!("{name}:{tag}"));
            let plain = images_dir.join(&name);
            let root = if tag == "latest" && plain.is_dir() {
                plain
            } else {
                tagged
            };
            if !root.is_dir() {
                let wanted = if tag == "latest" { images_dir.join(&name) } else { root };
                return Err(format!(
                    "image {image} not found: there is no folder {}",
                    wanted.display()
                ));
            }
            Ok(Found {
                id: format!("{name}:{tag}"),
                root: Some(root),
            })
        }
        Name::Foreign => Err(format!(
            "image {image} not found: this runtime pulls nothing, it knows {HOST_IMAGE} and the folders in {}",
            images_dir.display()
        )),
    }
}

fn parse(name: &str) -> Name {
    let bare = name.strip_prefix(IMPLIED_PREFIX).unwrap_or(name);
    let (name, tag) = match bare.rsplit_once(':') {
        Some((name, tag)) => (name, tag),
        None => (bare, "latest"),
    };
    if name == HOST_IMAGE && is_plain(tag) {
        return Name::Host;
    }
    if is_plain(name) && is_plain(tag) {
        return Name::Folder(name.to_owned(), tag.to_owned());
    }
    Name::Foreign
}

/// Whether a text is one file name without surprises: what names and tags of images consist of.
fn is_plain(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// All images in order of their names.
fn list(images_dir: &Path) -> io::Result<Vec<ImageRecord>> {
    let mut names = vec![format!("{HOST_IMAGE}:latest")];
    match std::fs::read_dir(images_dir) {
        Ok(entries) => {
            for entry in entries {
                let entry = entry?;
                let Ok(folder) = entry.file_name().into_string() else {
                    continue;
                };
                if let Name::Folder(name, tag) = parse(&folder)
                    && entry.path().is_dir()
                {
                    names.push(format!("{name}:{tag}"));
                }
            }
        }
        Err(err) if err.kind() == io::ErrorKind::NotFound => {}
        Err(err) => return Err(err),
    }
    names.sort();
    // `name` and `name:latest` are one image.
    names.dedup();
    Ok(names.into_iter().map(record).collect())
}

fn record(id: String) -> ImageRecord {
    let mut record = ImageRecord::new(ImageId::from(id.as_str()));
    record.tags = vec![id];
    // Nothing here was pulled, so that nothing may be collected.
    record.pinned = true;
    record
}

#[async_trait]
impl ImageService for ProcessRuntime {
    async fn status(&self, image: &ImageRef, _handler: &str) -> Result<Option<ImageRecord>, RuntimeError> {
        let (dir, image) = (self.images_dir().to_owned(), image.clone());
        let found = blocking("status", move || Ok(find(&dir, &image).ok())).await?;
        Ok(found.map(|found| record(found.id)))
    }

    async fn list(&self) -> Result<Vec<ImageRecord>, RuntimeError> {
        let dir = self.images_dir().to_owned();
        blocking("list", move || list(&dir)).await
    }

    async fn pull(&self, req: PullRequest<'_>, _progress: &dyn PullProgress) -> Result<ImageId, RuntimeError> {
        let (dir, image) = (self.images_dir().to_owned(), req.image.clone());
        match blocking("pull", move || Ok(find(&dir, &image))).await? {
            Ok(found) => Ok(ImageId::from(found.id)),
            Err(message) => Err(RuntimeError::Refused {
                message,
                reason: Some("ErrImagePull"),
            }),
        }
    }

    async fn remove(&self, id: &ImageId) -> Result<(), RuntimeError> {
        let image = ImageRef::new(id.as_str());
        if self.status(&image, "").await?.is_none() {
            return Ok(());
        }
        Err(RuntimeError::refused(format!(
            "image {id} is a folder of the host, which is not this runtime's to remove"
        )))
    }

    async fn filesystems(&self) -> Result<ImageFilesystems, RuntimeError> {
        let mut filesystems = ImageFilesystems::default();
        let (images, state) = (self.images_dir().to_owned(), self.state_dir().to_owned());
        if blocking("filesystems", {
            let images = images.clone();
            move || Ok(images.is_dir())
        })
        .await?
        {
            filesystems.images.push(images);
        }
        filesystems.containers.push(state);
        Ok(filesystems)
    }
}

#[cfg(test)]
mod tests {
    use kubelet_core::ImageRef;

    use super::{Found, Name, find, list, parse};

    #[test]
    fn names_mean_the_host_a_folder_or_nothing() {
        let folder = |name: &str, tag: &str| Name::Folder(name.to_owned(), tag.to_owned());
        for (name, expected) in [
            ("localhost/host", Name::Host),
            ("localhost/host:latest", Name::Host),
            ("localhost/host:any", Name::Host),
            ("app", folder("app", "latest")),
            ("app:1.2", folder("app", "1.2")),
            ("docker.io/library/app:1.2", folder("app", "1.2")),
            ("..", Name::Foreign),
            ("../etc", Name::Foreign),
            ("/etc", Name::Foreign),
            ("app:..", Name::Foreign),
            ("app:", Name::Foreign),
            (":latest", Name::Foreign),
            ("", Name::Foreign),
            (".hidden", Name::Foreign),
            ("registry.example/app:1", Name::Foreign),
            ("app@sha256:0123", Name::Foreign),
            ("localhost/host/x", Name::Foreign),
        ] {
            assert_eq!(parse(name), expected, "{name}");
        }
    }

    #[test]
    fn a_missing_folder_is_named_and_a_present_one_found() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["app", "app:2", "new:latest", "not an image"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("file"), "").unwrap();
        let found = |name: &str| find(dir.path(), &ImageRef::new(name));
        let expected = |id: &str, folder: &str| {
            Ok(Found {
                id: id.to_owned(),
                root: Some(dir.path().join(folder)),
            })
        };
        assert_eq!(found("app"), expected("app:latest", "app"));
        assert_eq!(found("app:2"), expected("app:2", "app:2"));
        assert_eq!(found("new"), expected("new:latest", "new:latest"));
        let missing = found("gone:1").unwrap_err();
        assert!(
            missing.contains(dir.path().join("gone:1").to_str().unwrap()),
            "{missing}"
        );
        let foreign = found("registry.example/app:1").unwrap_err();
        assert!(foreign.contains(dir.path().to_str().unwrap()), "{foreign}");
        let all: Vec<String> = list(dir.path())
            .unwrap()
            .into_iter()
            .map(|record| record.id.to_string())
            .collect();
        assert_eq!(all, ["app:2", "app:latest", "localhost/host:latest", "new:latest"]);
        assert_eq!(list(&dir.path().join("absent")).unwrap().len(), 1);
    }
}
