//! Goal: both sides of a connection with certificates know each other, both halves work at the same time, and a side
//! without the right certificate gets nothing. Method: connections over loopback.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![cfg(not(target_os = "macos"))]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use wire::{Connection, Credentials, Identity, Listener, Trusted, WireError, connect};

const PATIENCE: Duration = Duration::from_secs(5);

fn identity(folder: &Path, name: &str) -> Identity {
    let identity = Identity::at(folder.join(name));
    identity.make().unwrap();
    identity
}

fn credentials(own: &Identity, other: &Identity) -> Credentials {
    Credentials::read(own, &Trusted { files: vec![other.certificate()] }).unwrap()
}

type Pair = (Result<Connection, WireError>, Result<Connection, WireError>);

/// A connection from both sides; the first byte goes there and back, which is when a refusal is heard.
fn pair(client: Option<&Credentials>, server: Option<Credentials>) -> Pair {
    let listener = Listener::bind("127.0.0.1:0", server).unwrap();
    let address = listener.address().unwrap().to_string();
    let answering = thread::spawn(move || {
        let (stream, from) = listener.accept().unwrap();
        listener.secure(stream, from)
    });
    let connected = connect(&address, client, PATIENCE);
    (connected, answering.join().unwrap())
}

#[test]
fn both_sides_speak_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| identity(folder.path(), name));
    let (own, other) = (credentials(&a, &b), credentials(&b, &a));
    for (client, server) in [(None, None), (Some(&own), Some(other))] {
        let (near, far) = pair(client, server);
        let bytes: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
        let sides = [near.unwrap(), far.unwrap()].map(|side| {
            let Connection { mut reader, mut writer, .. } = side;
            let sent = bytes.clone();
            let writing = thread::spawn(move || {
                for part in sent.chunks(70_001) {
                    writer.write_all(part).unwrap();
                }
                writer
            });
            let mut received = vec![0; bytes.len()];
            let reading = thread::spawn(move || {
                reader.read_exact(&mut received).unwrap();
                (reader, received)
            });
            (writing, reading)
        });
        for (writing, reading) in sides {
            let (_reader, received) = reading.join().unwrap();
            assert!(received == bytes);
            drop(writing.join().unwrap());
        }
    }
}

/// With TLS 1.3 it may come in one piece with the end of the handshake.
#[test]
fn what_is_said_right_behind_the_handshake_arrives() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| identity(folder.path(), name));
    let own = credentials(&a, &b);
    for _ in 0..100 {
        let listener = Listener::bind("127.0.0.1:0", Some(credentials(&b, &a))).unwrap();
        let address = listener.address().unwrap().to_string();
        let answering = thread::spawn(move || {
            let (stream, from) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut far = listener.secure(stream, from).unwrap();
            let mut said = [0; 5];
            far.reader.read_exact(&mut said).unwrap();
            said
        });
        let mut near = connect(&address, Some(&own), PATIENCE).unwrap();
        near.writer.write_all(b"hello").unwrap();
        assert_eq!(&answering.join().unwrap(), b"hello");
    }
}

#[test]
fn who_is_not_trusted_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, stranger] = ["a", "b", "c"].map(|name| identity(folder.path(), name));
    for (what, client, server) in [
        ("a stranger", Some(credentials(&stranger, &b)), Some(credentials(&b, &a))),
        ("another server", Some(credentials(&a, &b)), Some(credentials(&stranger, &a))),
        ("none", None, Some(credentials(&b, &a))),
    ] {
        let begun = Instant::now();
        let (near, far) = pair(client.as_ref(), server);
        assert!(far.is_err(), "{what}");
        // With TLS 1.3 the client's side may be through before it is refused.
        if let Ok(mut near) = near {
            _ = near.writer.write_all(b"x");
            let mut byte = [0];
            let read = near.reader.read_exact(&mut byte);
            assert!(read.is_err(), "{what}: it got {byte:?}");
        }
        assert!(begun.elapsed() < Duration::from_secs(12), "{what}: {:?}", begun.elapsed());
    }
}

#[test]
fn other_machines_are_reached_with_certificates_alone() {
    for address in ["0.0.0.0:0", "192.0.2.1:7"] {
        assert!(matches!(Listener::bind(address, None), Err(WireError::Open(_))), "{address}");
        assert!(matches!(connect(address, None, PATIENCE), Err(WireError::Open(_))), "{address}");
    }
    let listener = Listener::bind("127.0.0.1:0", None).unwrap();
    let address = listener.address().unwrap().to_string();
    drop(listener);
    assert!(connect(&address, None, PATIENCE).unwrap_err().is_absence(), "it is not there yet");
}

#[test]
fn an_identity_is_made_once_for_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let own = Identity::at(folder.path().join("own"));
    assert!(!own.exists());
    own.make().unwrap();
    assert!(own.exists() && !own.is_readable_by_others());
    let sum = own.fingerprint().unwrap();
    assert!(sum.len() == 64, "{sum}");
    assert!(own.make().is_err(), "what is there is not replaced");
    assert_eq!(own.fingerprint().unwrap(), sum);
    let text = std::fs::read_to_string(own.certificate()).unwrap();
    assert!(!text.contains("PRIVATE"), "the certificate has no key");
    // What is no certificate is named.
    let wrong = folder.path().join("wrong.pem");
    std::fs::write(&wrong, "hello").unwrap();
    let error = Credentials::read(&own, &Trusted { files: vec![wrong] }).unwrap_err();
    assert!(error.to_string().contains("wrong.pem"), "{error}");
    assert!(Credentials::read(&own, &Trusted::default()).is_err(), "no one is trusted");
}

/// A read under way ends when the connection is ended from another thread, and one that is cut off is no end.
#[test]
fn an_ended_connection_ends_its_reads() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| identity(folder.path(), name));
    let (near, far) = pair(Some(&credentials(&a, &b)), Some(credentials(&b, &a)));
    let (near, mut far) = (near.unwrap(), far.unwrap());
    let end = near.end.clone();
    let mut reader = near.reader;
    let reading = thread::spawn(move || reader.read_exact(&mut [0]).unwrap_err().kind());
    thread::sleep(Duration::from_millis(50));
    end();
    assert_eq!(reading.join().unwrap(), ErrorKind::UnexpectedEof);
    assert!(far.reader.read_exact(&mut [0]).is_err());
}

/// Garbage in the place of a handshake is refused at once, silence after a while.
#[test]
fn a_handshake_that_is_none_ends() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| identity(folder.path(), name));
    let listener = Listener::bind("127.0.0.1:0", Some(credentials(&a, &b))).unwrap();
    let mut near = TcpStream::connect(listener.address().unwrap()).unwrap();
    near.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let (stream, from) = listener.accept().unwrap();
    assert!(matches!(listener.secure(stream, from), Err(WireError::Handshake { .. })));
}

/// Who ends the connection may be busy: that is another thing than one that is not trusted.
#[test]
fn a_handshake_that_is_cut_off_is_an_absence() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| identity(folder.path(), name));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let cutting = thread::spawn(move || drop(listener.accept().unwrap()));
    let error = connect(&address, Some(&credentials(&a, &b)), PATIENCE).unwrap_err();
    cutting.join().unwrap();
    assert!(matches!(error, WireError::Unanswered { .. }) && error.is_absence(), "{error}");
}
