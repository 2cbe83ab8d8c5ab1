//! What holds for every answer, whatever the model says: random scripts over a socket through all protocols.
//!
//! The clients of `support::sse` check the grammar of each stream (one end, everything that starts ends, dense
//! indices, frames of one line of JSON). Here the answer they put together must be the whole answer, and a script that
//! fails must fail in both forms with the same words.

use crate::support;

use proptest::prelude::*;
use serde_json::{Value, json};
use server::work::{Event, FinishReason, JobError, Piece};
use support::sse::{self, Outcome};
use support::{Reply, Scripted, Serving, call, finish, logprob, progress, say};

/// Text that tries to break out of frames, strings and markup.
fn piece() -> impl Strategy<Value = String> {
    let hostile = prop::sample::select(vec![
        "\n\n",
        "data: [DONE]\n\n",
        "event: x\ndata: {}",
        "\r",
        "\u{2028}",
        "\"",
        "\\",
        "\0",
        "</think>",
        "<tool_call>",
        "",
        "{",
        "\u{1d518}",
        ": comment",
    ]);
    prop_oneof![3 => "[a-z \u{e9}\u{4e2d}]{0,8}", 2 => hostile.prop_map(str::to_owned)]
}

/// The pieces of a JSON object with one string.
fn arguments() -> impl Strategy<Value = Vec<String>> {
    (prop::collection::vec(piece(), 0..3), 1usize..4).prop_map(|(parts, size)| {
        let whole = json!({ "text": parts.concat() }).to_string();
        let characters: Vec<char> = whole.chars().collect();
        characters.chunks(size * 3).map(|chunk| chunk.iter().collect()).collect()
    })
}

#[derive(Clone, Debug)]
enum Part {
    Reasoning(Vec<String>),
    Text(Vec<String>, bool),
    Call(Vec<String>),
    Progress(usize),
}

fn part() -> impl Strategy<Value = Part> {
    let pieces = || prop::collection::vec(piece(), 0..4);
    prop_oneof![
        pieces().prop_map(Part::Reasoning),
        (pieces(), any::<bool>()).prop_map(|(pieces, logprobs)| Part::Text(pieces, logprobs)),
        arguments().prop_map(Part::Call),
        (0usize..13).prop_map(Part::Progress),
    ]
}

fn end() -> impl Strategy<Value = Option<Event>> {
    let reason = prop_oneof![
        Just(FinishReason::Stop),
        Just(FinishReason::Length),
        Just(FinishReason::ToolCalls),
        piece().prop_map(FinishReason::StopString),
    ];
    prop_oneof![
        6 => reason.prop_map(|reason| Some(finish(reason))),
        1 => piece().prop_map(|text| Some(Event::Failed(JobError::Engine(text)))),
        1 => Just(None),
    ]
}

fn events(parts: &[Part], end: Option<Event>) -> Vec<Event> {
    let mut events = vec![Event::Queued { position: 0 }];
    let mut calls = 0;
    for part in parts {
        match part {
            Part::Reasoning(pieces) => {
                events.extend(pieces.iter().map(|text| support::reasoning(text)))
            }
            Part::Text(pieces, with) => events.extend(pieces.iter().map(|text| {
                let logprobs = if *with { vec![logprob(text)] } else { Vec::new() };
                Event::Text(Piece { text: text.clone(), logprobs })
            })),
            Part::Call(pieces) => {
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                events.extend(call(calls, "write", &pieces));
                calls += 1;
            }
            Part::Progress(processed) => events.push(progress(*processed, 12, 0, Some(1))),
        }
    }
    events.extend(end);
    events
}

type Client = (&'static str, Value, fn(&str) -> Outcome, fn(&Value) -> Value);

fn clients() -> [Client; 4] {
    let messages = json!([{ "role": "user", "content": "Go on." }]);
    [
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "logprobs": true, "return_progress": true,
                    "stream_options": { "include_usage": true } }),
            sse::chat,
            sse::chat_whole,
        ),
        ("/v1/responses", json!({ "input": "Go on." }), sse::responses, sse::responses_whole),
        (
            "/v1/responses",
            json!({ "input": "Go on.", "reasoning": { "summary": "auto" },
                    "include": ["message.output_text.logprobs"] }),
            sse::responses,
            sse::responses_whole,
        ),
        ("/v1/messages", json!({ "messages": messages }), sse::messages, sse::messages_whole),
    ]
}

#[test]
fn a_stream_is_the_whole_answer_in_pieces() {
    let worker = Scripted::new(Reply::Play(Vec::new()));
    let serving = Serving::start(worker.clone());
    let script = (prop::collection::vec(part(), 0..6), end());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) };
    proptest!(config, |((parts, end) in script)| {
            worker.set(Reply::Play(say(events(&parts, end.clone()))));
            let fails = !matches!(end, Some(Event::Finished(_)));
            for (path, mut request, stream, whole) in clients() {
                let answer = serving.post(path, &request);
                request["stream"] = true.into();
                let streamed = serving.post(path, &request);
                prop_assert!(streamed.complete && streamed.status == 200);
                let outcome = stream(&streamed.body);
                if fails {
                    prop_assert_eq!(answer.status, 500);
                    let error = outcome.expect_err("the stream fails as well");
                    prop_assert_eq!(&error["message"], &answer.json()["error"]["message"]);
                } else {
                    prop_assert_eq!(answer.status, 200);
    let whole = without_names(path, whole(&answer.json()), &streamed.body);
                    prop_assert_eq!(outcome.expect("the stream succeeds as well"), whole);
                }
            }
        });
}

/// Identifiers differ between two requests; those of the stream are put in the place of the whole answer's.
fn without_names(path: &str, whole: Value, streamed: &str) -> Value {
    if path == "/v1/chat/completions" {
        return whole;
    }
    let prefix = if path == "/v1/messages" { "msg_" } else { "resp_" };
    let id = |text: &str| {
        let at =
            text.find(&format!("\"id\":\"{prefix}")).expect("an identifier") + 6 + prefix.len();
        text[at..].split('"').next().unwrap().to_owned()
    };
    let streamed = id(streamed);
    // The identifier before: the server counts two for each request, one of them the request's own.
    let whole_id = format!("{:04}", streamed.parse::<u64>().unwrap() - 2);
    let text = whole.to_string();
    let names = ["rs_", "msg_"].iter().fold(text, |text, name| {
        text.replace(&format!("{name}{whole_id}"), &format!("{name}{streamed}"))
    });
    serde_json::from_str(&names).unwrap()
}
