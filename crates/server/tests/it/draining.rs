//! Goal: a server that is told to stop says so at once, takes work for a while, then sends it elsewhere, finishes what
//! it took and ends; its log says when, how it matters and how long a whole answer took; a request can be followed.
//! Method: the scripted worker.

use crate::support;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use server::work::{Failing, FinishReason, Loading};
use server::{Level, Limits, Line, Log, ServeError, ServeOptions, Server};
use support::{Reply, Scripted, Serving, Step, exchange, finish, request, say, text};

const CHAT: &str = "/v1/chat/completions";

fn chat(stream: bool) -> String {
    let user = json!([{ "role": "user", "content": "Go on." }]);
    json!({ "stream": stream, "messages": user }).to_string()
}

fn ask(address: SocketAddr, stream: bool) -> support::Response {
    let headers = ["Content-Type: application/json"];
    exchange(address, request("POST", CHAT, &headers, &chat(stream)).as_bytes())
}

fn wait_for(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_was_taken_is_finished_and_what_comes_later_goes_elsewhere() {
    let mut steps = say([text("Hel")]);
    steps.push(Step::Wait(Duration::from_secs(4)));
    steps.extend(say([text("lo."), finish(FinishReason::Stop)]));
    let worker = Scripted::new(Reply::Play(steps));
    let limits = Limits {
        drain_delay: Duration::from_millis(1500),
        grace: Duration::from_secs(30),
        ..Limits::default()
    };
    let lines: Arc<Mutex<Vec<Line>>> = Arc::default();
    let sink = Arc::clone(&lines);
    let log = Log::new(Level::Debug, move |line| sink.lock().unwrap().push(line.clone()));
    let options = ServeOptions { limits, log, ..ServeOptions::default() };
    let serving = Serving::start_with(worker.clone(), options);
    let address = serving.address;
    let first = std::thread::spawn(move || ask(address, true));
    wait_for(|| worker.jobs.lock().unwrap().len() == 1);
    assert_eq!(serving.get("/readyz").status, 200);
    let stopping = std::thread::spawn(move || drop(serving));
    let get = |path: &str| exchange(address, request("GET", path, &[], "").as_bytes());
    // Not ready at once; alive all the time.
    wait_for(|| get("/readyz").status == 503);
    assert_eq!(get("/readyz").json()["status"], "draining");
    assert_eq!(get("/livez").status, 200);
    // In the delay work is still taken.
    let second = std::thread::spawn(move || ask(address, false));
    wait_for(|| worker.jobs.lock().unwrap().len() == 2);
    std::thread::sleep(Duration::from_millis(1600));
    let refused = ask(address, true);
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.header("retry-after").is_some() && refused.header("x-should-retry").is_none());
    assert_eq!(refused.header("connection"), Some("close"));
    for answer in [first.join().unwrap(), second.join().unwrap()] {
        assert!(answer.complete && answer.status == 200, "{}", answer.body);
        assert!(answer.body.contains("lo."), "{}", answer.body);
    }
    stopping.join().unwrap();
    assert_eq!(worker.jobs.lock().unwrap().len(), 2);
    // That it is not ready is what the probe asked, and no fault; that work is refused is one.
    let levels = |path: &str, status: u64| {
        let found = |line: &&Line| {
            let is = |name: &str, value: serde_json::Value| line.fields.contains(&(name, value));
            is("path", path.into()) && is("status", status.into())
        };
        let lines = lines.lock().unwrap();
        lines.iter().filter(found).map(|line| line.level).collect::<Vec<_>>()
    };
    let probes = levels("/readyz", 503);
    assert!(!probes.is_empty() && probes.iter().all(|&level| level == Level::Debug), "{probes:?}");
    assert_eq!(levels(CHAT, 503), [Level::Error]);
}

#[test]
fn the_log_tells_of_whole_answers_and_not_of_polling() {
    let lines: Arc<Mutex<Vec<Line>>> = Arc::default();
    let serve = |level| {
        let sink = Arc::clone(&lines);
        let log = Log::new(level, move |line| sink.lock().unwrap().push(line.clone()));
        let mut steps = say([text("Hel")]);
        steps.push(Step::Wait(Duration::from_millis(400)));
        steps.extend(say([text("lo."), finish(FinishReason::Stop)]));
        let worker = Scripted::new(Reply::Play(steps));
        Serving::start_with(worker, ServeOptions { log, ..ServeOptions::default() })
    };
    let serving = serve(Level::Info);
    for path in ["/health", "/readyz", "/livez", "/metrics", "/status"] {
        assert_eq!(serving.get(path).status, 200, "{path}");
    }
    assert_eq!(ask(serving.address, true).status, 200);
    wait_for(|| !lines.lock().unwrap().is_empty());
    // One that leaves in the middle.
    let mut leaving = serving.connect();
    let bytes = request("POST", CHAT, &["Content-Type: application/json"], &chat(true));
    leaving.write_all(bytes.as_bytes()).unwrap();
    assert!(leaving.read(&mut [0; 64]).unwrap() > 0);
    drop(leaving);
    wait_for(|| lines.lock().unwrap().len() == 2);
    drop(serving);
    let found = std::mem::take(&mut *lines.lock().unwrap());
    assert_eq!(found.len(), 2, "{found:?}");
    let field = |line: &Line, name: &str| {
        line.fields.iter().find(|(known, _)| *known == name).unwrap().1.clone()
    };
    assert_eq!((field(&found[0], "status"), field(&found[0], "path")), (200.into(), CHAT.into()));
    let (head, whole) = (field(&found[0], "head_ms"), field(&found[0], "ms"));
    assert!(whole.as_u64() >= Some(400) && head.as_u64() < Some(400), "{head} {whole}");
    assert_eq!((field(&found[0], "cut"), field(&found[1], "cut")), (false.into(), true.into()));
    assert!(found[1].text.ends_with(", cut"), "{}", found[1].text);
    let serving = serve(Level::Debug);
    assert_eq!(serving.get("/health").status, 200);
    drop(serving);
    assert_eq!(lines.lock().unwrap()[0].level, Level::Debug);
}

#[test]
fn a_field_with_a_slip_is_named_and_a_missing_type_says_the_flag() {
    let worker = Scripted::new(Reply::Play(say([text("Hello."), finish(FinishReason::Stop)])));
    let serving = Serving::start(worker);
    for stream in [true, false] {
        let body = json!({ "stream": stream, "temprature": 1, "metadata": {},
            "messages": [{ "role": "user", "content": "Go on." }] });
        let answer = serving.post(CHAT, &body);
        assert_eq!(answer.status, 200);
        let said = "unknown field temprature was ignored; did you mean temperature?";
        assert_eq!(answer.header("x-warning"), Some(said));
    }
    let headers = ["Content-Type: application/x-www-form-urlencoded"];
    let refused = serving.send("POST", CHAT, &headers, &chat(false));
    assert_eq!(refused.status, 415);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("-H 'Content-Type: application/json'"), "{message}");
    assert_eq!(serving.get("/v1/models").json()["data"][0]["created_at"], "2027-01-15T08:00:00Z");
}

#[test]
fn a_request_can_be_followed() {
    let worker = Scripted::new(Reply::Play(say([text("Hello."), finish(FinishReason::Stop)])));
    let serving = Serving::start(worker.clone());
    let send = |headers: &[&str]| {
        let mut all = vec!["Content-Type: application/json"];
        all.extend(headers);
        serving.send("POST", CHAT, &all, &chat(true))
    };
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("traceparent: 00-{trace}-b7ad6b7169203331-01");
    let answer = send(&["X-Request-Id: from-router-7", "X-Session-Id: talk-1", &parent]);
    assert_eq!(answer.header("x-request-id"), Some("from-router-7"));
    assert!(answer.header("request-id").unwrap().starts_with("req_"));
    assert_eq!(answer.header("x-session-id"), Some("talk-1"));
    let back = answer.header("traceparent").unwrap();
    assert!(back.starts_with(&format!("00-{trace}-")) && !back.contains("b7ad6b7169203331"));
    let job = worker.last_job();
    assert_eq!(job.trace, Some(u128::from_str_radix(trace, 16).unwrap()));
    let long = format!("X-Request-Id: {}", "a".repeat(129));
    for strange in [long.as_str(), "X-Request-Id: a b", "X-Request-Id: "] {
        let answer = send(&[strange, "traceparent: 00-zz-zz-01"]);
        assert!(answer.header("x-request-id").unwrap().starts_with("req_"), "{strange}");
        assert_eq!((answer.status, answer.header("traceparent")), (200, None));
    }
    // A key in the body comes back too, if a header can carry it.
    let keyed = |key: &str| {
        let user = json!([{ "role": "user", "content": "Go on." }]);
        let answer = serving.post(CHAT, &json!({ "messages": user, "prompt_cache_key": key }));
        answer.header("x-session-id").map(str::to_owned)
    };
    assert_eq!(keyed("k-2").as_deref(), Some("k-2"));
    assert_eq!(keyed("two\r\nlines"), None);
    assert_eq!(keyed(&"a".repeat(257)), None);
}

/// When a server ends whose engine breaks, before it is stopped or while it drains, and how.
fn ends(breaks_in_drain: bool, delay: Duration) -> (Duration, Result<(), ServeError>) {
    let worker = Scripted::new(Reply::Play(vec![]));
    let limits = Limits { drain_delay: delay, ..Limits::default() };
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(ServeOptions { address, limits, ..ServeOptions::default() }).unwrap();
    let (stopper, loading) = (server.stopper(), Arc::new(Loading::finished(worker.clone())));
    let (ended, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(server.run(loading)));
    let begun = Instant::now();
    if breaks_in_drain {
        stopper.stop();
        std::thread::sleep(Duration::from_millis(200));
    }
    worker.status.lock().unwrap().failing = Some(Failing::StageLost);
    let result = result.recv_timeout(Duration::from_secs(60));
    (begun.elapsed(), result.expect("the server ends"))
}

/// Both the stop and the broken engine end the server: the second of them must not wait for the first.
#[test]
fn an_engine_that_breaks_while_the_server_drains_does_not_stop_its_end() {
    let (took, result) = ends(true, Duration::from_secs(40));
    // It was asked to end, and has.
    assert!(result.is_ok(), "{result:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn a_broken_engine_is_not_kept_for_the_delay() {
    let (took, result) = ends(false, Duration::from_secs(40));
    assert!(matches!(result, Err(ServeError::StageLost)), "{result:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
}
