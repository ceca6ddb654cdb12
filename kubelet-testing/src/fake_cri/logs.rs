//! The logs of containers, in the format of CRI.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use kubelet_core::jiff::Timestamp;

/// Makes a log if there is none, and adds lines of standard output to it.
pub(crate) fn write(path: &Path, at: Timestamp, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut lines = String::new();
    for line in text.lines() {
        lines.push_str(&format!("{at:.9} stdout F {line}\n"));
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(lines.as_bytes())
}
