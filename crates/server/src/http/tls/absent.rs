//! The server's side of TLS where this program has none: ring needs a C compiler for the system, which a check for
//! macOS from another one has not. The options are refused at the start.

use std::convert::Infallible;
use std::io;

use tokio::net::TcpStream;

use super::TlsOptions;
use crate::http::ServeError;

/// A connection behind its handshake.
pub(crate) type Stream = TcpStream;

/// There is none.
#[derive(Clone, Debug)]
pub(super) struct Acceptor(Infallible);

impl Acceptor {
    /// Refuses.
    pub(super) fn read(_: &TlsOptions) -> Result<Self, ServeError> {
        Err(ServeError::NoTls)
    }

    /// Never.
    pub(super) async fn accept(self, _: TcpStream) -> io::Result<Stream> {
        match self.0 {}
    }
}
