//! What answers as systemd: units in memory, and folders as systemd makes and removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_core::Stream;
use tokio::task::JoinSet;
use zbus::message::{Header, Type};
use zbus::wire::OwnedVariant;
use zbus::{Connection, Message, MessageStream, ObjectPath, Variant};

use crate::bus::try_connect;

const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

type Properties = Vec<(String, OwnedVariant)>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Unit {
    pub(crate) state: String,
    /// What it was given last.
    pub(crate) properties: BTreeMap<String, String>,
    /// Whether there is a file of it, so that it stays when it has stopped.
    pub(crate) has_file: bool,
}

impl Unit {
    pub(crate) fn property(&self, name: &str) -> &str {
        self.properties.get(name).map_or("", String::as_str)
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The roots of the hierarchies in which it makes folders.
    roots: Vec<PathBuf>,
    pub(crate) units: BTreeMap<String, Unit>,
    /// Methods of the manager and what they were called about.
    pub(crate) calls: Vec<String>,
    /// Methods that are not answered, and `JobRemoved` if no job ends.
    pub(crate) silent: BTreeSet<&'static str>,
    /// Methods that are answered with this error.
    pub(crate) refused: BTreeMap<&'static str, &'static str>,
    /// How jobs of units end that do not end with `done`.
    pub(crate) results: BTreeMap<String, &'static str>,
    /// Whether jobs end before it is said that they were begun.
    pub(crate) hurried: bool,
    jobs: u32,
    subscribers: usize,
}

/// It answers for as long as it is there.
pub(crate) struct FakeSystemd {
    state: Arc<Mutex<State>>,
    serving: JoinSet<()>,
}

impl FakeSystemd {
    /// One that makes folders below these roots. It answers on no bus yet.
    pub(crate) fn new(roots: Vec<PathBuf>) -> Self {
        let state = State {
            roots,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            serving: JoinSet::new(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Answers on that bus.
    pub(crate) async fn serve(&mut self, address: &str) {
        let connection = connect(address).await;
        let messages = MessageStream::from(&connection);
        connection.request_name(NAME).await.unwrap();
        self.state().subscribers = 0;
        self.serving.spawn(serve(self.state.clone(), connection, messages));
    }
}

pub(crate) async fn connect(address: &str) -> Connection {
    try_connect(address).await.unwrap()
}

/// Tells of the end of a job as systemd would, all who want to know or that one.
pub(crate) async fn tell_end(
    connection: &Connection,
    to: Option<&str>,
    (id, unit, result): (u32, &str, &str),
) -> zbus::Result<()> {
    let body = (id, job(id), unit, result);
    connection.emit_signal(to, PATH, MANAGER, "JobRemoved", &body).await
}

fn job(id: u32) -> ObjectPath<'static> {
    ObjectPath::try_from(format!("{PATH}/job/{id}")).unwrap()
}

fn unit_path(unit: &str) -> String {
    let escape = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_string(),
        false => format!("_{:02x}", u32::from(c)),
    };
    format!("{PATH}/unit/{}", unit.chars().map(escape).collect::<String>())
}

/// Where a slice is below the root of a hierarchy.
pub(crate) fn folder(unit: &str) -> PathBuf {
    let elements: Vec<&str> = unit.trim_end_matches(".slice").split('-').collect();
    let slices = (1..=elements.len()).map(|upto| format!("{}.slice", elements[..upto].join("-")));
    slices.collect()
}

async fn serve(state: Arc<Mutex<State>>, connection: Connection, mut messages: MessageStream) {
    while let Some(Ok(message)) = poll_fn(|cx| Pin::new(&mut messages).poll_next(cx)).await {
        if message.message_type() == Type::MethodCall && answer(&state, &connection, &message).await.is_err() {
            return;
        }
    }
}

/// What a call comes to.
enum Answer {
    Nothing,
    Text(String),
    Unit(String),
    Job(String),
    Error(&'static str),
}

async fn answer(state: &Mutex<State>, connection: &Connection, message: &Message) -> zbus::Result<()> {
    let header = message.header();
    let method = header.member().map(ToString::to_string).unwrap_or_default();
    let (answer, is_silent) = {
        let mut state = state.lock().unwrap();
        let answer = state.act(&method, &header, message)?;
        (answer, state.silent.contains(method.as_str()))
    };
    if is_silent {
        return Ok(());
    }
    match answer {
        Answer::Nothing => connection.reply(&header, &()).await,
        Answer::Text(text) => connection.reply(&header, &Variant::from(text)).await,
        Answer::Unit(unit) => {
            let path = ObjectPath::try_from(unit_path(&unit))?;
            connection.reply(&header, &path).await
        }
        Answer::Error(name) => connection.reply_error(&header, name, &"as the test wants it").await,
        Answer::Job(unit) => {
            let (id, result, is_told, hurried) = {
                let mut state = state.lock().unwrap();
                state.jobs += 1;
                let result = state.results.get(&unit).copied().unwrap_or("done");
                let is_told = state.subscribers > 0 && !state.silent.contains("JobRemoved");
                (state.jobs, result, is_told, state.hurried)
            };
            if is_told && hurried {
                tell_end(connection, None, (id, &unit, result)).await?;
            }
            connection.reply(&header, &job(id)).await?;
            if is_told && !hurried {
                // That of another job of this unit, first.
                tell_end(connection, None, (id + 1000, &unit, "canceled")).await?;
                tell_end(connection, None, (id, &unit, result)).await?;
            }
            Ok(())
        }
    }
}

impl State {
    fn act(&mut self, method: &str, header: &Header<'_>, message: &Message) -> zbus::Result<Answer> {
        let body = message.body();
        if method == "Get" {
            let (_, name): (String, String) = body.deserialize()?;
            return Ok(self.property(header, &name));
        }
        let (unit, properties, mode) = match method {
            "StartTransientUnit" => {
                type Others = Vec<(String, Properties)>;
                let (unit, mode, properties, _): (String, String, Properties, Others) = body.deserialize()?;
                (unit, properties, mode)
            }
            "SetUnitProperties" => {
                let (unit, runtime, properties): (String, bool, Properties) = body.deserialize()?;
                assert!(runtime, "what is set outlives the machine's next start");
                (unit, properties, String::new())
            }
            "StartUnit" | "StopUnit" => {
                let (unit, mode): (String, String) = body.deserialize()?;
                (unit, Vec::new(), mode)
            }
            "Subscribe" => (String::new(), Vec::new(), String::new()),
            _ => (body.deserialize::<String>()?, Vec::new(), String::new()),
        };
        assert!(mode.is_empty() || mode == "replace", "{method} with mode {mode}");
        self.calls.push(format!("{method} {unit}").trim_end().to_owned());
        if let Some(error) = self.refused.get(method) {
            return Ok(Answer::Error(error));
        }
        Ok(self.act_on(method, unit, properties))
    }

    fn act_on(&mut self, method: &str, unit: String, properties: Properties) -> Answer {
        let is_there = self.units.contains_key(&unit);
        match method {
            "Subscribe" => {
                self.subscribers += 1;
                Answer::Nothing
            }
            "StartTransientUnit" if is_there => Answer::Error("org.freedesktop.systemd1.UnitExists"),
            "StartTransientUnit" => {
                self.units.insert(unit.clone(), Unit::default());
                self.give(&unit, properties);
                self.run(unit)
            }
            "GetUnit" if is_there => Answer::Unit(unit),
            "SetUnitProperties" if is_there => {
                self.give(&unit, properties);
                Answer::Nothing
            }
            "StartUnit" if is_there => self.run(unit),
            "StopUnit" if is_there => self.stop(unit),
            "ResetFailedUnit" if is_there => {
                self.units.retain(|name, it| *name != unit || it.state != "failed");
                Answer::Nothing
            }
            _ => Answer::Error("org.freedesktop.systemd1.NoSuchUnit"),
        }
    }

    fn property(&self, header: &Header<'_>, name: &str) -> Answer {
        if name == "Version" {
            return Answer::Text("252.38-1~deb12u1".to_owned());
        }
        let path = header.path().map(ToString::to_string).unwrap_or_default();
        let found = self.units.iter().find(|(unit, _)| unit_path(unit) == path);
        match found {
            Some((_, unit)) => Answer::Text(unit.state.clone()),
            None => Answer::Error("org.freedesktop.DBus.Error.UnknownObject"),
        }
    }

    fn give(&mut self, unit: &str, properties: Properties) {
        let unit = self.units.get_mut(unit).unwrap();
        let texts = properties.into_iter().map(|(name, value)| (name, value.to_string()));
        unit.properties.extend(texts);
    }

    fn run(&mut self, unit: String) -> Answer {
        let fails = self.results.contains_key(&unit);
        self.units.get_mut(&unit).unwrap().state = if fails { "failed" } else { "active" }.to_owned();
        for root in self.roots.iter().filter(|_| !fails) {
            fs::create_dir_all(root.join(folder(&unit))).unwrap();
        }
        Answer::Job(unit)
    }

    fn stop(&mut self, unit: String) -> Answer {
        if self.results.contains_key(&unit) {
            self.units.get_mut(&unit).unwrap().state = "failed".to_owned();
            return Answer::Job(unit);
        }
        let has_file = self.units[&unit].has_file;
        match has_file {
            true => self.units.get_mut(&unit).unwrap().state = "inactive".to_owned(),
            false => drop(self.units.remove(&unit)),
        }
        for root in &self.roots {
            remove(&root.join(folder(&unit)));
        }
        Answer::Job(unit)
    }
}

/// Removes a folder and those in it. What are files of the kernel go with them.
pub(crate) fn remove(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => remove(&entry.path()),
            false => drop(fs::remove_file(entry.path())),
        }
    }
    let _ = fs::remove_dir(folder);
}
