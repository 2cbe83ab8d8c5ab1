//! What lets a request be followed across machines: its id and its trace.
//!
//! `x-request-id` of a client or router is given back, else there is one of ours. `traceparent` (W3C trace context,
//! level 1) is taken where it is right: the answer has the same trace with the server's own span.

use hyper::header::{HeaderMap, HeaderValue};

/// Longest id of others that is repeated.
const ID_BYTES_MAX: usize = 128;

/// The id that the client gave the request, if it can be repeated.
pub(super) fn given_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get("x-request-id")?.to_str().ok()?;
    let plain = id.bytes().all(|byte| byte.is_ascii_graphic());
    (plain && (1..=ID_BYTES_MAX).contains(&id.len())).then_some(id)
}

/// A request's place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    pub(super) id: u128,
    flags: u8,
}

impl Trace {
    /// As a header says it; `None` where there is none or it is wrong, which the standard has ignored.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all("traceparent").iter();
        let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
        let hex = |text: &str| text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
        let mut parts = value.split('-');
        let mut part = |length: usize| parts.next().filter(|it| it.len() == length && hex(it));
        let (version, id, parent, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        // Later versions may have more parts, the first has none.
        let ends = parts.next().is_none() || version != "00";
        let id = u128::from_str_radix(id, 16).ok()?;
        let parent = u64::from_str_radix(parent, 16).ok()?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        (version != "ff" && ends && id != 0 && parent != 0).then_some(Self { id, flags: flags & 1 })
    }

    /// For the answer; `span` is the server's.
    pub(super) fn header(self, span: u64) -> Option<HeaderValue> {
        HeaderValue::try_from(format!(
            "00-{:032x}-{:016x}-{:02x}",
            self.id,
            span.max(1),
            self.flags
        ))
        .ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;

    fn of(value: &'static str) -> Option<Trace> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::from_static(value));
        Trace::of(&headers)
    }

    #[test]
    fn traces_are_taken_as_the_standard_has_them() {
        let right = of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        let back = right.header(0x1234).unwrap();
        assert_eq!(back, "00-0af7651916cd43dd8448eb211c80319c-0000000000001234-01");
        assert!(of("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what").is_some());
        for wrong in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
