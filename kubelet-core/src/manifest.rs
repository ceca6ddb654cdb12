//! Pod manifests: from the bytes of a file or an HTTP body to typed pods, with places for everything that is wrong.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use self::node::{Node, Value};
use self::path::Path;

mod decode;
mod error;
mod json;
mod locator;
mod node;
mod path;
mod scalar;
mod yaml;

#[cfg(test)]
mod tests;

pub use self::error::ManifestError;
pub use self::locator::Locator;

/// Bodies of this many bytes or more are refused.
///
/// Source: kubelet 1.36, `config/common.go` (`maxConfigLength`).
pub const MAX_MANIFEST_BYTES: usize = 10 << 20;

/// One pod as written, not yet defaulted or validated, and what was noticed while reading it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decoded {
    /// The pod, exactly as far as the manifest sets it.
    pub pod: Pod,
    /// Fields that the pod type does not have, in document order. They have no effect on the pod.
    pub unknown_fields: Vec<UnknownField>,
    /// Finds the line of a field, for errors that later stages report by path.
    pub locator: Locator,
}

/// A field that the Kubernetes type at its place does not have: most often a typing error.
///
/// Upstream ignores such fields without notice; here they are reported and still ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownField {
    /// Path from the root of the document, like `spec.containers[0].imagePulPolicy`.
    pub path: String,
    /// Line of the field's name, counted from 1.
    pub line: Option<u32>,
}

/// What a body holds, going by its `kind` and `apiVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ManifestKind {
    /// One `v1` Pod.
    Pod,
    /// A `v1` PodList.
    PodList,
}

/// Decodes one pod, as a manifest file holds it.
///
/// A body whose first visible byte is `{` is strict JSON, everything else YAML 1.1 (`yes` is a boolean, `0644` is 420),
/// of which only the first document is read. Aliases and merge keys work. A repeated key is refused, where upstream
/// lets the last one win: in a pod it is a mistake that would drop a container or a limit without a word.
///
/// Source: kubelet 1.36, `config/common.go` and `util/yaml/decoder.go`.
///
/// # Errors
/// When the body is too large, not well-formed, not a `v1` Pod, or has a value of a wrong type. The error names the
/// first such place. Unknown fields are no error.
pub fn decode_pod(text: &[u8]) -> Result<Decoded, ManifestError> {
    let source = Source::read(text)?;
    match kind_of(&source.root)? {
        ManifestKind::Pod => decode_one(&source, &source.root, &Path::Root, Locator::new(&source.text, None)),
        ManifestKind::PodList => Err(ManifestError::at(
            &source.root,
            "invalid pod: this is a v1 PodList, not a Pod",
        )),
    }
}

/// Decodes an HTTP body: a `v1` Pod, or a `v1` PodList whose items need neither kind nor apiVersion.
///
/// The rules of [`decode_pod`] hold. Paths of errors and unknown fields start at the list (`items[1].spec`), those
/// given to an item's [`Locator`] at that item. Unknown fields of the list itself are not reported.
///
/// # Errors
/// As [`decode_pod`]; one bad item fails the whole list, as it does upstream.
pub fn decode_pods(text: &[u8]) -> Result<Vec<Decoded>, ManifestError> {
    let items = decode_items(text)?;
    items.into_iter().map(|item| item.map_err(|bad| bad.error)).collect()
}

/// One item of an HTTP body: a pod, or what is wrong with it.
pub(crate) type Item = Result<Decoded, Box<BadItem>>;

/// An item of a list that is no pod.
#[derive(Clone, Debug)]
pub(crate) struct BadItem {
    /// The namespace, where it can be told.
    pub(crate) namespace: Option<String>,
    /// The name, where it can be told.
    pub(crate) name: Option<String>,
    pub(crate) error: ManifestError,
}

/// Decodes an HTTP body as [`decode_pods`] does, but a bad item hurts only itself.
///
/// # Errors
/// When the body is not well-formed, or neither a `v1` Pod nor a `v1` PodList with a list of items.
pub(crate) fn decode_items(text: &[u8]) -> Result<Vec<Item>, ManifestError> {
    let source = Source::read(text)?;
    let decode = |node: &Node, path: &Path<'_>, item| {
        decode_one(&source, node, path, Locator::new(&source.text, item)).map_err(|error| {
            let text = |name| {
                let value = node.field("metadata")?.field(name)?;
                match &value.value {
                    Value::Text(text) => Some(text.to_string()),
                    _ => None,
                }
            };
            Box::new(BadItem {
                namespace: text("namespace"),
                name: text("name"),
                error,
            })
        })
    };
    if kind_of(&source.root)? == ManifestKind::Pod {
        return Ok(vec![decode(&source.root, &Path::Root, None)]);
    }
    let list = Path::Field {
        parent: &Path::Root,
        name: "items",
    };
    match source.root.field("items").map(|items| (items, &items.value)) {
        None | Some((_, Value::Null)) => Ok(Vec::new()),
        Some((_, Value::Seq(items))) => Ok(items
            .iter()
            .enumerate()
            .map(|(index, item)| decode(item, &Path::Index { parent: &list, index }, Some(index)))
            .collect()),
        Some((items, _)) => Err(ManifestError::at(items, "invalid type: expected a sequence of pods").with_path(&list)),
    }
}

/// Says whether a body is a Pod or a PodList, without decoding the pods in it.
///
/// # Errors
/// As [`decode_pod`], for what shows before the pods themselves are read.
pub fn manifest_kind(text: &[u8]) -> Result<ManifestKind, ManifestError> {
    kind_of(&Source::read(text)?.root)
}

/// A body that was read into a tree.
struct Source {
    text: Arc<[u8]>,
    root: Arc<Node>,
    json: bool,
}

impl Source {
    fn read(text: &[u8]) -> Result<Self, ManifestError> {
        if text.len() >= MAX_MANIFEST_BYTES {
            return Err(ManifestError::new(format!(
                "the manifest has {} bytes, the limit is {}",
                text.len(),
                MAX_MANIFEST_BYTES - 1
            )));
        }
        Ok(Self {
            text: Arc::from(text),
            root: parse(text)?,
            json: is_json(text),
        })
    }
}

/// Reads a body into a tree whose nodes know their places.
fn parse(text: &[u8]) -> Result<Arc<Node>, ManifestError> {
    let text = std::str::from_utf8(text).map_err(|err| {
        let line = text[..err.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        ManifestError::new("the manifest is not UTF-8 text").with_line(u32::try_from(line).ok())
    })?;
    if is_json(text.as_bytes()) {
        json::parse(text)
    } else {
        yaml::parse(text)
    }
}

fn is_json(text: &[u8]) -> bool {
    text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

fn kind_of(root: &Node) -> Result<ManifestKind, ManifestError> {
    let kind = text_of(root, "kind")?
        .ok_or_else(|| ManifestError::at(root, format!("Object 'Kind' is missing in '{}'", root.excerpt())))?;
    let version = text_of(root, "apiVersion")?
        .ok_or_else(|| ManifestError::at(root, format!("Object 'apiVersion' is missing in '{}'", root.excerpt())))?;
    match (version, kind) {
        ("v1", "Pod") => Ok(ManifestKind::Pod),
        ("v1", "PodList") => Ok(ManifestKind::PodList),
        _ => {
            let at = root.field("kind").map_or(root, |node| node);
            Err(
                ManifestError::at(at, format!("no kind {kind:?} is registered for version {version:?}"))
                    .with_field("kind"),
            )
        }
    }
}

/// A top-level text field; unset, null and empty are the same.
fn text_of<'a>(root: &'a Node, name: &str) -> Result<Option<&'a str>, ManifestError> {
    match root.field(name).map(|node| (node, &node.value)) {
        None | Some((_, Value::Null)) => Ok(None),
        Some((_, Value::Text(text))) => Ok(Some(text.as_ref()).filter(|text| !text.is_empty())),
        Some((node, _)) => Err(ManifestError::at(node, "invalid type: expected a string").with_field(name)),
    }
}

fn decode_one(source: &Source, node: &Node, path: &Path<'_>, locator: Locator) -> Result<Decoded, ManifestError> {
    let (pod, unknown_fields) = decode::from_node(node, path, source.json)?;
    Ok(Decoded {
        pod,
        unknown_fields,
        locator,
    })
}
