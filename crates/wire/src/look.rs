//! Reading from a socket by a thread that looks for a while before it sleeps. To be woken takes 20 to 50 us, which a
//! token waits for at each connection that it crosses.

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long reads of a connection look for bytes before they sleep; at first not at all.
#[derive(Clone, Debug, Default)]
pub struct Look(Arc<AtomicU64>);

impl Look {
    /// For all reads from now on. Where sockets cannot be asked without waiting, it changes nothing.
    pub fn set(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanoseconds, Ordering::Relaxed);
    }

    fn time(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The reading half of a socket.
pub(crate) struct Looking {
    stream: TcpStream,
    look: Look,
}

impl Looking {
    pub(crate) fn new(stream: TcpStream, look: Look) -> Self {
        Self { stream, look }
    }

    /// Bytes that come while it looks; `None` where none do.
    #[cfg(unix)]
    fn looked(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        use rustix::io::Errno;
        use rustix::net::{RecvFlags, recv};

        let time = self.look.time();
        if time.is_zero() {
            return Ok(None);
        }
        let began = std::time::Instant::now();
        while began.elapsed() < time {
            match recv(&self.stream, &mut *into, RecvFlags::DONTWAIT) {
                Ok((received, _)) => return Ok(Some(received)),
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    #[cfg(not(unix))]
    fn looked(&self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(None)
    }
}

impl Read for Looking {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.looked(into)? {
            Some(received) => Ok(received),
            None => self.stream.read(into),
        }
    }
}
