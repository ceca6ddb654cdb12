//! The files that a volume is to have.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::ground::failure::invalid;

/// Longest path and longest name, in bytes.
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 255;

/// One file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FileProjection {
    pub(crate) bytes: Vec<u8>,
    /// Exactly that, whatever the umask is.
    pub(crate) mode: u32,
    /// Whose it is; the agent's if nothing.
    pub(crate) owner: Option<u32>,
}

impl fmt::Debug for FileProjection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be a secret.
        let mode = format_args!("{:o}", self.mode);
        f.debug_struct("FileProjection")
            .field("bytes", &self.bytes.len())
            .field("mode", &mode)
            .field("owner", &self.owner)
            .finish()
    }
}

/// Files by their paths below the volume's folder.
pub(crate) type Payload = BTreeMap<String, FileProjection>;

/// The payload by clean paths.
pub(super) fn validated(payload: &Payload) -> io::Result<BTreeMap<PathBuf, &FileProjection>> {
    let mut clean = BTreeMap::new();
    for (path, file) in payload {
        let refuse = |why: &str| Err(invalid(format!("the path {path:?} of a volume's file {why}")));
        let mut parts: Vec<&str> = Vec::new();
        if path.starts_with('/') {
            return refuse("must be relative");
        }
        for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
            if part == ".." {
                return refuse("must not contain '..'");
            }
            if part.len() > MAX_NAME {
                return refuse("has a name that is too long");
            }
            parts.push(part);
        }
        match parts.first() {
            None => return refuse("must not be empty"),
            Some(first) if first.starts_with("..") => return refuse("must not begin with '..'"),
            Some(_) if path.len() > MAX_PATH => return refuse("is too long"),
            Some(_) if path.contains('\0') => return refuse("must not contain a NUL"),
            Some(_) => clean.insert(parts.iter().collect::<PathBuf>(), file),
        };
    }
    let is_file = |parent: &&Path| !parent.as_os_str().is_empty() && clean.contains_key(*parent);
    for path in clean.keys() {
        if let Some(parent) = path.ancestors().skip(1).find(is_file) {
            let (path, parent) = (path.display(), parent.display());
            return Err(invalid(format!(
                "the path \"{path}\" of a volume's file is below the file \"{parent}\""
            )));
        }
    }
    Ok(clean)
}
