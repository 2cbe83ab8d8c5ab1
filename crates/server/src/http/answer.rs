//! Bodies of responses, whole or in pieces.
//!
//! A body is either there at once or comes through a bounded channel; when the client goes away the channel's receiver
//! is dropped, which is how a running job learns of it.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;

/// Why a response ends before its end: the connection is closed, so that no client takes it for whole.
#[derive(Debug, thiserror::Error)]
#[error("the answer could not be completed")]
pub(crate) struct Aborted;

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Answer {
    /// All of it; `None` once it has been taken.
    Whole(Option<Bytes>),
    /// Pieces as they come.
    Pieces(mpsc::Receiver<Result<Bytes, Aborted>>),
}

impl Answer {
    pub(crate) fn json(status: StatusCode, body: &Value) -> Response<Self> {
        Self::whole(status, "application/json", body.to_string())
    }

    pub(crate) fn whole(
        status: StatusCode,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> Response<Self> {
        let mut response = Response::new(Self::Whole(Some(body.into())));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    pub(crate) fn empty(status: StatusCode) -> Response<Self> {
        let mut response = Response::new(Self::Whole(None));
        *response.status_mut() = status;
        response
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pieces(receiver) => {
                receiver.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}
