//! What is served and how it is doing: `/v1/models`, `/health`, `/props`, `/slots`, `/version`.
//!
//! One object per model has the fields of OpenAI, of Anthropic, and those by which llama.cpp's and vLLM's clients
//! learn the context length. All of it comes from the worker's card and its latest status, so it is answered at
//! once, whatever the engine is doing. While the weights are being read the model is listed as loading, so that
//! `flashmoe launch` and clients can be set up, and `/health` is 503 with the percentage.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::calendar::rfc3339;
use crate::http::{Answer, ApiError, Phase};
use crate::registry::{Models, View};
use crate::work::{Failing, ModelCard, RunningJob, Status, Worker};

fn view_json(view: &View, started_s: u64) -> Value {
    let card = view.loading.model();
    let mut model = json!({
        "id": card.id,
        "object": "model",
        "type": "model",
        "display_name": card.id,
        "created": started_s,
        "created_at": rfc3339(started_s),
        "owned_by": "flashmoe",
        "context_length": card.context,
        "max_model_len": card.context,
        "meta": {
            "n_ctx": card.context,
            "n_ctx_train": card.context,
            "n_vocab": card.vocabulary,
            "size": card.bytes,
        },
        "architecture": {
            "family": card.family,
            "layers": card.layers,
            "experts": card.experts,
            "experts_per_token": card.experts_per_token,
            "input_modalities": ["text"],
            "output_modalities": ["text"],
        },
        "approximations": card.approximations,
        "status": { "value": view.state.name(), "percent": view.loading.percent() },
    });
    if view.failed {
        model["status"]["failed"] = true.into();
    }
    model
}

/// All models. Codex reads `models`, the others `data`.
pub(crate) fn list(models: &Models, started_s: u64) -> Response<Answer> {
    let views = models.views();
    let cards: Vec<ModelCard> = views.iter().map(|view| view.loading.model()).collect();
    let data: Vec<Value> = views.iter().map(|view| view_json(view, started_s)).collect();
    let slug = |card: &ModelCard| json!({ "slug": card.id, "id": card.id, "context_window": card.context });
    let body = json!({
        "object": "list",
        "data": data,
        "models": cards.iter().map(slug).collect::<Vec<_>>(),
        "first_id": cards.first().map(|card| &card.id),
        "last_id": cards.last().map(|card| &card.id),
        "has_more": false,
    });
    Answer::json(StatusCode::OK, &body)
}

/// One model.
pub(crate) fn one(models: &Models, id: &str, started_s: u64) -> Result<Response<Answer>, ApiError> {
    Ok(Answer::json(StatusCode::OK, &view_json(&models.exact(id)?, started_s)))
}

/// That the server answers, and how much it has to do; 503 with how far it is before it can do anything, and while
/// requests fail. Of several models, one that answers is enough.
pub(crate) fn health(models: &Models, phase: Phase) -> Response<Answer> {
    if phase != Phase::Open {
        let mut response = unavailable(&json!({ "status": "draining" }));
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    if let Some(percent) = models.starting() {
        return unavailable(&json!({ "status": "loading", "percent": percent }));
    }
    let views = models.views();
    let all: Vec<Status> = models.workers().iter().map(|worker| worker.status()).collect();
    let mut body = json!({
        "status": "ok",
        "running": all.iter().map(|status| status.running.len()).sum::<usize>(),
        "queued": all.iter().map(|status| status.queued).sum::<usize>(),
        "sequences": all.iter().map(|status| status.sequences).sum::<usize>(),
    });
    if views.len() > 1 {
        // Without a key: their names are not said.
        body["models"] = json!({ "all": views.len(), "loaded": all.len() });
    }
    let healthy = all.iter().any(|status| status.failing.is_none());
    let failing = all.iter().find_map(|status| status.failing).filter(|_| !healthy);
    let Some(failing) = failing else { return Answer::json(StatusCode::OK, &body) };
    body["status"] = "failing".into();
    // Without a key: nothing of files or requests.
    body["reason"] = match failing {
        Failing::LastJob => "the last request failed; the server's log says why",
        Failing::FileChanged => {
            "a file of the model changed while it was served; restart the server"
        }
        Failing::DeviceLost => "the GPU was lost; restart the server",
        Failing::StageLost => {
            "stage_lost: a part of the model is in a process that is lost; the server ends"
        }
        Failing::Broken => "the engine failed again and again; the server ends, restart it",
        Failing::Ended => "the engine's thread has ended; restart the server",
    }
    .into();
    Answer::json(StatusCode::SERVICE_UNAVAILABLE, &body)
}

fn unavailable(body: &Value) -> Response<Answer> {
    let mut response = Answer::json(StatusCode::SERVICE_UNAVAILABLE, body);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    response
}

/// That the process is worth keeping: it loads, or its engine's thread gave a sign of life within `silence`, be it from
/// the midst of a layer, and no request has been `preparing` for longer. 503 is for a supervisor to restart it.
pub(crate) fn live(models: &Models, preparing: Duration, silence: Duration) -> Response<Answer> {
    if let Some(percent) = models.starting() {
        return Answer::json(StatusCode::OK, &json!({ "status": "loading", "percent": percent }));
    }
    let silent = models.silence().max(preparing);
    // Of several models, one that has ended is loaded anew.
    let lost = |worker: &Arc<dyn Worker>| {
        matches!(
            worker.status().failing,
            Some(Failing::Broken | Failing::Ended | Failing::StageLost)
        )
    };
    let ended = models.only().and_then(|only| only.worker()).is_some_and(lost);
    let alive = silent <= silence && !ended;
    let status = if alive { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let word = match (alive, ended) {
        (true, _) => "alive",
        (false, true) => "ended",
        (false, false) => "stuck",
    };
    Answer::json(status, &json!({ "status": word, "silent_s": silent.as_secs_f64() }))
}

/// What requests are completed with.
pub(crate) fn props(worker: &dyn Worker) -> Response<Answer> {
    let card = worker.model();
    let sampling = &card.sampling;
    let body = json!({
        "model": card.id,
        "model_alias": card.id,
        "total_slots": worker.status().sequences,
        "default_generation_settings": {
            "n_ctx": card.context,
            "params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
                "repeat_penalty": sampling.repetition_penalty,
                "dry_multiplier": sampling.dry.multiplier,
                "dry_base": sampling.dry.base,
                "dry_allowed_length": sampling.dry.allowed_length,
                "dry_penalty_last_n": sampling.dry.window.map_or(-1, |last| last as i64),
                "dry_sequence_breakers": sampling.dry.breakers,
                "xtc_probability": sampling.xtc.probability,
                "xtc_threshold": sampling.xtc.threshold,
            },
        },
        "chat_template": card.chat_template,
        "bos_token": card.bos_token,
        "eos_token": card.eos_token,
        "modalities": { "vision": false, "audio": false },
        "approximations": card.approximations,
        "build_info": concat!("flashmoe ", env!("CARGO_PKG_VERSION")),
    });
    Answer::json(StatusCode::OK, &body)
}

/// What a client needs besides `/tokenize` and `/detokenize` to do without the tokenizer's files, in vLLM's words:
/// lm-evaluation-harness asks for it.
pub(crate) fn tokenizer_info(worker: &dyn Worker) -> Response<Answer> {
    let card = worker.model();
    let token = |text: String| if text.is_empty() { Value::Null } else { Value::String(text) };
    let (bos, eos) = (token(card.bos_token), token(card.eos_token));
    let body = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": card.context,
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": eos,
        "chat_template": token(card.chat_template),
    });
    Answer::json(StatusCode::OK, &body)
}

/// Sequences: those that hold a job, and idle ones.
pub(crate) fn slots(worker: &dyn Worker) -> Response<Answer> {
    let context = worker.context_length();
    let status = worker.status();
    let slot = |job: &RunningJob| {
        json!({
            "id": job.slot,
            "task": job.id,
            "n_ctx": context,
            "is_processing": true,
            "state": job.stage.name(),
            "n_prompt_tokens": job.prompt,
            "n_prompt_tokens_processed": job.processed,
            "n_prompt_tokens_cache": job.cached,
            "n_decoded": job.generated,
            "eta_s": job.eta.map(|eta| eta.as_secs_f64()),
        })
    };
    let idle = |slot: usize| {
        json!({
            "id": slot,
            "n_ctx": context,
            "is_processing": false,
            "state": "idle",
        })
    };
    let each = |id: usize| {
        let jobs: Vec<Value> =
            status.running.iter().filter(|job| job.slot == id).map(slot).collect();
        if jobs.is_empty() { vec![idle(id)] } else { jobs }
    };
    let slots: Value = (0..status.sequences).flat_map(each).collect();
    Answer::json(StatusCode::OK, &slots)
}

/// The program's version, as vLLM's routers and ollama's clients ask for it.
pub(crate) fn version() -> Response<Answer> {
    Answer::json(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") }))
}
