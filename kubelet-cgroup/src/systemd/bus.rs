//! The connection to the bus of systemd, and calls over it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_core::Stream;
use tokio::time::timeout;
use zbus::connection::Builder;
use zbus::wire::{DynamicDeserialize, DynamicType, OwnedObjectPath, OwnedVariant};
use zbus::{AsyncDrop, Connection, MatchRule, Message, MessageStream};

use super::SystemdSettings;
use super::error::BusError;
use super::properties;

const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// What a job has for its result if all is well.
const DONE: &str = "done";

/// A connection, and who is at its other end.
#[derive(Clone, Debug)]
struct Line {
    connection: Connection,
    number: u64,
    systemd: Option<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    line: Option<Line>,
    dialled: u64,
}

/// What a call says.
pub(super) trait Body: serde::Serialize + DynamicType + Sync {}

impl<T: serde::Serialize + DynamicType + Sync> Body for T {}

/// How a job has ended.
#[derive(Debug, PartialEq, Eq)]
struct End {
    teller: String,
    job: String,
    result: String,
}

/// Asks systemd. The connection is made at the first call, and anew after it was lost. It is closed when this is dropped.
#[derive(Debug)]
pub(super) struct Bus {
    settings: SystemdSettings,
    slot: Mutex<Slot>,
}

/// A call under way: a connection on which one was given up is not used again, since half of its message may have been sent.
struct UnderWay<'a> {
    bus: &'a Bus,
    number: u64,
    is_over: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.bus.forget(self.number);
        }
    }
}

impl Bus {
    pub(super) fn new(settings: SystemdSettings) -> Self {
        Self {
            settings,
            slot: Mutex::default(),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, number: u64) {
        let mut slot = self.slot();
        if slot.line.as_ref().is_some_and(|line| line.number == number) {
            slot.line = None;
        }
    }

    /// The connection, and whether it was made for this call.
    async fn line(&self) -> Result<(Line, bool), BusError> {
        let kept = self.slot().line.clone();
        match kept.filter(|line| !line.connection.is_closed()) {
            Some(line) => Ok((line, false)),
            None => Ok((self.dial().await?, true)),
        }
    }

    async fn dial(&self) -> Result<Line, BusError> {
        let address = self.settings.address.as_deref();
        let builder = match address {
            Some(address) => Builder::address(address),
            None => Builder::system(),
        };
        // What zbus asks the bus by itself is bounded too.
        let dialled = builder.method_timeout(self.settings.reply_timeout).build();
        let connection = match timeout(self.settings.reply_timeout, dialled).await {
            Ok(outcome) => outcome.map_err(|source| BusError::dial(address, source))?,
            Err(_) => return Err(self.no_answer("the bus")),
        };
        let mut line = Line {
            connection,
            number: 0,
            systemd: None,
        };
        // Else it tells the ends of jobs to nobody.
        match self.call(&line, PATH, MANAGER, "Subscribe", &()).await {
            Ok(_) => {}
            Err(error) if error.is("org.freedesktop.systemd1.AlreadySubscribed") => {}
            Err(error) => return Err(error),
        }
        line.systemd = match self.property(&line, PATH, MANAGER, "Version").await {
            Ok(text) => properties::version(&text),
            Err(BusError::Refused { .. }) => None,
            Err(error) => return Err(error),
        };
        let mut slot = self.slot();
        match &slot.line {
            // Somebody was faster.
            Some(kept) if !kept.connection.is_closed() => line = kept.clone(),
            _ => {
                slot.dialled += 1;
                line.number = slot.dialled;
                slot.line = Some(line.clone());
            }
        }
        Ok(line)
    }

    fn no_answer(&self, call: &'static str) -> BusError {
        BusError::NoAnswer {
            call,
            after: self.settings.reply_timeout,
        }
    }

    /// One call, and its answer.
    async fn call(
        &self,
        line: &Line,
        path: &str,
        interface: &'static str,
        method: &'static str,
        body: &impl Body,
    ) -> Result<Message, BusError> {
        let mut under_way = UnderWay {
            bus: self,
            number: line.number,
            is_over: false,
        };
        let call = line
            .connection
            .call_method(Some(NAME), path, Some(interface), method, body);
        let Ok(answer) = timeout(self.settings.reply_timeout, call).await else {
            return Err(self.no_answer(method));
        };
        match answer.map_err(|source| BusError::of(method, self.settings.reply_timeout, source)) {
            Err(error @ (BusError::Lost { .. } | BusError::NoAnswer { .. })) => Err(error),
            answer => {
                under_way.is_over = true;
                answer
            }
        }
    }

    /// The same on a connection that is made anew if it turns out to be lost. All that is asked here may be asked twice.
    async fn ask(
        &self,
        path: &str,
        interface: &'static str,
        method: &'static str,
        body: &impl Body,
    ) -> Result<Message, BusError> {
        let (line, is_new) = self.line().await?;
        match self.call(&line, path, interface, method, body).await {
            Err(BusError::Lost { .. }) if !is_new => {
                let line = self.dial().await?;
                self.call(&line, path, interface, method, body).await
            }
            answer => answer,
        }
    }

    /// The version of systemd, if it says one.
    pub(super) async fn systemd_version(&self) -> Result<Option<u32>, BusError> {
        Ok(self.line().await?.0.systemd)
    }

    /// Has a method of the manager called.
    pub(super) async fn manager(&self, method: &'static str, body: &impl Body) -> Result<(), BusError> {
        self.ask(PATH, MANAGER, method, body).await.map(drop)
    }

    async fn property(
        &self,
        line: &Line,
        path: &str,
        of: &'static str,
        name: &'static str,
    ) -> Result<String, BusError> {
        let answer = self.call(line, path, PROPERTIES, "Get", &(of, name)).await?;
        string(&answer, name)
    }

    /// What a unit does; nothing if it is not loaded.
    pub(super) async fn active_state(&self, unit: &str) -> Result<Option<String>, BusError> {
        let found = match self.ask(PATH, MANAGER, "GetUnit", &(unit,)).await {
            Ok(found) => found,
            Err(error) if error.is("org.freedesktop.systemd1.NoSuchUnit") => return Ok(None),
            Err(error) => return Err(error),
        };
        let path: OwnedObjectPath = body(&found, "GetUnit")?;
        match self.ask(&path, PROPERTIES, "Get", &(UNIT, "ActiveState")).await {
            Ok(answer) => string(&answer, "ActiveState").map(Some),
            // It went meanwhile.
            Err(error) if error.is("org.freedesktop.DBus.Error.UnknownObject") => Ok(None),
            Err(error) if error.is("org.freedesktop.systemd1.NoSuchUnit") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has a method of the manager called that makes a job for a unit, and waits until that has ended.
    pub(super) async fn job(&self, unit: &str, method: &'static str, body: &impl Body) -> Result<(), BusError> {
        let (line, is_new) = self.line().await?;
        match self.job_on(&line, unit, method, body).await {
            Err(BusError::Lost { .. }) if !is_new => {
                let line = self.dial().await?;
                self.job_on(&line, unit, method, body).await
            }
            outcome => outcome,
        }
    }

    async fn job_on(&self, line: &Line, unit: &str, method: &'static str, body: &impl Body) -> Result<(), BusError> {
        let of = |source| BusError::of("AddMatch", self.settings.reply_timeout, source);
        // Its own unit's alone: nobody reads what other calls wait for.
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .sender(NAME)
            .path(PATH)
            .interface(MANAGER)
            .member("JobRemoved")
            .arg(2, unit)
            .build()
            .map_err(of)?;
        // Before the call, or a job that ends at once would be missed.
        let mut under_way = UnderWay {
            bus: self,
            number: line.number,
            is_over: false,
        };
        let ends = MessageStream::for_match_rule(rule, &line.connection, None);
        let Ok(ends) = timeout(self.settings.reply_timeout, ends).await else {
            return Err(self.no_answer("AddMatch"));
        };
        let mut ends = ends.map_err(of)?;
        under_way.is_over = true;
        drop(under_way);
        let outcome = self.follow(line, &mut ends, method, body).await;
        // Here, and not by a task of zbus as when it is only dropped. What is not answered goes with the connection.
        if timeout(self.settings.reply_timeout, ends.async_drop()).await.is_err() {
            self.forget(line.number);
        }
        outcome
    }

    async fn follow(
        &self,
        line: &Line,
        ends: &mut MessageStream,
        method: &'static str,
        body: &impl Body,
    ) -> Result<(), BusError> {
        let mut ended = Vec::new();
        let answer = {
            let call = self.call(line, PATH, MANAGER, method, body);
            tokio::pin!(call);
            loop {
                // Signals meanwhile: while nobody takes them, zbus reads no answer either.
                tokio::select! {
                    biased;
                    end = next(ends) => ended.push(end?),
                    answer = &mut call => break answer?,
                }
            }
        };
        let job: OwnedObjectPath = self::body(&answer, method)?;
        let teller = answer.header().sender().map(ToString::to_string).unwrap_or_default();
        let result = async {
            loop {
                match ended.pop() {
                    Some(end) if end.job == job.as_str() && end.teller == teller => return Ok(end.result),
                    // Of another job of this unit.
                    Some(_) => {}
                    None => ended.push(next(ends).await?),
                }
            }
        };
        match timeout(self.settings.job_timeout, result).await {
            Ok(Ok(result)) if result == DONE => Ok(()),
            Ok(Ok(result)) => Err(BusError::Job { method, result }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(BusError::Unfinished {
                method,
                after: self.settings.job_timeout,
            }),
        }
    }
}

/// The next end of a job.
async fn next(ends: &mut MessageStream) -> Result<End, BusError> {
    loop {
        let message = match poll_fn(|cx| Pin::new(&mut *ends).poll_next(cx)).await {
            Some(Ok(message)) => message,
            Some(Err(source)) => return Err(BusError::lost(source)),
            None => return Err(BusError::Lost { source: None }),
        };
        let teller = message.header().sender().map(ToString::to_string).unwrap_or_default();
        // What cannot be read is of somebody else.
        if let Ok((_, job, _, result)) = body::<(u32, OwnedObjectPath, String, String)>(&message, "JobRemoved") {
            return Ok(End {
                teller,
                job: job.to_string(),
                result,
            });
        }
    }
}

/// What an answer or a signal says.
fn body<T: for<'m> DynamicDeserialize<'m>>(message: &Message, call: &'static str) -> Result<T, BusError> {
    let body = message.body();
    body.deserialize()
        .map_err(|source| BusError::Malformed { call, source })
}

/// The text that a property is.
fn string(answer: &Message, name: &'static str) -> Result<String, BusError> {
    let value: OwnedVariant = body(answer, name)?;
    String::try_from(value).map_err(|source| BusError::Malformed { call: name, source })
}
