//! A live table of pods, redrawn in place.

use std::collections::BTreeMap;
use std::io::{self, Write};

use kubelet_core::jiff::Timestamp;
use kubelet_core::{PodUid, StatusChange};

use crate::summary::Summary;

const HEAD: [&str; 6] = ["POD", "STATE", "READY", "RESTARTS", "AGE", "NOTE"];

/// The table, and how many lines of it are on the screen.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pods: BTreeMap<PodUid, Summary>,
    drawn: usize,
    last: Vec<String>,
}

impl Table {
    pub(crate) fn status(&mut self, change: &StatusChange) {
        let update = change.update();
        let uid = update.pod.uid().clone();
        match change {
            StatusChange::Forgotten(_) => {
                self.pods.remove(&uid);
            }
            _ => {
                self.pods.insert(uid, Summary::of(update));
            }
        }
    }

    /// Prints a line above the table.
    pub(crate) fn line(&mut self, line: &str, now: Timestamp) -> io::Result<()> {
        let mut out = io::stdout().lock();
        self.clear(&mut out)?;
        writeln!(out, "{line}")?;
        drop(out);
        self.draw(now)
    }

    /// Draws the table, if it would look different from what is there.
    pub(crate) fn draw(&mut self, now: Timestamp) -> io::Result<()> {
        let (width, height) = size();
        let lines = self.lines(now, width, height);
        if self.drawn > 0 && lines == self.last {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        self.clear(&mut out)?;
        for line in &lines {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
        self.drawn = lines.len();
        self.last = lines;
        Ok(())
    }

    fn clear(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.drawn > 0 {
            // Up to the table's first line, and away with all below it.
            write!(out, "\x1b[{}A\x1b[J", self.drawn)?;
            self.drawn = 0;
        }
        Ok(())
    }

    fn lines(&self, now: Timestamp, width: usize, height: usize) -> Vec<String> {
        let mut pods: Vec<&Summary> = self.pods.values().collect();
        pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        let rows: Vec<[String; 6]> = std::iter::once(HEAD.map(str::to_owned))
            .chain(pods.into_iter().map(|pod| {
                [
                    pod.pod.clone(),
                    pod.state.clone(),
                    pod.ready.clone(),
                    pod.restarts.to_string(),
                    pod.age(now),
                    pod.note.clone(),
                ]
            }))
            .collect();
        let widths: Vec<usize> = (0..HEAD.len())
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut lines: Vec<String> = rows
            .iter()
            .map(|row| {
                let mut line = String::new();
                for (cell, width) in row.iter().zip(&widths) {
                    line.push_str(&format!("{cell:width$}  "));
                }
                line.trim_end().chars().take(width).collect()
            })
            .collect();
        // A table that is taller than the screen could not be redrawn in place.
        let room = height.saturating_sub(2).max(2);
        if lines.len() > room {
            let hidden = lines.len() - room + 1;
            lines.truncate(room - 1);
            lines.push(format!("… and {hidden} more"));
        }
        lines
    }
}

/// Columns and rows of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (usize::from(size.ws_col), usize::from(size.ws_row)),
        _ => (80, 24),
    }
}
