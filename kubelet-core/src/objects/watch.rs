//! A view of one object over time.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{BoxStream, Stream, StreamExt};

use super::object::Object;

/// What a watch has learnt about its object.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Watched {
    /// It exists and looks like this.
    Present(Object),
    /// It does not exist.
    Absent,
}

/// Follows one object, as a stream of its states; dropping it releases the reference.
///
/// The first item is the state known when it is polled, and comes as soon as anything is known.
/// Each further item is the latest state and differs from the item before; states in between are
/// left out. Troubles of the source are not items: while nothing new is known nothing is yielded.
/// The stream ends only when there will never be news, because the kind is not served.
///
/// # Cancellation
/// Waiting for the next item may be given up and begun again without losing one.
#[must_use = "dropping a watch ends it"]
pub struct ObjectWatch {
    states: BoxStream<'static, Watched>,
}

impl ObjectWatch {
    /// Makes a watch of a stream that keeps the promises above; it is dropped with the watch.
    pub fn new(states: impl Stream<Item = Watched> + Send + 'static) -> Self {
        Self { states: states.boxed() }
    }

    /// A watch with nothing to say, for kinds that are not served.
    pub fn ended() -> Self {
        Self::new(futures::stream::empty())
    }
}

impl Stream for ObjectWatch {
    type Item = Watched;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Watched>> {
        self.states.poll_next_unpin(cx)
    }
}

impl fmt::Debug for ObjectWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectWatch").finish_non_exhaustive()
    }
}
