//! Field paths in the form that Kubernetes uses in its errors.

use std::fmt;

/// A path from the root of a document, linked from leaf to root on the stack of the decoder.
#[derive(Clone, Copy, Debug)]
pub(super) enum Path<'a> {
    Root,
    /// `parent.name`: the field of a type.
    Field {
        parent: &'a Path<'a>,
        name: &'a str,
    },
    /// `parent[key]`: the entry of a map.
    Key {
        parent: &'a Path<'a>,
        key: &'a str,
    },
    /// `parent[index]`: the element of a list.
    Index {
        parent: &'a Path<'a>,
        index: usize,
    },
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field {
                parent: Self::Root,
                name,
            } => f.write_str(name),
            Self::Field { parent, name } => write!(f, "{parent}.{name}"),
            Self::Key { parent, key } => write!(f, "{parent}[{key}]"),
            Self::Index { parent, index } => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Splits `spec.limits[nvidia.com/gpu]` into `spec`, `limits`, `nvidia.com/gpu`. Never fails: what makes no sense
/// names nothing.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if rest.is_empty() {
            return None;
        }
        if let Some(inner) = rest.strip_prefix('[') {
            let (key, after) = inner.split_once(']').unwrap_or((inner, ""));
            rest = after;
            return Some(key);
        }
        let (name, after) = rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()));
        rest = after;
        Some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::{Path, segments};

    #[test]
    fn a_path_is_written_like_kubernetes_writes_it() {
        let spec = Path::Field {
            parent: &Path::Root,
            name: "spec",
        };
        let list = Path::Field {
            parent: &spec,
            name: "containers",
        };
        let first = Path::Index {
            parent: &list,
            index: 0,
        };
        let limits = Path::Field {
            parent: &first,
            name: "limits",
        };
        let key = Path::Key {
            parent: &limits,
            key: "nvidia.com/gpu",
        };
        assert_eq!(key.to_string(), "spec.containers[0].limits[nvidia.com/gpu]");
    }

    #[test]
    fn a_path_splits_outside_its_brackets() {
        let split = |path| segments(path).collect::<Vec<_>>();
        assert_eq!(
            split("spec.containers[10].limits[nvidia.com/gpu]"),
            ["spec", "containers", "10", "limits", "nvidia.com/gpu"]
        );
        assert_eq!(split(""), [""; 0]);
        assert_eq!(split("a[b"), ["a", "b"]);
        assert_eq!(split("..a"), ["", "a"]);
    }
}
