//! Looks at requests' heads on their way to the parser, for the one thing that the parser hides.
//!
//! A request with both `Content-Length` and `Transfer-Encoding` is either a mistake or an attempt to make two servers
//! disagree about where it ends (RFC 9112, section 6.3). hyper takes the encoding, drops the length and closes
//! the connection after its answer, so the service never learns that there were two. Here the bytes of each head
//! are watched as they are read; the service then refuses the request.
//!
//! To find the next head, the length of a body must be known. Where it is not a plain number of bytes, the request is
//! the connection's last: chunked requests are rare, and no head is looked for behind one. Of its chunks only the
//! sizes are added up: one that announces more than a body may have is refused when it announces it, as a
//! `Content-Length` is, and not when the bytes have come.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

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
    /// The chunks of the last request are more than a body may have.
    chunks_too_large: AtomicBool,
    changed: Notify,
}

impl Seen {
    /// Waits until the chunks of the connection's last request announce more than a body may have.
    pub(crate) async fn chunks_too_large(&self) {
        let changed = self.changed.notified();
        if !self.chunks_too_large.load(Ordering::Acquire) {
            changed.await;
        }
    }

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
    /// `body_bytes` is the most that the chunks of a body may have together.
    pub(crate) fn new(socket: S, body_bytes: usize) -> (Self, Arc<Seen>) {
        let watch = Watch { body_bytes: body_bytes as u64, ..Watch::default() };
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
    /// The most that chunks may have together, and what they have so far.
    body_bytes: u64,
    chunk_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Head,
    /// Bytes of the body that are still to come.
    Body(u64),
    /// The line with a chunk's size: what its digits say so far, and whether more may come.
    ChunkSize {
        size: u64,
        digits: bool,
    },
    /// Bytes of the chunk and its line break that are still to come.
    Chunk(u64),
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
                chunks_too_large: AtomicBool::new(false),
                changed: Notify::new(),
            }),
            place: Place::Head,
            line: Vec::with_capacity(LINE_BYTES),
            begun: false,
            length: None,
            encoded: false,
            heads: 0,
            body_bytes: u64::MAX,
            chunk_bytes: 0,
        }
    }
}

impl Watch {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.place {
                Place::Over => return,
                Place::Body(left) => {
                    let left = skip(&mut bytes, left);
                    self.place = if left == 0 { Place::Head } else { Place::Body(left) };
                }
                Place::Chunk(left) => {
                    let left = skip(&mut bytes, left);
                    let begin = Place::ChunkSize { size: 0, digits: true };
                    self.place = if left == 0 { begin } else { Place::Chunk(left) };
                }
                Place::ChunkSize { size, digits } => {
                    let byte = bytes[0];
                    bytes = &bytes[1..];
                    self.place = self.chunk_size(byte, size, digits);
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

    /// Takes a byte of the line that has a chunk's size. What is not well-formed is the parser's to refuse.
    fn chunk_size(&mut self, byte: u8, size: u64, digits: bool) -> Place {
        if byte == b'\n' {
            self.chunk_bytes = self.chunk_bytes.saturating_add(size);
            // The last chunk, and trailers behind it; or the chunk and its line break.
            return if size == 0 { Place::Over } else { Place::Chunk(size.saturating_add(2)) };
        }
        let digit = char::from(byte).to_digit(16).filter(|_| digits);
        let Some(digit) = digit else { return Place::ChunkSize { size, digits: false } };
        let size = size.saturating_mul(16).saturating_add(digit.into());
        if self.chunk_bytes.saturating_add(size) > self.body_bytes {
            self.seen.chunks_too_large.store(true, Ordering::Release);
            self.seen.changed.notify_waiters();
            return Place::Over;
        }
        Place::ChunkSize { size, digits: true }
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
            None if self.encoded => {
                over(false);
                Place::ChunkSize { size: 0, digits: true }
            }
            Some(0) | None => Place::Head,
            Some(bytes) => Place::Body(bytes),
        };
    }
}

/// Passes over `count` bytes, as far as they are there; how many are still to come.
fn skip(bytes: &mut &[u8], count: u64) -> u64 {
    let skipped = usize::try_from(count).unwrap_or(usize::MAX).min(bytes.len());
    *bytes = &bytes[skipped..];
    count - skipped as u64
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
