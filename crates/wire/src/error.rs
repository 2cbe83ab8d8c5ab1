//! What can go wrong before two processes are connected.

use std::io;
use std::path::PathBuf;

use store::shown;
use thiserror::Error;

/// No connection.
#[derive(Debug, Error)]
pub enum WireError {
    /// Other machines could reach it, or read what is said.
    #[error(
        "{0} is not an address of this host alone: name an identity (flashmoe stage --identity FOLDER makes one) and \
         the other side's certificate"
    )]
    Open(String),
    /// A name or address of the network.
    #[error("{address}: {source}")]
    Address {
        /// As it was given.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// A file of an identity, or of certificates.
    #[error("{}: {problem}", shown::path(file))]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The other side and this one do not trust each other, or it speaks something else.
    #[error("{address}: the handshake failed: {problem}")]
    Handshake {
        /// The other side.
        address: String,
        /// Why.
        problem: String,
    },
    /// This build has no TLS.
    #[error("this build has no TLS: stages on other hosts need one")]
    Absent,
}

impl WireError {
    pub(crate) fn file(file: impl Into<PathBuf>, problem: impl ToString) -> Self {
        Self::File { file: file.into(), problem: problem.to_string() }
    }

    /// Whether the other side is not there yet: who starts may be a moment early.
    pub fn is_absence(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
        match self {
            Self::Address { source, .. } => matches!(
                source.kind(),
                ConnectionRefused | HostUnreachable | NetworkUnreachable | TimedOut
            ),
            _ => false,
        }
    }
}
