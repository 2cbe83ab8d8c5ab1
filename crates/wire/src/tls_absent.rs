//! Where there is no TLS: every use of it is refused.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::look::Look;
use crate::{Identity, Trusted, WireError};

/// There are none.
#[derive(Clone, Debug)]
pub struct Credentials(Infallible);

type Halves = (Box<dyn Read + Send>, Box<dyn Write + Send>);

impl Credentials {
    /// Refused.
    ///
    /// # Errors
    /// Always.
    pub fn read(_: &Identity, _: &Trusted) -> Result<Self, WireError> {
        Err(WireError::Absent)
    }

    pub(crate) fn begin(&self, _: TcpStream, _: Look) -> io::Result<Halves> {
        match self.0 {}
    }

    pub(crate) fn answer(&self, _: TcpStream, _: Look) -> io::Result<Halves> {
        match self.0 {}
    }
}

pub(crate) fn make() -> Result<(String, String), WireError> {
    Err(WireError::Absent)
}

pub(crate) fn certificates(_: &Path, _: &[u8]) -> Result<Vec<Vec<u8>>, WireError> {
    Err(WireError::Absent)
}
