//! A socket with deadlines, and limits that the process sets for itself before it does anything.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};

/// How often it is asked whether a process that does not answer was stopped.
const LOOK: Duration = Duration::from_secs(1);

/// The program's end.
#[derive(Debug)]
pub(in super::super) struct Channel {
    socket: UnixStream,
    process: Pid,
}

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
        let process = Pid::from_child(&child);
        Ok((child, Self { socket, process }))
    }

    /// Lets `talk` write and read until `time` has passed, which is the error `TimedOut`, or until the process is seen
    /// to be stopped by a signal, which is `ConnectionAborted`: it would not answer in time, and another one would. The
    /// process bounds its memory itself, by the head of the request.
    pub(in super::super) fn converse<T>(
        &mut self,
        time: Duration,
        _memory_bytes: u64,
        talk: impl FnOnce(&mut Timed<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        talk(&mut Timed {
            socket: &self.socket,
            process: self.process,
            deadline: Instant::now() + time,
        })
    }
}

/// A socket whose reads and writes end at a deadline.
pub(in super::super) struct Timed<'a> {
    socket: &'a UnixStream,
    process: Pid,
    deadline: Instant,
}

impl Timed<'_> {
    /// Repeats `step`, which is given how long it may wait, until it has done something.
    fn patiently<T>(
        &self,
        mut step: impl FnMut(&UnixStream, Duration) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match step(self.socket, left.min(LOOK)) {
                // What the system calls the end of a socket's patience.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                done => return done,
            }
            if is_stopped(self.process) {
                let problem = "it was stopped by a signal";
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, problem));
            }
        }
    }
}

/// Whether a child is stopped by a signal; its end is left for who waits for it.
fn is_stopped(process: Pid) -> bool {
    let asked = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(process), asked), Ok(Some(_)))
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(|mut socket, time| {
            socket.set_read_timeout(Some(time))?;
            socket.read(buffer)
        })
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.patiently(|mut socket, time| {
            socket.set_write_timeout(Some(time))?;
            socket.write(buffer)
        })
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
