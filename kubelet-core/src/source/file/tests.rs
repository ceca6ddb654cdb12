//! The file source on real folders. Nothing sleeps: tests wait for what the stream says.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::FileSource;
use crate::clock::SystemClock;
use crate::source::{InvalidManifest, Origin, PodSource, RawPod, Removed, SourceContext, SourceItem};

fn text(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - name: c\n    image: \"{image}\"\n"
    )
}

struct Opened {
    items: BoxStream<'static, SourceItem>,
    /// The image of each file's pod; none of a bad file.
    all: BTreeMap<String, Option<String>>,
    stop: CancellationToken,
}

/// Nearly without periodic reads, so that only the watch can tell.
fn watch(path: &Path) -> Opened {
    open(FileSource::new(path).period(Duration::from_secs(3600)))
}

fn open(source: FileSource) -> Opened {
    let stop = CancellationToken::new();
    let items = source.open(SourceContext::new("node".into(), Arc::new(SystemClock), stop.clone()));
    Opened {
        items,
        stop,
        all: BTreeMap::new(),
    }
}

impl Opened {
    async fn next(&mut self) -> SourceItem {
        let next = timeout(Duration::from_secs(20), self.items.next()).await;
        next.expect("news within the time").expect("no end")
    }

    /// What is there after the next item: `file=image` of each pod, `file!` of each invalid manifest, in their order.
    async fn snapshot(&mut self) -> Vec<String> {
        match self.next().await {
            SourceItem::Snapshot { pods, invalid, .. } => {
                self.all.clear();
                pods.iter().for_each(|raw| self.put(raw));
                invalid.iter().for_each(|bad| self.put_bad(bad));
            }
            SourceItem::Upsert(raw) => self.put(&raw),
            SourceItem::Invalid(bad) => self.put_bad(&bad),
            SourceItem::Remove(Removed::Origin(origin)) => {
                assert!(self.all.remove(&file(&origin)).is_some(), "{origin} was not there");
            }
            item => panic!("{item:?} says nothing of a file"),
        }
        let good = self
            .all
            .iter()
            .filter_map(|(file, image)| Some(format!("{file}={}", image.as_ref()?)));
        let bad = self.all.iter().filter(|(_, image)| image.is_none());
        good.chain(bad.map(|(file, _)| format!("{file}!"))).collect()
    }

    fn put(&mut self, raw: &RawPod) {
        let image = raw.pod.spec.as_ref().unwrap().containers[0].image.clone();
        self.all.insert(file(raw.origin.as_ref().unwrap()), image);
    }

    fn put_bad(&mut self, bad: &InvalidManifest) {
        self.all.insert(file(&bad.origin), None);
    }

    /// Snapshots until one is as wanted. Those before it may only be as said, since there are many ways to time a look.
    async fn until(&mut self, wanted: &[&str], between: &[&[&str]]) {
        loop {
            let found = self.snapshot().await;
            if found == wanted {
                return;
            }
            assert!(between.iter().any(|allowed| found == *allowed), "{found:?}");
        }
    }

    async fn trouble(&mut self) {
        let item = self.next().await;
        assert!(matches!(item, SourceItem::Trouble(_)), "{item:?}");
    }

    async fn quiet(&mut self) {
        let more = timeout(Duration::from_millis(400), self.items.next()).await;
        assert!(more.is_err(), "{more:?}");
    }
}

fn file(origin: &Origin) -> String {
    match origin {
        Origin::File(path) => path.file_name().unwrap().to_str().unwrap().to_owned(),
        other => panic!("{other:?} is no file"),
    }
}

#[tokio::test]
async fn a_folder_is_read_in_order_without_what_is_no_manifest() {
    let dir = TempDir::new().unwrap();
    for (file, image) in [
        ("b.yaml", "2"),
        ("a", "1"),
        (".c.yaml", "3"),
        ("d.yaml~", "4"),
        ("#e#", "5"),
    ] {
        fs::write(dir.path().join(file), text("x", image)).unwrap();
    }
    fs::create_dir(dir.path().join("folder")).unwrap();
    // What a plugin that is gone leaves in the wrong place.
    drop(UnixListener::bind(dir.path().join("foo.sock")).unwrap());
    fs::write(dir.path().join("bad.yaml"), "apiVersion: v1\nkind: Pod\nspec: 7\n").unwrap();
    fs::write(dir.path().join("large"), vec![b' '; 10 << 20]).unwrap();
    symlink(dir.path().join("nowhere"), dir.path().join("link")).unwrap();
    let mut source = watch(&dir.path().join(""));
    let first = source.next().await;
    let SourceItem::Snapshot {
        pods,
        invalid,
        remembered,
    } = first
    else {
        panic!("{first:?}");
    };
    let origins: Vec<_> = pods.iter().map(|raw| raw.origin.clone().unwrap()).collect();
    let file = |name: &str| Origin::File(dir.path().join(name).into());
    assert_eq!((origins, remembered), (vec![file("a"), file("b.yaml")], false));
    let errors: Vec<_> = invalid.iter().map(|bad| bad.error.to_string()).collect();
    let path = dir.path().display();
    assert!(
        errors[0].starts_with(&format!("{path}/bad.yaml: line 3, column 7: spec: ")),
        "{errors:?}"
    );
    assert!(errors[1].contains("10485760 bytes"), "{errors:?}");
    assert_eq!(errors[2], format!("cannot read {path}/link"));
    source.quiet().await;
    source.stop.cancel();
    assert!(source.items.next().await.is_none());
}

#[tokio::test]
async fn files_that_come_change_and_go_are_followed() {
    let dir = TempDir::new().unwrap();
    let (a, b) = (dir.path().join("a.yaml"), dir.path().join("b.yaml"));
    let mut source = watch(dir.path());
    assert!(source.snapshot().await.is_empty());
    fs::write(&a, text("a", "1")).unwrap();
    source.until(&["a.yaml=1"], &[]).await;
    fs::write(&a, text("a", "2")).unwrap();
    source.until(&["a.yaml=2"], &[]).await;
    fs::rename(&a, &b).unwrap();
    source.until(&["b.yaml=2"], &[&["a.yaml=2", "b.yaml=2"]]).await;
    fs::hard_link(&b, &a).unwrap();
    source.until(&["a.yaml=2", "b.yaml=2"], &[]).await;
    fs::remove_file(&b).unwrap();
    source.until(&["a.yaml=2"], &[]).await;
    fs::write(&a, text("a", "2")).unwrap();
    source.quiet().await;
}

#[tokio::test]
async fn an_editor_never_makes_a_pod_go_away() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, text("a", "0")).unwrap();
    let mut source = watch(dir.path());
    source.until(&["a.yaml=0"], &[]).await;
    for round in 1..6 {
        // Vim: a swap file, a probe, the old file moved away, the new one written, the old one removed.
        let swap = dir.path().join(".a.yaml.swp");
        fs::write(&swap, "b0VIM").unwrap();
        fs::write(dir.path().join("4913"), "").unwrap();
        fs::remove_file(dir.path().join("4913")).unwrap();
        fs::rename(&file, dir.path().join("a.yaml~")).unwrap();
        tokio::task::yield_now().await;
        fs::write(&file, text("a", &format!("vim{round}"))).unwrap();
        fs::remove_file(dir.path().join("a.yaml~")).unwrap();
        fs::remove_file(&swap).unwrap();
        source.until(&[&format!("a.yaml=vim{round}")], &[]).await;
        // Others: written elsewhere and moved into place.
        fs::write(dir.path().join(".new"), text("a", &format!("move{round}"))).unwrap();
        fs::rename(dir.path().join(".new"), &file).unwrap();
        source.until(&[&format!("a.yaml=move{round}")], &[]).await;
        // Removed and written anew.
        fs::remove_file(&file).unwrap();
        fs::write(&file, text("a", &format!("anew{round}"))).unwrap();
        source.until(&[&format!("a.yaml=anew{round}")], &[]).await;
    }
    source.quiet().await;
}

#[tokio::test]
async fn a_file_is_not_read_before_its_writer_has_closed_it() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, text("a", "1")).unwrap();
    let mut source = watch(dir.path());
    source.until(&["a.yaml=1"], &[]).await;
    let whole = text("a", "sidecar") + "  - name: d\n    image: x\n";
    // The first half alone is a good manifest of another pod.
    let half = text("a", "sidecar").len();
    let mut writer = fs::File::create(&file).unwrap();
    writer.write_all(&whole.as_bytes()[..half]).unwrap();
    source.quiet().await;
    writer.write_all(&whole.as_bytes()[half..]).unwrap();
    drop(writer);
    let item = source.next().await;
    let SourceItem::Upsert(raw) = item else {
        panic!("{item:?}");
    };
    assert_eq!(raw.pod.spec.as_ref().unwrap().containers.len(), 2);
}

#[tokio::test]
async fn a_file_that_went_is_gone_though_another_came_right_after_it() {
    let dir = TempDir::new().unwrap();
    let place = |name: &str| dir.path().join(name);
    fs::write(place("a.yaml"), text("a", "1")).unwrap();
    fs::write(place("bad.yaml"), "7").unwrap();
    let mut source = watch(dir.path());
    source.until(&["a.yaml=1", "bad.yaml!"], &[]).await;
    fs::write(place(".b"), text("b", "2")).unwrap();
    fs::remove_file(place("a.yaml")).unwrap();
    fs::rename(place(".b"), place("b.yaml")).unwrap();
    source
        .until(&["b.yaml=2", "bad.yaml!"], &[&["a.yaml=1", "b.yaml=2", "bad.yaml!"]])
        .await;
    source.quiet().await;
}

#[tokio::test]
async fn a_folder_that_comes_back_is_told_of_as_a_whole() {
    let dir = TempDir::new().unwrap();
    let (folder, away) = (dir.path().join("manifests"), dir.path().join("away"));
    fs::create_dir(&folder).unwrap();
    for name in ["a", "b"] {
        fs::write(folder.join(name), text(name, "1")).unwrap();
    }
    let mut source = watch(&folder);
    source.until(&["a=1", "b=1"], &[]).await;
    fs::rename(&folder, &away).unwrap();
    source.trouble().await;
    fs::remove_file(away.join("a")).unwrap();
    fs::rename(&away, &folder).unwrap();
    let item = source.next().await;
    let SourceItem::Snapshot { pods, .. } = item else {
        panic!("{item:?}");
    };
    assert_eq!(pods.len(), 1);
}

#[tokio::test]
async fn a_snapshot_holds_a_linked_file_that_is_being_written() {
    let (dir, far) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (folder, away) = (dir.path().join("manifests"), dir.path().join("away"));
    fs::create_dir(&folder).unwrap();
    let target = far.path().join("a.yaml");
    fs::write(&target, text("a", "1")).unwrap();
    symlink(&target, folder.join("a.yaml")).unwrap();
    fs::write(folder.join("b.yaml"), text("b", "1")).unwrap();
    let mut source = watch(&folder);
    source.until(&["a.yaml=1", "b.yaml=1"], &[]).await;
    source.quiet().await;
    let mut writer = fs::OpenOptions::new().append(true).open(&target).unwrap();
    writer.write_all(b"# more\n").unwrap();
    fs::rename(&folder, &away).unwrap();
    source.trouble().await;
    fs::rename(&away, &folder).unwrap();
    // Nothing of it is told without the file, however long it is written to.
    for _ in 0..200 {
        writer.write_all(b"# more\n").unwrap();
        if let Ok(item) = timeout(Duration::from_millis(100), source.items.next()).await {
            let Some(SourceItem::Snapshot { pods, invalid, .. }) = item else {
                panic!("{item:?}");
            };
            assert_eq!(pods.len() + invalid.len(), 2);
            return;
        }
    }
    panic!("a file that is written to all the time holds up all others");
}

#[tokio::test]
async fn a_link_to_what_comes_later_is_followed() {
    let (dir, far) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let target = far.path().join("far.yaml");
    symlink(&target, dir.path().join("b.yaml")).unwrap();
    symlink("a.yaml", dir.path().join("c.yaml")).unwrap();
    let mut source = watch(dir.path());
    source.until(&["b.yaml!", "c.yaml!"], &[]).await;
    source.quiet().await;
    fs::write(&target, text("b", "1")).unwrap();
    source.until(&["b.yaml=1", "c.yaml!"], &[]).await;
    fs::write(dir.path().join("a.yaml"), text("a", "2")).unwrap();
    source
        .until(
            &["a.yaml=2", "b.yaml=1", "c.yaml=2"],
            &[&["a.yaml=2", "b.yaml=1", "c.yaml!"]],
        )
        .await;
}

#[tokio::test]
async fn a_writer_that_never_closes_is_not_waited_for_forever() {
    let dir = TempDir::new().unwrap();
    let mut source = watch(dir.path());
    source.until(&[], &[]).await;
    let mut writer = fs::File::create(dir.path().join("a.yaml")).unwrap();
    writer.write_all(text("a", "1").as_bytes()).unwrap();
    source.until(&["a.yaml=1"], &[]).await;
}

#[tokio::test]
async fn links_are_followed_when_they_are_swapped_and_when_their_target_changes() {
    let dir = TempDir::new().unwrap();
    let other = TempDir::new().unwrap();
    let version = |number: u32| {
        let folder = dir.path().join(format!("..v{number}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.yaml"), text("a", &number.to_string())).unwrap();
        symlink(format!("..v{number}"), dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    };
    version(1);
    symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
    let mut source = watch(dir.path());
    source.until(&["a.yaml=1"], &[]).await;
    version(2);
    source.until(&["a.yaml=2"], &[]).await;
    let target = other.path().join("far.yaml");
    fs::write(&target, text("b", "1")).unwrap();
    symlink(&target, dir.path().join("b.yaml")).unwrap();
    source.until(&["a.yaml=2", "b.yaml=1"], &[]).await;
    fs::write(&target, text("b", "2")).unwrap();
    source.until(&["a.yaml=2", "b.yaml=2"], &[]).await;
    fs::write(other.path().join("new"), text("b", "3")).unwrap();
    fs::rename(other.path().join("new"), &target).unwrap();
    source.until(&["a.yaml=2", "b.yaml=3"], &[]).await;
}

#[tokio::test]
async fn a_missing_folder_is_trouble_and_watched_again_when_it_comes() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("manifests");
    let mut source = watch(&folder);
    source.trouble().await;
    for round in 1..4 {
        fs::create_dir(&folder).unwrap();
        source.until(&[], &[]).await;
        fs::write(folder.join("a.yaml"), text("a", &round.to_string())).unwrap();
        source.until(&[&format!("a.yaml={round}")], &[]).await;
        fs::rename(&folder, dir.path().join(format!("old{round}"))).unwrap();
        source.trouble().await;
    }
    // Another folder in its place is another folder to watch.
    let make = |name: &str, image: &str| {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("a.yaml"), text("a", image)).unwrap();
        symlink(name, dir.path().join("link")).unwrap();
        fs::rename(dir.path().join("link"), &folder).unwrap();
    };
    make("first", "1");
    source.until(&["a.yaml=1"], &[]).await;
    // Once nothing else is due.
    source.quiet().await;
    make("second", "2");
    source.until(&["a.yaml=2"], &[]).await;
    fs::write(folder.join("a.yaml"), text("a", "3")).unwrap();
    source.until(&["a.yaml=3"], &[]).await;
}

#[tokio::test]
async fn one_file_is_a_source_too() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pod.yaml");
    fs::write(&file, text("a", "1")).unwrap();
    fs::write(dir.path().join("other.yaml"), text("b", "1")).unwrap();
    let mut source = watch(&file);
    source.until(&["pod.yaml=1"], &[]).await;
    fs::write(dir.path().join("new"), text("a", "2")).unwrap();
    fs::rename(dir.path().join("new"), &file).unwrap();
    source.until(&["pod.yaml=2"], &[]).await;
    fs::remove_file(&file).unwrap();
    fs::write(&file, "kind: Pod").unwrap();
    source.until(&["pod.yaml!"], &[]).await;
    fs::remove_file(&file).unwrap();
    source.trouble().await;
    fs::write(&file, text("a", "2")).unwrap();
    source.until(&["pod.yaml=2"], &[&["pod.yaml!"]]).await;
}

#[tokio::test]
async fn without_a_watch_the_period_finds_changes() {
    let dir = TempDir::new().unwrap();
    let source = FileSource::new(dir.path()).period(Duration::from_millis(20));
    let mut source = open(source.rescan_only());
    source.until(&[], &[]).await;
    fs::write(dir.path().join(".a"), text("a", "1")).unwrap();
    fs::rename(dir.path().join(".a"), dir.path().join("a.yaml")).unwrap();
    source.until(&["a.yaml=1"], &[]).await;
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    source.until(&[], &[]).await;
}
