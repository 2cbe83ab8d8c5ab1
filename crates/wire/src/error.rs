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
    /// The other side ended the connection within the handshake, or was not through with it in time.
    #[error("{address}: no answer to the handshake: {problem}")]
    Unanswered {
        /// The other side.
        address: String,
        /// What happened.
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

    /// Whether the other side is not there yet, or busy: who starts may be a moment early.
    pub fn is_absence(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
        match self {
            Self::Address { source, .. } => matches!(
                source.kind(),
                ConnectionRefused | HostUnreachable | NetworkUnreachable | TimedOut
            ),
            Self::Unanswered { .. } => true,
            _ => false,
        }
    }

    /// A handshake that failed.
    pub(crate) fn handshake(address: String, error: &io::Error) -> Self {
        let problem = error.to_string();
        match ended(error) {
            true => Self::Unanswered { address, problem },
            false => Self::Handshake { address, problem },
        }
    }
}

/// Whether the other side ended a connection, or did not answer in time.
pub fn ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut | UnexpectedEof
    )
}
