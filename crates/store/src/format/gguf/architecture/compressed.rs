//! The keys of `deepseek4`: several residual streams, attention over a window and compressed rows, experts by token.

use serde_json::{Map, json};

use super::latent::shortest;
use super::{Entries, stretched};
use crate::format::config::keys;
use crate::format::error::FormatError;
use crate::format::gguf::metadata::Metadata;

/// Ratios that are read: of all layers of the largest model, and of its drafts.
const RATIOS_MAX: u64 = 2048;

/// Takes the keys.
pub(super) fn enter(entries: &mut Entries<'_>) -> Result<(), FormatError> {
    let gating = entries.key("expert_gating_func");
    entries.metadata.required(&gating, Metadata::unsigned)?;
    entries.count(&keys::N_SHARED_EXPERTS, "expert_shared_count", true)?;
    entries.count(&keys::Q_LORA_RANK, "attention.q_lora_rank", true)?;
    entries.count(&keys::O_LORA_RANK, "attention.output_lora_rank", true)?;
    entries.count(&keys::O_GROUPS, "attention.output_group_count", true)?;
    entries.count(&keys::QK_ROPE_HEAD_DIM, "rope.dimension_count", true)?;
    entries.count(&keys::SLIDING_WINDOW, "attention.sliding_window", true)?;
    entries.count(&keys::INDEX_N_HEADS, "attention.indexer.head_count", true)?;
    entries.count(&keys::INDEX_HEAD_DIM, "attention.indexer.key_length", true)?;
    entries.count(&keys::INDEX_TOPK, "attention.indexer.top_k", true)?;
    entries.count(&keys::NUM_HASH_LAYERS, "hash_layer_count", true)?;
    entries.count(&keys::HC_MULT, "hyper_connection.count", true)?;
    entries.count(&keys::HC_SINKHORN_ITERS, "hyper_connection.sinkhorn_iterations", true)?;
    entries.number(&keys::HC_EPS, "hyper_connection.epsilon")?;
    entries.number(&keys::COMPRESS_ROPE_THETA, "attention.compress_rope_freq_base")?;
    entries.number(&keys::ROUTED_SCALING_FACTOR, "expert_weights_scale")?;
    let key = entries.key("expert_weights_norm");
    let normalised = entries.metadata.required(&key, Metadata::flag)?;
    entries.enter(&keys::NORM_TOPK_PROB, key, normalised.into());
    ratios(entries)?;
    limits(entries)?;
    // Stretching never changes magnitudes here.
    let mut rope = Map::new();
    rope.insert(keys::ROPE_ATTENTION_FACTOR.name().to_owned(), json!(1.0));
    stretched(entries, rope)
}

/// Tokens of a compressed row, by layer.
fn ratios(entries: &mut Entries<'_>) -> Result<(), FormatError> {
    let key = entries.key("attention.compress_ratios");
    let read = |metadata: &Metadata, key: &str| metadata.integers(key, RATIOS_MAX);
    let ratios = entries.metadata.required(&key, read)?;
    let ratios: Result<Vec<u64>, _> = ratios.into_iter().map(u64::try_from).collect();
    let Ok(ratios) = ratios else {
        return Err(entries.metadata.invalid(&key, "has an entry that is no count"));
    };
    entries.enter(&keys::COMPRESS_RATIOS, key, json!(ratios));
    Ok(())
}

/// What inputs of SwiGLU are clamped to: one number for all experts of all layers.
fn limits(entries: &mut Entries<'_>) -> Result<(), FormatError> {
    let (key, shared) = (entries.key("swiglu_clamp_exp"), entries.key("swiglu_clamp_shexp"));
    let limit = entries.metadata.required(&key, Metadata::number)?;
    let other = entries.metadata.number(&shared)?;
    if let Some(other) = other.filter(|&other| other != limit) {
        let found = format!("{other}, where routed experts have {limit}");
        return Err(entries.metadata.unsupported(&shared, found, "one limit for all is read"));
    }
    entries.enter(&keys::SWIGLU_LIMIT, key, shortest(limit));
    Ok(())
}
