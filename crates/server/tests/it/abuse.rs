//! Hostile clients: slow ones, ones that do not read, ones that send what is not HTTP, not JSON or not theirs to send.
//!
//! After each of them the server must serve the next client as if nothing had happened.

use crate::support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::work::FinishReason;
use server::{Limits, ServeOptions};
use support::{Reply, Scripted, Serving, Step, finish, request, say, text};

fn hello() -> Vec<Step> {
    say([text("Hello."), finish(FinishReason::Stop)])
}

fn chat(stream: bool) -> Value {
    json!({ "stream": stream, "messages": [{ "role": "user", "content": "Go on." }] })
}

fn assert_serves(serving: &Serving) {
    let started = Instant::now();
    let response = serving.post("/v1/chat/completions", &chat(false));
    assert_eq!(response.status, 200);
    assert_eq!(response.json()["choices"][0]["message"]["content"], "Hello.");
    let took = started.elapsed();
    assert!(took < Duration::from_millis(900), "an ordinary request took {took:?}");
}

#[test]
fn what_is_not_a_request_is_refused() {
    let serving = Serving::start(Scripted::new(Reply::Play(hello())));
    let huge = format!("X: {}\r\n", "a".repeat(40 << 10));
    let many: String = (0..200).map(|index| format!("X-{index}: a\r\n")).collect();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
    let cases: [(String, &[u16]); 15] = [
        ("\u{16}\u{3}\u{1}\r\n\r\n".into(), &[400]),
        ("GET\r\n\r\n".into(), &[400]),
        ("GET / HTTP/9.9\r\n\r\n".into(), &[400]),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), &[400, 0]),
        (format!("{head}{huge}\r\n"), &[431]),
        (format!("{head}{many}\r\n"), &[431]),
        (format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(70 << 10)), &[414, 431]),
        (format!("{head}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}"), &[400]),
        (format!("{head}Content-Length: -1\r\n\r\n{{}}"), &[400]),
        (format!("{head}Content-Length: 2, 2\r\n\r\n{{}}"), &[400]),
        (format!("{head}Transfer-Encoding: gzip\r\n\r\n{{}}"), &[400]),
        (
            format!(
                "{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n{{}}\r\n0\r\n\r\n"
            ),
            &[400],
        ),
        (format!("{head}Bad Header\r\n\r\n"), &[400]),
        (format!("{head}X: a\u{0}b\r\n\r\n"), &[400]),
        (
            format!(
                "{head}Upgrade: websocket\r\nConnection: upgrade, close\r\nContent-Length: 2\r\n\r\n[]"
            ),
            &[400],
        ),
    ];
    for (bytes, allowed) in cases {
        let mut stream = serving.connect();
        let _sent = stream.write_all(bytes.as_bytes());
        // To end its sending before an answer is, for this server, to have gone away.
        if !bytes.contains("close") {
            let _shut = stream.shutdown(Shutdown::Write);
        }
        let mut answer = Vec::new();
        let _ended = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0u16);
        let start: String = bytes.chars().take(120).collect();
        assert!(allowed.contains(&status), "{status} for {start:?}");
    }
    assert_serves(&serving);
}

#[test]
fn nothing_can_be_smuggled_behind_two_lengths() {
    let worker = Scripted::new(Reply::Play(hello()));
    let serving = Serving::start(worker.clone());
    let hidden = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let good = chat(false).to_string();
    let chunked = format!("{:x}\r\n{good}\r\n0\r\n\r\n", good.len());
    for lengths in [
        format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n", chunked.len()),
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n".to_owned(),
        "transfer-encoding: chunked\r\nX: y\r\ncontent-length: 0\r\n".to_owned(),
    ] {
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n";
        let exchange = |before: &str| {
            let mut stream = serving.connect();
            let bytes = format!("{before}{head}{lengths}\r\n{chunked}{hidden}");
            let _sent = stream.write_all(bytes.as_bytes());
            let mut answer = String::new();
            let _ended = stream.read_to_string(&mut answer);
            answer
        };
        // Both are well-formed as far as a parser goes that takes one of them; the request is refused all the same.
        let answer = exchange("");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "one answer, then the end: {answer}");
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("exclude each other"), "{answer}");
        // What stood before it on the connection is answered.
        let answer = exchange(hidden);
        assert_eq!(answer.matches("HTTP/1.1").count(), 2, "{answer}");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("HTTP/1.1 400"), "{answer}");
    }
    assert!(worker.jobs.lock().unwrap().is_empty(), "none of them was worked on");
    assert_serves(&serving);
}

#[test]
fn bodies_that_are_not_what_is_asked_for_are_refused() {
    let limits = Limits { body_bytes: 1 << 20, ..Limits::default() };
    let options = ServeOptions { limits, ..ServeOptions::default() };
    let serving = Serving::start_with(Scripted::new(Reply::Play(hello())), options);
    let json = "Content-Type: application/json";
    let post = |headers: &[&str], body: &str| {
        serving.send("POST", "/v1/chat/completions", headers, body).status
    };
    let good = chat(false).to_string();
    assert_eq!(post(&[json], &good), 200);
    assert_eq!(post(&["Content-Type: application/json; charset=utf-8"], &good), 200);
    assert_eq!(post(&["Content-Type: text/plain"], &good), 415);
    assert_eq!(post(&["Content-Type: multipart/form-data; boundary=x"], &good), 415);
    assert_eq!(post(&[json, "Content-Encoding: gzip"], &good), 415);
    assert_eq!(post(&[json], &format!("{}{good}", " ".repeat(1 << 20))), 413);
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for body in ["", "null", "{", "{\"messages\":1e999}", "{\"messages\":\"\\ud800\"}", &deep] {
        assert_eq!(post(&[json], body), 400, "{}", &body[..body.len().min(60)]);
    }
    let chunked =
        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{good}\r\n0\r\n\r\n", good.len());
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    assert_eq!(serving.raw(format!("{head}{chunked}").as_bytes()).status, 200);
    let endless =
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{}", 2 << 20, " ".repeat(2 << 20));
    assert_eq!(serving.raw(endless.as_bytes()).status, 413);
    assert_serves(&serving);
}

#[test]
fn chunks_that_announce_too_much_are_refused_when_they_do() {
    let limits = Limits { body_bytes: 1 << 20, ..Limits::default() };
    let options = ServeOptions { limits, ..ServeOptions::default() };
    let serving = Serving::start_with(Scripted::new(Reply::Play(hello())), options);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let first = format!("{:x}\r\n{}\r\n", 600 << 10, " ".repeat(600 << 10));
    let announced = [
        "ffffffffffffffff\r\n".to_owned(),
        "10000000000000000\r\n".to_owned(),
        "fffffffffffffffffffffffffffffffff\r\n".to_owned(),
        // Nothing more need come.
        "ffffffff".to_owned(),
        "100001;name=value\r\n".to_owned(),
        format!("{first}{:x}\r\n", 600 << 10),
    ];
    for chunks in &announced {
        let mut stream = serving.connect();
        let begun = Instant::now();
        // Head and chunk come apart or together; the connection stays open, and no byte of the chunk comes.
        stream.write_all(head.as_bytes()).unwrap();
        if chunks.len() < 20 {
            std::thread::sleep(Duration::from_millis(50));
        }
        stream.write_all(chunks.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        let start: String = chunks.chars().take(40).collect();
        assert_eq!(&answer, b"HTTP/1.1 413", "{start}");
        assert!(begun.elapsed() < Duration::from_secs(8), "{start}: {:?}", begun.elapsed());
    }
    let good = chat(false).to_string();
    let (one, two) = good.split_at(20);
    let body =
        format!("{:x}\r\n{one}\r\n{:X};a=b\r\n{two}\r\n0\r\nX: y\r\n\r\n", one.len(), two.len());
    assert_eq!(serving.raw(format!("{head}{body}").as_bytes()).status, 200);
    assert_serves(&serving);
}

#[test]
fn pages_of_other_sites_have_nothing_loaded() {
    let worker = Scripted::new(Reply::Play(hello()));
    let serving = Serving::start(worker.clone());
    let get = |path: &str, site: &str| {
        serving.send("GET", path, &[&format!("Sec-Fetch-Site: {site}")], "").status
    };
    let paths = [
        "/debug/trace?seconds=0.01",
        "/v1/models",
        "/v1/models/scripted",
        "/metrics",
        "/status",
        "/slots",
        "/props",
        "/tokenizer_info",
        "/health",
    ];
    for path in paths {
        for site in ["cross-site", "same-site"] {
            assert_eq!(get(path, site), 403, "{path} from {site}");
        }
        assert_eq!(get(path, "none"), 200, "{path} by its address");
    }
    // A form needs no Origin in old browsers.
    let headers = ["Sec-Fetch-Site: cross-site", "Content-Type: application/json"];
    let posted = serving.send("POST", "/v1/chat/completions", &headers, &chat(false).to_string());
    assert_eq!(posted.status, 403);
    assert!(worker.jobs.lock().unwrap().is_empty());
    // A link to the page works: it has no secrets and effects.
    assert_eq!(get("/", "cross-site"), 200);
}

#[test]
fn strangers_are_kept_out() {
    let options = ServeOptions {
        keys: vec!["sesame".to_owned()],
        allowed_origins: vec!["https://chat.example".to_owned()],
        ..ServeOptions::default()
    };
    let serving = Serving::start_with(Scripted::new(Reply::Play(hello())), options);
    let get = |path: &str, headers: &[&str]| serving.send("GET", path, headers, "");
    let key = "Authorization: Bearer sesame";
    assert_eq!(get("/v1/models", &[key]).status, 200);
    assert_eq!(get("/v1/models", &["x-api-key: sesame"]).status, 200);
    assert_eq!(get("/health", &[]).status, 200);
    for path in ["/v1/models", "/metrics", "/props", "/tokenizer_info", "/slots", "/status"] {
        let response = get(path, &["Authorization: Bearer Sesame"]);
        assert_eq!(response.status, 401, "{path}");
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
        assert_eq!(response.header("x-should-retry"), Some("false"));
        assert!(!response.body.contains("sesame"));
    }
    let error = serving.send("POST", "/v1/messages", &[], "{}").json();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&json!("error"), &json!("authentication_error"))
    );
    // DNS rebinding: the page's own name as Host.
    let foreign = [
        "Host: evil.com",
        "Host: localhost.evil.com",
        "Host: 127.0.0.1@evil.com",
        "Host: localhost:evil.com",
        "Host: [::1]evil.com",
        "Host: [::1].evil.com:80",
    ];
    for host in foreign {
        assert_eq!(get("/health", &[host]).status, 403, "{host}");
        assert_eq!(get("/v1/models", &[host, key]).status, 403, "{host}");
    }
    // A page of another origin, and one that is listed.
    assert_eq!(get("/v1/models", &[key, "Origin: https://evil.com"]).status, 403);
    let listed = get("/v1/models", &[key, "Origin: https://chat.example"]);
    assert_eq!(listed.status, 200);
    assert_eq!(listed.header("access-control-allow-origin"), Some("https://chat.example"));
    let preflight = serving.send("OPTIONS", "/v1/messages", &["Origin: https://chat.example"], "");
    assert_eq!(preflight.status, 204);
    assert!(preflight.header("access-control-allow-headers").unwrap().contains("x-api-key"));
    let foreign = serving.send("OPTIONS", "/v1/messages", &["Origin: https://evil.com"], "");
    assert_eq!(foreign.status, 403);
    assert_eq!(foreign.header("access-control-allow-origin"), None);
    // Paths lead nowhere but to routes.
    for path in [
        "/../../etc/passwd",
        "/%2e%2e/etc/passwd",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "//etc/passwd",
    ] {
        assert_eq!(get(path, &[key]).status, 404, "{path}");
    }
}

#[test]
fn slow_clients_hold_nobody_up() {
    let worker = Scripted::new(Reply::Play(hello()));
    let limits = Limits {
        head_time: Duration::from_millis(1500),
        body_idle: Duration::from_millis(1500),
        ..Limits::default()
    };
    let options = ServeOptions { limits, ..ServeOptions::default() };
    let serving = Serving::start_with(worker, options);
    assert_serves(&serving);
    // Two descriptors each in this one process; the server has raised its limit, if the system let it.
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    let limit = if soft.is_some_and(|soft| soft >= 3000) { 1000 } else { 400 };
    let body = format!("{}{{\"mess", request("POST", "/v1/messages", &["Content-Length: 99"], ""));
    let starts = ["", "GET /hea", "GET / HTTP/1.1\r\nHost: local", body.as_str()];
    let slow: Vec<_> = (0..limit)
        .map(|index| {
            let mut stream = serving.connect();
            stream.write_all(starts[index % starts.len()].as_bytes()).unwrap();
            stream
        })
        .collect();
    assert_serves(&serving);
    // All of them are told or dropped in time, and then gone.
    for mut stream in slow {
        let mut answer = String::new();
        let _ended = stream.read_to_string(&mut answer);
        let refused =
            ["HTTP/1.1 408", "HTTP/1.1 400"].iter().any(|status| answer.starts_with(status));
        assert!(answer.is_empty() || refused, "{answer}");
    }
    assert_serves(&serving);
}

#[test]
fn a_client_that_does_not_read_is_given_up() {
    let worker = Scripted::new(Reply::Play(vec![Step::Forever]));
    let limits = Limits { unread: Duration::from_millis(500), ..Limits::default() };
    let options = ServeOptions { limits, ..ServeOptions::default() };
    let serving = Serving::start_with(worker.clone(), options);
    let mut stream = serving.connect();
    let body = chat(true).to_string();
    let bytes = request("POST", "/v1/chat/completions", &["Content-Type: application/json"], &body);
    stream.write_all(bytes.as_bytes()).unwrap();
    worker.assert_idle_within(Duration::from_secs(15));
    drop(stream);
    worker.set(Reply::Play(hello()));
    assert_serves(&serving);
}

#[test]
fn health_is_answered_while_answers_are_made() {
    let worker = Scripted::new(Reply::Play(vec![Step::Forever]));
    let serving = Serving::start(worker.clone());
    let streams: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = serving.connect();
            let body = chat(true).to_string();
            let headers = ["Content-Type: application/json"];
            let bytes = request("POST", "/v1/chat/completions", &headers, &body);
            stream.write_all(bytes.as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut times: Vec<Duration> = (0..100)
        .map(|_| {
            let started = Instant::now();
            assert_eq!(serving.get("/health").status, 200);
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    assert!(times[98] < Duration::from_millis(250), "the slowest but one took {:?}", times[98]);
    drop(streams);
    worker.assert_idle_within(Duration::from_secs(10));
}
