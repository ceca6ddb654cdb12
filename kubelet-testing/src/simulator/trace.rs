//! What a simulation did and saw, as text.

use std::collections::VecDeque;
use std::fmt::{Arguments, Write};

use tokio::time::Instant;

/// Lines with times. Of a long trace only the newest lines are kept; the hash is of all.
#[derive(Debug)]
pub(crate) struct Trace {
    began: Instant,
    lines: VecDeque<String>,
    keep: usize,
    hash: u64,
}

impl Trace {
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            began: Instant::now(),
            lines: VecDeque::new(),
            keep,
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }

    pub(crate) fn line(&mut self, at: Instant, text: Arguments<'_>) {
        let since = at.saturating_duration_since(self.began);
        let mut line = String::with_capacity(96);
        let _ = write!(line, "{:>6}.{:03} {text}", since.as_secs(), since.subsec_millis());
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        if self.keep > 0 {
            self.lines.push_back(line);
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}
