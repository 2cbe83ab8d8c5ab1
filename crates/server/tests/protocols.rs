//! Requests over a socket: what is understood, what is refused and how, whole answers and streams.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use server::work::FinishReason;
use support::{Reply, Scripted, Serving, finish, reasoning, say, text};

fn hello() -> Reply {
    let mut steps = say([reasoning("Hm."), text("Hel"), text("lo.")]);
    steps.extend(say([finish(FinishReason::Stop)]));
    Reply::Play(steps)
}

fn chat(extra: Value) -> Value {
    merged(json!({ "model": "m", "messages": [{ "role": "user", "content": "one two" }] }), extra)
}

fn merged(mut body: Value, extra: Value) -> Value {
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn a_chat_completion_is_whole() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let response = serving.post("/v1/chat/completions", &chat(json!({})));
    assert_eq!(response.status, 200, "{}", response.body);
    let body = response.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "m");
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["content"], "Hello.");
    assert_eq!(choice["message"]["reasoning_content"], "Hm.");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(body["usage"]["total_tokens"], 17);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
    assert!(response.header("x-request-id").unwrap().starts_with("req_"));
    worker.assert_idle_within(Duration::from_secs(1));
}
