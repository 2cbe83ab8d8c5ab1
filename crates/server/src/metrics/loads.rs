//! `/v1/loads`, `/server_info`, `/model_info`: what routers of SGLang's line ask a server for.

use std::time::{SystemTime, UNIX_EPOCH};

use hyper::{Response, StatusCode};
use serde_json::json;

use super::vllm::tokens_held;
use crate::http::Answer;
use crate::work::Loading;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How much the server has to do: one rank, because it is one.
pub(crate) fn loads(loading: &Loading) -> Response<Answer> {
    let card = loading.model();
    let status = loading.worker().map(|worker| worker.status()).unwrap_or_default();
    let (held, room) = tokens_held(&card, &status);
    let prefix = &status.prefix;
    let asked = prefix.tokens_reused + prefix.tokens_computed;
    let (running, waiting) = (status.running.len(), status.queued);
    let load = json!({
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_total_reqs": running + waiting,
        "num_used_tokens": held,
        "max_total_num_tokens": room,
        "token_usage": held as f64 / room.max(1) as f64,
        "gen_throughput": status.decode_rate,
        "cache_hit_rate": prefix.tokens_reused as f64 / asked.max(1) as f64,
        "utilization": running as f64 / status.sequences.max(1) as f64,
        "max_running_requests": status.sequences,
    });
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let aggregate = json!({
        "total_running_reqs": running,
        "total_waiting_reqs": waiting,
        "total_reqs": running + waiting,
        "avg_token_usage": load["token_usage"],
        "avg_throughput": status.decode_rate,
        "avg_utilization": load["utilization"],
    });
    let body = json!({
        "timestamp": seconds,
        "version": VERSION,
        "dp_rank_count": 1,
        "loads": [load],
        "aggregate": aggregate,
    });
    Answer::json(StatusCode::OK, &body)
}

/// How the server was started.
pub(crate) fn server_info(loading: &Loading) -> Response<Answer> {
    let card = loading.model();
    let sequences = loading.worker().map_or(0, |worker| worker.status().sequences);
    let body = json!({
        "version": VERSION,
        "model_path": card.id,
        "served_model_name": card.id,
        "tp_size": 1,
        "dp_size": 1,
        "max_running_requests": sequences,
        "max_total_num_tokens": card.context * sequences,
        "context_length": card.context,
        "page_size": 256,
    });
    Answer::json(StatusCode::OK, &body)
}

/// What is served.
pub(crate) fn model_info(loading: &Loading) -> Response<Answer> {
    let card = loading.model();
    let body = json!({
        "model_path": card.id,
        "tokenizer_path": card.id,
        "is_generation": true,
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": card.family,
        "vocab_size": card.vocabulary,
        "max_context_length": card.context,
    });
    Answer::json(StatusCode::OK, &body)
}
