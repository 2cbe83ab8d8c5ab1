//! Goal: a hub is believed over TLS only with a certificate of its own name from a trusted authority, and what was
//! asked over TLS is never answered without. Method: TLS in front of the hub on this machine, certificates made here.
#![cfg(not(target_os = "macos"))]

use crate::support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hub::{Hub, HubError, Limits, Pulled, Selection, Settings};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use support::{NAME, TestHub};

/// A hub behind TLS.
struct SecureHub {
    /// What lies behind.
    hub: TestHub,
    port: u16,
    /// The certificate of the authority, PEM.
    authority: String,
}

impl SecureHub {
    /// A hub of `files` whose certificate is for `host`.
    fn start(files: BTreeMap<String, Vec<u8>>, host: &str) -> Self {
        let hub = TestHub::start(files);
        let behind = hub.endpoint.strip_prefix("http://").unwrap().to_owned();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], key.into())
                .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, behind) = (Arc::clone(&config), behind.clone());
                // A client that does not believe the certificate goes away.
                std::thread::spawn(move || forward(config, stream, &behind));
            }
        });
        Self { hub, port, authority: authority.pem() }
    }

    /// The file of the authority's certificate.
    fn authority(&self, folder: &Path) -> PathBuf {
        let path = folder.join("authority.pem");
        std::fs::write(&path, &self.authority).unwrap();
        path
    }

    /// Downloads everything as `host`, trusting `certificates`.
    fn pull(&self, host: &str, cache: &Path, certificates: PathBuf) -> Result<Pulled, HubError> {
        let limits = Limits {
            attempts: 2,
            backoff: Duration::from_millis(5),
            patience: Duration::from_secs(5),
            ..Limits::default()
        };
        let hub = Hub::new(Settings {
            endpoint: format!("https://{host}:{}", self.port),
            cache: cache.to_owned(),
            token: None,
            offline: false,
            certificates: Some(certificates),
            limits,
        })?;
        let (name, stop) = (NAME.parse().unwrap(), AtomicBool::new(false));
        let repository = hub.describe(&name, &stop)?;
        let selection = Selection::choose(&name, &repository)?;
        hub.pull(&name, &selection, &stop, &mut |_| {})
    }
}

/// One request and its answer.
fn forward(config: Arc<ServerConfig>, stream: TcpStream, behind: &str) -> std::io::Result<()> {
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut client = BufReader::new(StreamOwned::new(connection, stream));
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if client.read_until(b'\n', &mut request)? == 0 {
            return Ok(());
        }
    }
    let mut hub = TcpStream::connect(behind)?;
    hub.write_all(&request)?;
    let mut answer = Vec::new();
    hub.read_to_end(&mut answer)?;
    let client = client.get_mut();
    client.write_all(&answer)?;
    client.conn.send_close_notify();
    client.flush()
}

/// Small enough to come from the hub itself.
fn small() -> BTreeMap<String, Vec<u8>> {
    let file = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.to_vec());
    [file("config.json", b"{}"), file("model.safetensors", &[7; 300])].into()
}

#[test]
fn a_hub_with_a_trusted_certificate_is_believed() {
    let (hub, cache) = (SecureHub::start(small(), "localhost"), tempfile::tempdir().unwrap());
    let pulled = hub.pull("localhost", cache.path(), hub.authority(cache.path())).unwrap();
    let model = std::fs::read(pulled.snapshot.join("model.safetensors")).unwrap();
    assert_eq!(model, [7; 300]);
}

#[test]
fn a_hub_without_one_is_asked_for_nothing() {
    let (hub, cache) = (SecureHub::start(small(), "localhost"), tempfile::tempdir().unwrap());
    let other = SecureHub::start(small(), "localhost").authority(cache.path());
    let error = hub.pull("localhost", cache.path(), other).unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    // The authority is right, the name is not.
    let right = hub.authority(cache.path());
    let error = hub.pull("127.0.0.1", cache.path(), right).unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    assert!(hub.hub.asked().is_empty(), "a request went out");
}

#[test]
fn a_redirect_does_not_lead_out_of_tls() {
    let mut files = small();
    files.insert("model.safetensors".to_owned(), vec![7; 3000]);
    let (hub, cache) = (SecureHub::start(files, "localhost"), tempfile::tempdir().unwrap());
    let error = hub.pull("localhost", cache.path(), hub.authority(cache.path())).unwrap_err();
    assert!(error.to_string().contains("a redirect to http://"), "{error}");
}

#[test]
fn a_file_without_certificates_is_refused_by_name() {
    let (hub, cache) = (SecureHub::start(small(), "localhost"), tempfile::tempdir().unwrap());
    let path = cache.path().join("empty.pem");
    std::fs::write(&path, "nothing").unwrap();
    let error = hub.pull("localhost", cache.path(), path).unwrap_err().to_string();
    assert!(error.starts_with("SSL_CERT_FILE: ") && error.contains("empty.pem"), "{error}");
}
