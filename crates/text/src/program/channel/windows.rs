//! Two pipes, and a job object in which the process is ended and its memory is bounded from outside.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::windows::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use store::io::platform::Job;

use super::super::memory_bytes;

/// The terminal's signals are meant for the program (`CREATE_NEW_PROCESS_GROUP`), and no window is opened for the
/// process (`CREATE_NO_WINDOW`).
const APART: u32 = 0x0000_0200 | 0x0800_0000;

/// Whether the system keeps the limit of memory that a template's process is given.
pub fn memory_is_bounded() -> bool {
    let limit = memory_bytes(0);
    Job::new(limit).is_ok_and(|job| job.memory_limit() == Some(limit))
}

/// The program's end.
#[derive(Debug)]
pub(in super::super) struct Channel {
    to: ChildStdin,
    from: ChildStdout,
    job: Job,
}

impl Channel {
    /// Starts a process that has the other ends. It does nothing before the first request, which comes after it was
    /// put into its job.
    pub(in super::super) fn start(command: &mut Command) -> io::Result<(Child, Self)> {
        let job = Job::new(memory_bytes(0))?;
        // Libraries of the system are found by it.
        if let Some(root) = std::env::var_os("SystemRoot") {
            command.env("SystemRoot", AsRef::<OsStr>::as_ref(&root));
        }
        let mut child =
            command.creation_flags(APART).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let ends = (child.stdin.take(), child.stdout.take());
        let taken = job.take(&child);
        match (taken, ends) {
            (Ok(()), (Some(to), Some(from))) => Ok((child, Self { to, from, job })),
            (taken, _) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(taken.err().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    /// Lets `talk` write and read. After `time` the process is ended, which is the error `TimedOut`: reads of a pipe
    /// have no deadline of their own. Until then the process may commit `memory_bytes`.
    pub(in super::super) fn converse<T>(
        &mut self,
        time: Duration,
        memory_bytes: u64,
        talk: impl FnOnce(&mut Ends<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.job.limit_memory(memory_bytes)?;
        let (job, late) = (&self.job, AtomicBool::new(false));
        let mut ends = Ends { to: &mut self.to, from: &mut self.from };
        std::thread::scope(|scope| {
            let (done, watched) = mpsc::channel::<()>();
            let late = &late;
            std::thread::Builder::new().spawn_scoped(scope, move || {
                if watched.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                    late.store(true, Ordering::Relaxed);
                    job.end();
                }
            })?;
            let said = talk(&mut ends);
            drop(done);
            match said {
                Err(_) if late.load(Ordering::Relaxed) => Err(io::ErrorKind::TimedOut.into()),
                said => said,
            }
        })
    }
}

/// Both pipes as one stream.
pub(in super::super) struct Ends<'a> {
    to: &'a mut ChildStdin,
    from: &'a mut ChildStdout,
}

impl Read for Ends<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.from.read(buffer)
    }
}

impl Write for Ends<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.to.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The process's end: its standard input and output.
pub(in super::super) struct Parent;

impl Parent {
    /// Takes the end.
    pub(in super::super) fn join() -> io::Result<Self> {
        Ok(Self)
    }

    /// The parent has done it.
    pub(in super::super) fn bound_memory(&self, _bytes: u64) {}
}

impl Read for Parent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        io::stdin().read(buffer)
    }
}

impl Write for Parent {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        io::stdout().write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
