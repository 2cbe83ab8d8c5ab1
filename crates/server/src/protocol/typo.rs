//! Unknown fields whose names are nearly a known one: `temprature`.
//!
//! Unknown fields are ignored, because clients send many that ask for nothing. One that differs from a known field by a
//! letter or two was meant to be that: its sender is told so in a header and the log, and the request is answered.

use serde_json::{Map, Value};

/// Fields of all protocols: what one knows is no slip in another.
const KNOWN: [&str; 71] = [
    "audio",
    "background",
    "best_of",
    "cache_prompt",
    "chat_template_kwargs",
    "client_metadata",
    "context",
    "context_management",
    "echo",
    "format",
    "frequency_penalty",
    "function_call",
    "functions",
    "images",
    "include",
    "input",
    "instructions",
    "keep_alive",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "min_p",
    "modalities",
    "model",
    "on_full",
    "options",
    "output_config",
    "parallel_tool_calls",
    "parse_special",
    "presence_penalty",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "raw",
    "reasoning",
    "reasoning_effort",
    "reasoning_format",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "return_progress",
    "safety_identifier",
    "seed",
    "service_tier",
    "session_id",
    "stop",
    "stop_sequences",
    "store",
    "stream",
    "stream_options",
    "suffix",
    "system",
    "temperature",
    "template",
    "text",
    "think",
    "thinking",
    "thinking_budget",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncate",
    "truncation",
    "user",
    "verbosity",
];
/// Fields that other servers know and that are near one of ours.
const ELSEWHERE: [&str; 4] = ["min_tokens", "prompt_logprobs", "top_a", "top_n"];
/// Shorter names differ by a letter from too many others.
const SHORTEST: usize = 4;
const LONGEST: usize = 32;
/// Fields of a body that are looked at.
const LOOKED_AT: usize = 100;

/// What is said of the first field that is nearly a known one, if there is any.
pub(crate) fn near_miss(body: &Map<String, Value>) -> Option<String> {
    let unknown = body
        .keys()
        .take(LOOKED_AT)
        .filter(|name| !KNOWN.contains(&name.as_str()) && !ELSEWHERE.contains(&name.as_str()));
    let mut plain = unknown.filter(|name| {
        (SHORTEST..=LONGEST).contains(&name.len()) && name.bytes().all(|it| it.is_ascii_graphic())
    });
    plain.find_map(|name| {
        let most = if name.len() < 8 { 1 } else { 2 };
        let near = KNOWN.iter().filter(|known| known.len() >= SHORTEST);
        let (distance, known) =
            near.map(|known| (distance(name.as_bytes(), known.as_bytes()), known)).min()?;
        (distance <= most)
            .then(|| format!("unknown field {name} was ignored; did you mean {known}?"))
    })
}

/// Letters to change, insert, remove or swap with their neighbour to get from one word to another.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, &letter) in one.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, &wanted) in other.iter().enumerate() {
            let mut least = (last[column] + usize::from(letter != wanted))
                .min(last[column + 1] + 1)
                .min(line[column] + 1);
            let swapped =
                row > 0 && column > 0 && letter == other[column - 1] && one[row - 1] == wanted;
            if swapped {
                least = least.min(before[column - 1] + 1);
            }
            line.push(least);
        }
        before = std::mem::replace(&mut last, line);
    }
    last[other.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn slips_are_told_from_fields_of_others() {
        let miss = |body: Value| near_miss(body.as_object().unwrap());
        for (slip, meant) in [
            ("temprature", "temperature"),
            ("max_token", "max_tokens"),
            ("steam", "stream"),
            ("repition_penalty", "repetition_penalty"),
            ("mesages", "messages"),
            ("sotp", "stop"),
        ] {
            let found = miss(json!({ "model": "m", slip: 1 })).unwrap();
            assert!(
                found.contains(&format!("{slip} was ignored; did you mean {meant}?")),
                "{found}"
            );
        }
        for other in [
            "top_a",
            "min_tokens",
            "betas",
            "guided_json",
            "num_ctx",
            "x",
            "tепperature",
            "a b c d",
        ] {
            assert_eq!(miss(json!({ "model": "m", other: 1 })), None, "{other}");
        }
        assert!(KNOWN.is_sorted());
    }
}
