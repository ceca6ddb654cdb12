#![doc = include_str!("../README.md")]

mod fake;

pub use fake::{
    Action, Call, ErrorKind, ExecAnswer, ExecCall, FakeImage, FakeRuntime, FakeRuntimeBuilder, FaultKind, Op, Outcome,
    Program, ProgramFor, Script, Subject,
};
