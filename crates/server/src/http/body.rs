//! Bodies of requests, read within limits.
//!
//! A request's body is read frame by frame, with limits on its size, on the silence between two frames and on its
//! slowness, and then taken as one JSON object: UTF-8, at most 128 levels deep, of a bounded number of values, numbers
//! finite. What is read counts against the room for all requests.

use std::time::Duration;

use hyper::body::{Body, Bytes};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::error::{ApiError, Kind};
use super::options::Limits;
use super::room::Share;

/// A body of more bytes than the limit.
pub(super) fn too_large(limits: &Limits) -> ApiError {
    let Limits { body_bytes, body_reason, .. } = limits;
    ApiError::new(Kind::TooLarge, format!("the body has more than {body_bytes} bytes{body_reason}"))
}

/// Bytes between two looks at the room.
const STEP_BYTES: usize = 64 << 10;

/// Reads a body within the limits; `share` grows with it.
pub(crate) async fn read<B>(
    body: B,
    limits: &Limits,
    share: &mut Share,
) -> Result<Vec<u8>, ApiError>
where
    B: Body<Data = Bytes>,
{
    let &Limits { body_bytes, body_idle, body_rate, .. } = limits;
    let length = body.size_hint().lower();
    if length > body_bytes as u64 {
        return Err(too_large(limits));
    }
    let started = Instant::now();
    let mut body = std::pin::pin!(body);
    let mut bytes = Vec::new();
    let mut counted = 0;
    loop {
        let next = std::future::poll_fn(|context| body.as_mut().poll_frame(context));
        // As long as a pause may be, and for what has come at the slowest rate.
        let earned = Duration::from_secs_f64(bytes.len() as f64 / body_rate.max(1) as f64);
        let end = (started + body_idle + earned).min(Instant::now() + body_idle);
        let frame = match tokio::time::timeout_at(end, next).await {
            Ok(None) => return Ok(bytes),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => {
                return Err(ApiError::new(Kind::InvalidRequest, "the body ends before its end"));
            }
            Err(_) => {
                let message = format!(
                    "the body is too slow: {} bytes in {} s; send at least {body_rate} bytes each second",
                    bytes.len(),
                    started.elapsed().as_secs()
                );
                return Err(ApiError::new(Kind::Timeout, message));
            }
        };
        // Trailers say nothing that is used.
        let Ok(data) = frame.into_data() else { continue };
        let filled = bytes.len() + data.len();
        if filled > body_bytes {
            return Err(too_large(limits));
        }
        if filled > counted {
            counted = filled.next_multiple_of(STEP_BYTES);
            share.set(counted)?;
        }
        if bytes.capacity() < filled {
            // At once where the length is known; no further than the room that was taken where it is not.
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            bytes.reserve_exact(length.max(counted) - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
}

/// Values and names of JSON in a body, counted without reading it: `,`, `:` and opening brackets outside strings.
fn count_values(bytes: &[u8]) -> usize {
    let mut count = 0;
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b',' | b':' | b'[' | b'{' => count += 1,
            b'"' => {
                while let Some(byte) = rest.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(rest.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    count
}

/// The JSON object in a body of at most `values_max` values and names.
pub(crate) fn object(bytes: &[u8], values_max: usize) -> Result<Map<String, Value>, ApiError> {
    let refuse = |problem: String| ApiError::new(Kind::InvalidRequest, problem);
    let values = count_values(bytes);
    if values > values_max {
        let problem =
            format!("the body has {values} JSON values and names; at most {values_max} are read");
        return Err(refuse(problem));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| refuse(format!("the body is not UTF-8: {error}")))?;
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(refuse("the body must be a JSON object".to_owned())),
        Err(error) => Err(refuse(format!("the body is not JSON: {error}"))),
    }
}

/// What is looked at before a model is chosen.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    model: Option<Value>,
}

/// The model's name in a body, empty where there is none. The rest of the body is skipped, not read.
pub(crate) fn model_named(bytes: &[u8], values_max: usize) -> Result<String, ApiError> {
    // A list would be read as the fields in their order.
    let is_object = bytes.trim_ascii_start().starts_with(b"{");
    let model = match serde_json::from_slice(bytes) {
        Ok(Named { model }) if is_object => model,
        // What is wrong with it is said in the words of who reads it; a name that stands twice is read as it reads it.
        _ => object(bytes, values_max)?.remove("model"),
    };
    match model {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(name)) => Ok(name),
        Some(_) => Err(ApiError::field("model", "must be a string")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::answer::Answer;
    use super::super::options::VALUES_MAX;
    use super::super::room::Room;
    use super::*;

    fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
        super::object(bytes, VALUES_MAX)
    }

    #[test]
    fn values_are_counted_before_they_are_read() {
        for (body, count) in [
            ("{}", 1),
            ("{\"a\":[1,2,3]}", 5),
            ("{\"a,:[{\\\",\":1}", 2),
            ("[[[[", 4),
            ("\"", 0),
            ("\"\\", 0),
        ] {
            assert_eq!(count_values(body.as_bytes()), count, "{body}");
        }
        let parts = format!("{{\"a\":[{}{{}}]}}", "{},".repeat(VALUES_MAX));
        let error = object(parts.as_bytes()).expect_err("must be refused");
        assert!(error.message().contains("at most 100000"), "{}", error.message());
    }

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
    fn a_name_is_found_without_reading_the_body() {
        let named = |body: &str| model_named(body.as_bytes(), 100);
        for (body, name) in [
            ("{}", ""),
            ("{\"model\":null}", ""),
            ("{\"messages\":[{\"model\":\"x\"}],\"model\":\"a\\u0062\"}", "ab"),
            ("{\"model\":\"a\",\"model\":\"b\"}", "b"),
        ] {
            assert_eq!(named(body).as_deref(), Ok(name), "{body}");
        }
        for body in ["", "[]", "{\"model\":1}", "{\"model\":\"a\""] {
            assert_eq!(named(body).expect_err("must be refused").kind(), Kind::InvalidRequest);
        }
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
        let room = Room::new(1 << 20);
        let read = |answer, limits| {
            let mut share = room.share();
            runtime.block_on(read(answer, &limits, &mut share))
        };
        let limits = Limits { body_bytes: 3, ..Limits::default() };
        assert_eq!(read(Answer::Pieces(receiver), limits), Ok(b"abc".to_vec()));
        let whole = || Answer::Whole(Some(Bytes::from_static(b"abcd")));
        let error = read(whole(), limits).expect_err("is too large");
        assert_eq!(error.kind(), Kind::TooLarge);
        let mut shares: Vec<_> = (0..8).map(|_| room.share()).collect();
        shares.iter_mut().for_each(|share| share.set(128 << 10).expect("there is room"));
        let error = read(whole(), Limits::default()).expect_err("there is no room");
        assert!(matches!(error.kind(), Kind::QueueFull { .. }), "{error:?}");
    }
}
