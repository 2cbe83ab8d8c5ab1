//! TLS 1.3 by rustls, both sides with certificates, over a socket whose halves are used by threads of their own: the
//! keys are one state under a lock, which no thread holds while its half of the socket waits.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rcgen::{CertificateParams, KeyPair};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use crate::look::{Look, Looking};
use crate::{Identity, Trusted, WireError};

/// The name in every certificate: whom one talks to is decided by the key.
const NAME: &str = "stage.flashmoe.internal";
/// Bytes that are encrypted, or read, at a time.
const PART: usize = 64 << 10;

/// What a process shows of itself, and whom it trusts.
#[derive(Clone, Debug)]
pub struct Credentials {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// A new key and its certificate, in PEM form: the certificate first.
pub(crate) fn make() -> Result<(String, String), WireError> {
    let failed = |error: rcgen::Error| WireError::file("certificate", error);
    let key = KeyPair::generate().map_err(failed)?;
    let params = CertificateParams::new(vec![NAME.to_owned()]).map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// The certificates of a file.
pub(crate) fn certificates(file: &Path, text: &[u8]) -> Result<Vec<Vec<u8>>, WireError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let all = all.map_err(|error| WireError::file(file, error))?;
    if all.is_empty() {
        return Err(WireError::file(file, "it has no certificate in PEM form"));
    }
    Ok(all.into_iter().map(|it| it.to_vec()).collect())
}

impl Credentials {
    /// Reads an identity and the certificates that are trusted.
    ///
    /// # Errors
    /// A file cannot be read or is no certificate, or no certificate is trusted.
    pub fn read(identity: &Identity, trusted: &Trusted) -> Result<Self, WireError> {
        let [(certificate, text), (key_file, key)] = identity.texts()?;
        let chain: Vec<_> =
            certificates(&certificate, &text)?.into_iter().map(CertificateDer::from).collect();
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|error| WireError::file(&key_file, error))?;
        let mut roots = RootCertStore::empty();
        for (file, text) in trusted.texts()? {
            for one in certificates(&file, &text)? {
                let added = roots.add(CertificateDer::from(one));
                added.map_err(|error| WireError::file(&file, error))?;
            }
        }
        if roots.is_empty() {
            let problem = "no certificate of the other side is named";
            return Err(WireError::file(&certificate, problem));
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let refused = |error: &dyn std::fmt::Display| WireError::file(&certificate, error);
        let of_clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let of_clients = of_clients.build().map_err(|error| refused(&error))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| refused(&error))?
            .with_client_cert_verifier(of_clients)
            .with_single_cert(chain.clone(), key.clone_key());
        let mut server = server.map_err(|error| refused(&error))?;
        // Each connection has a handshake of its own.
        server.send_tls13_tickets = 0;
        let of_servers =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let of_servers = of_servers.map_err(|error| refused(&error))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| refused(&error))?
            .with_webpki_verifier(of_servers)
            .with_client_auth_cert(chain, key);
        let mut client = client.map_err(|error| refused(&error))?;
        client.resumption = Resumption::disabled();
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// The side that connects.
    pub(crate) fn begin(&self, stream: TcpStream, look: Look) -> io::Result<Halves> {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let made = ClientConnection::new(Arc::clone(&self.client), name);
        shaken(made.map_err(io::Error::other)?.into(), stream, look)
    }

    /// The side that is connected to.
    pub(crate) fn answer(&self, stream: TcpStream, look: Look) -> io::Result<Halves> {
        let made = ServerConnection::new(Arc::clone(&self.server));
        shaken(made.map_err(io::Error::other)?.into(), stream, look)
    }
}

type Halves = (Box<dyn Read + Send>, Box<dyn Write + Send>);

fn shaken(mut session: Connection, mut stream: TcpStream, look: Look) -> io::Result<Halves> {
    session.set_buffer_limit(None);
    while session.is_handshaking() || session.wants_write() {
        session.complete_io(&mut stream)?;
    }
    // What the other side said right behind its handshake has come with it.
    let state = session.process_new_packets();
    let state = state.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    let mut open = vec![0; state.plaintext_bytes_to_read()];
    session.reader().read_exact(&mut open)?;
    let from = Looking::new(stream.try_clone()?, look);
    let shared = Arc::new(Shared {
        session: Mutex::new(session),
        out: Mutex::new(Out { stream, sealed: Vec::new() }),
    });
    let reader = Opening { shared: Arc::clone(&shared), from, sealed: vec![0; PART], open, at: 0 };
    Ok((Box::new(reader), Box::new(Sealing(shared))))
}

/// What both halves need.
struct Shared {
    session: Mutex<Connection>,
    /// Locked before the session where both are: records leave in the order in which they were sealed.
    out: Mutex<Out>,
}

struct Out {
    stream: TcpStream,
    /// Sealed bytes on their way; kept for the next.
    sealed: Vec<u8>,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Seals a part and what else waits to be sent, and sends it.
    fn send(&self, part: &[u8]) -> io::Result<()> {
        let mut out = hold(&self.out);
        let Out { stream, sealed } = &mut *out;
        sealed.clear();
        {
            let mut session = hold(&self.session);
            session.writer().write_all(part)?;
            while session.wants_write() {
                session.write_tls(sealed)?;
            }
        }
        stream.write_all(sealed)
    }
}

/// The writing half.
struct Sealing(Arc<Shared>);

impl Write for Sealing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(PART)];
        self.0.send(part)?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Sealing {
    fn drop(&mut self) {
        // The other side then knows that nothing was cut off. It may be gone.
        hold(&self.0.session).send_close_notify();
        _ = self.0.send(&[]);
    }
}

/// The reading half.
struct Opening {
    shared: Arc<Shared>,
    from: Looking,
    sealed: Vec<u8>,
    /// What was opened and not yet read, from `at` on.
    open: Vec<u8>,
    at: usize,
}

impl Opening {
    /// Opens what was received; false where the other side has said that no more comes.
    fn open(&mut self, received: usize) -> io::Result<bool> {
        self.open.clear();
        self.at = 0;
        let mut rest = &self.sealed[..received];
        let (mut answers, mut goes_on) = (false, true);
        {
            let mut session = hold(&self.shared.session);
            while !rest.is_empty() {
                session.read_tls(&mut rest)?;
                let state = session.process_new_packets();
                let state = state.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                let end = self.open.len();
                self.open.resize(end + state.plaintext_bytes_to_read(), 0);
                session.reader().read_exact(&mut self.open[end..])?;
                goes_on &= !state.peer_has_closed();
            }
            answers |= session.wants_write();
        }
        if answers {
            self.shared.send(&[])?;
        }
        Ok(goes_on)
    }
}

impl Read for Opening {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.open.len() {
            let received = self.from.read(&mut self.sealed)?;
            if received == 0 {
                // Without a goodbye: what was said may be cut off.
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if !self.open(received)? && self.open.is_empty() {
                return Ok(0);
            }
        }
        let count = into.len().min(self.open.len() - self.at);
        into[..count].copy_from_slice(&self.open[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
