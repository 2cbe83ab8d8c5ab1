//! Transcripts: what every protocol sends for the same scripts, byte for byte.
//!
//! A file per protocol and scenario has the request, the stream and the whole answer. After a change that is
//! meant, `UPDATE_GOLDEN=1 cargo test -p flashmoe-server --test golden` writes them anew, and the difference is read
//! before it is committed. Identifiers count and the clock stands still, so nothing else can differ.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use server::work::{Event, FinishReason, JobError, Piece};
use server::{Limits, ServeOptions};
use support::sse::{self, Outcome};
use support::{
    Reply, Scripted, Serving, Step, call, finish, logprob, progress, reasoning, say, text,
};

/// A protocol: its path, its plainest request, and the clients for both forms of its answers.
struct Protocol {
    name: &'static str,
    path: &'static str,
    request: fn() -> Value,
    stream: fn(&str) -> Outcome,
    whole: fn(&Value) -> Value,
}

const PROTOCOLS: [Protocol; 3] = [
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
struct Scenario {
    name: &'static str,
    steps: Vec<Step>,
    extra: Value,
}

fn scenario(name: &'static str, steps: Vec<Step>) -> Scenario {
    Scenario { name, steps, extra: json!({}) }
}

impl Scenario {
    fn with(mut self, extra: Value) -> Self {
        self.extra = extra;
        self
    }
}

/// Events, then the end for a reason.
fn ended(events: Vec<Event>, reason: FinishReason) -> Vec<Step> {
    say(events.into_iter().chain([finish(reason)]))
}

fn failed(events: Vec<Event>) -> Vec<Step> {
    let error = JobError::Engine("layer 3, expert 9: the record is damaged".to_owned());
    say(events.into_iter().chain([Event::Failed(error)]))
}

/// A pause in which exactly one heartbeat comes.
fn silence() -> Step {
    Step::Wait(HEARTBEAT * 3 / 2)
}

const HEARTBEAT: Duration = Duration::from_millis(600);

fn scenarios() -> Vec<Scenario> {
    use FinishReason::{Length, Stop, StopString, ToolCalls};
    let weather = || call(0, "get_weather", &["{\"city\":", "\"Tokyo\"", "}"]);
    let strange =
        "\"quoted\" \\ \t\r\n\ndata: {}\n\nevent: x\n\u{2028}\u{0}\u{7f}\u{fffd}\u{1d518}";
    let tokens =
        |text: &str| Event::Text(Piece { text: text.to_owned(), logprobs: vec![logprob(text)] });
    let mut list = vec![
        scenario("text", ended(vec![text("Hel"), text("lo.")], Stop)),
        scenario(
            "thinking",
            ended(vec![reasoning("I sh"), reasoning("ould."), text("Yes.")], Stop),
        ),
        scenario("thinking_cut", ended(vec![reasoning("On and on")], Length)),
        scenario("text_cut", ended(vec![text("On and on")], Length)),
        scenario("stop_string", ended(vec![text("Until")], StopString("END".to_owned()))),
        scenario("empty", ended(vec![], Stop)),
        scenario("empty_cut", ended(vec![], Length)),
        scenario("call", ended(weather(), ToolCalls)),
        scenario("call_no_arguments", ended(call(0, "now", &["{}"]), ToolCalls)),
        scenario("call_stop", ended(weather(), Stop)),
        scenario("call_cut", ended(weather(), Length)),
        scenario(
            "call_escapes",
            ended(
                call(
                    0,
                    "write",
                    &["{\"text\":\"", "a\\n\\\"b\\\"", " \u{e9}\\u0000", "\",\"n\":", "1.5e3", "}"],
                ),
                ToolCalls,
            ),
        ),
        scenario(
            "calls_parallel",
            ended([weather(), call(1, "get_time", &["{\"zone\":\"JST\"}"])].concat(), ToolCalls),
        ),
        scenario(
            "thinking_text_call",
            ended([vec![reasoning("Ask."), text("Asking.")], weather()].concat(), ToolCalls),
        ),
        scenario(
            "text_call_text",
            ended([vec![text("A")], weather(), vec![text("B")]].concat(), Stop),
        ),
        scenario(
            "thinking_twice",
            ended(vec![reasoning("One."), text("A"), reasoning("Two."), text("B")], Stop),
        ),
        scenario("strange_characters", ended(vec![reasoning(strange), text(strange)], Stop)),
        scenario(
            "markup_in_text",
            ended(vec![text("<|im_end|>"), text("<think>x</think><tool_call>")], Stop),
        ),
        scenario(
            "prefill_progress",
            ended(
                vec![
                    Event::Queued { position: 1 },
                    progress(4, 12, 4, None),
                    progress(8, 12, 4, Some(9)),
                    progress(12, 12, 4, Some(0)),
                    text("Done."),
                ],
                Stop,
            ),
        )
        .with(json!({ "chat": { "return_progress": true } })),
        scenario("fails_at_once", failed(vec![])),
        scenario("fails_in_prefill", failed(vec![progress(4, 12, 4, Some(3))])),
        scenario("fails_in_thinking", failed(vec![reasoning("I sh")])),
        scenario("fails_in_text", failed(vec![text("Hel")])),
        scenario("fails_after_call", failed(weather())),
        scenario("worker_breaks_down", [say([text("Hel")]), vec![Step::Break]].concat()),
        scenario("stopped", say([text("Hel"), Event::Failed(JobError::ShuttingDown)])),
        scenario("logprobs", ended(vec![reasoning("Hm."), tokens("a"), tokens("b")], Stop)).with(
            json!({
                "chat": { "logprobs": true, "top_logprobs": 1 },
                "responses": { "include": ["message.output_text.logprobs"], "top_logprobs": 1 },
            }),
        ),
        scenario(
            "other_form",
            ended([vec![reasoning("Ask."), text("A")], weather()].concat(), ToolCalls),
        )
        .with(json!({
            "chat": { "stream_options": { "include_usage": true } },
            "responses": {
                "reasoning": { "effort": "low", "summary": "auto" },
                "include": ["reasoning.encrypted_content"],
                "instructions": "Be brief.",
                "tools": [
                    { "type": "function", "name": "get_weather", "parameters": {} },
                    { "type": "web_search" },
                ],
                "metadata": { "a": "b" },
            },
            "messages": { "thinking": { "type": "adaptive", "display": "omitted" } },
        })),
    ];
    list.extend([
        scenario(
            "heartbeat_queued",
            [say([Event::Queued { position: 2 }]), vec![silence()], ended(vec![text("A")], Stop)]
                .concat(),
        ),
        scenario(
            "heartbeat_prefill",
            [
                say([progress(4096, 25110, 4, Some(118))]),
                vec![silence()],
                ended(vec![text("A")], Stop),
            ]
            .concat(),
        ),
        scenario(
            "heartbeat_in_call",
            [
                say(call(0, "write", &["{"]).into_iter().take(2)),
                vec![silence()],
                say([
                    Event::CallArguments { index: 0, delta: "}".to_owned() },
                    Event::CallEnded { index: 0 },
                    finish(ToolCalls),
                ]),
            ]
            .concat(),
        ),
    ]);
    list
}

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

#[test]
fn transcripts_are_as_they_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
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
    assert!(count >= 60, "only {count} transcripts");
}
