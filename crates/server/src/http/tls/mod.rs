//! TLS: the certificate and the key of a server, and what a connection says before it is one of HTTP.
//!
//! A connection has the time of a request's head for its handshake, counts as one of the connections from its first
//! moment, and makes way like an idle one: a slow handshake holds nothing. One that begins with plain HTTP is answered
//! so, in words. A certificate that is renewed is taken without a restart, since loading a model takes minutes.

#[cfg(target_os = "macos")]
#[path = "absent.rs"]
mod acceptor;
#[cfg(not(target_os = "macos"))]
mod acceptor;

use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use thiserror::Error;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

use super::options::ServeError;
use acceptor::Acceptor;

pub(crate) use acceptor::Stream as TlsStream;

/// The first byte of every connection over TLS: a record of the handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;
/// What a client reads that speaks plain HTTP.
const PLAIN_BODY: &str = "{\"error\":{\"message\":\"this port speaks HTTPS: write https:// in place of http://\",\
     \"type\":\"invalid_request_error\",\"code\":\"tls_required\"}}";
/// Bytes of such a client that are read, so that it reads its answer before it learns that the connection has ended.
const PLAIN_BYTES_MAX: usize = 64 << 10;

/// By what a server proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// Its certificate and those that vouch for it, in PEM form.
    pub certificate: PathBuf,
    /// Its private key, in PEM form.
    pub key: PathBuf,
    /// How often it is looked whether the files are new.
    pub renewal: Duration,
}

/// Why a server cannot prove who it is.
#[derive(Debug, Error)]
pub enum TlsProblem {
    /// The file cannot be read.
    #[error("{0}")]
    Read(io::Error),
    /// It has no certificate.
    #[error("has no certificate in PEM form (-----BEGIN CERTIFICATE-----)")]
    NoCertificate,
    /// It has no key.
    #[error("has no private key in PEM form (-----BEGIN PRIVATE KEY-----)")]
    NoKey,
    /// The key has a passphrase.
    #[error("the key has a passphrase: write it without (openssl pkey -in FILE -out NEW)")]
    Encrypted,
    /// They do not belong together, or are of a kind that is not known.
    #[error("{0}")]
    Refused(String),
}

/// The certificate and key in use.
#[derive(Debug)]
pub(crate) struct Tls {
    options: TlsOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    acceptor: Acceptor,
    /// Of the files as they were read last, whether they could be used or not.
    seen: [Option<Stamp>; 2],
}

/// By what a file that was replaced differs.
type Stamp = (SystemTime, u64);

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// What cannot be used, by file.
    pub(crate) fn read(options: TlsOptions) -> Result<Self, ServeError> {
        let seen = stamps(&options);
        let acceptor = Acceptor::read(&options)?;
        Ok(Self { options, state: Mutex::new(State { acceptor, seen }) })
    }

    /// How often [`Tls::renew`] is to be called.
    pub(crate) fn renewal(&self) -> Duration {
        self.options.renewal
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files again if they are new; `None` where they are not.
    ///
    /// # Errors
    /// New files that cannot be used; the old ones stay in use.
    pub(crate) fn renew(&self) -> Option<Result<(), ServeError>> {
        let seen = stamps(&self.options);
        if self.state().seen == seen {
            return None;
        }
        let acceptor = Acceptor::read(&self.options);
        let mut state = self.state();
        state.seen = seen;
        Some(acceptor.map(|acceptor| state.acceptor = acceptor))
    }

    /// The connection behind its handshake.
    ///
    /// # Errors
    /// The client went away, took longer than `time`, or speaks something else; plain HTTP was answered.
    pub(crate) async fn accept(&self, socket: TcpStream, time: Duration) -> io::Result<TlsStream> {
        let acceptor = self.state().acceptor.clone();
        let handshake = async {
            let mut first = [0];
            match socket.peek(&mut first).await? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ if first[0] == HANDSHAKE => acceptor.accept(socket).await,
                _ => {
                    answer_plain(socket).await?;
                    Err(io::Error::new(io::ErrorKind::InvalidData, "plain HTTP"))
                }
            }
        };
        tokio::time::timeout(time, handshake).await?
    }
}

/// Tells a client that speaks plain HTTP what to write.
async fn answer_plain(mut socket: TcpStream) -> io::Result<()> {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{PLAIN_BODY}",
        PLAIN_BODY.len()
    );
    let mut unsent = answer.as_bytes();
    while !unsent.is_empty() {
        socket.writable().await?;
        match socket.try_write(unsent) {
            Ok(count) => unsent = &unsent[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    poll_fn(|context| Pin::new(&mut socket).poll_shutdown(context)).await?;
    let (mut piece, mut read) = ([0; 4096], 0);
    while read < PLAIN_BYTES_MAX {
        socket.readable().await?;
        match socket.try_read(&mut piece) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn stamps(options: &TlsOptions) -> [Option<Stamp>; 2] {
    [&options.certificate, &options.key].map(|file| {
        let found = file.metadata().ok()?;
        Some((found.modified().ok()?, found.len()))
    })
}
