//! A socket with deadlines, and limits that the process sets for itself before it does anything.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The program's end.
#[derive(Debug)]
pub(in super::super) struct Channel(UnixStream);

impl Channel {
    /// Starts a process that has the other end.
    pub(in super::super) fn start(command: &mut Command) -> io::Result<(Child, Self)> {
        let (socket, theirs) = UnixStream::pair()?;
        let child = command
            // The terminal's signals are meant for the program.
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok((child, Self(socket)))
    }

    /// Lets `talk` write and read until `time` has passed, which is the error `TimedOut`. The process bounds its
    /// memory itself, by the head of the request.
    pub(in super::super) fn converse<T>(
        &mut self,
        time: Duration,
        _memory_bytes: u64,
        talk: impl FnOnce(&mut Timed<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        talk(&mut Timed { socket: &self.0, deadline: Instant::now() + time })
    }
}

/// A socket whose reads and writes end at a deadline.
pub(in super::super) struct Timed<'a> {
    socket: &'a UnixStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// What the system calls the end of a socket's patience.
fn late(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(buffer).map_err(late)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(buffer).map_err(late)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The process's end: its standard input, which must be a socket.
pub(in super::super) struct Parent(UnixStream);

impl Parent {
    /// Takes the end and sets what is set once.
    pub(in super::super) fn join() -> io::Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket.peer_addr()?;
        limit(Resource::Core, 0);
        // Advice to the system: end this process before its parent.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        Ok(Self(socket))
    }

    /// Bounds the memory of this process.
    pub(in super::super) fn bound_memory(&self, bytes: u64) {
        limit(Resource::As, bytes);
    }
}

/// Lowers or raises a limit of this process, as far as the hard one allows.
fn limit(resource: Resource, bytes: u64) {
    let maximum = getrlimit(resource).maximum;
    let current = Some(maximum.map_or(bytes, |maximum| bytes.min(maximum)));
    // Without it the parent's patience is still a limit; there is no one to tell.
    let _ = setrlimit(resource, Rlimit { current, maximum });
}

impl Read for Parent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Parent {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
