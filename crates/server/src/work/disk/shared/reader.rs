//! Reading from the shared folder, on a thread of its own: a file system over a network can stop answering, and the
//! engine's thread works for every client.
//!
//! The engine waits for an answer, and for each part of a file, no longer than [`STALL`], and for a whole snapshot no
//! longer than its bytes take at [`RATE`]; then it is a miss. While the thread is still held by what was given up,
//! there is nothing to wait for: everything is a miss at once. So is everything when the engine has waited for
//! [`SHARE`] of its time: a folder that is slow and does answer would hold every request for a stall, and those of
//! others with it.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::super::super::lock::hold;
use super::super::super::owner::Domain;

/// Longest time without a part of an answer.
pub(super) const STALL: Duration = Duration::from_secs(2);
/// Bytes that come in a second at the least.
const RATE: f64 = 1e6;
/// Part of the engine's time that it waits, beyond what bytes take at [`RATE`].
const SHARE: f64 = 0.1;
/// Less than this is not waited: what is asked for would be given up as a rule.
const LEAST: Duration = Duration::from_millis(100);
/// Bytes of a part.
const PART_BYTES: usize = 1 << 18;
/// Parts that wait for the engine.
const PARTS: usize = 8;

/// What became of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::work::disk) enum Taken {
    /// It is on its way.
    Part,
    /// There was none: all is given.
    Nothing,
    /// The engine does not wait any more.
    GivenUp,
}

/// Where snapshots are found and read from.
pub(in crate::work::disk) trait Source: Send + Sync + 'static {
    /// Tokens of the longest snapshot that `prompt` can go on from, if it saves more than `more_than`.
    fn find(&self, domain: Domain, prompt: &[u32], more_than: usize) -> Option<usize>;

    /// Gives the bytes of a snapshot of `tokens` to `take`, part by part, until there is none or it was given up.
    ///
    /// # Errors
    /// A file that is gone, damaged or cannot be read; it was noted.
    fn read(
        &self,
        domain: Domain,
        tokens: &[u32],
        take: &mut dyn FnMut(&mut dyn Read) -> io::Result<Taken>,
    ) -> io::Result<()>;
}

enum Order {
    Find { domain: Domain, prompt: Vec<u32>, more_than: usize, found: Sender<Option<usize>> },
    Read { domain: Domain, tokens: Vec<u32>, parts: SyncSender<Part> },
}

enum Part {
    Bytes(Vec<u8>),
    /// All was given, and every checksum is right; or why not.
    End(io::Result<()>),
}

/// The engine's end of the thread.
pub(in crate::work::disk) struct Reader {
    orders: Sender<Order>,
    /// The thread has an order that it has not ended.
    busy: Arc<AtomicBool>,
    patience: Arc<Mutex<Patience>>,
}

/// How long the engine can wait: up to [`STALL`]. What was spent comes back as [`SHARE`] of the time that passes.
struct Patience {
    left: Duration,
    counted: Instant,
}

impl Patience {
    fn new(now: Instant) -> Self {
        Self { left: STALL, counted: now }
    }

    /// What may be waited; `None` where that is too little to ask at all.
    fn left(&mut self, now: Instant) -> Option<Duration> {
        let more = now.saturating_duration_since(self.counted).mul_f64(SHARE);
        (self.left, self.counted) = ((self.left + more).min(STALL), now);
        (self.left >= LEAST).then_some(self.left)
    }

    /// Counts what was waited for `bytes` bytes.
    fn spend(&mut self, waited: Duration, bytes: u64) {
        self.left = self.left.saturating_sub(waited.saturating_sub(time_of(bytes)));
    }
}

/// What bytes may take.
fn time_of(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / RATE)
}

impl Reader {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(in crate::work::disk) fn start(source: Arc<dyn Source>) -> io::Result<Self> {
        let (orders, taken) = channel::<Order>();
        let busy = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&busy);
        // The end does not wait for it: the file system may hold it.
        let thread = std::thread::Builder::new().name("read-shared".to_owned());
        thread.spawn(move || {
            for order in taken {
                carry_out(&*source, order, &its);
            }
        })?;
        Ok(Self { orders, busy, patience: Arc::new(Mutex::new(Patience::new(Instant::now()))) })
    }

    /// Gives the thread an order; how long that may be waited for.
    ///
    /// # Errors
    /// It has another one, or there was enough waiting of late.
    fn order(&self, order: Order) -> io::Result<Duration> {
        let patience = hold(&self.patience).left(Instant::now()).ok_or_else(too_slow)?;
        if self.busy.swap(true, Ordering::Acquire) || self.orders.send(order).is_err() {
            return Err(no_answer());
        }
        Ok(patience)
    }

    /// As [`Source::find`], within [`STALL`].
    ///
    /// # Errors
    /// The file system does not answer, or not soon enough.
    pub(in crate::work::disk) fn find(
        &self,
        domain: Domain,
        prompt: &[u32],
        more_than: usize,
    ) -> io::Result<Option<usize>> {
        let (found, answer) = channel();
        let prompt = prompt.to_vec();
        let patience = self.order(Order::Find { domain, prompt, more_than, found })?;
        let begun = Instant::now();
        let answer = answer.recv_timeout(patience);
        hold(&self.patience).spend(begun.elapsed(), 0);
        answer.map_err(|_| no_answer())
    }

    /// The bytes of a snapshot of `tokens`.
    ///
    /// # Errors
    /// The file system does not answer, or not soon enough.
    pub(in crate::work::disk) fn read(&self, domain: Domain, tokens: &[u32]) -> io::Result<Stream> {
        let (parts, coming) = sync_channel(PARTS);
        let tokens = tokens.to_vec();
        let patience = self.order(Order::Read { domain, tokens, parts })?;
        let (part, waited, spends) = (Vec::new(), Duration::ZERO, Arc::clone(&self.patience));
        Ok(Stream { coming, part, at: 0, bytes: 0, patience, waited, spends, ended: false })
    }
}

fn carry_out(source: &dyn Source, order: Order, busy: &AtomicBool) {
    // Before the last word: whoever has that may give the next order.
    let free = || busy.store(false, Ordering::Release);
    match order {
        Order::Find { domain, prompt, more_than, found } => {
            let longest = source.find(domain, &prompt, more_than);
            free();
            let _given_up = found.send(longest);
        }
        Order::Read { domain, tokens, parts } => {
            let mut take = |input: &mut dyn Read| {
                let mut part = Vec::with_capacity(PART_BYTES);
                input.take(PART_BYTES as u64).read_to_end(&mut part)?;
                if part.is_empty() {
                    return Ok(Taken::Nothing);
                }
                let sent = parts.send(Part::Bytes(part));
                Ok(sent.map_or(Taken::GivenUp, |()| Taken::Part))
            };
            let end = source.read(domain, &tokens, &mut take);
            free();
            let _given_up = parts.send(Part::End(end));
        }
    }
}

/// What is said when the file system holds the thread for too long.
fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the file system of the shared folder does not answer")
}

/// What is said when it is not asked, because it was waited for enough.
fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the file system of the shared folder is slow")
}

/// The bytes of a snapshot on their way from the thread.
pub(in crate::work::disk) struct Stream {
    coming: Receiver<Part>,
    part: Vec<u8>,
    /// Bytes of the part that were taken.
    at: usize,
    /// Bytes of all parts so far.
    bytes: u64,
    /// What may be waited beyond the time of the bytes.
    patience: Duration,
    waited: Duration,
    spends: Arc<Mutex<Patience>>,
    ended: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        hold(&self.spends).spend(self.waited, self.bytes);
    }
}

impl Stream {
    /// Waits for the next part; false after the last one.
    fn next(&mut self) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        let allowed = self.patience + time_of(self.bytes);
        let left = allowed.saturating_sub(self.waited).min(STALL);
        let begun = Instant::now();
        let came = self.coming.recv_timeout(left);
        self.waited += begun.elapsed();
        match came {
            Ok(Part::Bytes(part)) => {
                self.bytes += part.len() as u64;
                (self.part, self.at) = (part, 0);
                Ok(true)
            }
            Ok(Part::End(end)) => {
                self.ended = true;
                end.map(|()| false)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.ended = true;
                Err(no_answer())
            }
        }
    }

    /// Checks that nothing is left and that every checksum was right. Nothing may be used before.
    ///
    /// # Errors
    /// Bytes that are left, or what the thread met.
    pub(in crate::work::disk) fn finish(&mut self) -> io::Result<()> {
        if self.at < self.part.len() || self.next()? {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.part.len() && !self.next()? {
            return Ok(0);
        }
        let count = buffer.len().min(self.part.len() - self.at);
        buffer[..count].copy_from_slice(&self.part[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;

    /// A folder with a file of so many bytes, which is waited for before an answer and between parts.
    struct Waited(usize, Box<dyn Fn() + Send + Sync>);

    impl Source for Waited {
        fn find(&self, _: Domain, prompt: &[u32], _: usize) -> Option<usize> {
            (self.1)();
            Some(prompt.len())
        }

        fn read(
            &self,
            _: Domain,
            _: &[u32],
            take: &mut dyn FnMut(&mut dyn Read) -> io::Result<Taken>,
        ) -> io::Result<()> {
            let bytes = vec![7; self.0];
            let mut left = bytes.as_slice();
            while take(&mut left)? == Taken::Part {
                (self.1)();
            }
            Ok(())
        }
    }

    fn waited(bytes: usize, wait: impl Fn() + Send + Sync + 'static) -> Reader {
        Reader::start(Arc::new(Waited(bytes, Box::new(wait)))).unwrap()
    }

    /// One whose file system answers when it is let.
    fn hung(bytes: usize) -> (Reader, Sender<()>) {
        let (allow, allowed) = channel();
        let allowed = Mutex::new(allowed);
        let wait = move || {
            let _let = allowed.lock().unwrap().recv();
        };
        (waited(bytes, wait), allow)
    }

    #[test]
    fn a_file_system_that_does_not_answer_is_a_miss_and_costs_its_time_once() {
        let (reader, allow) = hung(0);
        let begun = Instant::now();
        let missed = reader.find(Domain([1, 2]), &[3], 0).unwrap_err();
        assert_eq!(missed.kind(), io::ErrorKind::TimedOut);
        assert!((STALL..2 * STALL).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        let begun = Instant::now();
        assert!(reader.find(Domain([1, 2]), &[3], 0).is_err());
        assert!(reader.read(Domain([1, 2]), &[3]).is_err());
        assert!(begun.elapsed() < STALL / 2, "it is known to hang");
        drop(allow);
        let again = loop {
            match reader.find(Domain([1, 2]), &[3, 4], 0) {
                Ok(found) => break found,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert_eq!(again, Some(2), "it answers again");
    }

    #[test]
    fn a_folder_that_is_slow_holds_the_engine_for_a_stall_and_then_for_a_share() {
        let reader = waited(100, || std::thread::sleep(Duration::from_millis(300)));
        let begun = Instant::now();
        let (mut found, mut read) = (0, 0);
        for _ in 0..20 {
            found += usize::from(reader.find(Domain([1, 2]), &[3], 0).is_ok());
            let Ok(mut stream) = reader.read(Domain([1, 2]), &[3]) else { continue };
            let mut all = Vec::new();
            read += usize::from(stream.read_to_end(&mut all).is_ok() && stream.finish().is_ok());
        }
        // Of twelve seconds.
        assert!(begun.elapsed() < 2 * STALL, "{:?}", begun.elapsed());
        assert!(found > 0 && read > 0, "it was not asked");
    }

    #[test]
    fn a_file_that_stops_in_its_midst_is_a_miss() {
        let (reader, allow) = hung(3 * PART_BYTES);
        let mut stream = reader.read(Domain([1, 2]), &[3]).unwrap();
        let mut bytes = vec![0; PART_BYTES];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, vec![7; PART_BYTES]);
        assert_eq!(stream.read(&mut bytes).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop((stream, allow));
        let mut stream = loop {
            match reader.read(Domain([1, 2]), &[3]) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 3 * PART_BYTES);
        stream.finish().unwrap();
    }
}
