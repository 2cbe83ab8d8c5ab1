//! Figures that accompany an answer: how long its parts took, what was read for it.
//!
//! `timings` has the names of llama.cpp's server, which clients know; `x_io` is our own: it says whether the disk
//! was the reason.

use std::time::Duration;

use serde_json::{Value, json};

use crate::work::{Finish, TokenLogprob};

/// Tokens with their log-probabilities, as both of OpenAI's protocols write them.
pub(crate) fn logprob_entries(tokens: &[TokenLogprob]) -> Vec<Value> {
    let one = |token: &str, bytes: &[u8], logprob: f32| json!({ "token": token, "logprob": logprob, "bytes": bytes });
    let entry = |token: &TokenLogprob| {
        let mut entry = one(&token.token, &token.bytes, token.logprob);
        let top = token.top.iter().map(|top| one(&top.token, &top.bytes, top.logprob));
        entry["top_logprobs"] = top.collect();
        entry
    };
    tokens.iter().map(entry).collect()
}

/// `timings`: counts, milliseconds and tokens per second of prompt and answer; `dropped_turns` where turns
/// were left out.
pub fn timings_json(finish: &Finish) -> Value {
    let usage = &finish.usage;
    let computed = usage.prompt.saturating_sub(usage.cached);
    // The first token comes out of the prompt's last step.
    let decoded = usage.completion.saturating_sub(1);
    let mut timings = json!({
        "queued_ms": milliseconds(finish.timings.queued),
        "cache_n": usage.cached,
        "prompt_n": computed,
        "prompt_ms": milliseconds(finish.timings.prefill),
        "prompt_per_second": rate(computed as f64, finish.timings.prefill),
        "predicted_n": usage.completion,
        "predicted_ms": milliseconds(finish.timings.decode),
        "predicted_per_second": rate(decoded as f64, finish.timings.decode),
        "seed": finish.seed,
    });
    if finish.dropped_turns > 0 {
        timings["dropped_turns"] = finish.dropped_turns.into();
    }
    timings
}

/// `x_io`: experts found in memory and read, bytes, and the share of the time that computation waited.
pub fn experts_json(finish: &Finish) -> Value {
    let experts = &finish.experts;
    let asked = experts.hits + experts.misses;
    let ratio = |part: f64, whole: f64| if whole > 0.0 { rounded(part / whole) } else { 0.0 };
    json!({
        "expert_hits": experts.hits,
        "expert_misses": experts.misses,
        "hit_ratio": ratio(experts.hits as f64, asked as f64),
        "bytes_read": experts.bytes_read,
        "bytes_per_second": rate(experts.bytes_read as f64, experts.elapsed),
        "wait_ms": milliseconds(experts.wait),
        "wait_ratio": ratio(experts.wait.as_secs_f64(), experts.elapsed.as_secs_f64()),
    })
}

fn milliseconds(duration: Duration) -> f64 {
    rounded(duration.as_secs_f64() * 1e3)
}

fn rate(amount: f64, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { rounded(amount / duration.as_secs_f64()) }
}

/// To thousandths: more would be noise.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}
