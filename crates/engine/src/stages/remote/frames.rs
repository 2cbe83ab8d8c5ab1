//! A connection as messages: a length, a kind, a content. No message is longer than both sides have agreed on.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use super::bytes::Writing;

/// Longest message before both sides have agreed on the sizes of batches.
pub(super) const FIRST_BYTES_MAX: usize = 64 << 10;

/// A connection to another process, whatever carries it: both directions can be used by threads of their own.
pub struct Channel {
    /// What the other side sends.
    pub reader: Box<dyn Read + Send>,
    /// To the other side; what was written is on its way when it returns.
    pub writer: Box<dyn Write + Send>,
    /// Ends both directions, from any thread: a read or write under way fails.
    pub end: Arc<dyn Fn() + Send + Sync>,
    /// Has reads look for bytes for so long, before they sleep until some come.
    pub look: Arc<dyn Fn(Duration) + Send + Sync>,
    /// The other side's address.
    pub address: String,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Welcome,
    Refused,
    Batch,
    Done,
    Ask,
    Reply,
    Forget,
    Cancel,
    Beat,
    Bye,
    Release,
    Ahead,
}

impl Kind {
    pub(super) const ALL: [Self; 13] = [
        Self::Hello,
        Self::Welcome,
        Self::Refused,
        Self::Batch,
        Self::Done,
        Self::Ask,
        Self::Reply,
        Self::Forget,
        Self::Cancel,
        Self::Beat,
        Self::Bye,
        Self::Release,
        Self::Ahead,
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The writing half.
pub(super) struct FrameWriter {
    to: Box<dyn Write + Send>,
    buffer: Writing,
}

impl FrameWriter {
    pub(super) fn new(to: Box<dyn Write + Send>) -> Self {
        Self { to, buffer: Writing::default() }
    }

    /// Sends a message whose content `fill` appends.
    pub(super) fn send(&mut self, kind: Kind, fill: impl FnOnce(&mut Writing)) -> io::Result<()> {
        let Self { to, buffer } = self;
        buffer.bytes.clear();
        buffer.word(0);
        buffer.byte(kind as u8);
        fill(buffer);
        let length = u32::try_from(buffer.bytes.len() - 4).map_err(io::Error::other)?;
        buffer.bytes[..4].copy_from_slice(&length.to_le_bytes());
        to.write_all(&buffer.bytes)?;
        to.flush()
    }
}

/// The reading half.
pub(super) struct FrameReader {
    from: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    limit: usize,
}

impl FrameReader {
    pub(super) fn new(from: Box<dyn Read + Send>) -> Self {
        Self { from, buffer: Vec::new(), limit: FIRST_BYTES_MAX }
    }

    /// Takes longer messages from now on.
    pub(super) fn allow(&mut self, bytes: usize) {
        self.limit = bytes.max(FIRST_BYTES_MAX);
    }

    /// The next message.
    ///
    /// # Errors
    /// What the connection reports, its end, or what is no message.
    pub(super) fn next(&mut self) -> io::Result<(Kind, &[u8])> {
        let wrong = |words: String| io::Error::new(ErrorKind::InvalidData, words);
        let mut header = [0; 5];
        self.from.read_exact(&mut header)?;
        let [a, b, c, d, kind] = header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length == 0 || length > self.limit {
            let limit = self.limit;
            return Err(wrong(format!("a message of {length} bytes; 1 to {limit} are taken")));
        }
        let kind = Kind::of(kind).ok_or_else(|| wrong(format!("a message of kind {kind}")))?;
        // What was never sent takes no memory: the buffer grows as bytes arrive.
        self.buffer.clear();
        let mut rest = (&mut self.from).take(length as u64 - 1);
        if rest.read_to_end(&mut self.buffer)? < length - 1 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok((kind, &self.buffer))
    }
}

/// Ends a connection that is not through with something after a while.
///
/// # Errors
/// What `work` reports, or that the time was over.
pub(super) fn within<T>(
    patience: Duration,
    end: &Arc<dyn Fn() + Send + Sync>,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let (done, waits) = std::sync::mpsc::sync_channel::<()>(0);
    let end = Arc::clone(end);
    let watch = move || {
        let late = waits.recv_timeout(patience) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if late {
            end();
        }
        late
    };
    let watch = std::thread::Builder::new().name("patience".to_owned()).spawn(watch)?;
    let result = work();
    drop(done);
    match watch.join() {
        Ok(true) => Err(ErrorKind::TimedOut.into()),
        _ => result,
    }
}
