//! A log file as an open handle: it stays the same file when its name moves on.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// Bytes per step when the beginning of the tail is looked for.
const TAIL_BLOCK: u64 = 4096;

/// An open log. Positions are the caller's, so a call that is dropped half-way moves nothing.
#[derive(Clone, Debug)]
pub(super) struct LogFile {
    file: Arc<File>,
    device: u64,
    inode: u64,
}

impl LogFile {
    pub(super) async fn open(path: &Path) -> io::Result<Self> {
        let path = path.to_owned();
        blocking(move || {
            let file = File::open(path)?;
            let meta = file.metadata()?;
            Ok(Self {
                file: Arc::new(file),
                device: meta.dev(),
                inode: meta.ino(),
            })
        })
        .await
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    pub(super) async fn len(&self) -> io::Result<u64> {
        let file = Arc::clone(&self.file);
        blocking(move || Ok(file.metadata()?.len())).await
    }

    /// Up to `max` bytes at `offset`; none at the end of the file.
    pub(super) async fn read_at(&self, offset: u64, max: usize) -> io::Result<Vec<u8>> {
        let file = Arc::clone(&self.file);
        blocking(move || {
            let mut bytes = vec![0; max];
            let read = loop {
                match file.read_at(&mut bytes, offset) {
                    Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            bytes.truncate(read);
            Ok(bytes)
        })
        .await
    }

    /// Where the last `lines` lines start. A last line without line feed does not count.
    pub(super) async fn tail_offset(&self, lines: u64) -> io::Result<u64> {
        let file = Arc::clone(&self.file);
        blocking(move || tail_offset(&file, lines)).await
    }
}

fn tail_offset(file: &File, lines: u64) -> io::Result<u64> {
    let len = file.metadata()?.len();
    if lines == 0 {
        return Ok(len);
    }
    let mut block = [0; TAIL_BLOCK as usize];
    let mut found = 0;
    let mut end = len;
    while end > 0 {
        let start = end.saturating_sub(TAIL_BLOCK);
        let wanted = &mut block[..usize::try_from(end - start).unwrap_or(0)];
        file.read_exact_at(wanted, start)?;
        for (index, _) in wanted.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            found += 1;
            if found > lines {
                return Ok(start + index as u64 + 1);
            }
        }
        end = start;
    }
    Ok(0)
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(call).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::tail_offset;

    #[test]
    fn the_tail_starts_after_a_line_feed() {
        let long = "y".repeat(5000);
        let text = format!("a\nbb\n{long}\nd\n");
        for (text, lines, want) in [
            ("", 3, 0),
            ("a\nb\nc\n", 0, 6),
            ("a\nb\nc\n", 1, 4),
            ("a\nb\nc\n", 2, 2),
            ("a\nb\nc\n", 3, 0),
            ("a\nb\nc\n", u64::MAX, 0),
            ("a\nb\nc", 1, 2),
            (&text, 1, 5006),
            (&text, 2, 5),
            (&text, 3, 2),
        ] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(
                tail_offset(&file, lines).unwrap(),
                want,
                "{lines} of {} bytes",
                text.len()
            );
        }
    }
}
