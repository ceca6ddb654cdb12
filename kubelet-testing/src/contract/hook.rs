//! What a fixture can do for a suite.

use std::future::{Ready, ready};

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::contract::check::skip;

/// Something that the integrator does when the suite asks for it.
pub(crate) type Hook<A = (), R = ()> = Box<dyn Fn(A) -> BoxFuture<'static, R> + Send + Sync>;

pub(crate) fn hook<A, R, F>(call: impl Fn(A) -> F + Send + Sync + 'static) -> Hook<A, R>
where
    F: Future<Output = R> + Send + 'static,
{
    Box::new(move |argument| call(argument).boxed())
}

/// The answer of a hook that waits for nothing: it has happened already.
///
/// ```
/// # use std::cell::Cell;
/// # use kubelet_testing::contract::now;
/// let down = Cell::new(false);
/// let go_down = || now(|| down.set(true));
/// # drop(go_down());
/// # assert!(down.get());
/// ```
pub fn now<R>(act: impl FnOnce() -> R) -> Ready<R> {
    ready(act())
}

/// Something that not every implementation has.
pub(crate) enum Given<T> {
    /// The fixture does not say: what needs it cannot be checked.
    Unsaid,
    /// There is no such thing: what needs it cannot be broken either.
    Never,
    /// It is there.
    Here(T),
}

impl<T> Given<T> {
    /// It, if it is there.
    pub(crate) fn here(&self) -> Option<&T> {
        match self {
            Self::Here(it) => Some(it),
            Self::Unsaid | Self::Never => None,
        }
    }

    /// It, if it is there. Says why a promise is not checked if the fixture should have said.
    pub(crate) fn or_skip(&self, promise: &str, lacks: &str) -> Option<&T> {
        match self {
            Self::Here(it) => Some(it),
            Self::Never => None,
            Self::Unsaid => {
                skip(promise, lacks);
                None
            }
        }
    }
}
