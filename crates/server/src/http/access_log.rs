//! The access log: one line a request, written when its answer is over, which may be minutes after its head.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::answer::{Aborted, Answer};
use super::follow::Trace;
use crate::log::{Level, Line};

/// How an answer ended, for who writes the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// To the last byte.
    pub(super) took: Duration,
    /// Not all of it was sent: the client left, or the answer failed.
    pub(super) cut: bool,
}

/// What is known of a request when its answer begins.
pub(super) struct Record {
    pub(super) level: Level,
    pub(super) id: String,
    pub(super) peer: IpAddr,
    pub(super) method: String,
    /// `-` where it is none that is served.
    pub(super) path: String,
    pub(super) status: u16,
    /// From the request's head to the response's.
    pub(super) head: Duration,
    /// Why it was refused.
    pub(super) reason: Option<String>,
    pub(super) warning: Option<String>,
    /// The client's own number of the request.
    pub(super) given: Option<String>,
    pub(super) trace: Option<Trace>,
}

impl Record {
    /// The line about the request, whose answer has ended.
    pub(super) fn line(self, ending: Ending) -> Line {
        let Self { level, id, peer, method, path, status, head, reason, warning, given, trace } =
            self;
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let cut = if ending.cut { ", cut" } else { "" };
        let took = ms(ending.took);
        let mut text = format!("{id} {peer} {method} {path} {status} {took} ms{cut}");
        for (what, said) in [("", &reason), ("warning: ", &warning)] {
            if let Some(said) = said {
                text.push_str(": ");
                text.push_str(what);
                text.push_str(said);
            }
        }
        let mut fields = vec![
            ("id", id.into()),
            ("client", peer.to_string().into()),
            ("method", method.into()),
            ("path", path.into()),
            ("status", status.into()),
            ("head_ms", ms(head).into()),
            ("ms", took.into()),
            ("cut", ending.cut.into()),
        ];
        fields.extend(reason.map(|reason| ("reason", reason.into())));
        fields.extend(warning.map(|warning| ("warning", warning.into())));
        fields.extend(given.map(|given| ("x_request_id", given.into())));
        fields.extend(trace.map(|trace| ("trace_id", format!("{:032x}", trace.id).into())));
        Line { level, text, fields }
    }
}

type Tell = Box<dyn FnOnce(Ending) + Send>;

/// A response's body that tells of its end.
pub(crate) struct Logged {
    body: Answer,
    started: Instant,
    over: bool,
    tell: Option<Tell>,
}

impl Logged {
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

impl Drop for Logged {
    fn drop(&mut self) {
        let cut = !self.over && !self.body.is_end_stream();
        if let Some(tell) = self.tell.take() {
            tell(Ending { took: self.started.elapsed(), cut });
        }
    }
}

impl Body for Logged {
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
