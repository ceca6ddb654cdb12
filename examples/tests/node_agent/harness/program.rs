//! A program that is running, and the lines that it prints.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long a program may be silent while something is expected of it.
const SILENCE: Duration = Duration::from_secs(60);

pub(crate) struct Program {
    child: Child,
    received: Receiver<String>,
    readers: Vec<JoinHandle<()>>,
    said: Vec<String>,
}

impl Program {
    pub(crate) fn start(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program can be started");
        let (sender, received) = channel();
        let readers = vec![
            read(child.stdout.take().expect("a pipe"), sender.clone()),
            read(child.stderr.take().expect("a pipe"), sender),
        ];
        Self {
            child,
            received,
            readers,
            said: Vec::new(),
        }
    }

    pub(crate) fn line(&mut self, text: &str) -> String {
        loop {
            match self.next() {
                Some(line) if line.contains(text) => return line,
                Some(_) => {}
                None => panic!("it has ended without `{text}`:\n{}", self.said.join("\n")),
            }
        }
    }

    pub(crate) fn lines(&mut self, texts: &[&str]) {
        let mut missing = texts.to_vec();
        while !missing.is_empty() {
            match self.next() {
                Some(line) => missing.retain(|text| !line.contains(text)),
                None => panic!("it has ended without {missing:?}:\n{}", self.said.join("\n")),
            }
        }
    }

    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the program was not waited for");
    }

    /// Waits for the end: how it ended, and what it said from the last line seen on.
    pub(crate) fn rest(&mut self) -> (ExitStatus, Vec<String>) {
        let seen = self.said.len();
        while self.next().is_some() {}
        (
            self.child.wait().expect("the program has ended"),
            self.said[seen..].to_vec(),
        )
    }

    /// The next line; nothing once the program has closed its output.
    fn next(&mut self) -> Option<String> {
        match self.received.recv_timeout(SILENCE) {
            Ok(line) => {
                self.said.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing more after:\n{}", self.said.join("\n")),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail if it was waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

fn read(from: impl Read + Send + 'static, lines: Sender<String>) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    })
}
