//! OCI images made without a registry and without a builder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The mode of a folder that is made only because something is put into it.
const FOLDER: u32 = 0o755;

/// Where content is, by its digest.
const BLOBS: &str = "blobs/sha256";

/// An image as an OCI archive: layers from what the test says, and the config that goes with them.
///
/// The same image has the same bytes and digests each time it is written. A clone is a base for the next image, with
/// which it shares its layers.
///
/// ```
/// use kubelet_testing::OciArchive;
///
/// let base = OciArchive::new("localhost/hello:1").file("/hello", 0o644, "hello\n").folder("/tmp", 0o1777);
/// let image = base.named("localhost/named-user:1").env("LANG", "C").user("app");
/// assert!(!image.to_bytes()?.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "an archive does nothing until it is written, imported or pushed"]
pub struct OciArchive {
    name: String,
    layers: Vec<Layer>,
    entrypoint: Vec<String>,
    command: Vec<String>,
    env: Vec<String>,
    user: Option<String>,
    working_dir: Option<String>,
    volumes: Vec<String>,
    labels: BTreeMap<String, String>,
    stop_signal: Option<String>,
}

/// What a layer adds, by path without its leading slash: sorted, a folder comes before what is in it.
type Layer = BTreeMap<String, Entry>;

#[derive(Debug, Clone)]
struct Entry {
    mode: u32,
    uid: u64,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Folder,
    File(Arc<[u8]>),
    Link(String),
}

impl OciArchive {
    /// An empty image of that full name, tag included: `localhost/app:1`.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            layers: vec![Layer::new()],
            entrypoint: Vec::new(),
            command: Vec::new(),
            env: Vec::new(),
            user: None,
            working_dir: None,
            volumes: Vec::new(),
            labels: BTreeMap::new(),
            stop_signal: None,
        }
    }

    /// The image's full name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the image another full name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Begins another layer, on top of what was said so far.
    pub fn layer(mut self) -> Self {
        self.layers.push(Layer::new());
        self
    }

    /// Adds a file that belongs to root.
    pub fn file(self, path: &str, mode: u32, content: impl AsRef<[u8]>) -> Self {
        self.add(path, mode, Kind::File(content.as_ref().into()))
    }

    /// Adds a folder that belongs to root.
    pub fn folder(self, path: &str, mode: u32) -> Self {
        self.add(path, mode, Kind::Folder)
    }

    /// Adds a symbolic link.
    pub fn link(self, path: &str, target: impl Into<String>) -> Self {
        self.add(path, 0o777, Kind::Link(target.into()))
    }

    /// Gives what was added to this layer at a path to that user, and to the group of the same number.
    pub fn owned_by(mut self, path: &str, uid: u32) -> Self {
        let entry = self.layers.last_mut().and_then(|layer| layer.get_mut(inner(path)));
        if let Some(entry) = entry {
            entry.uid = uid.into();
        }
        self
    }

    /// What is run, before the arguments.
    pub fn entrypoint<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.entrypoint = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// The arguments, or what is run if there is no entrypoint.
    pub fn command<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a variable to the environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push(format!("{name}={value}"));
        self
    }

    /// Who runs it: a name or a number, each with or without `:group`.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Where it is run.
    pub fn working_dir(mut self, path: impl Into<String>) -> Self {
        self.working_dir = Some(path.into());
        self
    }

    /// Declares a volume.
    pub fn volume(mut self, path: impl Into<String>) -> Self {
        self.volumes.push(path.into());
        self
    }

    /// Adds a label.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// The signal that asks it to stop: `SIGUSR1`.
    pub fn stop_signal(mut self, signal: impl Into<String>) -> Self {
        self.stop_signal = Some(signal.into());
        self
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// If the file cannot be written, or a path cannot be one in an archive.
    pub fn write(&self, path: impl AsRef<Path>) -> io::Result<()> {
        fs::write(path, self.to_bytes()?)
    }

    /// Writes what is in the archive into a folder, as an OCI image layout.
    ///
    /// # Errors
    /// If a file cannot be written, or a path cannot be one in an archive.
    pub fn write_layout(&self, folder: impl AsRef<Path>) -> io::Result<()> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder.join(BLOBS))?;
        self.files()?
            .into_iter()
            .try_for_each(|(path, content)| fs::write(folder.join(path), content))
    }

    /// The archive's bytes.
    ///
    /// # Errors
    /// If a path cannot be one in an archive.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let mut archive = Builder::new(Vec::new());
        for (path, content) in self.files()? {
            let mut header = Header::new_gnu();
            header.set_mode(0o644);
            header.set_mtime(0);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, &content[..])?;
        }
        archive.into_inner()
    }

    /// What the archive has, by path.
    fn files(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut blobs = Blobs::default();
        let mut layers = Vec::new();
        for layer in &self.layers {
            layers.push(blobs.add("application/vnd.oci.image.layer.v1.tar", layer_tar(layer)?));
        }
        let config = self.config(&layers);
        let config = blobs.add_json("application/vnd.oci.image.config.v1+json", &config)?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": layers,
        });
        let mut manifest = blobs.add_json("application/vnd.oci.image.manifest.v1+json", &manifest)?;
        // The first is what containerd names an import by, the second what other tools know.
        manifest["annotations"] = json!({
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": tag(&self.name),
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest],
        });
        let mut files = vec![
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
            ("index.json".to_owned(), serde_json::to_vec(&index)?),
        ];
        files.extend(
            blobs
                .by_digest
                .into_iter()
                .map(|(digest, blob)| (format!("{BLOBS}/{digest}"), blob)),
        );
        Ok(files)
    }

    fn add(mut self, path: &str, mode: u32, kind: Kind) -> Self {
        let path = inner(path);
        for (at, _) in path.match_indices('/') {
            let folder = &path[..at];
            // A layer that writes into a folder of a lower one says that folder's mode again, so it must be the same.
            let known = self.layers.iter().rev().find_map(|layer| layer.get(folder)).cloned();
            let known = known.unwrap_or(Entry {
                mode: FOLDER,
                uid: 0,
                kind: Kind::Folder,
            });
            if let Some(layer) = self.layers.last_mut() {
                layer.entry(folder.to_owned()).or_insert(known);
            }
        }
        if let Some(layer) = self.layers.last_mut() {
            layer.insert(path.to_owned(), Entry { mode, uid: 0, kind });
        }
        self
    }

    fn config(&self, layers: &[Value]) -> Value {
        let digests: Vec<&Value> = layers.iter().map(|layer| &layer["digest"]).collect();
        let volumes: BTreeMap<&String, Value> = self.volumes.iter().map(|path| (path, json!({}))).collect();
        json!({
            "created": "1970-01-01T00:00:00Z",
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Cmd": self.command,
                "Env": self.env,
                "User": self.user.as_deref().unwrap_or_default(),
                "WorkingDir": self.working_dir.as_deref().unwrap_or_default(),
                "Volumes": volumes,
                "Labels": self.labels,
                "StopSignal": self.stop_signal.as_deref().unwrap_or_default(),
            },
            "rootfs": { "type": "layers", "diff_ids": digests },
        })
    }
}

/// Content by its digest.
#[derive(Default)]
struct Blobs {
    by_digest: BTreeMap<String, Vec<u8>>,
}

impl Blobs {
    /// Adds a blob and answers its descriptor.
    fn add(&mut self, media_type: &str, blob: Vec<u8>) -> Value {
        let digest = hex(&Sha256::digest(&blob));
        let descriptor = json!({
            "mediaType": media_type,
            "digest": format!("sha256:{digest}"),
            "size": blob.len(),
        });
        self.by_digest.insert(digest, blob);
        descriptor
    }

    fn add_json(&mut self, media_type: &str, value: &Value) -> io::Result<Value> {
        Ok(self.add(media_type, serde_json::to_vec(value)?))
    }
}

fn layer_tar(layer: &Layer) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for (path, entry) in layer {
        let mut header = Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_uid(entry.uid);
        header.set_gid(entry.uid);
        header.set_mtime(0);
        header.set_size(0);
        match &entry.kind {
            Kind::Folder => {
                header.set_entry_type(EntryType::Directory);
                archive.append_data(&mut header, format!("{path}/"), io::empty())?;
            }
            Kind::File(content) => {
                header.set_entry_type(EntryType::Regular);
                header.set_size(content.len() as u64);
                archive.append_data(&mut header, path, &content[..])?;
            }
            Kind::Link(target) => {
                header.set_entry_type(EntryType::Symlink);
                archive.append_link(&mut header, path, target)?;
            }
        }
    }
    archive.into_inner()
}

/// A digest as it is written.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A path as archives have it: without its leading slash.
fn inner(path: &str) -> &str {
    path.trim_start_matches('/')
}

/// What comes after the last colon that is not the one of a port.
fn tag(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((_, tag)) if !tag.contains('/') => tag,
        _ => "latest",
    }
}

/// This machine's architecture as images call it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use tar::Archive;

    use super::*;

    /// The files of an archive.
    fn files(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in Archive::new(bytes).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), content);
        }
        files
    }

    fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let blob = &files[&format!("blobs/sha256/{digest}")];
        assert_eq!(descriptor["size"], blob.len(), "the size in {descriptor}");
        blob
    }

    fn parse(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    fn manifest(files: &BTreeMap<String, Vec<u8>>) -> Value {
        parse(blob(files, &parse(&files["index.json"])["manifests"][0]))
    }

    #[test]
    fn an_archive_can_be_followed_from_its_index_to_its_files() {
        let image = OciArchive::new("localhost:5000/hello:v1")
            .file("/etc/hello", 0o640, "hello")
            .link("/bin/sh", "busybox")
            .entrypoint(["/bin/sh"])
            .command(["-c", "true"])
            .env("A", "b")
            .user("app")
            .volume("/data")
            .stop_signal("SIGUSR1");
        let files = files(&image.to_bytes().unwrap());
        assert_eq!(files["oci-layout"], br#"{"imageLayoutVersion":"1.0.0"}"#);
        let annotations = &parse(&files["index.json"])["manifests"][0]["annotations"];
        assert_eq!(annotations["io.containerd.image.name"], "localhost:5000/hello:v1");
        assert_eq!(annotations["org.opencontainers.image.ref.name"], "v1");
        let manifest = manifest(&files);
        let config = parse(blob(&files, &manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/bin/sh"]));
        assert_eq!(config["config"]["Cmd"], json!(["-c", "true"]));
        assert_eq!(config["config"]["Env"], json!(["A=b"]));
        assert_eq!(config["config"]["User"], "app");
        assert_eq!(config["config"]["Volumes"], json!({"/data": {}}));
        assert_eq!(config["config"]["StopSignal"], "SIGUSR1");
        assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);

        let layer = blob(&files, &manifest["layers"][0]);
        let mut seen = Vec::new();
        for entry in Archive::new(layer).entries().unwrap() {
            let entry = entry.unwrap();
            seen.push((
                entry.path().unwrap().display().to_string(),
                entry.header().mode().unwrap(),
            ));
        }
        let expected = [
            ("bin/", 0o755),
            ("bin/sh", 0o777),
            ("etc/", 0o755),
            ("etc/hello", 0o640),
        ];
        assert_eq!(seen, expected.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn the_same_image_has_the_same_bytes() {
        let image = || {
            OciArchive::new("localhost/a:1")
                .file("/b", 0o644, "b")
                .file("/a", 0o644, "a")
        };
        assert_eq!(image().to_bytes().unwrap(), image().to_bytes().unwrap());
    }

    #[test]
    fn an_image_on_a_base_shares_its_layers() {
        let base = OciArchive::new("localhost/base:1").folder("/tmp", 0o1777);
        let image = base
            .clone()
            .named("localhost/top:1")
            .layer()
            .file("/tmp/x", 0o600, "x")
            .owned_by("/tmp/x", 7);
        let base = manifest(&files(&base.to_bytes().unwrap()));
        let files = files(&image.to_bytes().unwrap());
        let top = manifest(&files);
        assert_eq!(top["layers"][0], base["layers"][0]);
        let mut seen = Vec::new();
        for entry in Archive::new(blob(&files, &top["layers"][1])).entries().unwrap() {
            let entry = entry.unwrap();
            seen.push((entry.header().mode().unwrap(), entry.header().uid().unwrap()));
        }
        assert_eq!(seen, [(0o1777, 0), (0o600, 7)], "the mode of the lower folder is kept");
    }

    #[test]
    fn a_path_with_dots_is_refused() {
        let image = OciArchive::new("localhost/a:1").file("/../etc/passwd", 0o644, "");
        assert!(image.to_bytes().is_err());
    }

    #[test]
    fn a_port_is_no_tag() {
        assert_eq!(tag("localhost:5000/app"), "latest");
        assert_eq!(tag("localhost:5000/app:2"), "2");
    }
}
