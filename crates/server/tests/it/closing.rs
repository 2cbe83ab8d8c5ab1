//! Goal: a server that is stopped, short of room or failing says so. Running streams end with their protocol's own
//! error; idle connections make way for new ones and never those at work; `/health` is not ok while requests fail; a
//! storm does not fill the log. Method: the scripted worker, with limits small enough to reach.

use crate::support;

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::work::{Failing, FinishReason};
use server::{Level, Limits, Log, ServeOptions};
use support::{Reply, Response, Scripted, Serving, Step, finish, request, say, text};

const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/responses", "/v1/messages"];

fn hello() -> Reply {
    Reply::Play(say([text("Hello."), finish(FinishReason::Stop)]))
}

fn body(path: &str, stream: bool) -> Value {
    match path {
        "/v1/responses" => json!({ "stream": stream, "input": "Go on." }),
        _ => json!({
            "stream": stream, "max_tokens": 9, "messages": [{ "role": "user", "content": "Go on." }],
        }),
    }
}

/// An answer that begins and then is silent for a minute.
fn long() -> Reply {
    let mut steps = say([text("Hello.")]);
    steps.push(Step::Wait(Duration::from_secs(60)));
    Reply::Play(steps)
}

fn limits(change: impl FnOnce(&mut Limits)) -> ServeOptions {
    let mut limits = Limits { grace: Duration::from_millis(300), ..Limits::default() };
    change(&mut limits);
    ServeOptions { limits, ..ServeOptions::default() }
}

/// Sends a request on a thread; the response when it is over.
fn asking(
    serving: &Serving,
    path: &'static str,
    stream: bool,
) -> std::thread::JoinHandle<Response> {
    let address = serving.address;
    let body = body(path, stream).to_string();
    std::thread::spawn(move || {
        let headers = ["Content-Type: application/json"];
        support::exchange(address, request("POST", path, &headers, &body).as_bytes())
    })
}

#[test]
fn a_stop_ends_streams_with_their_protocol_s_error() {
    for path in PATHS {
        let worker = Scripted::new(long());
        let serving = Serving::start_with(worker.clone(), limits(|_| {}));
        let (streamed, whole) = (asking(&serving, path, true), asking(&serving, path, false));
        while worker.jobs.lock().unwrap().len() < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The text is on its way before the end.
        std::thread::sleep(Duration::from_millis(100));
        let stopping = Instant::now();
        drop(serving);
        assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
        let streamed = streamed.join().unwrap();
        assert_eq!(streamed.status, 200);
        assert!(streamed.complete, "{path}: no last chunk: {}", streamed.body);
        assert!(streamed.body.contains("Hello."), "{path}: {}", streamed.body);
        let last = streamed.body.trim_end().rsplit("\n\n").next().unwrap();
        let data = last.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        let error = match path {
            "/v1/chat/completions" => &data["error"],
            "/v1/responses" => {
                assert!(last.starts_with("event: response.failed\n"), "{last}");
                assert_eq!(data["response"]["status"], "failed");
                &data["response"]["error"]
            }
            _ => {
                assert!(last.starts_with("event: error\n"), "{last}");
                &data["error"]
            }
        };
        assert_eq!(error["message"], "the server is shutting down", "{path}: {last}");
        let whole = whole.join().unwrap();
        assert_eq!(whole.status, 503, "{path}: {}", whole.body);
        assert!(whole.header("retry-after").is_some());
        worker.assert_idle_within(Duration::from_secs(5));
    }
}

#[test]
fn answers_that_end_in_time_are_whole() {
    let mut steps = vec![Step::Wait(Duration::from_millis(300))];
    steps.extend(say([text("Hello."), finish(FinishReason::Stop)]));
    let worker = Scripted::new(Reply::Play(steps));
    let options = limits(|limits| limits.grace = Duration::from_secs(20));
    let serving = Serving::start_with(worker.clone(), options);
    let answer = asking(&serving, PATHS[0], true);
    while worker.jobs.lock().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(serving);
    let answer = answer.join().unwrap();
    assert!(answer.complete && answer.body.trim_end().ends_with("data: [DONE]"), "{}", answer.body);
}

#[test]
fn idle_connections_make_way_and_those_at_work_do_not() {
    let worker = Scripted::new(long());
    let options = limits(|limits| {
        limits.connections = 8;
        limits.head_time = Duration::from_secs(60);
    });
    let serving = Serving::start_with(worker.clone(), options);
    // Three at work, one that has been answered and is kept, one with half a head, and many that say nothing.
    let at_work: Vec<_> = (0..3).map(|_| asking(&serving, PATHS[0], true)).collect();
    while worker.jobs.lock().unwrap().len() < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut kept = serving.connect();
    kept.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(kept.read(&mut [0; 64]).unwrap() > 0);
    let mut half = serving.connect();
    half.write_all(b"GET /health HTTP/1.1\r\nHost: loc").unwrap();
    let silent: Vec<_> = (0..40).map(|_| serving.connect()).collect();
    let asked = Instant::now();
    for _ in 0..5 {
        assert_eq!(serving.get("/health").status, 200);
    }
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(15), "five requests took {took:?}");
    assert_eq!(worker.running.load(std::sync::atomic::Ordering::SeqCst), 3, "one was cut");
    drop((kept, half, silent));
    drop(serving);
    for answer in at_work {
        assert!(answer.join().unwrap().complete, "it ended as a stream does");
    }
}

#[test]
fn health_is_not_ok_while_requests_fail() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let health = |failing: Option<Failing>| {
        worker.status.lock().unwrap().failing = failing;
        let response = serving.get("/health");
        (response.status, response.json())
    };
    assert_eq!(health(None).0, 200);
    for (failing, word) in [
        (Failing::LastJob, "log"),
        (Failing::FileChanged, "restart"),
        (Failing::DeviceLost, "restart"),
        (Failing::Ended, "restart"),
    ] {
        let (status, body) = health(Some(failing));
        assert_eq!((status, &body["status"]), (503, &json!("failing")));
        assert!(body["reason"].as_str().unwrap().contains(word), "{body}");
    }
    let (status, body) = health(None);
    assert_eq!((status, body.get("reason")), (200, None));
}

#[test]
fn a_storm_does_not_fill_the_log() {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&lines);
    let log = Log::new(Level::Info, move |line| sink.lock().unwrap().push(line.text.clone()));
    let serving = Serving::start_with(
        Scripted::new(hello()),
        ServeOptions { log, ..ServeOptions::default() },
    );
    let mut stream = serving.connect();
    const REQUESTS: usize = 3_000;
    let asked = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let begun = Instant::now();
    for _ in 0..REQUESTS / 100 {
        stream.write_all(&asked).unwrap();
        let mut answers = 0;
        let mut buffer = [0; 1 << 16];
        while answers < 100 {
            let count = stream.read(&mut buffer).unwrap();
            answers += String::from_utf8_lossy(&buffer[..count]).matches("HTTP/1.1 404").count();
        }
    }
    let took = begun.elapsed().as_secs_f64();
    drop(serving);
    let lines = lines.lock().unwrap();
    let (told, logged): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line.contains(" lines were left out"));
    let most = 220.0 + 10.0 * took;
    assert!((logged.len() as f64) < most, "{} lines in {took:.1} s", logged.len());
    let left_out =
        told.iter().map(|line| line.split(' ').next().unwrap().parse::<usize>().unwrap());
    assert_eq!(logged.len() + left_out.sum::<usize>(), REQUESTS, "{told:?}");
}
