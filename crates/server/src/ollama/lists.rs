//! Models as ollama lists them: `/api/tags`, `/api/ps`, `/api/show`.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::calendar::rfc3339;
use crate::http::Answer;
use crate::registry::Models;
use crate::work::{Loading, ModelCard};

/// A name for the model's contents. What clients compare is only whether it is the same.
fn digest(card: &ModelCard) -> String {
    let text = format!("{} {} {} {}", card.id, card.family, card.bytes, card.vocabulary);
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn details(card: &ModelCard) -> Value {
    json!({
        "parent_model": "",
        "format": "safetensors",
        "family": card.family,
        "families": [card.family],
        "parameter_size": billions(card.parameters),
        "quantization_level": card.encoding,
    })
}

/// A number of weights as ollama writes it: `35.1B`, `44M`.
fn billions(parameters: u64) -> String {
    match parameters {
        0 => String::new(),
        1..1_000_000_000 => format!("{:.0}M", parameters as f64 / 1e6),
        _ => format!("{:.1}B", parameters as f64 / 1e9),
    }
}

fn entry(card: &ModelCard) -> Value {
    json!({
        "name": card.id,
        "model": card.id,
        "size": card.bytes,
        "digest": digest(card),
        "details": details(card),
    })
}

/// `/api/tags`: models that can be asked.
pub(crate) fn tags(models: &Models, started_s: u64) -> Response<Answer> {
    let models = models.views().into_iter().map(|view| {
        let mut model = entry(&view.loading.model());
        model["modified_at"] = rfc3339(started_s).into();
        model
    });
    let models: Vec<Value> = models.collect();
    Answer::json(StatusCode::OK, &json!({ "models": models }))
}

/// `/api/ps`: models that are loaded.
pub(crate) fn running(models: &Models) -> Response<Answer> {
    let models = models.workers().into_iter().map(|worker| {
        let card = worker.model();
        let mut model = entry(&card);
        // It stays until the server ends, or another needs its room.
        model["expires_at"] = "9999-12-31T23:59:59Z".into();
        model["size_vram"] = 0.into();
        model["context_length"] = card.context.into();
        model
    });
    let models: Vec<Value> = models.collect();
    Answer::json(StatusCode::OK, &json!({ "models": models }))
}

/// `/api/show`: a model; a server's only one whatever name is asked for.
pub(crate) fn show(loading: &Loading) -> Response<Answer> {
    let card = loading.model();
    let mut info = json!({
        "general.architecture": card.family,
        "general.basename": card.id,
        "general.parameter_count": card.parameters,
    });
    info[format!("{}.context_length", card.family)] = card.context.into();
    info[format!("{}.block_count", card.family)] = card.layers.into();
    info[format!("{}.expert_count", card.family)] = card.experts.into();
    info[format!("{}.expert_used_count", card.family)] = card.experts_per_token.into();
    let body = json!({
        "modelfile": "",
        "parameters": "",
        "template": card.chat_template,
        "details": details(&card),
        "model_info": info,
        "capabilities": ["completion", "tools", "thinking"],
    });
    Answer::json(StatusCode::OK, &body)
}
