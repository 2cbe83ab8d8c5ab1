//! The figures that routers, scalers and dashboards look for under vLLM's names.
//!
//! Names and meanings are those of vLLM's own page; colons in them are its choice. What a name means there and not here
//! is left out.

use engine::backend::PAGE_TOKENS;

use super::exposition::Exposition;
use crate::work::{ModelCard, Status};

/// Tokens that running requests hold, and those that there is room for.
pub(super) fn tokens_held(card: &ModelCard, status: &Status) -> (usize, usize) {
    let held = status.running.iter().map(|job| job.processed.min(job.prompt) + job.generated);
    (held.sum(), card.context * status.sequences)
}

pub(super) fn write(page: &mut Exposition, card: &ModelCard, status: &Status) {
    page.go_on_as("vllm:", Some(("model_name", card.id.clone())));
    let (held, room) = tokens_held(card, status);
    let blocks = (status.sequences * card.context.div_ceil(PAGE_TOKENS)).to_string();
    page.family("cache_config_info", "gauge", "Blocks of keys and values for running requests.");
    let block = PAGE_TOKENS.to_string();
    page.sample("cache_config_info", &[("block_size", &block), ("num_gpu_blocks", &blocks)], 1);
    let gauges = [
        ("num_requests_waiting", "Requests in the queue.", status.queued as f64),
        ("num_requests_running", "Requests with a sequence.", status.running.len() as f64),
        (
            "kv_cache_usage_perc",
            "Share of the room for running requests that they hold; kept prompts do not count.",
            held as f64 / room.max(1) as f64,
        ),
    ];
    for (name, help, value) in gauges {
        page.single(name, "gauge", help, value);
    }
    let prefix = &status.prefix;
    let asked = prefix.tokens_reused + prefix.tokens_computed;
    let counters = [
        ("prefix_cache_queries_total", "Prompt tokens that were looked for.", asked),
        ("prefix_cache_hits_total", "Prompt tokens that were found.", prefix.tokens_reused),
        ("prompt_tokens_total", "Prompt tokens.", asked),
        ("generation_tokens_total", "Tokens generated.", status.generated_tokens),
    ];
    for (name, help, value) in counters {
        page.single(name, "counter", help, value);
    }
    page.family("request_success_total", "counter", "Answers that were completed.");
    let count = |name: &str| status.finished.get(name).copied().unwrap_or(0);
    let stopped = count("stop") + count("stop_string") + count("tool_calls");
    for (reason, sum) in [("stop", stopped), ("length", count("length"))] {
        page.sample("request_success_total", &[("finished_reason", reason)], sum);
    }
    super::write_latencies(page, &status.measures);
}
