//! Connecting, listening, and what both give.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::look::{Look, Looking};
use crate::{Credentials, WireError};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection to another process.
pub struct Connection {
    /// What the other side sends; blocks.
    pub reader: Box<dyn Read + Send>,
    /// To the other side: what was written is on its way when it returns.
    pub writer: Box<dyn Write + Send>,
    /// Ends both directions, from any thread: a read or write under way fails.
    pub end: Arc<dyn Fn() + Send + Sync>,
    /// How long reads look for bytes before they sleep.
    pub look: Look,
    /// The other side's address.
    pub address: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The addresses behind `HOST:PORT`.
fn resolve(address: &str) -> Result<Vec<SocketAddr>, WireError> {
    let failed = |source| WireError::Address { address: address.to_owned(), source };
    let all: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
    if all.is_empty() {
        return Err(failed(ErrorKind::NotFound.into()));
    }
    Ok(all)
}

/// Without credentials nothing is said that another machine could hear.
fn check_open(
    address: &str,
    all: &[SocketAddr],
    credentials: Option<&Credentials>,
) -> Result<(), WireError> {
    let closed = credentials.is_some() || all.iter().all(|it| it.ip().is_loopback());
    if closed { Ok(()) } else { Err(WireError::Open(address.to_owned())) }
}

/// Connects to `HOST:PORT`; each address behind it is tried for `patience` at the most.
///
/// # Errors
/// It is not there, it is not the one that is trusted, or it is on another machine and there are no credentials.
pub fn connect(
    address: &str,
    credentials: Option<&Credentials>,
    patience: Duration,
) -> Result<Connection, WireError> {
    let all = resolve(address)?;
    check_open(address, &all, credentials)?;
    let mut failed = None;
    for one in &all {
        match TcpStream::connect_timeout(one, patience) {
            Ok(stream) => {
                return secured(stream, address.to_owned(), |stream, look| match credentials {
                    Some(credentials) => credentials.begin(stream, look),
                    None => plain(stream, look),
                });
            }
            Err(error) => failed = Some(error),
        }
    }
    let source = failed.unwrap_or_else(|| ErrorKind::NotFound.into());
    Err(WireError::Address { address: address.to_owned(), source })
}

/// Where others connect to.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    credentials: Option<Credentials>,
}

impl Listener {
    /// Listens on `HOST:PORT`.
    ///
    /// # Errors
    /// The address cannot be taken, or other machines could reach it and there are no credentials.
    pub fn bind(address: &str, credentials: Option<Credentials>) -> Result<Self, WireError> {
        let all = resolve(address)?;
        check_open(address, &all, credentials.as_ref())?;
        let failed = |source| WireError::Address { address: address.to_owned(), source };
        let listener = TcpListener::bind(&all[..]).map_err(failed)?;
        Ok(Self { listener, credentials })
    }

    /// The address that it has, with the port that it was given.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection, without a handshake.
    ///
    /// # Errors
    /// What the system says.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.listener.accept()
    }

    /// Its handshake, which may be another thread's.
    ///
    /// # Errors
    /// Its other side is not trusted, or says something else.
    pub fn secure(&self, stream: TcpStream, from: SocketAddr) -> Result<Connection, WireError> {
        secured(stream, from.to_string(), |stream, look| match &self.credentials {
            Some(credentials) => credentials.answer(stream, look),
            None => plain(stream, look),
        })
    }
}

type Halves = (Box<dyn Read + Send>, Box<dyn Write + Send>);

fn plain(stream: TcpStream, look: Look) -> io::Result<Halves> {
    let reader = stream.try_clone()?;
    Ok((Box::new(Looking::new(reader, look)), Box::new(stream)))
}

/// A connection after its handshake, which has [`HANDSHAKE`] for it.
fn secured(
    stream: TcpStream,
    address: String,
    handshake: impl FnOnce(TcpStream, Look) -> io::Result<Halves>,
) -> Result<Connection, WireError> {
    let failed = |source| WireError::Address { address: address.clone(), source };
    // A token waits for each message.
    stream.set_nodelay(true).map_err(failed)?;
    let closed = Arc::new(stream.try_clone().map_err(failed)?);
    let end: Arc<dyn Fn() + Send + Sync> = Arc::new(move || _ = closed.shutdown(Shutdown::Both));
    let (done, waits) = sync_channel::<()>(0);
    let late = Arc::clone(&end);
    let watch = std::thread::Builder::new().name("handshake".to_owned()).spawn(move || {
        let late_now = waits.recv_timeout(HANDSHAKE) == Err(RecvTimeoutError::Timeout);
        if late_now {
            late();
        }
        late_now
    });
    let watch = watch.map_err(failed)?;
    let look = Look::default();
    let halves = handshake(stream, look.clone());
    drop(done);
    let halves = match watch.join() {
        Ok(true) => {
            let problem = format!("it took longer than {} s", HANDSHAKE.as_secs());
            Err(io::Error::new(ErrorKind::TimedOut, problem))
        }
        _ => halves,
    };
    match halves {
        Ok((reader, writer)) => Ok(Connection { reader, writer, end, look, address }),
        Err(error) => Err(WireError::handshake(address, &error)),
    }
}
