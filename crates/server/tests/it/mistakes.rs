//! Goal: what a client got wrong is 400 with the name of the field, in every protocol and also where it shows only
//! while the answer is drawn; a message repeats no more than a short piece of what was sent, on one line. Method: the
//! demo model behind a server, requests that once were 500 or answered with a hundred kilobytes.

use crate::engine_support;
use crate::engine_support::served;
use crate::support;

use serde_json::{Map, Value, json};
use served::Served;
use server::ServeOptions;
use server::work::Worker;
use support::Response;

/// Longest error body of a mistake, whatever was sent.
const ERROR_BYTES_MAX: usize = 1_500;

/// Each protocol's request for an answer by a schema, and the name of its field.
fn asked(schema: &Value) -> [(&'static str, Value, &'static str); 3] {
    let message = json!([{ "role": "user", "content": "Go on." }]);
    [
        (
            "/v1/chat/completions",
            json!({ "messages": message, "max_tokens": 4, "response_format": {
                "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } }),
            "response_format.json_schema.schema",
        ),
        (
            "/v1/responses",
            json!({ "input": "Go on.", "max_output_tokens": 4,
                "text": { "format": { "type": "json_schema", "name": "x", "schema": schema } } }),
            "text.format.schema",
        ),
        (
            "/v1/messages",
            json!({ "messages": message, "max_tokens": 4,
                "output_config": { "format": { "type": "json_schema", "schema": schema } } }),
            "output_config.format.schema",
        ),
    ]
}

fn assert_refused(response: &Response, field: &str, sent: &str) {
    let start: String = sent.chars().take(200).collect();
    assert_eq!(response.status, 400, "{start}: {}", response.body);
    assert!(response.body.len() < ERROR_BYTES_MAX, "{start}: {} bytes", response.body.len());
    let error = &response.json()["error"];
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(field), "{start}: {message}");
    assert!(!message.contains(char::is_control), "{start}: {message:?}");
    // Anthropic's errors have no field for it.
    if let Some(param) = error.get("param").and_then(Value::as_str) {
        assert!(param.starts_with(field), "{start}: {param}");
    }
    assert_eq!(response.header("x-should-retry"), Some("false"), "{start}");
}

#[test]
fn schemas_without_an_end_are_mistakes_in_every_protocol() {
    let served = Served::start(ServeOptions::default());
    let schemas = [
        json!({ "$ref": "#" }),
        json!({ "$ref": "#/$defs/a", "$defs": {
            "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] }),
        json!({ "anyOf": [{ "$ref": "#" }, { "type": "string" }] }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/a" } },
            "required": ["a"], "additionalProperties": false, "$defs": {
            "a": { "oneOf": [{ "$ref": "#/$defs/a" }] } } }),
        json!({ "$ref": format!("#/{}", "x".repeat(100_000)) }),
    ];
    for schema in &schemas {
        for (path, body, field) in asked(schema) {
            assert_refused(&served.post(path, &body), field, &schema.to_string());
        }
        let tool = json!({ "type": "function", "function": { "name": "f", "parameters": {
            "type": "object", "properties": { "x": schema }, "required": ["x"],
            "$defs": schema.get("$defs").cloned().unwrap_or(json!({})) } } });
        let body = json!({ "messages": [{ "role": "user", "content": "Go on." }],
            "tools": [tool], "tool_choice": "required", "max_tokens": 4 });
        let forced = served.post("/v1/chat/completions", &body);
        assert!(forced.status == 200 || forced.status == 400, "{}", forced.body);
    }
    // Recursion that can end is none of these.
    let list = json!({ "type": "object", "properties": { "next": { "$ref": "#" } } });
    for (path, body, _) in asked(&list) {
        assert_eq!(served.post(path, &body).status, 200, "{path}");
    }
}

fn ban(tokens: impl Iterator<Item = usize>) -> Value {
    let biases: Map<String, Value> = tokens.map(|id| (id.to_string(), json!(-100))).collect();
    Value::Object(biases)
}

#[test]
fn biases_that_leave_no_token_are_mistakes() {
    let served = Served::start(ServeOptions::default());
    let message = json!([{ "role": "user", "content": "Go on." }]);
    // The card of the test's worker does not tell the vocabulary, so this shows only when a token is drawn.
    let rows = engine_support::vocabulary();
    let all = json!({ "messages": message, "max_tokens": 4, "logit_bias": ban(0..rows) });
    assert_refused(&served.post("/v1/chat/completions", &all), "logit_bias", "all tokens");
    // All that may begin a JSON object: the constraint and the biases together leave nothing.
    let format = json!({ "type": "json_object" });
    let both = json!({ "messages": message, "max_tokens": 4, "logit_bias": ban(0..rows - 1),
        "response_format": format });
    assert_refused(&served.post("/v1/chat/completions", &both), "logit_bias", "with a constraint");
    // In a stream it is the last event, with the same type.
    let mut streamed = all.clone();
    streamed["stream"] = true.into();
    let events = served.post("/v1/chat/completions", &streamed);
    assert!(events.complete && events.body.contains("invalid_request_error"), "{}", events.body);
    assert!(events.body.contains("logit_bias"), "{}", events.body);
    assert_eq!(served.get("/health").status, 200, "a client's mistake is no failure");
    assert!(served.worker.status().failing.is_none());
}

#[test]
fn messages_repeat_a_short_piece_on_one_line() {
    let served = Served::start(ServeOptions::default());
    for long in ["x".repeat(100_000), "\u{1b}[31m\r\n\u{202e}".repeat(10_000)] {
        let user = json!([{ "role": "user", "content": "Go on." }]);
        let chat = [
            json!({ "messages": [{ "role": long, "content": "x" }] }),
            json!({ "messages": [{ "role": "user", "content": [{ "type": long }] }] }),
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "function": {
                "name": "f", "arguments": long } }] }] }),
            json!({ "messages": user, "tools": [{ "type": long }] }),
            json!({ "messages": user, "tools": [{ "type": "function", "function": { "name": long } }] }),
            json!({ "messages": user, "tool_choice": long }),
            json!({ "messages": user, "tool_choice": { "type": long } }),
            json!({ "messages": user, "tools": [{ "type": "function", "function": { "name": "f" } }],
                "tool_choice": { "type": "function", "function": { "name": long } } }),
            json!({ "messages": user, "response_format": { "type": long } }),
            json!({ "messages": user, "response_format": { "type": "json_schema", "json_schema": {
                "schema": { "type": long } } } }),
            json!({ "messages": user, "response_format": { "type": "json_schema", "json_schema": {
                "schema": { "type": "string", "pattern": format!("({long}") } } } }),
            json!({ "messages": user, "reasoning_effort": long }),
            json!({ "messages": user, "reasoning_format": long }),
            json!({ "messages": user, "logit_bias": { long.as_str(): 1 } }),
            json!({ "messages": user, "modalities": [long] }),
            json!({ "messages": user, "chat_template_kwargs": { "messages": long } }),
        ];
        let responses = [
            json!({ "input": [{ "type": long }] }),
            json!({ "input": [{ "role": long, "content": "x" }] }),
            json!({ "input": [{ "role": "user", "content": [{ "type": long }] }] }),
            json!({ "input": "x", "tool_choice": long }),
            json!({ "input": "x", "text": { "format": { "type": long } } }),
        ];
        let messages = [
            json!({ "messages": [{ "role": long, "content": "x" }] }),
            json!({ "messages": [{ "role": "user", "content": [{ "type": long }] }] }),
            json!({ "messages": user, "thinking": { "type": long } }),
            json!({ "messages": user, "tool_choice": { "type": long } }),
            json!({ "messages": user, "output_config": { "format": { "type": long } } }),
        ];
        let all = chat.iter().map(|body| ("/v1/chat/completions", body));
        let all = all.chain(responses.iter().map(|body| ("/v1/responses", body)));
        for (path, body) in all.chain(messages.iter().map(|body| ("/v1/messages", body))) {
            let response = served.post(path, body);
            let shape: String = body.to_string().chars().take(160).collect();
            assert_eq!(response.status, 400, "{path} {shape}: {}", response.body);
            let bytes = response.body.len();
            assert!(bytes < ERROR_BYTES_MAX, "{path} {shape}: an error of {bytes} bytes");
            let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(!message.contains(char::is_control), "{path} {shape}: {message:?}");
        }
    }
}
