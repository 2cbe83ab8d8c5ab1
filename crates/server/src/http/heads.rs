//! Looks at requests' heads on their way to the parser, for the one thing that the parser hides.
//!
//! A request with both `Content-Length` and `Transfer-Encoding` is either a mistake or an attempt to make two servers
//! disagree about where it ends (RFC 9112, section 6.3). hyper takes the encoding, drops the length and closes
//! the connection after its answer, so the service never learns that there were two. Here the bytes of each head
//! are watched as they are read; the service then refuses the request.
//!
//! To find the next head, the length of a body must be known. Where it is not a plain number of bytes, watching ends
//! and the request is the connection's last: chunked requests are rare, a further parser of chunks would be a risk.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a line that are kept: the names that matter and a length fit.
const LINE_BYTES: usize = 64;

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// It is answered, and the next may follow.
    Plain,
    /// It is answered, and the connection closed.
    Last,
    /// It has two lengths.
    Ambiguous,
}

/// What was seen, for the service of the same connection.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Number of the connection's last request, once it is known.
    last: AtomicU64,
    ambiguous: AtomicBool,
    /// Requests that the service asked about.
    asked: AtomicU64,
}

impl Seen {
    /// For the next request of the connection, which the parser has taken whole.
    pub(crate) fn next(&self) -> Framing {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        if number < self.last.load(Ordering::Acquire) {
            Framing::Plain
        } else if self.ambiguous.load(Ordering::Relaxed) {
            Framing::Ambiguous
        } else {
            Framing::Last
        }
    }
}

/// A socket whose incoming heads are watched.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    socket: S,
    watch: Watch,
}

impl<S> Watched<S> {
    pub(crate) fn new(socket: S) -> (Self, Arc<Seen>) {
        let watch = Watch::default();
        let seen = Arc::clone(&watch.seen);
        (Self { socket, watch }, seen)
    }
}

#[derive(Debug)]
struct Watch {
    seen: Arc<Seen>,
    place: Place,
    /// Beginning of the present line.
    line: Vec<u8>,
    /// The head has a line already.
    begun: bool,
    length: Option<u64>,
    encoded: bool,
    /// Heads that are complete.
    heads: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Head,
    /// Bytes of the body that are still to come.
    Body(u64),
    /// After the last request.
    Over,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            seen: Arc::new(Seen {
                last: AtomicU64::new(u64::MAX),
                ambiguous: AtomicBool::new(false),
                asked: AtomicU64::new(0),
            }),
            place: Place::Head,
            line: Vec::with_capacity(LINE_BYTES),
            begun: false,
            length: None,
            encoded: false,
            heads: 0,
        }
    }
}

impl Watch {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.place {
                Place::Over => return,
                Place::Body(left) => {
                    let skipped = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[skipped..];
                    let left = left - skipped as u64;
                    self.place = if left == 0 { Place::Head } else { Place::Body(left) };
                }
                Place::Head => {
                    let end = bytes.iter().position(|&byte| byte == b'\n');
                    let part = &bytes[..end.unwrap_or(bytes.len())];
                    let kept = part.len().min(LINE_BYTES - self.line.len());
                    self.line.extend_from_slice(&part[..kept]);
                    let Some(end) = end else { return };
                    bytes = &bytes[end + 1..];
                    self.end_of_line();
                }
            }
        }
    }

    fn end_of_line(&mut self) {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if line.is_empty() {
            if self.begun {
                self.end_of_head();
            }
        } else {
            self.begun = true;
            let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
            let (name, value) = line.split_at(colon);
            if name.eq_ignore_ascii_case(b"content-length") {
                let value = std::str::from_utf8(&value[1..]).unwrap_or_default();
                // What is no number will be refused by the parser, or is the connection's last.
                self.length = Some(value.trim().parse().unwrap_or(u64::MAX));
            }
            self.encoded |= name.eq_ignore_ascii_case(b"transfer-encoding");
        }
        self.line.clear();
    }

    fn end_of_head(&mut self) {
        let number = self.heads;
        self.heads += 1;
        self.begun = false;
        let over = |ambiguous| {
            self.seen.ambiguous.store(ambiguous, Ordering::Relaxed);
            self.seen.last.store(number, Ordering::Release);
            Place::Over
        };
        self.place = match self.length.take() {
            Some(_) if self.encoded => over(true),
            Some(u64::MAX) => over(false),
            None if self.encoded => over(false),
            Some(0) | None => Place::Head,
            Some(bytes) => Place::Body(bytes),
        };
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(context, buffer);
        self.watch.take(&buffer.filled()[before..]);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of the first `count` requests in `bytes`, however they are cut.
    fn framings(bytes: &str, count: usize) -> Vec<Framing> {
        let of = |step: usize| {
            let mut watch = Watch::default();
            bytes.as_bytes().chunks(step).for_each(|piece| watch.take(piece));
            (0..count).map(|_| watch.seen.next()).collect::<Vec<_>>()
        };
        let whole = of(bytes.len());
        for step in 1..20 {
            assert_eq!(of(step), whole, "in pieces of {step}: {bytes:?}");
        }
        whole
    }

    #[test]
    fn two_lengths_are_seen_wherever_they_stand() {
        use Framing::{Ambiguous, Last, Plain};
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let post = "POST / HTTP/1.1\r\nContent-Length: 37\r\n\r\nTransfer-Encoding: chunked\r\n\r\nabc\r\n\r\n";
        let both =
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-LENGTH:5\r\n\r\n0\r\n\r\n";
        let other = "POST / HTTP/1.1\nContent-Length: 5\nTransfer-Encoding: chunked\n\n0\r\n\r\n";
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        let strange = "POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\nabcde";
        assert_eq!(framings(get, 1), [Plain]);
        assert_eq!(framings(&[post, get, both].concat(), 3), [Plain, Plain, Ambiguous]);
        assert_eq!(framings(&["\r\n", get, other, get].concat(), 3), [Plain, Ambiguous, Ambiguous]);
        assert_eq!(framings(&[chunked, get].concat(), 1), [Last]);
        assert_eq!(framings(&[get, strange, both].concat(), 2), [Plain, Last]);
    }
}
