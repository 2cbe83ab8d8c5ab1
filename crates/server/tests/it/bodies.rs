//! Bodies and what they take: a room for all of them, a slowest rate, one request prepared at a time, and none for
//! a client that has gone.

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::work::{
    Conversation, FinishReason, Job, Loading, ModelCard, PrepareError, Preparing, Prompt, Refusal,
    Status, Ticket, Worker,
};
use server::{Limits, ServeOptions};
use support::{Reply, Scripted, Serving, finish, request, say, text};

const JSON: &str = "Content-Type: application/json";

fn hello() -> Reply {
    Reply::Play(say([text("Hello."), finish(FinishReason::Stop)]))
}

fn chat() -> Value {
    json!({ "messages": [{ "role": "user", "content": "Go on." }] })
}

fn with(limits: Limits) -> ServeOptions {
    ServeOptions { limits, ..ServeOptions::default() }
}

/// A request of `length` bytes without its last byte.
fn held(serving: &Serving, length: usize) -> TcpStream {
    let mut stream = serving.connect();
    let head =
        request("POST", "/v1/chat/completions", &[JSON, &format!("Content-Length: {length}")], "");
    stream.write_all(head.as_bytes()).unwrap();
    let _taken = stream.write_all(&vec![b' '; length - 1]);
    stream
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ended = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends an ordinary request until its status is `wanted`: bodies are counted as the server reads them.
fn until(serving: &Serving, path: &str, wanted: u16) -> support::Response {
    let started = Instant::now();
    loop {
        let response = serving.post(path, &chat());
        if response.status == wanted {
            return response;
        }
        let (status, body) = (response.status, response.body);
        assert!([200, 429, 529].contains(&status), "{status}: {body}");
        assert!(started.elapsed() < Duration::from_secs(60), "always {status}: {body}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn all_bodies_share_one_room() {
    // A loaded machine takes longer than 30 s for all of this; bodies that are held must not end meanwhile.
    let body_idle = Duration::from_secs(600);
    let limits =
        Limits { body_bytes: 1 << 20, requests_bytes: 4 << 20, body_idle, ..Limits::default() };
    let serving = Serving::start_with(Scripted::new(hello()), with(limits));
    // Of large bodies only three find room, and ordinary requests are answered meanwhile.
    let large: Vec<TcpStream> = (0..4).map(|_| held(&serving, 1 << 20)).collect();
    let (sender, first) = std::sync::mpsc::channel();
    for stream in large.iter().map(|stream| stream.try_clone().unwrap()) {
        let sender = sender.clone();
        std::thread::spawn(move || sender.send(read(stream)));
    }
    let refused = first.recv_timeout(Duration::from_secs(20)).expect("one is refused");
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains("4194304 bytes") && refused.contains("retry-after: "), "{refused}");
    assert_eq!(serving.post("/v1/chat/completions", &chat()).status, 200);
    // Small ones can take what is left: enough of them for all of the room, because large ones that grow at the same
    // moment may refuse each other until one is held.
    let small: Vec<TcpStream> = (0..80).map(|_| held(&serving, 60 << 10)).collect();
    let refused = until(&serving, "/v1/chat/completions", 429);
    assert!(refused.header("retry-after").is_some());
    until(&serving, "/v1/messages", 529);
    for stream in large.iter().chain(&small) {
        let _closed = stream.shutdown(std::net::Shutdown::Both);
    }
    until(&serving, "/v1/chat/completions", 200);
}

#[test]
fn the_limit_of_a_body_says_why() {
    let body_reason = ", more than the context can need: see --context";
    let limits = Limits { body_bytes: 1000, body_reason, ..Limits::default() };
    let serving = Serving::start_with(Scripted::new(hello()), with(limits));
    let long = json!({ "messages": [{ "role": "user", "content": "a".repeat(1000) }] });
    let refused = serving.post("/v1/chat/completions", &long);
    assert_eq!(refused.status, 413);
    assert!(
        refused.body.contains("more than 1000 bytes, more than the context"),
        "{}",
        refused.body
    );
}

#[test]
fn a_body_that_drips_is_ended() {
    let limits =
        Limits { body_idle: Duration::from_millis(800), body_rate: 1000, ..Limits::default() };
    let serving = Serving::start_with(Scripted::new(hello()), with(limits));
    let mut stream = serving.connect();
    let head = request("POST", "/v1/messages", &[JSON, "Content-Length: 100000"], "");
    stream.write_all(head.as_bytes()).unwrap();
    let started = Instant::now();
    // A byte every 50 ms never pauses for long; all of them together are too slow.
    while stream.write_all(b" ").is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        assert!(started.elapsed() < Duration::from_secs(60), "it is read for ever");
    }
    assert!(started.elapsed() > Duration::from_millis(700), "a pause is allowed");
    let answer = read(stream);
    assert!(answer.is_empty() || answer.contains("too slow"), "{answer}");
}

/// Prepares until its client has gone.
struct Endless {
    inner: Arc<Scripted>,
    at_once: AtomicUsize,
    most: AtomicUsize,
    ended: AtomicUsize,
}

impl Worker for Endless {
    fn prepare(
        &self,
        conversation: &Conversation,
        preparing: Preparing<'_>,
    ) -> Result<Prompt, PrepareError> {
        if conversation.messages[0].content != "Forever." {
            return self.inner.prepare(conversation, preparing);
        }
        let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        while !(preparing.gone)() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        self.ended.fetch_add(1, Ordering::SeqCst);
        Err(PrepareError::Gone)
    }

    fn prepare_text(&self, text: &str, preparing: Preparing<'_>) -> Result<Prompt, PrepareError> {
        self.inner.prepare_text(text, preparing)
    }

    fn prepare_marked(&self, _: &str, _: Preparing<'_>) -> Result<Prompt, PrepareError> {
        unreachable!("not asked for")
    }

    fn prepare_infill(&self, _: &str, _: &str, _: Preparing<'_>) -> Result<Prompt, PrepareError> {
        unreachable!("not asked for")
    }

    fn prepare_tokens(&self, _: Vec<u32>) -> Result<Prompt, PrepareError> {
        unreachable!("not asked for")
    }

    fn token_bytes(&self, _: u32) -> Vec<u8> {
        unreachable!("not asked for")
    }

    fn context_length(&self) -> usize {
        self.inner.context_length()
    }

    fn model(&self) -> ModelCard {
        self.inner.model()
    }

    fn submit(&self, job: Job) -> Result<Ticket, Refusal> {
        self.inner.submit(job)
    }

    fn status(&self) -> Status {
        self.inner.status()
    }
}

#[test]
fn one_request_is_prepared_at_a_time_and_none_for_who_has_gone() {
    let worker = Arc::new(Endless {
        inner: Scripted::new(hello()),
        at_once: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
        ended: AtomicUsize::new(0),
    });
    let loading = Arc::new(Loading::finished(worker.clone()));
    let serving = Serving::start_loading(loading, ServeOptions::default());
    let forever = json!({ "messages": [{ "role": "user", "content": "Forever." }] }).to_string();
    let paths = ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"];
    let waiting: Vec<TcpStream> = (0..12)
        .map(|index| {
            let mut stream = serving.connect();
            let bytes = request("POST", paths[index % paths.len()], &[JSON], &forever);
            stream.write_all(bytes.as_bytes()).unwrap();
            stream
        })
        .collect();
    let started = Instant::now();
    while worker.most.load(Ordering::SeqCst) == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing is prepared");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(serving.get("/health").status, 200);
    drop(waiting);
    // The client that waited in the line has left it; the next one is served.
    assert_eq!(serving.post("/v1/chat/completions", &chat()).status, 200);
    assert_eq!(worker.most.load(Ordering::SeqCst), 1);
    assert_eq!(worker.at_once.load(Ordering::SeqCst), 0);
    assert!(worker.ended.load(Ordering::SeqCst) <= 12);
}
