//! A live table of pods, redrawn in place.

use std::collections::BTreeMap;
use std::io::{self, Write};

use kubelet_core::jiff::Timestamp;
use kubelet_core::{PodUid, StatusChange};

use crate::summary::Summary;

const HEAD: [&str; 6] = ["POD", "STATE", "READY", "RESTARTS", "AGE", "NOTE"];

/// The table, and what of it is on the screen.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pods: BTreeMap<PodUid, Summary>,
    /// The lines on the screen; none before it is drawn.
    drawn: Vec<String>,
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
        self.clear(&mut out, size().0)?;
        writeln!(out, "{line}")?;
        drop(out);
        self.draw(now)
    }

    /// Draws the table, if it would look different from what is there.
    pub(crate) fn draw(&mut self, now: Timestamp) -> io::Result<()> {
        let (width, height) = size();
        let lines = self.lines(now, width, height);
        if lines == self.drawn {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        self.clear(&mut out, width)?;
        for line in &lines {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
        self.drawn = lines;
        Ok(())
    }

    fn clear(&mut self, out: &mut impl Write, width: usize) -> io::Result<()> {
        let rows: usize = self.drawn.drain(..).map(|line| rows(&line, width)).sum();
        if rows > 0 {
            // Up to the table's first line, and away with all below it. The cursor is not at the left if somebody typed.
            write!(out, "\r\x1b[{rows}A\x1b[J")?;
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

/// How many rows a line takes up: terminals wrap what was drawn before they became narrower.
fn rows(line: &str, width: usize) -> usize {
    line.chars().count().div_ceil(width).max(1)
}

/// Columns and rows of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (usize::from(size.ws_col), usize::from(size.ws_row)),
        _ => (80, 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pods: usize) -> Table {
        let mut table = Table::default();
        for number in 0..pods {
            let summary = Summary {
                pod: format!("default/pod-{number}"),
                state: "Running".to_owned(),
                ready: "1/1".to_owned(),
                restarts: 0,
                started: None,
                note: "a note that is rather long".to_owned(),
            };
            table.pods.insert(PodUid::from(format!("{number}")), summary);
        }
        table
    }

    fn cleared(table: &mut Table, width: usize) -> String {
        let mut out = Vec::new();
        table.clear(&mut out, width).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_cut_to_the_width_and_the_table_to_the_height() {
        let lines = table(9).lines(Timestamp::UNIX_EPOCH, 30, 7);
        assert_eq!(lines.len(), 5);
        assert!(lines.iter().all(|line| line.chars().count() <= 30), "{lines:?}");
        assert_eq!(lines.last().map(String::as_str), Some("… and 6 more"));
    }

    #[test]
    fn what_a_narrower_terminal_has_wrapped_is_cleared_too() {
        let mut table = table(1);
        table.drawn = vec!["x".repeat(60), "x".repeat(30), "x".to_owned(), String::new()];
        assert_eq!(cleared(&mut table, 30), "\r\x1b[5A\x1b[J");
        assert_eq!(cleared(&mut table, 30), "");
    }
}
