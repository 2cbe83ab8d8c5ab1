//! The line of the log about a request, written when its answer is over: an answer may take minutes after its head.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::answer::{Aborted, Answer};

/// How an answer ended, for who writes the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// To the last byte.
    pub(super) took: Duration,
    /// Not all of it was sent: the client left, or the answer failed.
    pub(super) cut: bool,
}

type Tell = Box<dyn FnOnce(Ending) + Send>;

/// A response's body that tells of its end.
pub(crate) struct Told {
    body: Answer,
    started: Instant,
    over: bool,
    tell: Option<Tell>,
}

impl Told {
    /// `tell` is called once, when the body is over or dropped. A body that is not sent (`headless`) is over at once.
    pub(super) fn new(
        body: Answer,
        started: Instant,
        headless: bool,
        tell: impl FnOnce(Ending) + Send + 'static,
    ) -> Self {
        Self { body, started, over: headless, tell: Some(Box::new(tell)) }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let cut = !self.over && !self.body.is_end_stream();
        if let Some(tell) = self.tell.take() {
            tell(Ending { took: self.started.elapsed(), cut });
        }
    }
}

impl Body for Told {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.over = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
