//! Transcripts: what every protocol sends for the same scripts, byte for byte.
//!
//! `support/transcripts.rs` says how they are written anew.

use crate::support;

use serde_json::json;
use server::work::{Event, FinishReason, JobError, Piece};
use support::transcripts::{self, HEARTBEAT, Scenario, scenario};
use support::{Step, call, finish, logprob, progress, reasoning, say, text};

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

#[test]
fn transcripts_are_as_they_were() {
    let count = transcripts::check("tests/golden", &scenarios);
    assert!(count >= 60, "only {count} transcripts");
}
