//! A hub on this machine, with real HTTP: a listing, redirects to a second origin as to the hub's content network,
//! ranges, tokens, and the faults that a test orders. It counts what it sends and remembers what it was asked.
#![allow(dead_code, reason = "tests of two crates use a part of this each")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) const NAME: &str = "acme/tiny";
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Files from this size on lie on the other origin.
const LARGE: usize = 512;

/// What goes wrong with the next request for a file's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// A status, with `Retry-After` if any.
    Status(u16, Option<&'static str>),
    /// The size in the headers is this.
    Size(u64),
    /// Every byte is another.
    Corrupt,
    /// A byte now and then.
    Slow,
    /// A redirect to this address.
    Redirect(&'static str),
    /// The whole file whatever the range.
    NoRanges,
}

#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) at_hub: bool,
    pub(crate) path: String,
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) authorization: Option<String>,
}

pub(crate) struct State {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The token that is wanted.
    pub(crate) token: Mutex<Option<String>>,
    /// What the listing's request is answered with, when not by the files.
    pub(crate) listing: Mutex<Option<(u16, String)>>,
    pub(crate) faults: Mutex<VecDeque<Fault>>,
    pub(crate) asked: Mutex<Vec<Asked>>,
    /// Bytes of files that were sent.
    pub(crate) sent: AtomicU64,
    /// Milliseconds of rest after each piece that is sent.
    pub(crate) pace: AtomicU64,
    content: String,
}

pub(crate) struct TestHub {
    pub(crate) endpoint: String,
    pub(crate) state: Arc<State>,
}

impl TestHub {
    /// A hub with one repository of `files`.
    pub(crate) fn start(files: BTreeMap<String, Vec<u8>>) -> Self {
        let hub = TcpListener::bind("127.0.0.1:0").unwrap();
        let content = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", hub.local_addr().unwrap());
        let state = Arc::new(State {
            files,
            token: Mutex::default(),
            listing: Mutex::default(),
            faults: Mutex::default(),
            asked: Mutex::default(),
            sent: AtomicU64::new(0),
            pace: AtomicU64::new(0),
            content: format!("http://{}", content.local_addr().unwrap()),
        });
        for (listener, at_hub) in [(hub, true), (content, false)] {
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = Arc::clone(&state);
                    std::thread::spawn(move || {
                        // A client that goes away is what the tests are about.
                        let _ = state.answer(stream, at_hub);
                    });
                }
            });
        }
        Self { endpoint, state }
    }

    pub(crate) fn order(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.faults.lock().unwrap().extend(faults);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state.files.values().map(|file| file.len() as u64).sum()
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the hub tells of `files`.
pub(crate) fn listing(files: &BTreeMap<String, Vec<u8>>) -> Value {
    let siblings: Vec<Value> = files
        .iter()
        .map(|(path, bytes)| {
            let header = format!("blob {}\0", bytes.len());
            let git = sha1::Sha1::new().chain_update(header).chain_update(bytes).finalize();
            let mut entry =
                json!({"rfilename": path, "size": bytes.len(), "blobId": hexadecimal(&git)});
            if bytes.len() >= LARGE {
                let sha256 = hexadecimal(&Sha256::digest(bytes));
                entry["lfs"] = json!({"sha256": sha256, "size": bytes.len(), "pointerSize": 134});
            }
            entry
        })
        .collect();
    json!({"id": NAME, "sha": COMMIT, "siblings": siblings})
}

impl State {
    fn answer(&self, stream: TcpStream, at_hub: bool) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let (mut range, mut authorization) = (None, None);
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').unwrap_or_default();
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "range" => {
                    let (first, last) =
                        value.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                    range = Some((first.parse().unwrap(), last.parse().unwrap()));
                }
                "authorization" => authorization = Some(value.to_owned()),
                _ => {}
            }
        }
        let asked = Asked { at_hub, path: path.clone(), range, authorization };
        self.asked.lock().unwrap().push(asked.clone());
        let mut out = stream;
        if at_hub {
            let wanted = self.token.lock().unwrap().clone().map(|token| format!("Bearer {token}"));
            if wanted.is_some() && wanted != asked.authorization {
                return status(&mut out, 401, "");
            }
        } else if asked.authorization.is_some() {
            return status(&mut out, 400, "");
        }
        let path = path.split('?').next().unwrap_or_default();
        if let Some(repository) = path.strip_prefix("/api/models/") {
            if let Some((code, body)) = self.listing.lock().unwrap().clone() {
                return respond(&mut out, code, "", body.as_bytes());
            }
            if repository != format!("{NAME}/revision/main") {
                return status(&mut out, 404, "");
            }
            return respond(&mut out, 200, "", listing(&self.files).to_string().as_bytes());
        }
        let prefix = format!("/{NAME}/resolve/{COMMIT}/");
        let file = path.strip_prefix(&prefix).or_else(|| path.strip_prefix("/signed/"));
        let Some((name, bytes)) = file.and_then(|name| Some((name, self.files.get(name)?))) else {
            return status(&mut out, 404, "");
        };
        if at_hub && bytes.len() >= LARGE {
            let location = format!("Location: {}/signed/{name}?signature=secret\r\n", self.content);
            return status(&mut out, 302, &location);
        }
        self.send(&mut out, bytes, range)
    }

    fn send(
        &self,
        out: &mut TcpStream,
        bytes: &[u8],
        range: Option<(u64, u64)>,
    ) -> std::io::Result<()> {
        let fault = self.faults.lock().unwrap().pop_front();
        let (first, last) = range.unwrap_or((0, bytes.len() as u64 - 1));
        let mut body = bytes[first as usize..=last as usize].to_vec();
        let mut size = bytes.len() as u64;
        let mut cut = body.len();
        match &fault {
            Some(Fault::Status(code, after)) => {
                let after = after.map(|after| format!("Retry-After: {after}\r\n"));
                return status(out, *code, &after.unwrap_or_default());
            }
            Some(Fault::Redirect(target)) => {
                return status(out, 302, &format!("Location: {target}\r\n"));
            }
            Some(Fault::NoRanges) => return respond(out, 200, "", bytes),
            Some(Fault::Size(wrong)) => size = *wrong,
            Some(Fault::Cut(after)) => cut = cut.min(*after),
            Some(Fault::Corrupt) => body.iter_mut().for_each(|byte| *byte = !*byte),
            Some(Fault::Slow) | None => {}
        }
        let length = body.len();
        write!(
            out,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{last}/{size}\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n"
        )?;
        if let Some(Fault::Slow) = fault {
            for byte in body {
                out.write_all(&[byte])?;
                std::thread::sleep(Duration::from_millis(100));
            }
            return Ok(());
        }
        for piece in body[..cut].chunks(16 << 10) {
            out.write_all(piece)?;
            self.sent.fetch_add(piece.len() as u64, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(self.pace.load(Ordering::SeqCst)));
        }
        out.flush()
    }
}

fn status(out: &mut TcpStream, code: u16, headers: &str) -> std::io::Result<()> {
    respond(out, code, headers, b"")
}

fn respond(out: &mut TcpStream, code: u16, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let length = body.len();
    write!(
        out,
        "HTTP/1.1 {code} Status\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    out.write_all(body)?;
    out.flush()
}
