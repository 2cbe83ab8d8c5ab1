//! Transcripts: what every protocol sends for a script, byte for byte.
//!
//! A file per protocol and scenario has the request, the stream and the whole answer. After a change that is
//! meant, `UPDATE_GOLDEN=1 cargo test -p flashmoe-server --test golden --test dialects` writes them anew, and the
//! difference is read before it is committed. Identifiers count and the clock stands still, so nothing else can differ.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use server::{Limits, ServeOptions};

use super::sse::{self, Outcome};
use super::{Reply, Scripted, Serving, Step};

/// A protocol: its path, its plainest request, and the clients for both forms of its answers.
pub(crate) struct Protocol {
    name: &'static str,
    path: &'static str,
    request: fn() -> Value,
    stream: fn(&str) -> Outcome,
    whole: fn(&Value) -> Value,
}

pub(crate) const PROTOCOLS: [Protocol; 3] = [
    Protocol {
        name: "chat",
        path: "/v1/chat/completions",
        request: || json!({ "model": "m", "messages": [{ "role": "user", "content": "Go on." }] }),
        stream: sse::chat,
        whole: sse::chat_whole,
    },
    Protocol {
        name: "responses",
        path: "/v1/responses",
        request: || json!({ "model": "m", "input": "Go on." }),
        stream: sse::responses,
        whole: sse::responses_whole,
    },
    Protocol {
        name: "messages",
        path: "/v1/messages",
        request: || {
            json!({
                "model": "m",
                "max_tokens": 100,
                "messages": [{ "role": "user", "content": "Go on." }],
            })
        },
        stream: sse::messages,
        whole: sse::messages_whole,
    },
];

/// A script, and what the requests for it have besides the plainest, by protocol.
pub(crate) struct Scenario {
    name: &'static str,
    steps: Vec<Step>,
    extra: Value,
}

pub(crate) fn scenario(name: &'static str, steps: Vec<Step>) -> Scenario {
    Scenario { name, steps, extra: json!({}) }
}

impl Scenario {
    pub(crate) fn with(mut self, extra: Value) -> Self {
        self.extra = extra;
        self
    }
}

/// Between two heartbeats, in scripts that wait for one.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(600);

/// Asks twice, streamed and whole, and writes down what was sent and came back.
fn transcript(protocol: &Protocol, scenario: &Scenario) -> String {
    let extra = scenario.extra[protocol.name].as_object().cloned().unwrap_or_default();
    let mut request = sse::merged((protocol.request)(), &extra);
    let mut file = String::new();
    let mut outcomes = Vec::new();
    for stream in [true, false] {
        request["stream"] = stream.into();
        let mut steps = scenario.steps.clone();
        let waits = steps.iter().any(|step| matches!(step, Step::Wait(_)));
        if !stream {
            steps.retain(|step| !matches!(step, Step::Wait(_)));
        }
        let heartbeat = if waits { HEARTBEAT } else { Limits::default().heartbeat };
        let limits = Limits { heartbeat, ..Limits::default() };
        let options = ServeOptions { limits, ..ServeOptions::default() };
        let serving = Serving::start_with(Scripted::new(Reply::Play(steps)), options);
        let response = serving.post(protocol.path, &request);
        assert!(response.complete, "the body has an end");
        let content_type = response.header("content-type").unwrap();
        writeln!(file, "POST {}\n{request}\n", protocol.path).unwrap();
        writeln!(file, "{} {content_type}\n{}\n", response.status, response.body.trim_end())
            .unwrap();
        outcomes.push(if stream {
            assert_eq!(response.status, 200, "a stream has begun before anything can fail");
            (protocol.stream)(&response.body)
        } else if response.status == 200 {
            Ok((protocol.whole)(&response.json()))
        } else {
            Err(response.json()["error"].clone())
        });
    }
    match (&outcomes[0], &outcomes[1]) {
        (Ok(streamed), Ok(whole)) => assert_eq!(streamed, whole, "{}", scenario.name),
        (Err(streamed), Err(whole)) => assert_eq!(streamed["message"], whole["message"]),
        other => panic!("{}: one fails and one does not: {other:?}", scenario.name),
    }
    file.trim_end().to_owned() + "\n"
}

/// Compares the transcripts in `folder` with those of `scenarios` in every protocol; how many there are.
pub(crate) fn check(folder: &str, scenarios: &(dyn Fn() -> Vec<Scenario> + Sync)) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let check = |protocol: &Protocol| {
        std::fs::create_dir_all(folder.join(protocol.name)).unwrap();
        let mut different = Vec::new();
        let scenarios = scenarios();
        for scenario in &scenarios {
            let path = folder.join(protocol.name).join(format!("{}.txt", scenario.name));
            let now = transcript(protocol, scenario);
            if update {
                std::fs::write(&path, &now).unwrap();
            } else if std::fs::read_to_string(&path).unwrap_or_default() != now {
                different.push(format!("{}:\n{now}", path.display()));
            }
        }
        (scenarios.len(), different)
    };
    // Side by side, because the scenarios with heartbeats wait for them.
    let checked: Vec<_> = std::thread::scope(|scope| {
        let threads = PROTOCOLS.iter().map(|protocol| scope.spawn(|| check(protocol)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let count: usize = checked.iter().map(|(count, _)| count).sum();
    let different: Vec<String> = checked.into_iter().flat_map(|(_, lines)| lines).collect();
    assert!(
        different.is_empty(),
        "{} of {count} differ: {}",
        different.len(),
        different.join("\n")
    );
    count
}
