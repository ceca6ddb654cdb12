//! Plain lines: one for each change of what a table would show.

use std::collections::BTreeMap;
use std::io::{self, Write};

use kubelet_core::{PodUid, StatusChange};

use crate::summary::Summary;

/// Prints a line for each pod whose summary changed.
#[derive(Debug, Default)]
pub(crate) struct PlainLines {
    shown: BTreeMap<PodUid, Summary>,
}

impl PlainLines {
    pub(crate) fn status(&mut self, change: &StatusChange) -> io::Result<()> {
        let update = change.update();
        let uid = update.pod.uid().clone();
        if let StatusChange::Forgotten(_) = change {
            self.shown.remove(&uid);
            return print(&format!("pod {} has left the node", update.pod.key()));
        }
        let summary = Summary::of(update);
        if self.shown.get(&uid) == Some(&summary) {
            return Ok(());
        }
        let Summary {
            pod,
            state,
            ready,
            restarts,
            note,
            ..
        } = &summary;
        let note = if note.is_empty() {
            String::new()
        } else {
            format!(" ({note})")
        };
        print(&format!("pod {pod}: {state}, ready {ready}, restarts {restarts}{note}"))?;
        self.shown.insert(uid, summary);
        Ok(())
    }

    pub(crate) fn line(line: &str) -> io::Result<()> {
        print(line)
    }
}

fn print(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
