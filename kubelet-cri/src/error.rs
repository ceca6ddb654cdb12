//! What a runtime's answer of "no" means to the engine.

use std::error::Error;

use kubelet_core::RuntimeError;
use kubelet_proto::tonic::{Code, Status};

/// Whether a call only asks, or changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Whatever goes wrong, nothing happened.
    Read,
    /// Without an answer it may have happened, or may yet.
    Change,
}

/// What a call is about, for its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op<'a> {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// A word for the object, such as `container`.
    pub(crate) object: &'static str,
    /// Its id or name.
    pub(crate) id: &'a str,
}

impl<'a> Op<'a> {
    pub(crate) fn read(name: &'static str, object: &'static str, id: &'a str) -> Self {
        Self {
            name,
            kind: Kind::Read,
            object,
            id,
        }
    }

    pub(crate) fn change(name: &'static str, object: &'static str, id: &'a str) -> Self {
        Self {
            name,
            kind: Kind::Change,
            object,
            id,
        }
    }

    fn what(&self) -> String {
        if self.id.is_empty() {
            self.object.to_owned()
        } else {
            format!("{} {}", self.object, self.id)
        }
    }

    /// There was no answer within the deadline.
    pub(crate) fn no_answer(&self, limit: std::time::Duration) -> RuntimeError {
        self.unknown(format!("no answer within {limit:?}"))
    }

    /// The answer lacks what it must have, so that it says nothing.
    pub(crate) fn bad_answer(&self, why: &str) -> RuntimeError {
        self.unknown(format!("the runtime's answer is not usable: {why}"))
    }

    fn unknown(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> RuntimeError {
        match self.kind {
            Kind::Read => RuntimeError::unavailable(self.name, source),
            Kind::Change => RuntimeError::uncertain(self.name, source),
        }
    }

    /// What an answer with an error means.
    pub(crate) fn error(&self, status: Status) -> RuntimeError {
        match status.code() {
            Code::NotFound => RuntimeError::not_found(self.what()),
            Code::Unimplemented => RuntimeError::unsupported(self.name),
            Code::AlreadyExists => RuntimeError::Taken { what: self.what() },
            Code::Aborted => RuntimeError::Busy { what: self.what() },
            // It never left: nothing can have happened.
            Code::Unavailable if was_not_sent(&status) => RuntimeError::unavailable(self.name, status),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => self.unknown(status),
            _ if is_reserved(status.message()) => RuntimeError::Taken { what: self.what() },
            _ if self.kind == Kind::Read => RuntimeError::unavailable(self.name, status),
            _ => RuntimeError::refused(status.message()),
        }
    }
}

/// Whether a runtime says that a name is held by an object that exists, or by a call that goes on. There is no code for that:
/// containerd says `name "…" is reserved for "…"`, CRI-O `name is reserved`.
fn is_reserved(message: &str) -> bool {
    message.contains("is reserved")
}

/// Whether there was nobody to send the request to.
fn was_not_sent(status: &Status) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            use std::io::ErrorKind;
            return matches!(
                io.kind(),
                ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::PermissionDenied
            );
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use kubelet_core::RuntimeError;
    use kubelet_proto::tonic::{Code, Status};

    use super::Op;

    fn kind(error: &RuntimeError) -> &'static str {
        match error {
            RuntimeError::NotFound { .. } => "NotFound",
            RuntimeError::Unavailable { .. } => "Unavailable",
            RuntimeError::Uncertain { .. } => "Uncertain",
            RuntimeError::Taken { .. } => "Taken",
            RuntimeError::Busy { .. } => "Busy",
            RuntimeError::Refused { .. } => "Refused",
            RuntimeError::Unsupported { .. } => "Unsupported",
            _ => "?",
        }
    }

    #[test]
    fn codes_mean_what_the_engine_does_next() {
        let reserved = "failed to reserve container name \"a_b_c_d_0\": name \"a_b_c_d_0\" is reserved for \"1f\"";
        for (code, text, read, change) in [
            (Code::NotFound, "gone", "NotFound", "NotFound"),
            (Code::Unimplemented, "what?", "Unsupported", "Unsupported"),
            (Code::AlreadyExists, "there", "Taken", "Taken"),
            (Code::Aborted, "later", "Busy", "Busy"),
            (Code::Unavailable, "broken pipe", "Unavailable", "Uncertain"),
            (Code::DeadlineExceeded, "late", "Unavailable", "Uncertain"),
            (Code::Cancelled, "given up", "Unavailable", "Uncertain"),
            (Code::Unknown, reserved, "Taken", "Taken"),
            (Code::Unknown, "no space left", "Unavailable", "Refused"),
            (Code::Internal, "oops", "Unavailable", "Refused"),
            (Code::InvalidArgument, "no such user", "Unavailable", "Refused"),
            (Code::ResourceExhausted, "too large", "Unavailable", "Refused"),
        ] {
            let read_error = Op::read("list", "list", "").error(Status::new(code, text));
            let change_error = Op::change("create_container", "container", "c").error(Status::new(code, text));
            assert_eq!(
                (kind(&read_error), kind(&change_error)),
                (read, change),
                "{code:?} {text}"
            );
        }
    }

    #[test]
    fn a_refusal_says_what_the_runtime_said() {
        let error = Op::change("start_container", "container", "c").error(Status::unknown("exec: no such file"));
        assert_eq!(error.to_string(), "exec: no such file");
        let gone = Op::read("container_status", "container", "c1").error(Status::not_found("x"));
        assert_eq!(gone.to_string(), "container c1 not found");
    }
}
