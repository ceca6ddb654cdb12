//! Writing, reading and following real files. The clock is paused: time passes only while a reader
//! waits.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_oneof, proptest};

use super::{ContainerEnded, LogError, LogLiveness, LogOptions, LogReader, LogStream, LogWriter, tail_of_log};

fn at(nanosecond: i32) -> Timestamp {
    Timestamp::new(1_767_323_045, nanosecond).unwrap()
}

fn append(path: &Path) -> File {
    OpenOptions::new().append(true).create(true).open(path).unwrap()
}

fn write(path: &Path, text: &str) {
    let mut writer = LogWriter::new(append(path));
    writer.write(LogStream::Stdout, text.as_bytes(), at(0)).unwrap();
    writer.finish(at(0)).unwrap();
}

fn following() -> LogOptions {
    LogOptions {
        follow: true,
        ..LogOptions::default()
    }
}

async fn read(path: &Path, options: LogOptions, liveness: Arc<dyn LogLiveness>) -> Result<String, LogError> {
    let mut out = Vec::new();
    let mut chunks = std::pin::pin!(LogReader::open(path, options, liveness).await?.into_stream());
    while let Some(chunk) = chunks.next().await {
        out.extend_from_slice(&chunk?);
    }
    Ok(String::from_utf8(out).unwrap())
}

/// Does one thing to the log each time it is asked, as if the container did it meanwhile, and ends
/// with the last.
struct Script(Mutex<VecDeque<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Script")
    }
}

#[async_trait]
impl LogLiveness for Script {
    async fn still_running(&self) -> bool {
        let mut steps = self.0.lock().unwrap();
        if let Some(step) = steps.pop_front() {
            step();
        }
        !steps.is_empty()
    }
}

fn script(steps: Vec<Box<dyn FnOnce() + Send>>) -> Arc<Script> {
    Arc::new(Script(Mutex::new(steps.into())))
}

fn log() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    (dir, path)
}

#[tokio::test]
async fn a_link_is_followed_and_a_missing_log_is_told() {
    let (dir, path) = log();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(
        read(&link, following(), Arc::new(ContainerEnded)).await,
        Err(LogError::NotFound { .. })
    ));
    write(&path, "one\ntwo\n");
    assert_eq!(
        read(&link, LogOptions::default(), Arc::new(ContainerEnded))
            .await
            .unwrap(),
        "one\ntwo\n"
    );
    fs::write(&path, "this is\nno log\n").unwrap();
    assert!(matches!(
        read(&path, LogOptions::default(), Arc::new(ContainerEnded)).await,
        Err(LogError::Format { .. })
    ));
    fs::write(&path, "").unwrap();
    assert_eq!(read(&path, following(), Arc::new(ContainerEnded)).await.unwrap(), "");
}

#[tokio::test]
async fn the_tail_counts_records() {
    let (_dir, path) = log();
    write(&path, "one\ntwo\nthree\n");
    for (lines, want) in [(0, ""), (1, "three\n"), (2, "two\nthree\n"), (9, "one\ntwo\nthree\n")] {
        let options = LogOptions {
            tail_lines: Some(lines),
            ..LogOptions::default()
        };
        assert_eq!(
            read(&path, options, Arc::new(ContainerEnded)).await.unwrap(),
            want,
            "{lines}"
        );
    }
    assert_eq!(tail_of_log(&path, 80, 2048).await.unwrap(), "one\ntwo\nthree\n");
    assert_eq!(tail_of_log(&path, 2, 8).await.unwrap(), "o\nthree\n");
    write(&path, "äöü\n");
    assert_eq!(tail_of_log(&path, 1, 4).await.unwrap(), "ü\n");
}

#[tokio::test]
async fn an_incomplete_last_record_is_shown_at_the_end() {
    let (_dir, path) = log();
    write(&path, "one\n");
    fs::write(
        &path,
        fs::read_to_string(&path).unwrap() + "2026-01-02T03:04:05Z stdout F tw",
    )
    .unwrap();
    assert_eq!(
        read(&path, LogOptions::default(), Arc::new(ContainerEnded))
            .await
            .unwrap(),
        "one\ntw"
    );
}

#[tokio::test]
async fn a_line_too_long_for_a_record_is_skipped() {
    let (_dir, path) = log();
    write(&path, "one\n");
    fs::write(&path, fs::read_to_string(&path).unwrap() + &"x".repeat(3 << 20) + "\n").unwrap();
    write(&path, "two\n");
    assert_eq!(
        read(&path, LogOptions::default(), Arc::new(ContainerEnded))
            .await
            .unwrap(),
        "one\ntwo\n"
    );
}

#[tokio::test(start_paused = true)]
async fn following_shows_what_is_written_until_the_container_ends() {
    let (_dir, path) = log();
    write(&path, "one\n");
    let grow = |text: &'static str| -> Box<dyn FnOnce() + Send> {
        let path = path.clone();
        Box::new(move || {
            let old = fs::read_to_string(&path).unwrap();
            fs::write(&path, old + text).unwrap();
        })
    };
    let steps = script(vec![
        grow("2026-01-02T03:04:05Z stdout F tw"),
        grow("o\n"),
        Box::new(|| {}),
        // Written between the last look and the end.
        grow("2026-01-02T03:04:05Z stdout F three\n"),
    ]);
    assert_eq!(read(&path, following(), steps).await.unwrap(), "one\ntwo\nthree\n");
    let options = LogOptions {
        tail_lines: Some(0),
        ..following()
    };
    let steps = script(vec![grow("2026-01-02T03:04:05Z stdout F four\n")]);
    assert_eq!(read(&path, options, steps).await.unwrap(), "four\n");
}

#[tokio::test(start_paused = true)]
async fn following_loses_and_repeats_nothing_over_rotation() {
    let (dir, path) = log();
    write(&path, "one\n");
    let rotated = dir.path().join("0.log.1");
    let (from, to, old, new, again) = (
        path.clone(),
        rotated.clone(),
        rotated.clone(),
        path.clone(),
        path.clone(),
    );
    let (cut, last, to2) = (path.clone(), path.clone(), dir.path().join("0.log.2"));
    let steps = script(vec![
        Box::new(move || fs::rename(from, to).unwrap()),
        // Written to the renamed file, before and after the new one is there.
        Box::new(move || {
            write(&old, "two\n");
            drop(append(&new));
            write(&old, "three\n");
        }),
        Box::new(move || write(&rotated, "four\n")),
        Box::new(move || write(&again, "five\n")),
        Box::new(|| {}),
        Box::new(|| {}),
        // Cut in place.
        Box::new(move || {
            fs::write(&cut, "").unwrap();
            write(&cut, "six\n");
        }),
        Box::new(|| {}),
        // Rotated once more at the very end.
        Box::new(move || {
            write(&last, "seven\n");
            fs::rename(&last, to2).unwrap();
            write(&last, "eight\n");
        }),
    ]);
    assert_eq!(
        read(&path, following(), steps).await.unwrap(),
        "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_loses_nothing() {
    let (_dir, path) = log();
    let grow = path.clone();
    let mut steps: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for number in 0..5 {
        let grow = grow.clone();
        steps.push(Box::new(move || write(&grow, &format!("{number}\n"))));
    }
    write(&path, "start\n");
    let mut reader = LogReader::open(&path, following(), script(steps)).await.unwrap();
    let mut out = Vec::new();
    let mut dropped = 0;
    loop {
        // Dropped at its first wait, whatever that is, and now and then carried through.
        let chunk = match reader.next().now_or_never() {
            None if dropped % 3 == 2 => reader.next().await,
            None => {
                dropped += 1;
                tokio::time::sleep(std::time::Duration::from_millis(300)).await;
                continue;
            }
            Some(chunk) => chunk,
        };
        dropped += 1;
        match chunk {
            Some(chunk) => out.extend_from_slice(&chunk.unwrap()),
            None => break,
        }
    }
    assert_eq!(String::from_utf8(out).unwrap(), "start\n0\n1\n2\n3\n4\n");
}

#[tokio::test]
async fn a_notification_wakes_a_follower() {
    #[derive(Debug)]
    struct Always;
    #[async_trait]
    impl LogLiveness for Always {
        async fn still_running(&self) -> bool {
            true
        }
    }
    let (_dir, path) = log();
    write(&path, "one\n");
    let mut reader = LogReader::open(&path, following(), Arc::new(Always)).await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap(), "one\n");
    let (chunk, ()) = tokio::join!(reader.next(), async { write(&path, "two\n") });
    assert_eq!(chunk.unwrap().unwrap(), "two\n");
}

/// Output as a container gives it: lines, binary, and lines around the record limit.
fn output() -> impl Strategy<Value = Vec<(bool, Vec<u8>)>> {
    let piece = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        4 => "[a-z \n]{0,20}".prop_map(String::into_bytes),
        1 => (0_usize..3, 16_380_usize..16_390, any::<bool>())
            .prop_map(|(times, len, end)| [b"x".repeat(times * len), if end { b"\n".to_vec() } else { Vec::new() }].concat()),
    ];
    prop::collection::vec((any::<bool>(), piece), 0..20)
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(output in output(), flush in any::<prop::sample::Index>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (_dir, path) = log();
        let mut writer = LogWriter::new(append(&path));
        let mut want = [Vec::new(), Vec::new()];
        for (index, (stderr, bytes)) in output.iter().enumerate() {
            let stream = if *stderr { LogStream::Stderr } else { LogStream::Stdout };
            writer.write(stream, bytes, at(0)).unwrap();
            want[usize::from(*stderr)].extend_from_slice(bytes);
            if index == flush.index(output.len()) {
                writer.flush_partial(at(0)).unwrap();
            }
        }
        writer.finish(at(0)).unwrap();
        for (stream, want) in [LogStream::Stdout, LogStream::Stderr].into_iter().zip(want) {
            let got = runtime.block_on(async {
                let options = LogOptions { stream: Some(stream), ..LogOptions::default() };
                let mut reader = LogReader::open(&path, options, Arc::new(ContainerEnded)).await.unwrap();
                let mut got = Vec::new();
                while let Some(chunk) = reader.next().await {
                    got.extend_from_slice(&chunk.unwrap());
                }
                got
            });
            assert_eq!(got, want);
        }
    }

    #[test]
    fn any_file_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), follow in any::<bool>(), tail in any::<Option<u8>>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (_dir, path) = log();
        fs::write(&path, &bytes).unwrap();
        let options = LogOptions { follow, tail_lines: tail.map(u64::from), timestamps: true, ..LogOptions::default() };
        runtime.block_on(async {
            let mut reader = LogReader::open(&path, options, Arc::new(ContainerEnded)).await.unwrap();
            while let Some(Ok(_)) = reader.next().await {}
        });
    }
}

/// What may happen to a log while it is followed.
#[derive(Clone, Copy, Debug)]
enum Event {
    Write,
    Rename,
    Reopen,
    Nothing,
}

/// The container's side: its handle stays on a renamed file until it is told to reopen.
struct Container {
    path: PathBuf,
    out: File,
    renamed: bool,
    count: usize,
}

impl Container {
    fn happen(&mut self, event: Event) {
        match event {
            Event::Write => {
                let mut writer = LogWriter::new(&self.out);
                writer
                    .write(LogStream::Stdout, format!("line {}\n", self.count).as_bytes(), at(0))
                    .unwrap();
                writer.finish(at(0)).unwrap();
                self.count += 1;
            }
            // Only a log with content is ever rotated.
            Event::Rename if !self.renamed && self.out.metadata().unwrap().len() > 0 => {
                fs::rename(&self.path, self.path.with_extension(self.count.to_string())).unwrap();
                self.renamed = true;
            }
            Event::Reopen => {
                self.out = append(&self.path);
                self.renamed = false;
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_line_is_followed_once(events in prop::collection::vec(
        prop::sample::select(&[Event::Write, Event::Write, Event::Rename, Event::Reopen, Event::Nothing][..]), 0..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (_dir, path) = log();
        let container =
            Arc::new(Mutex::new(Container { path: path.clone(), out: append(&path), renamed: false, count: 0 }));
        let steps = events.into_iter().map(|event| {
            let container = Arc::clone(&container);
            Box::new(move || container.lock().unwrap().happen(event)) as Box<dyn FnOnce() + Send>
        });
        let got = runtime.block_on(read(&path, following(), script(steps.collect()))).unwrap();
        let want: String = (0..container.lock().unwrap().count).map(|count| format!("line {count}\n")).collect();
        assert_eq!(got, want);
    }
}
