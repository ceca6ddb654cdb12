//! The kubelet: a child process, of which everything is known from outside.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};

/// How much of its output is shown where it fails.
const SHOWN_LINES: usize = 20;

/// What a kubelet's command may name.
#[derive(Debug)]
pub(super) struct Places<'a> {
    pub(super) socket: &'a Path,
    pub(super) manifests: &'a Path,
    /// Where its own folder and its output go.
    pub(super) dir: &'a Path,
}

/// The kubelet; it is killed with this.
#[derive(Debug)]
pub(super) struct Agent {
    child: Child,
    output: PathBuf,
}

impl Agent {
    pub(super) fn start(command: &[String], places: &Places<'_>) -> io::Result<Self> {
        let own = places.dir.join("kubelet");
        fs::create_dir(&own)?;
        let output = places.dir.join("output");
        let endpoint = format!("unix://{}", text(places.socket)?);
        let words: Vec<String> = command
            .iter()
            .map(|word| {
                Ok(word
                    .replace("{endpoint}", &endpoint)
                    .replace("{manifests}", text(places.manifests)?)
                    .replace("{dir}", text(&own)?))
            })
            .collect::<io::Result<_>>()?;
        let Some((program, arguments)) = words.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command of a kubelet"));
        };
        let file = File::create(&output)?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot start {program}: {error}")))?;
        Ok(Self { child, output })
    }

    /// The processor time of its process so far, to a hundredth of a second.
    pub(super) fn cpu(&self) -> io::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name may hold anything; what comes after it is the state, and from there on user and system time are the
        // 12th and 13th.
        let ticks = stat.rsplit_once(") ").and_then(|(_, fields)| {
            let mut fields = fields.split(' ').skip(11);
            let user: u64 = fields.next()?.parse().ok()?;
            let system: u64 = fields.next()?.parse().ok()?;
            Some(user + system)
        });
        let ticks = ticks.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("not a stat: {stat}")))?;
        Ok(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
    }

    /// Its resident set, in bytes.
    pub(super) fn resident(&self) -> io::Result<usize> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.child.id()))?;
        let pages: Option<usize> = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        let pages = pages.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("not a statm: {statm}")))?;
        Ok(pages * page_size())
    }

    /// An error if it has ended.
    pub(super) fn check(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.failure(&format!("the kubelet ended: {status}"))),
        }
    }

    /// What went wrong, with the end of what it said.
    pub(super) fn failure(&self, what: &str) -> io::Error {
        let output = fs::read(&self.output).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let lines: Vec<&str> = output.lines().collect();
        let end = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
        io::Error::other(format!("{what}\nits last lines:\n{end}"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A path as text for a command line.
fn text(path: &Path) -> io::Result<&str> {
    path.to_str()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not UTF-8", path.display())))
}
