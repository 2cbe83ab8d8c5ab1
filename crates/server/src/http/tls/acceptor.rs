//! The server's side of TLS by rustls: versions 1.2 and 1.3, HTTP/1.1, no certificates of clients.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use store::io::platform::{Links, read_regular};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::{TlsOptions, TlsProblem};
use crate::http::ServeError;

/// A connection behind its handshake.
pub(crate) type Stream = tokio_rustls::server::TlsStream<TcpStream>;

/// Longest file of certificates or of a key.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a connection that wait to be sent, encrypted.
const UNSENT_BYTES_MAX: usize = 16 << 10;
/// What begins a key that has a passphrase.
const ENCRYPTED: [&str; 2] = ["BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"];

/// Certificate and key.
#[derive(Clone, Debug)]
pub(super) struct Acceptor(Arc<ServerConfig>);

impl Acceptor {
    /// Reads and checks the files.
    pub(super) fn read(options: &TlsOptions) -> Result<Self, ServeError> {
        let (certificate, key) = (&options.certificate, &options.key);
        let refused = |file: &Path, reason: &dyn std::fmt::Display| {
            problem(file, TlsProblem::Refused(reason.to_string()))
        };
        let text = bytes(certificate)?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|error| refused(certificate, &error))?;
        if chain.is_empty() {
            return Err(problem(certificate, TlsProblem::NoCertificate));
        }
        let text = bytes(key)?;
        let shown = String::from_utf8_lossy(&text);
        if ENCRYPTED.iter().any(|words| shown.contains(words)) {
            return Err(problem(key, TlsProblem::Encrypted));
        }
        let secret = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
            PemError::NoItemsFound => problem(key, TlsProblem::NoKey),
            other => refused(key, &other),
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(certificate, &error))?;
        let made = builder.with_no_client_auth().with_single_cert(chain, secret);
        let mut config = made.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let words = format!("is not the key of {}", store::shown::path(certificate));
                refused(key, &words)
            }
            other => refused(certificate, &other),
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// A connection's handshake.
    pub(super) async fn accept(self, socket: TcpStream) -> io::Result<Stream> {
        let limited = |connection: &mut rustls::ServerConnection| {
            connection.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        };
        TlsAcceptor::from(self.0).accept_with(socket, limited).await
    }
}

/// The bytes of a file, which may be a link: that is how certificates are renewed.
fn bytes(file: &Path) -> Result<Vec<u8>, ServeError> {
    read_regular(file, Links::Followed, FILE_BYTES_MAX)
        .map_err(|error| problem(file, TlsProblem::Read(error)))
}

fn problem(file: &Path, reason: TlsProblem) -> ServeError {
    ServeError::Tls { file: file.to_owned(), reason }
}
