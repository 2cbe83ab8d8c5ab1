//! Goal: a server with a certificate is reached over TLS alone, says what is wrong with its files, and is held up by no
//! handshake. Method: certificates made here, rustls as the client, plain sockets as what is none.
#![cfg(not(target_os = "macos"))]

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use server::work::FinishReason;
use server::{Limits, ServeError, ServeOptions, Server, TlsOptions, TlsProblem};
use support::{Reply, Scripted, Serving, finish, request, say, text};

/// A certificate of `localhost` that vouches for itself, and its key, as PEM.
fn identity() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn written(folder: &Path, (certificate, key): &(String, String)) -> TlsOptions {
    let place = |name: &str, text: &str| -> PathBuf {
        let path = folder.join(name);
        // Renamed into place, as tools that renew certificates do.
        std::fs::write(folder.join("new"), text).unwrap();
        std::fs::rename(folder.join("new"), &path).unwrap();
        path
    };
    TlsOptions {
        certificate: place("server.crt", certificate),
        key: place("server.key", key),
        renewal: Duration::from_millis(20),
    }
}

fn serving(tls: TlsOptions, limits: Limits) -> Serving {
    let worker = Scripted::new(Reply::Play(say([text("Hello."), finish(FinishReason::Stop)])));
    Serving::start_with(worker, ServeOptions { tls: Some(tls), limits, ..Default::default() })
}

/// What a server says to a request, to a client that trusts `certificate` alone.
fn ask(serving: &Serving, certificate: &str, request: &str) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, serving.connect());
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    // The end of the connection is said: what was read is whole.
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn requests_are_answered_over_tls_streamed_and_whole() {
    let folder = tempfile::tempdir().unwrap();
    let identity = identity();
    let serving = serving(written(folder.path(), &identity), Limits::default());
    for stream in [false, true] {
        let body = format!(
            "{{\"stream\": {stream}, \"messages\": [{{\"role\": \"user\", \"content\": \"Hi\"}}]}}"
        );
        let json = ["Content-Type: application/json"];
        let post = request("POST", "/v1/chat/completions", &json, &body);
        let answer = ask(&serving, &identity.0, &post).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("Hello."), "{answer}");
    }
    // Another's certificate is not believed; the server goes on.
    let other = self::identity();
    assert!(ask(&serving, &other.0, &request("GET", "/livez", &[], "")).is_err());
    let answer = ask(&serving, &identity.0, &request("GET", "/livez", &[], "")).unwrap();
    assert!(answer.contains("alive"), "{answer}");
}

#[test]
fn plain_http_is_told_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let serving = serving(written(folder.path(), &identity()), Limits::default());
    for bytes in [request("GET", "/", &[], ""), "x".repeat(50_000)] {
        let response = serving.raw(bytes.as_bytes());
        assert_eq!(response.status, 400, "{response:?}");
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("https://"), "{message}");
    }
}

/// The time of a request's head is that of a handshake, and its connection makes way.
#[test]
fn slow_handshakes_hold_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let identity = identity();
    let tls = written(folder.path(), &identity);
    let limits = Limits { head_time: Duration::from_millis(500), ..Limits::default() };
    let server = serving(tls.clone(), limits);
    // Nothing; the first byte of a handshake; a record that does not end.
    let ended = |bytes: &[u8]| {
        let mut stream: TcpStream = server.connect();
        stream.write_all(bytes).unwrap();
        let started = Instant::now();
        let _reset = stream.read_to_end(&mut Vec::new());
        started.elapsed()
    };
    for bytes in [&b""[..], &[22], &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc]] {
        let took = ended(bytes);
        assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
    }
    // Where all connections are such, the one that has waited longest goes.
    let limits = Limits { connections: 2, head_time: Duration::from_secs(60), ..limits };
    let server = serving(tls, limits);
    let _slow = [server.connect(), server.connect()];
    let started = Instant::now();
    let answer = ask(&server, &identity.0, &request("GET", "/livez", &[], "")).unwrap();
    assert!(answer.contains("alive"), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_renewed_certificate_is_taken_and_a_damaged_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (identity(), identity());
    let serving = serving(written(folder.path(), &old), Limits::default());
    let live = request("GET", "/livez", &[], "");
    ask(&serving, &old.0, &live).unwrap();
    // The certificate comes first, the key some time later: until then the old ones hold.
    let mixed = (new.0.clone(), old.1.clone());
    written(folder.path(), &mixed);
    std::thread::sleep(Duration::from_millis(200));
    ask(&serving, &old.0, &live).unwrap();
    written(folder.path(), &new);
    let started = Instant::now();
    while ask(&serving, &new.0, &live).is_err() {
        assert!(started.elapsed() < Duration::from_secs(20), "the new certificate is not in use");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(ask(&serving, &old.0, &live).is_err());
}

#[test]
fn files_that_cannot_be_used_are_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = identity();
    let bind = |tls: TlsOptions| {
        let address = ([127, 0, 0, 1], 0).into();
        let options = ServeOptions { address, tls: Some(tls), ..ServeOptions::default() };
        match Server::bind(options).unwrap_err() {
            ServeError::Tls { file, reason } => (file, reason),
            other => panic!("{other}"),
        }
    };
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----";
    let (other, good, right) = (identity().1, certificate.as_str(), key.as_str());
    for (pair, blamed, words) in [
        (("", right), "server.crt", "no certificate"),
        ((good, ""), "server.key", "no private key"),
        ((good, good), "server.key", "no private key"),
        ((good, other.as_str()), "server.key", "is not the key of"),
        ((good, encrypted), "server.key", "passphrase"),
        (("-----BEGIN CERTIFICATE-----\nAA", right), "server.crt", ""),
    ] {
        let tls = written(folder.path(), &(pair.0.to_owned(), pair.1.to_owned()));
        let (file, reason) = bind(tls);
        assert!(file.ends_with(blamed), "{file:?}: {reason}");
        assert!(reason.to_string().contains(words), "{reason}");
    }
    let mut tls = written(folder.path(), &(certificate.clone(), key.clone()));
    tls.key = folder.path().join("none");
    let (file, reason) = bind(tls);
    assert!(file.ends_with("none") && matches!(reason, TlsProblem::Read(_)), "{reason}");
}
