//! Bodies: requests read within limits, responses whole or in pieces.
//!
//! A request's body is read frame by frame, with a limit on its size and on the silence between two frames, and then
//! taken as one JSON object: UTF-8, at most 128 levels deep, numbers finite. A response's body is either there
//! at once or comes through a bounded channel; when the client goes away the channel's receiver is dropped, which
//! is how a running job learns of it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::error::{ApiError, Kind};

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

/// A body of more than `bytes_max` bytes.
pub(super) fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(Kind::TooLarge, format!("the body has more than {bytes_max} bytes"))
}

/// Reads a body of at most `bytes_max` bytes whose frames are at most `idle_max` apart.
pub(crate) async fn read<B>(
    body: B,
    bytes_max: usize,
    idle_max: Duration,
) -> Result<Vec<u8>, ApiError>
where
    B: Body<Data = Bytes>,
{
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large(bytes_max));
    }
    let mut body = std::pin::pin!(body);
    let mut bytes = Vec::new();
    loop {
        let next = std::future::poll_fn(|context| body.as_mut().poll_frame(context));
        let frame = match tokio::time::timeout(idle_max, next).await {
            Ok(None) => return Ok(bytes),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => {
                return Err(ApiError::new(Kind::InvalidRequest, "the body ends before its end"));
            }
            Err(_) => {
                let message = format!("no byte of the body for {} s", idle_max.as_secs());
                return Err(ApiError::new(Kind::Timeout, message));
            }
        };
        // Trailers say nothing that is used.
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > bytes_max {
            return Err(too_large(bytes_max));
        }
        bytes.extend_from_slice(&data);
    }
}

/// The JSON object in a body.
pub(crate) fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let refuse = |problem: String| ApiError::new(Kind::InvalidRequest, problem);
    let text = std::str::from_utf8(bytes)
        .map_err(|error| refuse(format!("the body is not UTF-8: {error}")))?;
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(refuse("the body must be a JSON object".to_owned())),
        Err(error) => Err(refuse(format!("the body is not JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_an_object_of_finite_numbers_and_bounded_depth() {
        let nested =
            |depth: usize| format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(object(nested(126).as_bytes()).is_ok());
        assert!(object(nested(128).as_bytes()).is_err());
        assert!(object(nested(100_000).as_bytes()).is_err());
        let refused: [&[u8]; 10] = [
            b"",
            b"[]",
            b"{\"a\":1e999}",
            b"{\"a\":NaN}",
            b"{\"a\":\"\xff\"}",
            b"{\"a\":\"\\ud800\"}",
            b"{\"a\":1}}",
            b"{\"a\":1",
            b"\x1f\x8b",
            b"\xef\xbb\xbf{}",
        ];
        for body in refused {
            let error = object(body).expect_err("must be refused");
            assert_eq!(error.kind(), Kind::InvalidRequest, "{:?}", String::from_utf8_lossy(body));
        }
        assert_eq!(object(b"{\"a\":-0.0,\"b\":\"\\u0000\"}").expect("is JSON").len(), 2);
    }

    #[test]
    fn bodies_are_read_up_to_their_limit() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime for the test");
        let (sender, receiver) = mpsc::channel(4);
        for piece in ["ab", "", "c"] {
            sender.try_send(Ok(Bytes::from_static(piece.as_bytes()))).expect("has room");
        }
        drop(sender);
        let read = |answer, max| runtime.block_on(read(answer, max, Duration::from_secs(1)));
        assert_eq!(read(Answer::Pieces(receiver), 3), Ok(b"abc".to_vec()));
        let error =
            read(Answer::Whole(Some(Bytes::from_static(b"abcd"))), 3).expect_err("is too large");
        assert_eq!(error.kind(), Kind::TooLarge);
    }
}
